"""Changes of a placement in which replicas take turns on a GPU, and what all changes share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from gkestimator.placement.gkest.menu import Menus
from gkestimator.placement.gkest.state import (
    Changes,
    GpuPattern,
    Members,
    NeedByModel,
    PatternMember,
    PlacementState,
    allowed,
    groups_of,
    pattern,
)
from gkestimator.placement.gkest.ways import Way, Ways
from gkestimator.placement.problem import FloatByIndex, Floats, IntRow

_MOST_TURNS = 4
# Cycles tried, as parts of the shortest objective; parts of the needs, where all of them
# do not fit; load of a turn's batch.
_CYCLES = (0.2, 0.33, 0.48)
_SCALES = (1.0, 0.7, 0.45, 0.25, 0.1)
_TURN_LOAD = 0.85
# The model that comes is tried with all of its need, and with a small part where the others leave it no more.
_WHOLE = (1.0,)
_WHOLE_OR_PART = (1.0, 0.2)


class TurnMoves:
    """Hold the state that changes are made for. ``wanted``: requests a second on time by model."""

    def __init__(self, state: PlacementState, wanted: Floats | None) -> None:
        self.state = state
        self.menus: Menus = state.menus
        self.ways = self.menus.ways
        self.asked = [m.rate_rps for m in self.menus.problem.models]
        if wanted is not None:
            self.wanted = list(wanted)
        else:
            self.wanted = self.asked
        self._ladders: dict[tuple[int, int, float], Ways] = {}

    def short(self, m: int) -> float:
        """Return the requests a second of ``m`` that are wanted on time and are not (below 0: more than
        enough)."""
        return self.wanted[m] - self.state.served[m]

    def lacks(self, m: int) -> float:
        """Return the requests a second of ``m`` that are wanted on time and are not, at least 0."""
        return max(self.short(m), 0.0)

    def needs_on(self, p: GpuPattern, *, growing: bool = False) -> FloatByIndex:
        """Return what the replicas of each model on ``p`` serve on time (requests a second).

        ``growing``: what the model lacks is added for each of its replicas."""
        needs: FloatByIndex = {}
        served = self.state.served
        for m, _, capacity in self.state.content(p):
            need = needs.get(m, 0.0) + served[m] * (capacity / max(self.state.capacity[m], 1e-12))
            if growing:
                need += self.lacks(m)
            needs[m] = need
        return needs

    def ladder(self, m: int, t: int, share: float = 100.0) -> Ways:
        """Return the ways of ``m`` on ``share`` of the SMs of type ``t``, by ascending batch."""
        key = (m, t, share)
        ladder = self._ladders.get(key)
        if ladder is None:
            ways = (w for w in self.menus.of[m].get(t, ()) if w.share_pct == share)
            ladder = self._ladders[key] = sorted(ways, key=lambda w: w.batch)
        return ladder

    def made(self, p: GpuPattern, members: Sequence[PatternMember]) -> Changes:
        """Yield the changes that put ``members`` on one GPU like ``p``, and on all of them."""
        q = pattern(p.type, members)
        count = self.state.counts.get(p, 0)
        if not count or q == p or not allowed(self.menus, q):
            return
        yield {p: -1, q: 1}
        if count > 1:
            yield {p: -count, q: count}

    def in_turns(self, p: GpuPattern, m: int | None = None) -> Changes:
        """Yield changes after which the models of ``p`` (and ``m``) take turns on the whole GPU; or only
        ``m`` and the replica that asks most of it, beside the others. Or what takes turns goes back to
        running side by side."""
        ways = self.ways
        if not self.menus.turns:
            return
        if any(ways[x.way].share_pct < 100 for x in p.members):
            if m is not None:
                yield from self._in_turns_confined(p, m)
            return
        needs = self.needs_on(p)
        if m is not None:
            needs[m] = needs.get(m, 0.0) + self.lacks(m)
        elif any(x.turn >= 0 for x in p.members):
            yield from self.made(p, [PatternMember(x.way) for x in p.members])
        if 2 <= len(needs) <= _MOST_TURNS:
            for members in self._turns(p.type, needs, m):
                yield from self.made(p, members)
        if m is not None:
            yield from self._in_turns_with_largest(p, m, needs)

    def _in_turns_with_largest(self, p: GpuPattern, m: int, needs: NeedByModel) -> Changes:
        """Yield changes after which ``m`` and the replica that asks most of ``p`` take turns beside the
        others."""
        ways = self.ways
        if len(p.members) < 2 or any(x.turn >= 0 for x in p.members):
            return
        largest = max(p.members, key=lambda x: (ways[x.way].part, x))
        model = ways[largest.way].model
        if model == m:
            return
        rest = without(p.members, largest)
        for members in self._turns(p.type, {model: needs[model], m: needs[m]}, m):
            yield from self.made(p, [*rest, *members])

    def _in_turns_confined(self, p: GpuPattern, m: int) -> Changes:
        """Yield changes after which ``m`` takes turns with what one of the shares of ``p`` holds."""
        ways = self.ways
        groups = groups_of(p)
        for at, group in enumerate(groups):
            if len(group) >= _MOST_TURNS or any(ways[x.way].model == m for x in group):
                continue
            needs = {m: self.lacks(m)} | self.needs_on(GpuPattern(p.type, tuple(group)))
            others = groups[:at] + groups[at + 1 :]
            rest = list(itertools.chain.from_iterable(others))
            free = 1 + max((x.turn for x in rest), default=-1)
            share = ways[group[0].way].share_pct
            for turns in self._turns(p.type, needs, m, share):
                joined = [PatternMember(x.way, free, x.cycle_ms) for x in turns]
                yield from self.made(p, rest + joined)

    def _turns(self, t: int, needs: NeedByModel, m: int | None, share: float = 100.0) -> Iterator[Members]:
        """Yield partitions of ``share`` of a GPU of type ``t`` in which the models of ``needs`` (requests a
        second) take turns: for a few cycles, each at the smallest batch that serves its need, or as much of
        it as the cycle allows; ``m`` also with a part of its need."""
        ladders = {x: self.ladder(x, t, share) for x in needs}
        if not all(ladders.values()):
            return
        objective = min(self.menus.model(x).slo_ms for x in needs)
        quickest = math.fsum(_quickest_ms(ladder) for ladder in ladders.values())
        seen: set[IntRow] = set()
        parts = _WHOLE if m is None else _WHOLE_OR_PART
        for cycle_part, part in itertools.product(_CYCLES, parts):
            cycle = cycle_part * objective
            if quickest > cycle:
                continue
            parts_of = dict.fromkeys(needs, 1.0)
            if m is not None:
                parts_of[m] = part
            tries = (self._within(cycle, ladders, needs, parts_of, scale) for scale in _SCALES)
            chosen = next(filter(None, tries), None)
            if chosen is None:
                continue
            numbers = tuple(w.number for w in chosen)
            if numbers not in seen:
                seen.add(numbers)
                cycle_ms = math.fsum(w.latency_ms for w in chosen)
                yield [PatternMember(number, 0, cycle_ms) for number in numbers]

    def _within(
        self,
        cycle_ms: float,
        ladders: Mapping[int, Sequence[Way]],
        needs: NeedByModel,
        parts: NeedByModel,
        scale: float,
    ) -> Ways | None:
        """Return for each model the smallest way that serves ``scale`` times its part of its need, or the
        largest that is in time; None where they do not fit into the cycle."""
        chosen = []
        busy = 0.0
        for m, ladder in ladders.items():
            batch = scale * parts[m] * needs[m] * cycle_ms / (1e3 * _TURN_LOAD)
            way = _largest_needed(ladder, self.menus.model(m).slo_ms - cycle_ms, batch)
            if way is None or busy + way.latency_ms > cycle_ms:
                return None
            busy += way.latency_ms
            chosen.append(way)
        return chosen

    def side_by_side(self, p: GpuPattern) -> Changes:
        """Yield changes that put the models of ``p``, of which some take turns, side by side: each at the
        smallest batch with capacity for what it is served, with some to spare."""
        served = {}
        for m, _, _ in self.state.content(p):
            own = sum(c for x, _, c in self.state.content(p) if x == m)
            served[m] = own / max(self.state.capacity[m], 1e-12), self.state.served[m]
        for spare in (1.1, 1.4, 2.0, 3.0):
            members = []
            for m, (part, rate) in served.items():
                needed = spare * part * rate
                way = next((w for w in self.ladder(m, p.type) if w.capacity_rps >= needed), None)
                if way is not None:
                    members.append(PatternMember(way.number))
            if len(members) == len(served):
                yield from self.made(p, members)

    def as_one(self, p: GpuPattern) -> Changes:
        """Yield changes to one replica, from the smallest batch up, for the several that a model has side by
        side on ``p``."""
        ways = self.ways
        for m in sorted({x[0] for x in self.state.content(p)}):
            own = [x for x in p.members if ways[x.way].model == m]
            if len(own) > 1 and all(x.turn < 0 and ways[x.way].share_pct >= 100 for x in own):
                rest = [x for x in p.members if ways[x.way].model != m]
                for way in self.ladder(m, p.type):
                    yield from self.made(p, [*rest, PatternMember(way.number)])


def _quickest_ms(ladder: Sequence[Way]) -> float:
    return min(way.latency_ms for way in ladder)


def _largest_needed(ladder: Sequence[Way], within_ms: float, batch: float) -> Way | None:
    """Return the smallest of at least ``batch`` within the time, or the largest that is."""
    last = None
    for way in ladder:
        if way.latency_ms <= within_ms:
            last = way
            if way.batch >= batch:
                break
    return last


def without(members: Sequence[PatternMember], x: PatternMember) -> Members:
    """Return ``members`` less one ``x``."""
    left = list(members)
    left.remove(x)
    return left
