"""One operator as it was measured: its launches with one duration per repeat, and what the device did meanwhile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from gkestimator.core.records import frozen
from gkestimator.profiling.captures import CapturedLaunch, EntryRange
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.raw import ChunkInfo, EnvironmentSample, RunInfo
from gkestimator.profiling.records import EntryRecord

_COARSE_US = 10.0


@frozen
class RepeatedLaunch:
    """Hold one launch of every call of an operator. ``durations_us``: one per repeat. ``launch``: that of the first
    repeat, for its geometry and kind; None where the executor saw the operator only as a whole."""

    kind: str
    name: str | None
    durations_us: tuple[float, ...]
    launch: CapturedLaunch | None = None
    counters: Mapping[str, float] | None = None

    @property
    def duration_us(self) -> float:
        """Return the time of one repeat: :func:`typical`."""
        return typical(self.durations_us, kind=self.kind)


@frozen
class MeasuredEntry:
    """Hold one entry of a plan, measured once. ``entry_us``: device time of a call (all its launches), median
    over ``repeats``; ``cv``: standard deviation / mean of that time, None for one repeat. ``origin``: the
    chunk, for people. ``sm_clock_mhz``, ``power_w`` and ``tenants``: of the device meanwhile, None where
    nothing told. ``calls``: how many calls ``launches`` are of; more than one for whole models alone, where
    the repeats were not alike."""

    entry: PlanEntry
    record: EntryRecord
    chunk: ChunkInfo
    run: RunInfo
    origin: str
    launches: tuple[RepeatedLaunch, ...]
    entry_us: float
    cv: float | None
    repeats: int
    quality: str
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    tenants: int | None = None
    calls: int = 1

    def first_repeat(self) -> EntryRange:
        """Return the launches of the first repeat as a range, for joining with a capture of counters."""
        launches = tuple(m.launch for m in self.launches if m.launch is not None)
        ends = [launch.start_ns + launch.duration_ns for launch in launches]
        return EntryRange(
            entry_id=self.entry.id,
            repeats=1,
            start_ns=min((launch.start_ns for launch in launches), default=0),
            end_ns=max(ends, default=0),
            launches=launches,
        )


@frozen
class MeasuredLatency:
    """Hold one whole model, its calls timed once without a profiler: ``record`` holds ``latency_us`` and
    ``memory``. ``cv``: standard deviation / mean of the repeats, None for one. ``power_w``: mean of the
    samples taken during the repeats; ``tenants``: other processes on the device meanwhile. None where nothing
    told. ``origin``: the chunk, for people."""

    entry: PlanEntry
    record: EntryRecord
    chunk: ChunkInfo
    run: RunInfo
    origin: str
    latency_us: tuple[float, ...]
    cv: float | None
    quality: str
    power_w: float | None = None
    tenants: int | None = None


def typical(values: Sequence[float], *, kind: str) -> float:
    """Return the median of the repeats. The pieces of a CPU executor come in whole microseconds (ONNX
    Runtime's profile), so below ten of them the mean, which resolves more."""
    middle = statistics.median(values)
    if kind == "host" and middle < _COARSE_US:
        return math.fsum(values) / len(values)
    return middle


def launches_of(repeats: Sequence[Sequence[CapturedLaunch]]) -> tuple[RepeatedLaunch, ...]:
    """Return the launches of a call from those of each repeat, which agree in number and order."""
    return tuple(
        RepeatedLaunch(
            kind=same[0].kind,
            name=same[0].name,
            durations_us=tuple(launch.duration_ns / 1e3 for launch in same),
            launch=same[0],
        )
        for same in zip(*repeats, strict=True)
    )


def host_launches(record: EntryRecord) -> tuple[tuple[RepeatedLaunch, ...], str | None]:
    """Return what a CPU executor's own profiler saw of an entry, and what is wrong with it.

    Without a profile the call as a whole is one piece without a name: on a CPU the host's time is the device's.
    A profile without a piece (the shape of an input, say) says that nothing ran.
    """
    if record.kernels is None:
        whole = record.host_us or (() if record.elapsed_us is None else (record.elapsed_us,))
        if not whole:
            return (), "the executor recorded no time"
        return (RepeatedLaunch(kind="host", name=None, durations_us=whole),), None
    counts = {len(k.durations_us) for k in record.kernels}
    if counts - {0} != counts or len(counts) > 1:
        return (), f"its pieces have {', '.join(map(str, sorted(counts)))} durations, expected one per repeat"
    return tuple(
        RepeatedLaunch(kind="host", name=k.name, durations_us=k.durations_us) for k in record.kernels
    ), None


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
        sm_clock_mhz=sum(clocks) / len(clocks) if clocks else None,
        power_w=sum(powers) / len(powers) if powers else None,
        tenants=max(tenants, default=None),
    )
