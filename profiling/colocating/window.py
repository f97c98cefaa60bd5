"""Which calls of two loops count, and what they say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from gkestimator.core.records import frozen
from gkestimator.profiling.colocating.process import WorkerError
from gkestimator.profiling.colocating.protocol import MOST_CALLS
from gkestimator.profiling.type_names import Floats, Ints, Members


@frozen
class Loop:
    """Hold calls that followed each other without a gap: when the first began and when each ended, in
    nanoseconds of a clock that all loops share."""

    first_ns: int
    ends_ns: Ints

    @property
    def last_ns(self) -> int:
        """Return the end of the last call."""
        return (self.first_ns, *self.ends_ns)[-1]


@frozen
class Times:
    """Hold median and 90th percentile of ``calls`` calls, in milliseconds."""

    calls: int
    median_ms: float
    p90_ms: float


def loop_of(answer: Members) -> Loop:
    """Return the loop that a worker tells of. Raises WorkerError for what is none."""
    first = answer.get("first_ns")
    ends = answer.get("ends_ns")
    if not isinstance(first, int) or not isinstance(ends, list) or not 1 <= len(ends) <= MOST_CALLS:
        raise WorkerError("tells no calls, expected first_ns and ends_ns")
    before = 0
    for end in ends:
        if not (_whole(first) and _whole(end) and end > before):
            raise WorkerError("tells calls that end before they begin")
        before = end
    return Loop(first_ns=first, ends_ns=tuple(first + end for end in ends))


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def side_by_side(loops: Sequence[Loop]) -> tuple[Floats, ...]:
    """Return for each loop the milliseconds of the calls that lie wholly within the time in which all loops
    ran.

    A call that began before another loop did, or ended after another had ended, had the GPU for itself a part
    of its time: it says how fast the model is with half a neighbour.
    """
    begin = max(loop.first_ns for loop in loops)
    end = min(loop.last_ns for loop in loops)
    durations = []
    for loop in loops:
        own = []
        for a, b in pairwise((loop.first_ns, *loop.ends_ns)):
            if a >= begin and b <= end:
                own.append((b - a) / 1e6)
        durations.append(tuple(own))
    return tuple(durations)


NO_TIMES = Times(calls=0, median_ms=math.nan, p90_ms=math.nan)


def times(durations_ms: Sequence[float]) -> Times:
    """Return what the durations of calls say."""
    if not durations_ms:
        return NO_TIMES
    ordered = sorted(durations_ms)
    return Times(
        calls=len(ordered),
        median_ms=statistics.median(ordered),
        p90_ms=ordered[math.ceil(0.9 * len(ordered)) - 1],
    )
