"""One measurement of each operator on each GPU under each runtime, where there are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from gkestimator.tables import QUALITIES

T = TypeVar("T")
Rank = tuple[int, bool, int, float]


def rank(quality: str, repeats: int | None, cv: float | None, *, counted: bool = False) -> Rank:
    """Smaller is better: ok before noisy before throttled, then with hardware counters (which take longest to measure),
    then more repeats, then less variation; unknown last."""
    return QUALITIES.index(quality), not counted, -(repeats or 0), math.inf if cv is None else cv


def best_of(
    found: Iterable[T], key: Callable[[T], Hashable], ranked: Callable[[T], Rank]
) -> tuple[list[T], dict[Hashable, Sequence[T]]]:
    """The best of each ``key`` in the order in which keys first came (the first of equals), and those passed over."""
    best: dict[Hashable, T] = {}
    passed: dict[Hashable, list[T]] = {}
    for one in found:
        name = key(one)
        before = best.get(name)
        if before is None:
            best[name] = one
        elif ranked(one) < ranked(before):
            best[name] = one
            passed.setdefault(name, []).append(before)
        else:
            passed.setdefault(name, []).append(one)
    return list(best.values()), dict(passed)
