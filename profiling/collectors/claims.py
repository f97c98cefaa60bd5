"""What no profiler can have seen: claims that contradict the child, the device or each other.

A collector's own checks say whether its capture is whole. These say whether it can be true, whoever wrote the
collector: a wrong unit is the usual mistake (microseconds taken for nanoseconds), and nothing later would
notice it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median

from gkestimator.profiling.captures import LAUNCH_KINDS, CapturedLaunch, EntryRange
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.type_names import NumberByName

# Clocks of host and device are brought together by the profiler; a launch may seem to begin this much too
# early.
_CLOCK_SKEW_NS = 1_000_000
# Launches of one stream follow each other. Programmatic dependent launches overlap their neighbours, hence
# not 1.
_MOST_BUSY = 4.0
# An empty kernel takes about a microsecond on every GPU.
_SHORTEST_KERNEL_NS = 100
# Between the child's clock and the profiler's, for the same calls: well above any overhead, well below
# 1000.
_MOST_APART = 30.0


def false_claim(
    claimed: EntryRange, *, timed: bool, on_cpu: bool, record: EntryRecord | None = None
) -> str | None:
    """Return in one line why ``claimed`` cannot be what happened; None where nothing speaks against it.

    ``timed``: the collector tells times on the clock of its ranges (one for counters tells positions instead);
    ``on_cpu``: the child ran there, so that no GPU was used; ``record``: what the child itself says of the entry.
    """
    for position, launch in enumerate(claimed.launches):
        problem = _impossible_launch(launch, on_cpu=on_cpu)
        if problem is not None:
            return f"launch {position} ({launch.name[:60]}): {problem}"
    if not timed:
        return None
    return _outside(claimed) or _wrong_unit(claimed) or _at_odds(claimed, record)


def _impossible_launch(launch: CapturedLaunch, *, on_cpu: bool) -> str | None:
    if launch.kind not in LAUNCH_KINDS:
        return f"found kind {launch.kind[:40]!r}, expected {', '.join(LAUNCH_KINDS)}"
    if on_cpu and launch.kind != "host":
        return f"found a {launch.kind} of a GPU, expected none: the entry ran on the CPU"
    if not math.isfinite(launch.start_ns):
        return f"found start {launch.start_ns}, expected nanoseconds"
    if not (math.isfinite(launch.duration_ns) and launch.duration_ns >= 0):
        return f"found a duration of {launch.duration_ns} ns, expected a number from 0"
    return _impossible_counter(launch.counters or {})


def _impossible_counter(counters: NumberByName) -> str | None:
    for name, value in counters.items():
        if not (math.isfinite(value) and value >= 0):
            return f"counter {name}: found {value}, expected a number from 0"
    return None


def _outside(claimed: EntryRange) -> str | None:
    """Return which launch lies outside of the range: the child waits for the device before the range ends."""
    span = claimed.end_ns - claimed.start_ns
    if span < 0:
        return f"the range ends {-span} ns before it begins"
    slack = max(_CLOCK_SKEW_NS, span)
    first = claimed.start_ns - slack
    last = claimed.end_ns + slack
    for position, launch in enumerate(claimed.launches):
        if not first <= launch.start_ns <= last:
            return f"launch {position} ({launch.name[:60]}) lies outside of the range that issued it"
    return None


def _wrong_unit(claimed: EntryRange) -> str | None:
    busy: dict[tuple[int | None, int | None], int] = defaultdict(int)
    for launch in claimed.launches:
        if not launch.in_graph:  # branches of a graph run side by side on what is told as one stream
            busy[launch.device, launch.stream] += launch.duration_ns
    span = claimed.end_ns - claimed.start_ns
    longest = max(busy.values(), default=0)
    if longest > _MOST_BUSY * span + _CLOCK_SKEW_NS:
        return f"launches of one stream take {longest:,} ns in a range of {span:,} ns: is the unit wrong?"
    kernels = [launch.duration_ns for launch in claimed.launches if launch.kind == "kernel"]
    if kernels and median(kernels) < _SHORTEST_KERNEL_NS:
        return (
            f"kernels take {median(kernels):g} ns in the median, less than an empty one: is the unit wrong?"
        )
    return None


def _at_odds(claimed: EntryRange, record: EntryRecord | None) -> str | None:
    if record is None or not record.elapsed_us or not record.repeats or not claimed.launches:
        return None
    told_ns = 1e3 * record.elapsed_us * record.repeats
    span = claimed.end_ns - claimed.start_ns
    # Clocks tick in steps and ranges have an overhead: what is shorter than either tells nothing of the unit.
    if span > _MOST_APART * told_ns + _CLOCK_SKEW_NS or told_ns > _MOST_APART * span + _CLOCK_SKEW_NS:
        return f"the range takes {span:,} ns, by the child's own clock {told_ns:,.0f} ns: is the unit wrong?"
    return None
