"""Clock, power and tenants while one entry ran, from the samples of its chunk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from gkestimator.profiling.raw import EnvironmentSample
from gkestimator.profiling.records import EntryRecord

__all__ = ["Meanwhile", "meanwhile", "samples_of"]

NEAR_NS = 500_000_000
"""Samples come every 0.2 s and many entries take less: one at most this far from an entry stands for it where none
was taken within."""


class Meanwhile(tuple[float | None, float | None, int | None]):
    """(SM clock in MHz, power in W, other processes); None where no sample tells."""

    __slots__ = ()


def samples_of(samples: Sequence[EnvironmentSample], record: EntryRecord) -> Sequence[EnvironmentSample]:
    """Those of ``samples`` (in order of time) that were taken while the entry ran; if none was, the nearest within
    half a second; else none."""
    start, end = record.started_unix_ns, record.ended_unix_ns
    if start is None or end is None or not samples:
        return ()
    times = [s.unix_ns for s in samples]
    first, last = bisect_left(times, start), bisect_right(times, end)
    if first < last:
        return samples[first:last]
    near = samples[max(0, first - 1) : first + 1]
    nearest = min(near, key=lambda s: max(start - s.unix_ns, s.unix_ns - end), default=None)
    if nearest is None or max(start - nearest.unix_ns, nearest.unix_ns - end) > NEAR_NS:
        return ()
    return (nearest,)


def meanwhile(samples: Sequence[EnvironmentSample]) -> Meanwhile:
    """Means of clock and power, and the most tenants, of the samples that tell."""
    clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
    powers = [s.power_w for s in samples if s.power_w is not None]
    tenants = [s.tenants for s in samples if s.tenants is not None]
    return Meanwhile(
        (
            sum(clocks) / len(clocks) if clocks else None,
            sum(powers) / len(powers) if powers else None,
            max(tenants) if tenants else None,
        )
    )
