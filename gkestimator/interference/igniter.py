"""iGniter's law: scheduling delay, L2 contention, power and frequency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.interference.base import FEATURES, TERMS, Interference, alone_candidate, padded
from gkestimator.interference.igniter_coefficients import (
    IgniterCoefficients,
    load_of,
    read_coefficients,
    terms_of,
)
from gkestimator.interference.igniter_law import GpuTerms
from gkestimator.interference.laws import IGNITER
from gkestimator.tables import Requirement


class Igniter(Interference):
    """Slow by t_gpu beside the neighbours / t_gpu alone, of iGniter's latency model
    (:mod:`gkestimator.interference.igniter_law`; F. Xu et al., IEEE TPDS 2023, section 3).

    Its terms add up over the neighbours: their number (scheduling delay of each kernel), their L2
    utilisations, their powers. Without coefficients the table's columns stand for what they can, as in the
    policy: L2 contention alone. Power counts where that of every batch that runs is known; a clock never
    falls below ``laws.LEAST_CLOCK`` of the highest (the paper's line would reach 0)."""

    name = "igniter"
    code = IGNITER
    needs = ("l2_util_mean_pct",)

    def __init__(self, coefficients: IgniterCoefficients | None = None, gpus: Sequence[GpuSpec] = ()) -> None:
        """Take ``gpus``: the types that replicas run on. Raises UsageError: the coefficients lack one."""
        self._coefficients = coefficients
        self._terms = {spec.name: terms_of(spec, coefficients) for spec in gpus}

    @classmethod
    def made(cls, coefficients: Path | None, gpus: Sequence[GpuSpec]) -> Self:
        """Return the law; its file is the policy's (``examples/igniter-coefficients.toml``)."""
        return cls(None if coefficients is None else read_coefficients(coefficients), gpus)

    def features(self, row: Requirement) -> tuple[float, ...]:
        """Return the parts of its time that it is active and that its kernels are scheduled, kernels over its
        time (1/ms), alpha_cache, L2 utilisation (0 to 1), power (W), 1 where power is unknown; zeros. Raises
        UsageError naming a column that is null, or a GPU type that the model was not made for."""
        if row.gpu not in self._terms:
            known = ", ".join(self._terms) or "none"
            raise UsageError(
                f"interference igniter: found a row of {row.gpu}, expected a GPU type of: {known}"
            )
        gpu = self._terms[row.gpu]
        load = load_of(
            row.model,
            alone_candidate(row),
            gpu,
            self._coefficients,
            beside=True,
            asker=f"interference {self.name}",
        )
        assert load.cache_slowdown is not None and load.l2_util is not None  # load_of refuses where beside
        whole = load.active_ms + load.schedule_ms
        delayed = load.kernels is not None and gpu.schedule_ms_per_model is not None
        return padded(
            FEATURES,
            load.active_ms / whole,
            load.schedule_ms / whole,
            (load.kernels or 0.0) / whole if delayed else 0.0,
            load.cache_slowdown,
            load.l2_util,
            0.0 if load.power_w is None else load.power_w,
            float(load.power_w is None),
        )

    def terms(self, gpu: GpuSpec) -> tuple[float, ...]:
        """Return alpha_sch, beta_sch (ms), F (MHz), P, p_idle (W), alpha_f (MHz/W), 1 where power counts; a
        zero."""
        known: GpuTerms = self._terms.get(gpu.name) or terms_of(gpu, self._coefficients)
        delayed = known.schedule_ms_per_model is not None
        power = known.idle_power_w is not None and known.clock_mhz_per_w is not None
        return padded(
            TERMS,
            known.schedule_ms_per_model or 0.0,
            (known.schedule_offset_ms or 0.0) if delayed else 0.0,
            known.clock_mhz,
            known.power_limit_w,
            known.idle_power_w or 0.0,
            known.clock_mhz_per_w or 0.0,
            float(power),
        )
