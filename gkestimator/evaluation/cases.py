"""Hold kernel measurements beside what was predicted for them, as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen
from gkestimator.evaluation.metrics import absolute_errors_pct
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.rows import TrainingRows, by_gpu

_ESTIMATE = "estimate:"


@frozen
class KernelCases:
    """Hold one entry per measured kernel; times in microseconds.

    ``gpu, source, family, precision``: str arrays. ``measured_us``: as published, launch gap included;
    ``gap_us`` (other kernels of the call included) and ``hold_us`` as in :class:`TrainingRows`. ``low_us`` ..
    ``high_us``: the 90 % interval around ``estimates["estimator"]``; ``trained``: a regressor answered;
    ``in_range``: inside its training range.
    ``estimates``: GPU time by every method compared (``estimator``, ``roofline``, ``analytical``, ...).
    """

    gpu: Array
    source: Array
    family: Array
    precision: Array
    measured_us: Array
    gap_us: Array
    hold_us: Array
    low_us: Array
    high_us: Array
    trained: Array
    in_range: Array
    estimates: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.gpu)

    def as_measured_us(self, duration_us: Array) -> Array:
        """Return what the publisher's clock would have shown for kernels that take ``duration_us``."""
        return np.asarray(self.gap_us + np.maximum(duration_us, self.hold_us))

    def errors_pct(self, method: str = "estimator") -> Array:
        """Return the absolute percentage error of ``method`` per case, against the measurement as published."""
        return absolute_errors_pct(self.as_measured_us(self.estimates[method]), self.measured_us)

    @property
    def gpu_time_us(self) -> Array:
        """Return the measured GPU time without the launch; NaN where the launch hides it
        (:class:`TrainingRows`).
        """
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
        """Return the cases that match every word given; ``no_gpu`` leaves one GPU out."""
        mask = np.ones(len(self), dtype=bool)
        words = {"family": family, "source": source, "gpu": gpu, "precision": precision}
        for name, word in words.items():
            if word is not None:
                mask &= getattr(self, name) == word
        if no_gpu is not None:
            mask &= self.gpu != no_gpu
        return self.take(mask)

    def take(self, index: Array) -> KernelCases:
        """Return the cases that ``index`` (integers or a mask) selects."""
        columns = {name: getattr(self, name)[index] for name in _COLUMNS}
        estimates = {method: times[index] for method, times in self.estimates.items()}
        return KernelCases(**columns, estimates=estimates)

    def with_estimate(self, method: str, duration_us: Array) -> KernelCases:
        """Return the same cases with one more method's GPU times (NaN where it has none)."""
        if duration_us.shape != self.measured_us.shape:
            raise TableError(f"{method}: {duration_us.size} estimates for {len(self)} cases")
        return replace(self, estimates={**self.estimates, method: duration_us})

    @classmethod
    def concatenate(cls, parts: list[KernelCases]) -> KernelCases:
        """Return all cases of ``parts``; a method that one part lacks is NaN there.

        Raises TableError for no parts.
        """
        if not parts:
            raise TableError("no cases to join; expected at least one part")
        methods = dict.fromkeys(name for part in parts for name in part.estimates)
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        estimates = {}
        for method in methods:
            times = [part.estimates.get(method, np.full(len(part), np.nan)) for part in parts]
            estimates[method] = np.concatenate(times)
        return cls(**columns, estimates=estimates)

    def write(self, path: Path) -> None:
        """Save as a compressed ``.npz`` of plain arrays (texts as fixed-width strings)."""
        arrays: dict[str, Any] = {_ESTIMATE + method: times for method, times in self.estimates.items()}
        for name in _COLUMNS:
            column = getattr(self, name)
            if column.dtype == object:
                column = column.astype(str)
            arrays[name] = column
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def read(cls, path: Path) -> KernelCases:
        """Return what :meth:`write` saved."""
        with np.load(path, allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in _COLUMNS}
            saved = [name for name in arrays.files if name.startswith(_ESTIMATE)]
            estimates = {name.removeprefix(_ESTIMATE): arrays[name] for name in saved}
        return cls(**columns, estimates=estimates)


_COLUMNS = tuple(field.name for field in fields(KernelCases) if field.name != "estimates")


def predict_cases(bundle: Bundle, rows: TrainingRows, gpus: GpuSpecs) -> KernelCases:
    """Predict every row by ``bundle`` on its GPU, as ``gkest estimate`` does.

    The roofline and the analytical model stand beside.
    """
    names = ("low", "high", "estimator", "roofline", "analytical")
    columns = {name: np.full(len(rows), np.nan) for name in names}
    trained = np.zeros(len(rows), dtype=bool)
    inside = np.zeros(len(rows), dtype=bool)
    for name, index in by_gpu(rows.gpu):
        table = rows.table.take(index)
        answer = bundle.predict(table, gpus[name])
        columns["estimator"][index] = answer.duration_us
        columns["low"][index] = answer.low_us
        columns["high"][index] = answer.high_us
        trained[index] = answer.trained
        inside[index] = answer.in_range
        columns["roofline"][index] = roofline(table, gpus[name]).roofline_us
        columns["analytical"][index] = analytical_duration_us(table, gpus[name])
    return KernelCases(
        gpu=rows.gpu.astype(str),
        source=rows.source.astype(str),
        family=rows.table.family.astype(str),
        precision=rows.table.precision.astype(str),
        measured_us=rows.measured_us,
        gap_us=rows.gap_us + rows.beside_us,
        hold_us=rows.hold_us,
        low_us=columns["low"],
        high_us=columns["high"],
        trained=trained,
        in_range=inside,
        estimates={name: columns[name] for name in names[2:]},
    )
