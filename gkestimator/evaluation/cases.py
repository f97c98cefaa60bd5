"""Kernel measurements beside what was predicted for them, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.errors import TableError
from gkestimator.core.records import frozen
from gkestimator.evaluation.metrics import absolute_errors_pct
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.rows import TrainingRows

_ESTIMATE = "estimate:"


@frozen
class KernelCases:
    """One entry per measured kernel; times in microseconds.

    ``gpu, source, family, precision``: str arrays. ``measured_us``: as published, launch gap included;
    ``gap_us`` and ``hold_us`` as in :class:`TrainingRows`. ``low_us`` .. ``high_us``: the 90 % interval around
    ``estimates["estimator"]``; ``trained``: a regressor answered; ``in_range``: inside its training range.
    ``estimates``: GPU time by every method compared (``estimator``, ``roofline``, ``analytical``, ...).
    """

    gpu: np.ndarray
    source: np.ndarray
    family: np.ndarray
    precision: np.ndarray
    measured_us: np.ndarray
    gap_us: np.ndarray
    hold_us: np.ndarray
    low_us: np.ndarray
    high_us: np.ndarray
    trained: np.ndarray
    in_range: np.ndarray
    estimates: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.gpu)

    def as_measured_us(self, duration_us: np.ndarray) -> np.ndarray:
        """What the publisher's clock would have shown for kernels that take ``duration_us``."""
        return np.asarray(self.gap_us + np.maximum(duration_us, self.hold_us))

    def errors_pct(self, method: str = "estimator") -> np.ndarray:
        """Absolute percentage error of ``method`` per case, against the measurement as published."""
        return absolute_errors_pct(self.as_measured_us(self.estimates[method]), self.measured_us)

    @property
    def gpu_time_us(self) -> np.ndarray:
        """Measured GPU time without the launch; NaN where the launch hides it (:class:`TrainingRows`)."""
        shown = self.measured_us >= 1.15 * (self.gap_us + self.hold_us)
        return np.where(shown, self.measured_us - self.gap_us, np.nan)

    def where(
        self,
        *,
        family: str | None = None,
        source: str | None = None,
        gpu: str | None = None,
        precision: str | None = None,
        no_gpu: str | None = None,
    ) -> KernelCases:
        """The cases that match every word given; ``no_gpu`` leaves one GPU out."""
        mask = np.ones(len(self), dtype=bool)
        for column, word in (
            (self.family, family),
            (self.source, source),
            (self.gpu, gpu),
            (self.precision, precision),
        ):
            if word is not None:
                mask &= column == word
        if no_gpu is not None:
            mask &= self.gpu != no_gpu
        return self.take(mask)

    def take(self, index: np.ndarray) -> KernelCases:
        """The cases that ``index`` (integers or a mask) selects."""
        columns = {f.name: getattr(self, f.name)[index] for f in fields(KernelCases) if f.name != "estimates"}
        return KernelCases(**columns, estimates={name: v[index] for name, v in self.estimates.items()})

    def with_estimate(self, method: str, duration_us: np.ndarray) -> KernelCases:
        """The same cases with one more method's GPU times (NaN where it has none)."""
        if duration_us.shape != self.measured_us.shape:
            raise TableError(f"{method}: {duration_us.size} estimates for {len(self)} cases")
        return replace(self, estimates={**self.estimates, method: duration_us})

    @classmethod
    def concatenate(cls, parts: list[KernelCases]) -> KernelCases:
        """All cases of ``parts``; a method that one part lacks is NaN there. Raises TableError for no parts."""
        if not parts:
            raise TableError("no cases to join; expected at least one part")
        methods = dict.fromkeys(name for part in parts for name in part.estimates)
        columns = {
            f.name: np.concatenate([getattr(p, f.name) for p in parts])
            for f in fields(KernelCases)
            if f.name != "estimates"
        }
        estimates = {
            name: np.concatenate([p.estimates.get(name, np.full(len(p), np.nan)) for p in parts])
            for name in methods
        }
        return cls(**columns, estimates=estimates)

    def write(self, path: Path) -> None:
        """Save as a compressed ``.npz`` of plain arrays (texts as fixed-width strings)."""
        arrays = {f.name: getattr(self, f.name) for f in fields(KernelCases) if f.name != "estimates"}
        texts = {name: v.astype(str) if v.dtype == object else v for name, v in arrays.items()}
        with open(path, "wb") as file:
            np.savez_compressed(
                file, allow_pickle=False, **texts, **{_ESTIMATE + n: v for n, v in self.estimates.items()}
            )

    @classmethod
    def read(cls, path: Path) -> KernelCases:
        """What :meth:`write` saved."""
        with np.load(path, allow_pickle=False) as arrays:
            columns = {f.name: arrays[f.name] for f in fields(KernelCases) if f.name != "estimates"}
            estimates = {
                name.removeprefix(_ESTIMATE): arrays[name]
                for name in arrays.files
                if name.startswith(_ESTIMATE)
            }
        return cls(**columns, estimates=estimates)


def predict_cases(bundle: Bundle, rows: TrainingRows, gpus: Mapping[str, GpuSpec]) -> KernelCases:
    """Predict every row by ``bundle`` on its GPU (the path that ``gkest estimate`` takes), beside the roofline and
    the analytical model."""
    count = len(rows)
    columns = {
        name: np.full(count, np.nan) for name in ("low", "high", "estimator", "roofline", "analytical")
    }
    trained = np.zeros(count, dtype=bool)
    inside = np.zeros(count, dtype=bool)
    for name in np.unique(rows.gpu.astype(str)):
        at = np.flatnonzero(rows.gpu == name)
        table = rows.table.take(at)
        gpu = gpus[str(name)]
        answer = bundle.predict(table, gpu)
        columns["estimator"][at] = answer.duration_us
        columns["low"][at], columns["high"][at] = answer.low_us, answer.high_us
        trained[at], inside[at] = answer.trained, answer.in_range
        columns["roofline"][at] = roofline(table, gpu).roofline_us
        columns["analytical"][at] = analytical_duration_us(table, gpu)
    return KernelCases(
        gpu=rows.gpu.astype(str),
        source=rows.source.astype(str),
        family=rows.table.family.astype(str),
        precision=rows.table.precision.astype(str),
        measured_us=rows.measured_us,
        gap_us=rows.gap_us,
        hold_us=rows.hold_us,
        low_us=columns["low"],
        high_us=columns["high"],
        trained=trained,
        in_range=inside,
        estimates={name: columns[name] for name in ("estimator", "roofline", "analytical")},
    )
