"""Hold when a policy runs again, and what a change of plan costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen

KINDS = ("usher", "gpulet")
# Each is a step of the run: steps of a billionth of a second would never come to its end.
_STEPS = ("control_ms", "period_ms")
_ABOVE_ZERO = ("threshold_rps", "headroom", "floor_rps")
_FROM_ZERO = ("load_ms", "background_from_ms", "background_to_ms", "decision_ms", "gpu_start_ms")


@frozen
class Replanning:
    """Hold when the policy runs again and how the new plan takes over.

    Times in ms, rates in requests per second.

    Arrivals are counted over each ``control_ms``; nothing else is observed. ``usher``: the policy runs again
    once a model's rate (of the last ``control_ms``) has moved by ``threshold_rps`` since the last plan, for
    the rates of that count; each model that is new on a GPU is loaded in ``load_ms``, one after the other on
    one GPU. ``gpulet``: it runs every ``period_ms``, for the exponentially weighted moving average of the
    counts (``smoothing``: the weight of the newest); the new partitioning is prepared beside the running one,
    in a time drawn evenly between ``background_from_ms`` and ``background_to_ms`` for each change, and all is
    switched then.

    ``decision_ms``: how long the policy computes (the old plan serves on). ``gpu_start_ms``: until a GPU that
    was not in use can load. ``headroom``: factor on the rates that the policy is given. ``floor_rps``: a
    source is planned for as much at least, so that a model that nobody asked for lately keeps a replica.

    Sources: USHER (Shubha et al., OSDI 2024: 0.5k req/s, 0.63 s) and gpulet (Choi et al., USENIX ATC 2022: 20
    s, 10 to 15 s). The papers give no length of the count, no weight of the average and no order of loads on
    one GPU: those are our reading. Raises UsageError: an unknown kind, or a number out of its range.
    """

    kind: str
    control_ms: float = 1000.0
    threshold_rps: float = 500.0
    period_ms: float = 20_000.0
    smoothing: float = 0.2
    load_ms: float = 630.0
    background_from_ms: float = 10_000.0
    background_to_ms: float = 15_000.0
    decision_ms: float = 0.0
    gpu_start_ms: float = 0.0
    headroom: float = 1.0
    floor_rps: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"replan {self.kind!r} is not known, expected one of none, {', '.join(KINDS)}")
        for name in _STEPS:
            self._check(name, getattr(self, name) >= 1, "a number of 1 or more")
        for name in _ABOVE_ZERO:
            self._check(name, getattr(self, name) > 0, "a number above 0")
        for name in _FROM_ZERO:
            self._check(name, getattr(self, name) >= 0, "a number of 0 or more")
        self._check("smoothing", 0 < self.smoothing <= 1, "a number above 0, at most 1")
        low = self.background_from_ms
        high = self.background_to_ms
        self._check("background_to_ms", high >= low, f"background-from-ms, {low:g}, or more")

    def _check(self, name: str, holds: bool, expected: str) -> None:
        value = getattr(self, name)
        if not holds or not math.isfinite(value):
            raise UsageError(f"replan {name.replace('_', '-')}: found {value:g}, expected {expected}")


def replanning_from(kind: str, options: Mapping[str, Any]) -> Replanning:
    """Return the settings of ``kind`` with ``options`` by the names of the fields of :class:`Replanning`.

    Raises UsageError for another name, or a value that is not a number.
    """
    known = [f.name for f in fields(Replanning) if f.name != "kind"]
    for name, value in options.items():
        if name not in known:
            names = ", ".join(n.replace("_", "-") for n in known)
            raise UsageError(f"replan has no option {name.replace('_', '-')}; it has {names}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"replan {name.replace('_', '-')}: found {value!r}, expected a number")
    return Replanning(kind=kind, **{name: float(value) for name, value in options.items()})
