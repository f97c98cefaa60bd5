"""The time of each repeat of an entry, from whoever saw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gkestimator.profiling.captures import Capture, EntryRange
from gkestimator.profiling.records import EntryRecord


def repeat_totals_us(record: EntryRecord, ranges: Sequence[EntryRange]) -> tuple[float, ...] | None:
    """Return the microseconds of each repeat: of its launches on the device where a collector saw them and
    their number divides evenly, else of the executor's own pieces, else what the host took. None where
    nothing tells."""
    for measured in ranges:
        launches, repeats = measured.launches, measured.repeats
        if launches and repeats > 1 and len(launches) % repeats == 0:
            each = len(launches) // repeats
            totals = []
            for start in range(0, len(launches), each):
                repeat = launches[start : start + each]
                totals.append(sum(launch.duration_ns for launch in repeat) / 1e3)
            return tuple(totals)
    if record.kernels:
        durations = [kernel.durations_us for kernel in record.kernels]
        lengths = set(map(len, durations))
        if len(lengths) == 1 and lengths.pop() > 1:
            return tuple(map(sum, zip(*durations, strict=True)))
    if record.host_us and len(record.host_us) > 1:
        return record.host_us
    return None


def ranges_of(capture: Capture | None) -> dict[str, list[EntryRange]]:
    """Return the ranges of a capture by entry."""
    by_entry: dict[str, list[EntryRange]] = defaultdict(list)
    if capture is not None:
        for measured in capture.ranges:
            by_entry[measured.entry_id].append(measured)
    return by_entry
