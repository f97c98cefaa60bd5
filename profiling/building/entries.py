"""One operator as it was measured: its launches with one duration per repeat, and what the device did meanwhile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.profiling.captures import CapturedLaunch, EntryRange
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.raw import ChunkInfo, EnvironmentSample, RunInfo
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.type_names import Floats, NumberByName

RepeatedLaunches: TypeAlias = "tuple[RepeatedLaunch, ...]"

_COARSE_US = 10.0


@frozen
class RepeatedLaunch:
    """Hold one launch of every call of an operator. ``durations_us``: one per repeat. ``launch``: that of the first
    repeat, for its geometry and kind; None where the executor saw the operator only as a whole."""

    kind: str
    name: str | None
    durations_us: Floats
    launch: CapturedLaunch | None = None
    counters: NumberByName | None = None

    @property
    def duration_us(self) -> float:
        """Return the time of one repeat: :func:`typical`."""
        return typical(self.durations_us, kind=self.kind)


@frozen
class Measured:
    """Hold what was measured of one entry of a plan, once. ``origin``: the chunk, for people. ``cv``:
    standard deviation / mean of the repeats, None for one. ``power_w`` and ``tenants`` (other processes): of
    the device meanwhile, None where nothing told."""

    entry: PlanEntry
    record: EntryRecord
    chunk: ChunkInfo
    run: RunInfo
    origin: str
    cv: float | None
    quality: str
    power_w: float | None = None
    tenants: int | None = None


@frozen
class MeasuredEntry(Measured):
    """Hold the launches of one entry. ``entry_us``: device time of a call (all its launches), median over
    ``repeats``, of which ``cv`` is. ``calls``: how many calls ``launches`` are of; more than one for whole
    models alone, where the repeats were not alike."""

    launches: RepeatedLaunches
    entry_us: float
    repeats: int
    sm_clock_mhz: float | None = None
    calls: int = 1

    def first_repeat(self) -> EntryRange:
        """Return the launches of the first repeat as a range, for joining with a capture of counters."""
        launches = tuple(m.launch for m in self.launches if m.launch is not None)
        starts = [launch.start_ns for launch in launches]
        ends = [launch.start_ns + launch.duration_ns for launch in launches]
        return EntryRange(
            entry_id=self.entry.id,
            repeats=1,
            start_ns=min(starts, default=0),
            end_ns=max(ends, default=0),
            launches=launches,
        )


@frozen
class MeasuredLatency(Measured):
    """Hold the latencies of one whole model, its calls timed once without a profiler: ``record`` holds its memory.
    ``power_w``: mean of the samples taken during the repeats."""

    latency_us: Floats


def typical(values: Sequence[float], *, kind: str) -> float:
    """Return the median of the repeats. The pieces of a CPU executor come in whole microseconds (ONNX
    Runtime's profile), so below ten of them the mean, which resolves more."""
    middle = statistics.median(values)
    if kind == "host" and middle < _COARSE_US:
        return math.fsum(values) / len(values)
    return middle


def launches_of(repeats: Sequence[Sequence[CapturedLaunch]]) -> RepeatedLaunches:
    """Return the launches of a call from those of each repeat, which agree in number and order."""
    launches = []
    for same in zip(*repeats, strict=True):
        first = same[0]
        durations = tuple(launch.duration_ns / 1e3 for launch in same)
        launches.append(
            RepeatedLaunch(kind=first.kind, name=first.name, durations_us=durations, launch=first)
        )
    return tuple(launches)


def host_launches(record: EntryRecord) -> tuple[RepeatedLaunches, str | None]:
    """Return what a CPU executor's own profiler saw of an entry, and what is wrong with it.

    Without a profile the call as a whole is one piece without a name: on a CPU the host's time is the device's.
    A profile without a piece (the shape of an input, say) says that nothing ran.
    """
    if record.kernels is None:
        whole = record.host_us
        if not whole and record.elapsed_us is not None:
            whole = (record.elapsed_us,)
        if not whole:
            return (), "the executor recorded no time"
        return (RepeatedLaunch(kind="host", name=None, durations_us=whole),), None
    counts = sorted({len(k.durations_us) for k in record.kernels})
    if len(counts) > 1 or 0 in counts:
        return (), f"its pieces have {', '.join(map(str, counts))} durations, expected one per repeat"
    pieces = [RepeatedLaunch(kind="host", name=k.name, durations_us=k.durations_us) for k in record.kernels]
    return tuple(pieces), None


@frozen
class Meanwhile:
    """Hold the clock and the power of a device while an entry ran, and how many other processes were there;
    None where no sample tells."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    tenants: int | None = None


def meanwhile(samples: Sequence[EnvironmentSample]) -> Meanwhile:
    """Return means of clock and power, and the most tenants, of the samples that tell. An entry shorter than
    the interval between samples has its neighbours': those of an idle GPU, which lowers its clocks, tell
    nothing of it."""
    at_work = [s for s in samples if "gpu_idle" not in (s.throttled or ())]
    clocks = [s.sm_clock_mhz for s in at_work if s.sm_clock_mhz is not None]
    powers = [s.power_w for s in at_work if s.power_w is not None]
    tenants = [s.tenants for s in samples if s.tenants is not None]
    return Meanwhile(
        sm_clock_mhz=_mean(clocks),
        power_w=_mean(powers),
        tenants=max(tenants, default=None),
    )


def _mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return sum(values) / len(values)
