"""How much the repeats of an entry vary: one definition for the runner, which repeats noisy entries, and the builder,
which marks them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gkestimator.profiling.raw import EnvironmentSample
from gkestimator.profiling.records import EntryRecord

Judge: TypeAlias = Callable[[Sequence[EnvironmentSample], EntryRecord, float | None, bool], str]
"""Return the quality of a record from the samples, the record, its variation, and whether it ran on the CPU."""

_STAMP_US = 0.1
"""What the difference of two time stamps of CUPTI varies by itself."""
_NORMAL = 1.4826
"""Standard deviation over median absolute deviation of a normal law."""


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return standard deviation (of the sample) / mean; None for fewer than two values or a mean of 0."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    if mean > 0:
        return statistics.stdev(values) / mean
    return None


def robust_variation(values: Sequence[float]) -> float | None:
    """Return the same from the median absolute deviation, which a few interrupted repeats do not move, as
    they do not move the median that is kept; None for fewer than two values or a median of 0."""
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    if middle > 0:
        return _NORMAL * statistics.median(abs(v - middle) for v in values) / middle
    return None


def judged_variation(record: EntryRecord, totals_us: Sequence[float] | None) -> float | None:
    """Return what ``environment.judge`` is told of an entry. ``totals_us``: device time of each repeat. On
    the CPU, where the operating system interrupts repeats and runtimes' profilers count whole microseconds,
    the executor's own clock. Of a whole model in the latency pass the latencies.

    Robust in all cases: the median is what is kept, and of fifty calls of 2 us the first, whose code is in no cache,
    is enough for a coefficient of 20 %. On a GPU what time stamps vary by themselves is taken out: CUPTI's have tens of
    nanoseconds, which are percents of a short kernel."""
    if record.latency_us is not None:
        return robust_variation(record.latency_us)
    if record.kernels is not None and record.host_us:
        return robust_variation(record.host_us)
    spread = None if totals_us is None else robust_variation(totals_us)
    if spread is None or totals_us is None:
        return spread
    stamps = _STAMP_US / statistics.median(totals_us)
    return math.sqrt(max(0.0, spread * spread - stamps * stamps))
