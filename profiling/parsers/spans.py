"""Which range a call lies in: ranges of one thread nest, so a sweep with a stack answers all calls in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def innermost(spans: Sequence[tuple[int, int]], calls: Sequence[tuple[int, int]]) -> list[int | None]:
    """For every call (start, end) of a thread the index of the span (start, end) of the same thread that started last
    among those that hold the call's start, both ends included; None where there is none. O(n log n)."""
    by_start = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1]))
    found: list[int | None] = [None] * len(calls)
    stack: list[int] = []
    following = 0
    for call in sorted(range(len(calls)), key=lambda i: calls[i][0]):
        at = calls[call][0]
        while following < len(by_start) and spans[by_start[following]][0] <= at:
            stack.append(by_start[following])
            following += 1
        while stack and spans[stack[-1]][1] < at:
            stack.pop()
        if stack:
            found[call] = stack[-1]
    return found


def overlapping(spans: Iterable[tuple[int, int]]) -> int:
    """How many spans (start, end) begin before an earlier one has ended."""
    count = 0
    latest = None
    for start, end in sorted(spans):
        if latest is not None and start < latest:
            count += 1
        latest = end if latest is None else max(latest, end)
    return count
