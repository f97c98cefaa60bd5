"""How long entries take: what the plan expects, what chunks so far have shown, and when a child counts as hung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gkestimator.profiling.running.states import PendingPass
from gkestimator.profiling.running.supervise import Limits

# What an operator of which the plan does not know how long it takes is taken to need, until chunks show
# better.
UNKNOWN_S = 1.0
# The same of a pass of a whole model: a second or two to make its weights (some 400 MB a second), up to two
# seconds of calls that warm up, one to four of calls that count. Four or so share a chunk of 20 seconds,
# and a start of the runtime.
UNKNOWN_MODEL_S = 5.0
# What the plan expects of a whole model is for its latency and its timeline together; each makes the
# weights anew.
MODEL_PASSES = 2
# ncu runs each launch once for each group of counters, with memory saved and restored in between: an entry
# may take so many times as long.
COUNTERS_PATIENCE = 5
# A whole model may take so many times what the plan expects, where that is longer than an operator may
# take: a slow device is not a hung one. That is six times a pass: calls on a GPU that nobody has measured
# may take twice what was estimated, and its weights are made by a host of which the plan knows nothing.
MODEL_PATIENCE = 3
# No estimate of a plan, which may be a stranger's, makes the runner wait longer than this.
MOST_ENTRY_S = 3600.0
_WEIGHT = 0.3
_RANGE = (0.02, 50.0)


class Pace:
    """Expect how many seconds items take here. Whole models, operators and counters each have a pace of their
    own: weights to make and long calls there, launches of microseconds here, and of what the plan expects of
    a counted operator nearly all is for ncu."""

    def __init__(self) -> None:
        self._pace = dict.fromkeys(("models", "operators", "counters"), 1.0)

    def seconds(self, item: PendingPass) -> float:
        """Return the seconds that ``item`` is expected to take."""
        return self._pace[_kind(item)] * _planned_s(item)

    def learn(self, items: Sequence[PendingPass], working_s: float) -> None:
        """Learn that a chunk of ``items`` (all of one kind) took ``working_s``, without the time that starting and
        finishing take: else short chunks would look slow and get shorter."""
        low, high = _RANGE
        slower = min(high, max(low, working_s / sum(map(_planned_s, items))))
        kind = _kind(items[0])
        self._pace[kind] += _WEIGHT * (slower - self._pace[kind])


def _kind(item: PendingPass) -> str:
    if item.whole:
        return "models"
    return "counters" if item.pass_name == "counters" else "operators"


def _planned_s(item: PendingPass) -> float:
    planned = item.entry.estimated_s
    if planned is None:
        return UNKNOWN_MODEL_S if item.whole else UNKNOWN_S
    expected = planned
    if item.whole:
        expected = planned / MODEL_PASSES
    return max(expected, 1e-3)


def limits_of(items: Sequence[PendingPass], limits: Limits) -> Limits:
    """Return what a chunk of ``items`` is allowed: ``limits``, more for counters, and for whole models that
    are known to take long."""
    if items[0].pass_name == "counters":
        return replace(limits, entry_s=limits.entry_s * COUNTERS_PATIENCE)
    expected = max((i.entry.estimated_s or 0.0 for i in items if i.whole), default=0.0)
    return replace(limits, entry_s=max(limits.entry_s, min(MODEL_PATIENCE * expected, MOST_ENTRY_S)))
