"""Calculate the board's mean power over inferences that follow one another, and the energy of one.

Power is that of the kernels, weighted by their time, and of the idle board while it waits for its host. Kernels that
nobody measured count from the least to the most that any measured kernel drew; an idle board draws from nothing to
that least. Where less than half of the GPU's time is of measured kernels, the power is unknown.
"""

from __future__ import annotations

import math

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.estimation.requirement import Measures
from gkestimator.estimation.timeline import LaunchProgram
from gkestimator.kernel_models.prediction import KernelPredictions

LEAST_KNOWN = 0.5
"""Share of the GPU's time that kernels of known power must take."""


@frozen
class Ranged:
    """Hold a figure and the ends of its 90 % interval."""

    value: float
    low: float
    high: float


@frozen
class ModelPower:
    """Hold the mean power in W and the energy of one inference of the batch in J."""

    watts: Ranged
    joules: Ranged


def model_power(
    program: LaunchProgram, predictions: KernelPredictions, measures: Measures, *, copy_ms: float = 0.0
) -> ModelPower | None:
    """Return power and energy of a program on one stream; None where they are unknown.

    ``copy_ms``: time beside the inference's in which nothing is calculated.
    """
    kernels = predictions.power
    gpu_ms = measures.gpu_ms
    latency_ms = measures.latency_ms + copy_ms
    if kernels is None or gpu_ms <= 0:
        return None
    spans = predictions.duration_us[program.kernel] * program.repeat
    known = np.isfinite(kernels.watts[program.kernel])
    share = float(spans[known].sum() / spans.sum())
    if share < LEAST_KNOWN:
        return None
    launched = program.kernel[known]
    weights = spans[known] / spans.sum()
    unknown = 1 - share
    least_w = kernels.least_w
    most_w = kernels.most_w
    working = Ranged(
        value=float(weights @ kernels.watts[launched]) + unknown * (least_w + most_w) / 2,
        low=float(weights @ kernels.low_w[launched]) + unknown * least_w,
        high=float(weights @ kernels.high_w[launched]) + unknown * most_w,
    )
    busy = _busy(measures, copy_ms)
    watts = Ranged(
        value=busy.value * working.value + (1 - busy.value) * least_w / 2,
        low=busy.low * working.low,
        high=busy.high * working.high + (1 - busy.high) * least_w,
    )
    return ModelPower(watts=watts, joules=_energy(watts, measures, latency_ms, copy_ms))


def _busy(measures: Measures, copy_ms: float) -> Ranged:
    """Return the share of the time in which the GPU works."""
    value = measures.gpu_ms / (measures.latency_ms + copy_ms)
    slow_host = max(measures.gpu_low_ms, measures.host_high_ms) + copy_ms
    fast_host = max(measures.gpu_high_ms, measures.host_low_ms) + copy_ms
    return Ranged(
        value=value,
        low=min(measures.gpu_low_ms / slow_host, value),
        high=max(measures.gpu_high_ms / fast_host, value),
    )


def _energy(watts: Ranged, measures: Measures, latency_ms: float, copy_ms: float) -> Ranged:
    """Return power times time; their errors have different causes, so their logarithms add in squares."""
    joules = watts.value * latency_ms / 1e3
    shortest_ms = measures.latency_low_ms + copy_ms
    longest_ms = measures.latency_high_ms + copy_ms
    down = math.hypot(_log_ratio(watts.value, watts.low), _log_ratio(latency_ms, shortest_ms))
    up = math.hypot(_log_ratio(watts.high, watts.value), _log_ratio(longest_ms, latency_ms))
    return Ranged(value=joules, low=joules * math.exp(-down), high=joules * math.exp(up))


def _log_ratio(larger: float, smaller: float) -> float:
    if smaller <= 0:
        return math.inf
    return math.log(larger / smaller)
