"""The changes of a placement that the search looks at: replicas more, elsewhere, at other batches or shares,
in turns."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from gkestimator.placement.contention import slowdowns
from gkestimator.placement.gkest.menu import MANY, Menus
from gkestimator.placement.gkest.state import (
    Change,
    Changes,
    GpuPattern,
    Members,
    PatternMember,
    PlacementState,
    allowed,
    groups_of,
    pattern,
)
from gkestimator.placement.gkest.turns import TurnMoves, without
from gkestimator.placement.gkest.ways import Way, Ways
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import FloatByIndex, Floats, Gpu

_MOST_COPIES = 8
_MOST_FULL = 10  # ways that a GPU is filled with for a try
_MOST_FULL_OF_MANY = 4
_MOST_MEMBERS = 10
_MOST_CONFINED = 5
# Intervals count as narrow up to this factor of the model's narrowest.
_NARROW = 1.25


def saturated(menus: Menus, m: int, t: int) -> tuple[float, GpuPattern] | None:
    """Return the GPU of type ``t`` filled with replicas of model ``m`` alone that serves the most on time,
    and how many requests a second that are; at a tie the fewest replicas, then the smallest batch. None: it
    has no way on that type."""
    best: tuple[float, GpuPattern] | None = None
    ways = sorted(
        menus.of[m].get(t, ()),
        key=lambda w: (-menus.rate(w) / max(w.part, (w.dram_pct or 0.0) / 100), w.number),
    )
    most = _MOST_FULL_OF_MANY if menus.many else _MOST_FULL
    for way in sorted(ways[:most], key=lambda w: (w.batch, w.number)):
        last = 0.0
        for copies in range(1, _MOST_COPIES + 1):
            p = pattern(t, [PatternMember(way.number)] * copies)
            if not allowed(menus, p):
                break
            slowdown = _slowdown(menus, way, copies)
            rate = copies * menus.serves(way.number, None, slowdown).rate_rps
            if rate <= last * (1 + 1e-3):
                break
            last = rate
            if best is None or rate > best[0] * (1 + 1e-3):
                best = (rate, p)
    return best


def _slowdown(menus: Menus, way: Way, copies: int) -> float:
    """Return the slowdown of each of ``copies`` alike on one GPU, all busy."""
    name = menus.model(way.model).name
    replica = Placed(gpu=Gpu(id="", type=way.candidate.gpu), model=name, candidate=way.candidate)
    return slowdowns([replica] * copies, [way.capacity_rps] * copies)[0] or 1.0


def whole_gpu_rates(menus: Menus) -> list[float]:
    """Return what each way serves as part of its model's :func:`saturated` GPU, 0 for ways that are not in
    it. Where objectives are tight this is nearer to what can be had than the rate of one replica without
    neighbours."""
    rates = [0.0] * len(menus.ways)
    for m, by_type in enumerate(menus.of):
        for t in by_type:
            full = saturated(menus, m, t)
            if full is not None:
                rate, p = full
                for x in p.members:
                    rates[x.way] = rate * menus.ways[x.way].part
    return rates


def narrow_rates(menus: Menus) -> list[float] | None:
    """Return what one replica of each way serves, 0 where its interval is not narrow; None where all are
    alike in that. The widest interval in use holds for all replicas of a model, so narrow ones alone may
    serve more."""
    narrow = [way.width <= _NARROW * menus.narrowest(way.model) for way in menus.ways]
    if all(narrow):
        return None
    return [menus.rate(way) if sure else 0.0 for way, sure in zip(menus.ways, narrow, strict=True)]


class Moves(TurnMoves):
    """Make changes of ``state``, all :func:`allowed`. ``wanted``: requests a second on time by model.
    ``narrow``: only ways whose interval is narrow are added."""

    def __init__(self, state: PlacementState, wanted: Floats | None) -> None:
        super().__init__(state, wanted)
        self.many = len(self.menus.of) > MANY
        self.narrow = False
        self._full: dict[tuple[int, int], tuple[float, GpuPattern] | None] = {}

    def places(self, m: int, wide: int) -> list[GpuPattern]:
        """Return GPUs on which ``m`` is worth a try, of each type: an empty one, the fullest ``wide`` that
        seem to have room, and the emptiest."""
        places: list[GpuPattern] = []
        counts = self.state.counts
        for t, ways in sorted(self.menus.of[m].items()):
            need = min(w.part / w.capacity_rps for w in ways) * self.lacks(m)
            room = [(1.0 - self.state.usage(p), p) for p in counts if p.type == t and p.members]
            fits = heapq.nsmallest(wide, (x for x in room if x[0] >= min(need, 0.999)))
            free = heapq.nlargest(wide, room)
            empty = GpuPattern(t)
            if empty in counts:
                places.append(empty)
            places += dict.fromkeys(p for _, p in (*fits, *free))
        return places

    def growth(self, m: int, places: Iterable[GpuPattern]) -> Changes:
        """Yield changes that add replicas of ``m`` to GPUs like ``places``."""
        need = self.lacks(m)
        for p in places:
            for way in self.additions(m, p, need):
                yield from self._added(p, way, need)
            if p.members:
                yield from self._together(p, m)
                yield from self.in_turns(p, m)
                yield from self._confined(p, m)
                continue
            full = None if self.many else self.full(m, p.type)
            if full is not None:
                yield {p: -1, full: 1}

    def full(self, m: int, t: int) -> GpuPattern | None:
        """Return the pattern of :func:`saturated`, worked out once."""
        full = self.full_with_rate(m, t)
        if full is None:
            return None
        return full[1]

    def full_with_rate(self, m: int, t: int) -> tuple[float, GpuPattern] | None:
        """Return what :func:`saturated` does, worked out once."""
        key = (m, t)
        if key not in self._full:
            self._full[key] = saturated(self.menus, m, t)
        return self._full[key]

    def _together(self, p: GpuPattern, m: int) -> Changes:
        """Yield changes to ``m`` beside the models of ``p``, one replica each, all at batches quick enough to
        share the GPU."""
        models = sorted({x[0] for x in self.state.content(p)} | {m})
        if not 2 <= len(models) <= 4:
            return
        for part in (0.5, 0.8):
            members = []
            for x in models:
                way = self._quick(x, p.type, part * self.menus.model(x).slo_ms / len(models))
                if way is not None:
                    members.append(PatternMember(way.number))
            if len(members) == len(models):
                yield from self.made(p, members)

    def _quick(self, m: int, t: int, within_ms: float) -> Way | None:
        """Return the way that gives most for its part of the GPU within the time; else the fastest."""
        ways = [w for w in self.menus.of[m].get(t, ()) if w.share_pct >= 100]
        fast = [w for w in ways if w.latency_ms <= within_ms]
        if fast:
            return max(fast, key=lambda w: (w.capacity_rps / w.part, -w.batch))
        return min(ways, key=lambda w: w.latency_ms, default=None)

    def additions(self, m: int, p: GpuPattern, need: float) -> Ways:
        """Return ways of ``m`` to try beside what ``p`` holds."""
        confined = 0.0
        for group in groups_of(p):
            # In an order of their own, the last of a partition's replicas speaks for its share.
            share = self.ways[group[-1].way].share_pct
            if share < 100:
                confined += share
        additions: Ways = []
        if confined == 0:
            additions += self.menus.best(m, p.type, need, most_share=100, confined=False)
        if not p.members or confined > 0:
            additions += self.menus.best(m, p.type, need, most_share=100 - confined, confined=True)
        if self.narrow:
            most = _NARROW * self.menus.narrowest(m)
            additions = [w for w in additions if w.width <= most]
        return additions

    def _added(self, p: GpuPattern, way: Way, need: float) -> Changes:
        rate = max(self.menus.serves(way.number, None, 1.0).rate_rps, 1e-12)
        most = 3 if rate < need else 1
        for copies in range(1, most + 1):
            q = pattern(p.type, [*p.members, *[PatternMember(way.number)] * copies])
            if not self._small_and_allowed(q):
                return
            many = min(self.state.counts.get(p, 0), max(1, int(need / (rate * copies))))
            yield {p: -many, q: many}

    def _small_and_allowed(self, p: GpuPattern) -> bool:
        return len(p.members) <= _MOST_MEMBERS and allowed(self.menus, p)

    def for_model(self, m: int) -> Changes:
        """Yield changes that give ``m`` more replicas, or some in the place of others."""
        places = self.places(m, 4)
        yield from self.growth(m, places)
        need = self.short(m)
        for p in places:
            for x in dict.fromkeys(p.members):
                if self.ways[x.way].model != m:
                    others = without(p.members, x)
                    for way in self.additions(m, pattern(p.type, others), need)[:3]:
                        yield from self.made(p, [*others, PatternMember(way.number)])
            full = None if self.many else self.full(m, p.type)
            if full is not None and p.members:
                yield from self.made(p, full.members)

    def around(self, p: GpuPattern) -> Changes:
        """Yield changes of one GPU like ``p``: replicas away, at another batch or share, elsewhere, in turns,
        all confined or none."""
        for x in dict.fromkeys(p.members):
            others = without(p.members, x)
            yield from self.made(p, others)
            if x.turn >= 0:
                continue
            for way in self._beside(self.ways[x.way]):
                yield from self.made(p, [*others, PatternMember(way.number)])
            yield from self._elsewhere(p, x, pattern(p.type, others))
        yield from self.in_turns(p)
        yield from self._confined(p)

    def _elsewhere(self, p: GpuPattern, x: PatternMember, left: GpuPattern) -> Changes:
        """Yield changes that move ``x`` from ``p``, of which ``left`` is left, to other GPUs."""
        m = self.ways[x.way].model
        for q in self.places(m, 2):
            if q == p:
                continue
            need = self.short(m) + self.ways[x.way].capacity_rps
            for way in self.additions(m, q, need)[:3]:
                grown = pattern(q.type, [*q.members, PatternMember(way.number)])
                if self._small_and_allowed(grown):
                    yield total((p, -1), (left, 1), (q, -1), (grown, 1))

    def _beside(self, way: Way) -> Ways:
        """Return the other ways of its model on its GPU type: a step in batch at its share, or in share at
        its batch."""
        ways = self.menus.of[way.model][way.type]
        alike = self.ladder(way.model, way.type, way.share_pct)
        if way not in alike:  # another policy's, which another way betters
            return [w for w in alike if way.batch / 4 <= w.batch <= 4 * way.batch]
        at = alike.index(way)
        beside = alike[max(0, at - 2) : at + 3]
        if way.share_pct < 100:
            shares = sorted({w.share_pct for w in ways if w.share_pct < 100})
            i = shares.index(way.share_pct)
            close = shares[max(0, i - 1) : i] + shares[i + 1 : i + 2]
            beside += [w for w in ways if w.share_pct in close]
        return [w for w in beside if w is not way]

    def _confined(self, p: GpuPattern, m: int | None = None) -> Changes:
        """Yield changes after which the models of ``p`` (and ``m``) have each an own share of the SMs by what
        it needs, the least needy first; or all of them are unconfined."""
        needs = self.needs_on(p, growing=True)
        if m is not None:
            needs[m] = needs.get(m, 0.0) + self.lacks(m)
        else:
            yield from self._unconfined(p)
        if not 2 <= len(needs) <= _MOST_CONFINED:
            return
        for scale in (1.1, 0.6):
            members = self._shares(p.type, needs, scale)
            if len(members) == len(needs):
                yield from self.made(p, members)

    def _unconfined(self, p: GpuPattern) -> Changes:
        content = self.state.content(p)
        if not 1 <= len(content) <= _MOST_CONFINED or self.ways[p.members[0].way].share_pct >= 100:
            return
        members = []
        for m, _, _ in content:
            loose = self.menus.best(m, p.type, self.asked[m], most_share=100, confined=False)
            if loose:
                members.append(PatternMember(loose[0].number))
        if len(members) == len(content):
            yield from self.made(p, members)

    def _shares(self, t: int, needs: FloatByIndex, scale: float) -> Members:
        """Return a replica of each model on a share of its own, as far as there are shares left: for
        ``scale`` of its need, the last model with the most that is left."""
        left = 100.0
        members: Members = []
        for m in sorted(needs, key=lambda m: (needs[m] / self._fastest(m, t), m)):
            last = len(members) == len(needs) - 1
            ways = self.menus.best(m, t, scale * needs[m], most_share=left, confined=True)
            if not last:
                ways = [w for w in ways if w.share_pct < left]
            if not ways:
                break
            if last:
                way = max(ways, key=lambda w: (w.capacity_rps, -w.batch))
            else:
                way = ways[0]
            members.append(PatternMember(way.number))
            left -= way.share_pct
        return members

    def _fastest(self, m: int, t: int) -> float:
        """Return the requests a second of ``m``'s fastest way on a GPU of type ``t``."""
        return max((w.capacity_rps for w in self.menus.of[m].get(t, ())), default=1.0)


def total(*steps: tuple[GpuPattern, int]) -> Change:
    """Return the sum of ``steps`` as one change."""
    change: dict[GpuPattern, int] = {}
    for p, n in steps:
        change[p] = change.get(p, 0) + n
    return {p: n for p, n in change.items() if n}
