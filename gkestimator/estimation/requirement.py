"""One model on one GPU: from kernel predictions and a timeline to the measures of the requirement table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.estimation.intervals import widen
from gkestimator.estimation.timeline import LaunchProgram, Timeline, concurrent_maxima, schedule
from gkestimator.kernel_models.prediction import KernelPredictions


@frozen
class Measures:
    """Time and compute of one inference (DESIGN section 4). Times in ms, utilisations in percent of the whole GPU.

    ``*_mean_pct`` is time-weighted over ``latency_ms``, host gaps included; ``sm_util_busy_mean_pct`` over kernel time
    alone. ``occupancy_max_pct`` is USHER's Creq. ``coverage_pct`` is the share of kernel time predicted inside the
    training range, ``trained_pct`` the share that any regressor answered. ``analytical_families`` maps the families
    that the analytical model answered to their share of kernel time in percent. ``source_us`` and
    ``occupancy_source_us``: kernel time by where its prediction is from, on GPUs that a bundle measured (else empty).
    """

    latency_ms: float
    latency_low_ms: float
    latency_high_ms: float
    gpu_ms: float
    host_ms: float
    occupancy_max_pct: float
    occupancy_mean_pct: float
    sm_util_max_pct: float
    sm_util_mean_pct: float
    sm_util_busy_mean_pct: float
    dram_util_mean_pct: float
    l2_util_mean_pct: float
    coverage_pct: float
    trained_pct: float
    kernels: int
    flops: int
    dram_bytes: int
    analytical_families: Mapping[str, float]
    source_us: Mapping[str, float]
    occupancy_source_us: Mapping[str, float]
    timeline: Timeline


def launch_values(program: LaunchProgram, column: np.ndarray) -> np.ndarray:
    """A per-distinct-kernel column as one value per launch."""
    values: np.ndarray = column[program.kernel]
    return values


def measure(
    program: LaunchProgram,
    predictions: KernelPredictions,
    *,
    flops: np.ndarray,
    dram_bytes: np.ndarray,
    families: np.ndarray,
    host_overhead_us: float,
    host_range_us: tuple[float, float],
    streams: int,
    tau_ms: float,
) -> Measures:
    """Measures of ``program``; every array is per distinct kernel, in the table's order.

    The interval of the whole is the timeline replayed with every kernel at its low and at its high end, both drawn in
    or out so that together they reach as far as the errors of the sum do (:mod:`gkestimator.estimation.intervals`),
    and with the host at the fast and at the slow end of ``host_range_us``, which holds ``host_overhead_us``.
    """
    duration = launch_values(program, predictions.duration_us)
    timeline = schedule(program, duration, host_overhead_us=host_overhead_us, streams=streams)
    half_width = np.log(launch_values(program, predictions.high_us) / np.maximum(duration, 1e-9))
    half_width = np.where(duration > 0, half_width, 0.0)
    in_range = launch_values(program, predictions.in_range)
    spans = duration * program.repeat
    up = widen(spans, program.kernel, half_width, in_range) * half_width
    down = up
    if (
        predictions.detail is not None
    ):  # measured alone: what a model adds to one kernel it adds to all of them
        alone = in_range & ~launch_values(program, predictions.detail.may_be_slower)
        up = widen(spans, program.kernel, half_width, alone) * half_width
        lowest = np.maximum(launch_values(program, predictions.low_us), 1e-9)
        lower = np.where(duration > 0, np.log(np.maximum(duration, 1e-9) / lowest), 0.0)
        down = widen(spans, program.kernel, lower, in_range) * lower
    ends = []
    for moved, host_us in zip((-down, up), host_range_us, strict=True):
        at = schedule(program, duration * np.exp(moved), host_overhead_us=host_us, streams=streams)
        ends.append(at.total_us)
    busy = timeline.busy_us
    occupancy = launch_values(program, predictions.occupancy_pct)
    sm_util = launch_values(program, predictions.sm_util_pct)
    total = _no_faster_than_full(timeline.total_us, spans, sm_util, streams)
    detail = predictions.detail
    highest = {"occupancy": occupancy, "sm_util": sm_util}
    if detail is not None:  # the largest launch of a measured call
        highest = {
            "occupancy": launch_values(program, detail.occupancy_peak_pct),
            "sm_util": launch_values(program, detail.sm_util_peak_pct),
        }
    peaks = concurrent_maxima(timeline, highest, tau_ms=tau_ms)

    def mean(values: np.ndarray, over: float) -> float:
        if over > 0:
            return float(np.dot(values, spans) / over)
        return float("nan")

    trained = launch_values(program, predictions.trained.astype(float))
    covered = trained * launch_values(program, predictions.in_range.astype(float))
    return Measures(
        latency_ms=total / 1e3,
        latency_low_ms=min(ends[0], total) / 1e3,
        latency_high_ms=max(ends[1], total) / 1e3,
        gpu_ms=busy / 1e3,
        host_ms=timeline.host_us / 1e3,
        occupancy_max_pct=float(np.minimum(100.0, peaks["occupancy"])),
        occupancy_mean_pct=mean(occupancy, total),
        sm_util_max_pct=float(np.minimum(100.0, peaks["sm_util"])),
        sm_util_mean_pct=mean(sm_util, total),
        sm_util_busy_mean_pct=mean(sm_util, busy),
        dram_util_mean_pct=mean(launch_values(program, predictions.dram_util_pct), total),
        l2_util_mean_pct=mean(launch_values(program, predictions.l2_util_pct), total),
        coverage_pct=100 * mean(covered, busy),
        trained_pct=100 * mean(trained, busy),
        kernels=program.launches
        if detail is None
        else int(np.dot(launch_values(program, detail.launches), program.repeat)),
        flops=int(np.dot(flops[program.kernel], program.repeat)),
        dram_bytes=int(np.dot(dram_bytes[program.kernel], program.repeat)),
        source_us={} if detail is None else _sums(launch_values(program, detail.source), spans),
        occupancy_source_us={}
        if detail is None
        else _sums(launch_values(program, detail.occupancy_source), spans),
        analytical_families=_shares(families[program.kernel], spans * (1 - trained), busy),
        timeline=timeline,
    )


def _no_faster_than_full(total: float, spans: np.ndarray, sm_util: np.ndarray, streams: int) -> float:
    """Overlapping kernels share the SMs: the whole takes at least its work on a GPU with every SM busy."""
    if streams <= 1:
        return total
    return max(total, float(np.nansum(spans * sm_util)) / 100)


def _sums(words: np.ndarray, spans: np.ndarray) -> dict[str, float]:
    return {word: float(spans[words == word].sum()) for word in sorted(set(words.tolist()))}


def _shares(families: np.ndarray, spans: np.ndarray, busy: float) -> dict[str, float]:
    if busy <= 0 or not spans.any():
        return {}
    names, inverse = np.unique(families.astype(str), return_inverse=True)
    sums = np.bincount(inverse, weights=spans)
    return {str(n): 100 * float(s) / busy for n, s in zip(names, sums, strict=True) if s > 0}
