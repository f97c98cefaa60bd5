"""Ranges of ours in traces: how their text reads, and which of them a launch belongs to.

That is the innermost range that holds the host's call that caused the launch, on the same thread. Ranges of one thread
nest, so a sweep with a stack answers all calls in one pass.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from gkestimator.core.errors import one_line
from gkestimator.core.escaping import is_line
from gkestimator.profiling.captures import NVTX_DOMAIN, CapturedLaunch, EntryRange

IndicesByThread: TypeAlias = "dict[Hashable, list[int]]"

Places: TypeAlias = "list[int | None]"

_MAX_NAME = 2**16
_LABEL = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,79})#([1-9][0-9]{0,8})", re.ASCII)


def looks_like_label(text: str) -> bool:
    """Return whether ``text`` would be one of ours if its domain were."""
    return _LABEL.fullmatch(text) is not None


def parse_label(text: str, *, domain: str | None) -> tuple[str, int] | None:
    """Return entry id and repeats of a range with ``text`` in ``domain`` (None: the tool has no domains, or
    the default one); None where the range is not ours."""
    prefix = f"{NVTX_DOMAIN}:"
    if text.startswith(prefix):
        text = text[len(prefix) :]
    elif domain != NVTX_DOMAIN:
        return None
    matched = _LABEL.fullmatch(text)
    if matched is None:
        return None
    return (matched[1], int(matched[2]))


def printable_name(name: str) -> str:
    """Return a kernel's name without control characters; whole up to 64 KiB (templates have some), then cut."""
    if is_line(name, _MAX_NAME):
        return name
    return one_line(name, limit=_MAX_NAME)


# Start and end in ns.
Span = tuple[int, int]
# What a trace tells of a device.
Facts = dict[str, str | int | float]
OUTSIDE = "outside the ranges of entries"


class LabelledRange(NamedTuple):
    """Hold a range of ours as a trace has it, in ns; ``end`` is None where it never ended."""

    entry_id: str
    repeats: int
    start: int
    end: int | None
    thread: Hashable


class HostCall(NamedTuple):
    """Hold a call of the host, in ns."""

    start: int
    end: int
    thread: Hashable


# Launches by the index of their range, each behind the two numbers that it is ordered by.
Placed = dict[int, list[tuple[int, int, CapturedLaunch]]]


def innermost(spans: Sequence[Span], calls: Sequence[Span]) -> Places:
    """Return for every call (start, end) of a thread the index of the span (start, end) of the same thread
    that started last among those that hold the call's start, both ends included; None where there is none.
    O(n log n)."""
    by_start = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1]))
    holding: Places = [None] * len(calls)
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
            holding[call] = stack[-1]
    return holding


def places_of(calls: Sequence[HostCall], ranges: Sequence[LabelledRange]) -> Places:
    """Return the index of the innermost range that holds the start of each call. A range without an end goes on for
    ever: what was launched in it must not count for the one around it."""
    for_ever = max(chain((c.end for c in calls), (r.start for r in ranges)), default=0)
    ranges_of: IndicesByThread = defaultdict(list)
    for i, each in enumerate(ranges):
        ranges_of[each.thread].append(i)
    calls_of: IndicesByThread = defaultdict(list)
    for i, call in enumerate(calls):
        calls_of[call.thread].append(i)
    places: Places = [None] * len(calls)
    for thread, called in calls_of.items():
        of_thread = ranges_of[thread]
        spans = []
        for i in of_thread:
            end = ranges[i].end
            spans.append((ranges[i].start, for_ever if end is None else end))
        holding = innermost(spans, [calls[i][:2] for i in called])
        for i, span in zip(called, holding, strict=True):
            if span is not None:
                places[i] = of_thread[span]
    return places


class Cause(NamedTuple):
    """Hold what is known of the calls that may have caused a launch: the range that all of them lie in (None: there is
    none, for ``reason``), and when the first began and the last ended."""

    place: int | None
    reason: str
    start_ns: int
    end_ns: int


class Causes:
    """Find the cause of launches; launches of one key have one, which is worked out once."""

    def __init__(self, calls: Sequence[HostCall], places: Sequence[int | None]) -> None:
        """Take the host's calls, and the range that each lies in."""
        self._calls = calls
        self._places = places
        self._known: dict[Hashable, Cause] = {}

    def of(self, key: Hashable, candidates: Sequence[int]) -> Cause:
        """Return the cause of launches with ``key``, whose calls have the indices ``candidates``."""
        cause = self._known.get(key)
        if cause is None:
            cause = self._known[key] = self._cause(candidates)
        return cause

    def _cause(self, candidates: Sequence[int]) -> Cause:
        distinct = {self._places[call] for call in candidates}
        if not distinct:
            return Cause(None, "without the host's call that caused it", 0, 0)
        start_ns = min(self._calls[call].start for call in candidates)
        end_ns = max(self._calls[call].end for call in candidates)
        if len(distinct) > 1:
            return Cause(None, "with several calls that may have caused it", start_ns, end_ns)
        return Cause(distinct.pop(), OUTSIDE, start_ns, end_ns)


def entry_ranges(ranges: Sequence[LabelledRange], placed: Placed) -> tuple[EntryRange, ...]:
    """Return the ranges that ended, with their launches in order."""
    entries = []
    for i, each in enumerate(ranges):
        if each.end is not None:
            launches = sorted(placed.get(i, ()), key=lambda launch: launch[:2])
            entries.append(
                EntryRange(
                    entry_id=each.entry_id,
                    repeats=each.repeats,
                    start_ns=each.start,
                    end_ns=each.end,
                    launches=tuple(launch for _, _, launch in launches),
                )
            )
    return tuple(entries)


def overlapping(spans: Iterable[Span]) -> int:
    """Return how many spans (start, end) begin before an earlier one has ended."""
    count = 0
    latest: int | None = None
    for start, end in sorted(spans):
        count += latest is not None and start < latest
        latest = end if latest is None else max(latest, end)
    return count


def tell_of_nested(ranges: Iterable[LabelledRange], problems: list[str]) -> None:
    """Say how many ranges lie within others."""
    threads: dict[Hashable, list[Span]] = defaultdict(list)
    for each in ranges:
        if each.end is not None:
            threads[each.thread].append((each.start, each.end))
    nested = sum(map(overlapping, threads.values()))
    if nested:
        problems.append(f"{nested} ranges of ours lie within others; a launch counts for the innermost")


def busiest_device(launches: Iterable[CapturedLaunch], problems: list[str]) -> int | None:
    """Return the number of the GPU that ran most launches, None where nothing tells; say if there are several."""
    used = Counter(launch.device for launch in launches if launch.device is not None)
    if len(used) > 1:
        numbers = ", ".join(map(str, sorted(used)))
        problems.append(f"launches on {len(used)} GPUs ({numbers}); facts are the busiest's")
    return max(used, key=used.__getitem__, default=None)
