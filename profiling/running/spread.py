"""The time of each repeat of an entry, from whoever saw it."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.profiling.captures import Capture, EntryRange
from gkestimator.profiling.records import EntryRecord


def repeat_totals_us(record: EntryRecord, ranges: Sequence[EntryRange]) -> tuple[float, ...] | None:
    """Time of each repeat: of its launches on the device where a collector saw them and their number divides evenly,
    else of the executor's own pieces, else what the host took. None where nothing tells."""
    for found in ranges:
        count = len(found.launches)
        if count and found.repeats > 1 and count % found.repeats == 0:
            each = count // found.repeats
            return tuple(
                sum(x.duration_ns for x in found.launches[i : i + each]) / 1e3 for i in range(0, count, each)
            )
    if record.kernels:
        lengths = {len(k.durations_us) for k in record.kernels}
        if len(lengths) == 1 and lengths.pop() > 1:
            return tuple(sum(each) for each in zip(*(k.durations_us for k in record.kernels), strict=True))
    if record.host_us and len(record.host_us) > 1:
        return record.host_us
    return None


def ranges_of(capture: Capture | None) -> dict[str, list[EntryRange]]:
    """The ranges of a capture by entry."""
    found: dict[str, list[EntryRange]] = {}
    for each in () if capture is None else capture.ranges:
        found.setdefault(each.entry_id, []).append(each)
    return found
