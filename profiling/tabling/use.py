"""What the launches of a whole model say of the GPU: how busy they kept it, and how many SMs and warps they
used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.estimation.timeline import TAU_MS, Timeline, concurrent_maxima
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import LONG_BLOCKS, occupancy, sm_utilisation_pct
from gkestimator.profiling.building.entries import RepeatedLaunch
from gkestimator.profiling.building.families import family_of
from gkestimator.profiling.building.rows import geometry_numbers, geometry_of


@frozen
class LaunchUse:
    """Hold measures of the requirement table (percent of the whole GPU) from launches. ``kernels``: launches
    of a call, copies and fills among them, as estimates count measured calls; None where the calls differ in
    number. ``busy_us``: their durations together, of one call. ``told``: launches whose geometry is known,
    and ``of`` how many kernels; the percentages are None unless all are."""

    kernels: int | None
    busy_us: float
    told: int
    of: int
    streams: int
    sm_util_max_pct: float | None = None
    sm_util_mean_pct: float | None = None
    sm_util_busy_mean_pct: float | None = None
    occupancy_max_pct: float | None = None
    occupancy_mean_pct: float | None = None


def launch_use(
    launches: Sequence[RepeatedLaunch], gpu: GpuSpec, *, latency_us: float, calls: int = 1
) -> LaunchUse:
    """Return the use of ``gpu`` by a call that takes ``latency_us``; ``launches`` (at least one) are those of
    ``calls`` calls.

    SM utilisation follows from each launch's grid, block, registers and shared memory
    (:func:`gkestimator.kernel_models.launch.sm_utilisation_pct`). Occupancy is no counter's: it is the
    theoretical one of the launch times what :func:`gkestimator.kernel_models.launch.occupancy` says is
    achieved of it, where a kernel's name tells whether its blocks are long. Copies and fills use no SM, as in
    estimates. Means weigh by duration; on one stream a call cannot be shorter than its launches, so where
    they took longer under the profiler the means are over their time.
    """
    duration = np.array([m.duration_us for m in launches])
    busy = float(duration.sum()) / calls
    streams, at = np.unique([_stream(m) for m in launches], return_inverse=True)
    kernels = [i for i, m in enumerate(launches) if m.kind == "kernel"]
    numbers = []
    for i in kernels:
        launch = launches[i].launch
        known = None if launch is None else geometry_numbers(launch)
        if known is not None:
            numbers.append(known)
    count, rest = divmod(len(launches), calls)
    per_call = None
    if not rest:
        per_call = count
    facts = LaunchUse(
        kernels=per_call,
        busy_us=busy,
        told=len(numbers),
        of=len(kernels),
        streams=len(streams),
    )
    if not kernels or len(numbers) < len(kernels) or busy <= 0:
        return facts
    used = np.zeros(len(launches))
    achieved = np.zeros(len(launches))
    geometry = geometry_of(numbers)
    streaming = np.array([family_of(launches[i].name, "kernel", ()) not in LONG_BLOCKS for i in kernels])
    used[kernels] = sm_utilisation_pct(geometry, gpu)
    achieved[kernels] = occupancy(geometry, gpu, streaming=streaming)[1]
    peaks = concurrent_maxima(
        _timeline(launches, at, busy), {"used": used, "achieved": achieved}, tau_ms=TAU_MS
    )
    over = max(latency_us, busy) if len(streams) == 1 else latency_us

    def mean(values: np.ndarray, time_us: float) -> float:
        return min(100.0, float(np.dot(values, duration)) / calls / time_us)

    return replace(
        facts,
        sm_util_max_pct=min(100.0, peaks["used"]),
        sm_util_mean_pct=mean(used, over),
        sm_util_busy_mean_pct=mean(used, busy),
        occupancy_max_pct=min(100.0, peaks["achieved"]),
        occupancy_mean_pct=mean(achieved, over),
    )


def _stream(measured: RepeatedLaunch) -> int:
    launch = measured.launch
    if launch is None or launch.stream is None:
        return 0
    return launch.stream


def _timeline(launches: Sequence[RepeatedLaunch], stream: np.ndarray, busy: float) -> Timeline:
    """Return the launches where the profiler saw them; only their order and overlap are used of it."""
    seen = [m.launch for m in launches]
    first = min((launch.start_ns for launch in seen if launch is not None), default=0)
    start = np.zeros(len(seen))
    end = np.zeros(len(seen))
    for i, launch in enumerate(seen):
        if launch is not None:
            start[i] = (launch.start_ns - first) / 1e3
            end[i] = start[i] + launch.duration_ns / 1e3
    return Timeline(
        start_us=start,
        end_us=end,
        stream=stream,
        total_us=float(end.max()),
        host_us=0.0,
        busy_us=busy,
    )
