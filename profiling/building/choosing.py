"""One measurement of each operator on each GPU under each runtime, where there are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from gkestimator.tables import QUALITIES, KernelMeasurement

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)
Rank = tuple[int, bool, int, float]
# (entry, GPU, runtime).
EntryKey = tuple[str, str, str]


def entry_key(row: KernelMeasurement) -> EntryKey:
    """Return what tells the operator call of a row from all others."""
    return row.entry_id, row.gpu, row.runtime


def entries_of(rows: Iterable[KernelMeasurement]) -> dict[EntryKey, list[KernelMeasurement]]:
    """Return the rows of each operator call in launch order."""
    groups: dict[EntryKey, list[KernelMeasurement]] = {}
    for row in rows:
        groups.setdefault(entry_key(row), []).append(row)
    for group in groups.values():
        group.sort(key=lambda r: r.kernel_index)
    return groups


def longest_of(group: Sequence[KernelMeasurement]) -> KernelMeasurement:
    """Return the row of the launch that took longest."""
    return max(group, key=lambda r: r.duration_us or 0.0)


def rank(quality: str, repeats: int | None, cv: float | None, *, counted: bool = False) -> Rank:
    """Return what is smaller for a better measurement: ok before noisy before throttled, then with hardware
    counters (which take longest to measure), then more repeats, then less variation; unknown last."""
    return QUALITIES.index(quality), not counted, -(repeats or 0), math.inf if cv is None else cv


def best_of(
    measured: Iterable[T], key: Callable[[T], Key], ranked: Callable[[T], Rank]
) -> tuple[list[T], dict[Key, list[T]]]:
    """Return the best of each ``key`` in the order in which keys first came (the first of equals), and those passed
    over."""
    best: dict[Key, T] = {}
    passed: dict[Key, list[T]] = {}
    for each in measured:
        name = key(each)
        if name not in best:
            best[name] = each
            continue
        worse = each
        if ranked(each) < ranked(best[name]):
            worse = best[name]
            best[name] = each
        passed.setdefault(name, []).append(worse)
    return list(best.values()), passed
