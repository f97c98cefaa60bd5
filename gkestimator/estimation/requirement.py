"""Measure one model on one GPU: from kernel predictions and a timeline to the measures of the requirement
table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import NamedNumbers, frozen
from gkestimator.estimation.intervals import widen
from gkestimator.estimation.timeline import LaunchProgram, Timeline, concurrent_maxima, schedule
from gkestimator.kernel_models.prediction import KernelPredictions


@frozen
class Measures:
    """Hold time and compute of one inference (DESIGN section 4).

    Times in ms, utilisations in percent of the whole GPU.

    ``gpu`` is the time that the GPU needs with an infinitely fast host, ``host`` what the host needs to issue all
    calls. The latency is no less than either, and no more than both together, in the estimate and at the upper
    ends; at the lower ends it is no less than either. ``*_mean_pct`` is time-weighted over ``latency_ms``, host
    gaps included; ``sm_util_busy_mean_pct`` over kernel time alone. ``occupancy_max_pct`` is USHER's Creq.
    ``coverage_pct`` is the share of kernel time predicted inside the training range, ``trained_pct`` the share
    that any regressor answered. ``analytical_families`` maps the families that the analytical model answered to
    their share of kernel time in percent. ``source_us`` and ``occupancy_source_us``: kernel time by where its
    prediction is from, on GPUs that a bundle measured (else empty).
    """

    latency_ms: float
    latency_low_ms: float
    latency_high_ms: float
    gpu_ms: float
    gpu_low_ms: float
    gpu_high_ms: float
    host_ms: float
    host_low_ms: float
    host_high_ms: float
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


def measure(
    program: LaunchProgram,
    predictions: KernelPredictions,
    *,
    flops: Array,
    dram_bytes: Array,
    families: Array,
    host_overhead_us: float,
    host_range_us: tuple[float, float],
    streams: int,
    tau_ms: float,
    allowed_pct: float = 100.0,
) -> Measures:
    """Return the measures of ``program``; every array is per distinct kernel, in the table's order. ``allowed_pct``:
    percent of the GPU's SMs that all streams together may use; below 100 the predictions are of that part.

    The interval of the whole is the timeline replayed with every kernel at its low and at its high end, both
    drawn in or out so that together they reach as far as the errors of the sum do
    (:mod:`gkestimator.estimation.intervals`), and with the host at the fast and at the slow end of
    ``host_range_us``, which holds ``host_overhead_us``.
    """
    row = program.kernel
    duration = predictions.duration_us[row]
    timeline = schedule(program, duration, host_overhead_us=host_overhead_us, streams=streams)
    spans = duration * program.repeat
    fastest, slowest = host_range_us
    down, up = reaches(program, predictions, duration, part=allowed_pct < 100)
    shortest = duration * np.exp(-down)
    if predictions.least_us is not None:
        # A measurement is not argued with: where it is faster than that, it stands.
        shortest = np.maximum(shortest, np.minimum(predictions.least_us[row], duration))
    longest = duration * np.exp(up)
    low = schedule(program, shortest, host_overhead_us=fastest, streams=streams)
    high = schedule(program, longest, host_overhead_us=slowest, streams=streams)
    busy = timeline.busy_us
    occupancy = predictions.occupancy_pct[row]
    sm_util = predictions.sm_util_pct[row]
    # Streams share one GPU: without this, two kernels that each fill it would take the time of one.
    used = _used_at_once(predictions, allowed_pct, streams)[row]
    total = max(timeline.total_us, _full_us(program, duration, used))
    total_low = max(low.total_us, _full_us(program, shortest, used))
    total_high = max(high.total_us, _full_us(program, longest, used))
    gpu_us = _without_host_us(program, duration, used, streams, at_most=total)
    gpu_low_us = _without_host_us(program, shortest, used, streams, at_most=total_low)
    gpu_high_us = _without_host_us(program, longest, used, streams, at_most=total_high)
    highest = {"occupancy": occupancy, "sm_util": sm_util}
    launches = program.launches
    source_us: NamedNumbers = {}
    occupancy_source_us: NamedNumbers = {}
    detail = predictions.detail
    if detail is not None:  # the largest launch of a measured call
        highest = {
            "occupancy": detail.occupancy_peak_pct[row],
            "sm_util": detail.sm_util_peak_pct[row],
        }
        launches = int(np.dot(detail.launches[row], program.repeat))
        source_us = _sums(detail.source[row], spans)
        occupancy_source_us = _sums(detail.occupancy_source[row], spans)
    peaks = concurrent_maxima(timeline, highest, tau_ms=tau_ms)

    def mean(values: Array, over: float) -> float:
        if over > 0:
            return float(np.dot(values, spans) / over)
        return float("nan")

    trained = predictions.trained[row].astype(float)
    covered = trained * predictions.in_range[row].astype(float)
    return Measures(
        latency_ms=total / 1e3,
        latency_low_ms=min(total_low, total) / 1e3,
        latency_high_ms=max(total_high, total) / 1e3,
        gpu_ms=gpu_us / 1e3,
        gpu_low_ms=min(gpu_low_us, gpu_us) / 1e3,
        gpu_high_ms=max(gpu_high_us, gpu_us) / 1e3,
        host_ms=timeline.host_us / 1e3,
        host_low_ms=min(low.host_us, timeline.host_us) / 1e3,
        host_high_ms=max(high.host_us, timeline.host_us) / 1e3,
        occupancy_max_pct=float(np.minimum(100.0, peaks["occupancy"])),
        occupancy_mean_pct=float(np.minimum(100.0, mean(occupancy, total))),
        sm_util_max_pct=float(np.minimum(allowed_pct, peaks["sm_util"])),
        sm_util_mean_pct=mean(sm_util, total),
        sm_util_busy_mean_pct=mean(sm_util, busy),
        dram_util_mean_pct=mean(predictions.dram_util_pct[row], total),
        l2_util_mean_pct=mean(predictions.l2_util_pct[row], total),
        coverage_pct=100 * mean(covered, busy),
        trained_pct=100 * mean(trained, busy),
        kernels=launches,
        flops=int(np.dot(flops[row], program.repeat)),
        dram_bytes=int(np.dot(dram_bytes[row], program.repeat)),
        source_us=source_us,
        occupancy_source_us=occupancy_source_us,
        analytical_families=_shares(families[row], spans * (1 - trained), busy),
        timeline=timeline,
    )


def reaches(
    program: LaunchProgram, predictions: KernelPredictions, duration: Array, *, part: bool = False
) -> tuple[Array, Array]:
    """Return how far every launch's log(time) goes down and up for the ends of the model's interval."""
    row = program.kernel
    spans = duration * program.repeat
    known = np.maximum(duration, 1e-9)
    half_width = np.where(duration > 0, np.log(predictions.high_us[row] / known), 0.0)
    in_range = predictions.in_range[row]
    detail = predictions.detail
    if detail is None:
        # No part of a GPU was measured: what is wrong with a slowdown is wrong for all kernels.
        learned = None if part else predictions.trained[row]
        up = widen(spans, row, half_width, in_range, learned) * half_width
        return up, up
    # Measured alone: what a model adds to one kernel it adds to all of them. The machine is the one that was measured.
    alone = in_range & ~detail.may_be_slower[row]
    up = widen(spans, row, half_width, alone, machine=0.0) * half_width
    lowest = np.maximum(predictions.low_us[row], 1e-9)
    lower = np.where(duration > 0, np.log(known / lowest), 0.0)
    return widen(spans, row, lower, in_range, machine=0.0) * lower, up


def _used_at_once(predictions: KernelPredictions, allowed_pct: float, streams: int) -> Array:
    """Return which share of each resource that streams share every kernel takes while it runs, 0 to 1: a row a kernel,
    with columns for SMs, DRAM and L2 bandwidth. On one stream nothing is shared, and what is unknown takes nothing.
    """
    sms = predictions.sm_util_pct / allowed_pct
    used = np.stack([sms, predictions.dram_util_pct / 100, predictions.l2_util_pct / 100], axis=1)
    if streams <= 1:
        return np.zeros_like(used)
    return np.nan_to_num(used)


def _full_us(program: LaunchProgram, duration: Array, used: Array) -> float:
    """Return the time of the work on a GPU whose scarcest resource is never idle."""
    return float((duration * program.repeat @ used).max(initial=0.0))


def _without_host_us(
    program: LaunchProgram, duration: Array, used: Array, streams: int, *, at_most: float
) -> float:
    """Return the time of the launches on a GPU that never waits for its host; on one stream it is their sum.

    ``at_most``: their time behind a host. Streams are handed out greedily, so that waiting for the host may even help.
    """
    if streams <= 1:
        return float(np.dot(duration, program.repeat))
    alone = schedule(program, duration, host_overhead_us=0.0, streams=streams)
    return min(max(alone.total_us, _full_us(program, duration, used)), at_most)


def _sums(words: Array, spans: Array) -> NamedNumbers:
    return {word: float(spans[words == word].sum()) for word in sorted(set(words.tolist()))}


def _shares(families: Array, spans: Array, busy: float) -> NamedNumbers:
    if busy <= 0 or not spans.any():
        return {}
    names, inverse = np.unique(families.astype(str), return_inverse=True)
    sums = np.bincount(inverse, weights=spans)
    return {str(n): 100 * float(s) / busy for n, s in zip(names, sums, strict=True) if s > 0}
