"""The changes of a placement that the search looks at: replicas more, elsewhere, at other batches or shares,
in turns."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gkestimator.placement.contention import slowdowns
from gkestimator.placement.gkest.menu import MANY, Menus, Way
from gkestimator.placement.gkest.state import (
    Change,
    GpuPattern,
    PatternMember,
    PlacementState,
    allowed,
    pattern,
)
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Gpu

_MOST_COPIES = 8
_MOST_FULL = 10  # ways that a GPU is filled with for a try
_MOST_MEMBERS = 10
_MOST_TURNS = 4
# Cycles tried, as parts of the shortest objective; parts of the needs, where all of them
# do not fit; load of a turn's batch.
_CYCLES = (0.2, 0.33, 0.48)
_SCALES = (1.0, 0.7, 0.45, 0.25, 0.1)
_TURN_LOAD = 0.85
# Intervals count as narrow up to this factor of the model's narrowest.
_NARROW = 1.25


def saturated(menus: Menus, m: int, t: int) -> tuple[float, GpuPattern] | None:
    """The GPU of type ``t`` filled with replicas of model ``m`` alone that serves the most on time, and how
    many requests a second that are; at a tie the fewest replicas, then the smallest batch. None: it has no way
    on that type."""
    best: tuple[float, GpuPattern] | None = None
    ways = sorted(
        menus.of[m].get(t, ()),
        key=lambda w: (-menus.rate(w) / max(w.part, (w.dram_pct or 0.0) / 100), w.number),
    )
    for way in sorted(ways[:_MOST_FULL], key=lambda w: (w.batch, w.number)):
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
    """Of ``copies`` alike on one GPU, all busy."""
    name = menus.model(way.model).name
    one = Placed(gpu=Gpu(id="", type=way.candidate.gpu), model=name, candidate=way.candidate)
    return slowdowns([one] * copies, [way.capacity_rps] * copies)[0] or 1.0


def whole_gpu_rates(menus: Menus) -> list[float]:
    """By way: what it serves as part of its model's :func:`saturated` GPU, 0 for ways that are not in it.
    Where objectives are tight this is nearer to what can be had than the rate of one replica without neighbours."""
    rates = [0.0] * len(menus.ways)
    for m, by_type in enumerate(menus.of):
        for t in by_type:
            found = saturated(menus, m, t)
            if found is not None:
                for x in found[1].members:
                    rates[x.way] = found[0] * menus.ways[x.way].part
    return rates


def narrow_rates(menus: Menus) -> list[float] | None:
    """By way: what one replica serves, 0 where its interval is not narrow; None where all are alike in that.
    The widest interval in use holds for all replicas of a model, so narrow ones alone may serve more."""
    wide = [w.width > _NARROW * menus.narrowest(w.model) for w in menus.ways]
    if not any(wide):
        return None
    return [0.0 if too else menus.rate(w) for w, too in zip(menus.ways, wide, strict=True)]


class Moves:
    """Changes of ``state``, all :func:`allowed`. ``wanted``: requests a second on time by model. ``narrow``:
    only ways whose interval is narrow are added."""

    def __init__(self, state: PlacementState, wanted: Sequence[float] | None) -> None:
        self.state = state
        self.menus: Menus = state.menus
        self.many = len(self.menus.of) > MANY
        self.narrow = False
        self.asked = [m.rate_rps for m in self.menus.problem.models]
        self._ladders: dict[tuple[int, int, float], list[Way]] = {}
        self._full: dict[tuple[int, int], GpuPattern | None] = {}
        self.wanted = list(wanted) if wanted is not None else self.asked

    def short(self, m: int) -> float:
        """Requests a second of ``m`` that are wanted on time and are not."""
        return self.wanted[m] - self.state.served[m]

    def _served_by(self, m: int, capacity: float) -> float:
        """Requests a second of ``m`` on time by replicas of so much ``capacity``."""
        return self.state.served[m] * (capacity / max(self.state.capacity[m], 1e-12))

    def places(self, m: int, wide: int) -> list[GpuPattern]:
        """GPUs on which ``m`` is worth a try, of each type: an empty one, the fullest ``wide`` that seem to
        have room, and the emptiest."""
        found: list[GpuPattern] = []
        for t in sorted(self.menus.of[m]):
            need = min(w.part / w.capacity_rps for w in self.menus.of[m][t]) * max(self.short(m), 0.0)
            empty = GpuPattern(t)
            room = [(1.0 - self.state.usage(p), p) for p in self.state.counts if p.type == t and p.members]
            fits = heapq.nsmallest(wide, (x for x in room if x[0] >= min(need, 0.999)))
            free = heapq.nlargest(wide, room)
            found += [empty] if empty in self.state.counts else []
            found += dict.fromkeys(p for _, p in (*fits, *free))
        return found

    def growth(self, m: int, places: Iterable[GpuPattern]) -> Iterator[Change]:
        """Changes that add replicas of ``m`` to GPUs like ``places``."""
        need = max(self.short(m), 0.0)
        for p in places:
            for way in self.additions(m, p, need):
                yield from self._added(p, way, need)
            if not p.members:
                full = None if self.many else self.full(m, p.type)
                if full is not None:
                    yield {p: -1, full: 1}
            else:
                yield from self._together(p, m)
                yield from self._in_turns(p, m)
                yield from self._confined(p, m)

    def full(self, m: int, t: int) -> GpuPattern | None:
        """:func:`saturated`, worked out once."""
        if (m, t) not in self._full:
            found = saturated(self.menus, m, t)
            self._full[m, t] = None if found is None else found[1]
        return self._full[m, t]

    def _together(self, p: GpuPattern, m: int) -> Iterator[Change]:
        """``m`` beside the models of ``p``, one replica each, all at batches quick enough to share the GPU."""
        models = sorted({x[0] for x in self.state.content(p)} | {m})
        if not 2 <= len(models) <= 4:
            return
        for part in (0.5, 0.8):
            quick = [self._quick(x, p.type, part * self.menus.model(x).slo_ms / len(models)) for x in models]
            if all(w is not None for w in quick):
                yield from self._made(p, [PatternMember(w.number) for w in quick if w is not None])

    def _quick(self, m: int, t: int, within_ms: float) -> Way | None:
        ways = [w for w in self.menus.of[m].get(t, ()) if w.share_pct >= 100]
        fast = [w for w in ways if w.latency_ms <= within_ms]
        if fast:
            return max(fast, key=lambda w: (w.capacity_rps / w.part, -w.batch))
        return min(ways, key=lambda w: w.latency_ms, default=None)

    def additions(self, m: int, p: GpuPattern, need: float) -> list[Way]:
        """Ways of ``m`` to try beside what ``p`` holds."""
        shares = {
            x.turn if x.turn >= 0 else -1 - i: self.menus.ways[x.way].share_pct
            for i, x in enumerate(p.members)
        }
        confined = sum(s for s in shares.values() if s < 100)
        found: list[Way] = []
        if not p.members or confined == 0:
            found += self.menus.best(m, p.type, need, most_share=100, confined=False)
        if not p.members or confined > 0:
            found += self.menus.best(m, p.type, need, most_share=100 - confined, confined=True)
        if self.narrow:
            found = [w for w in found if w.width <= _NARROW * self.menus.narrowest(m)]
        return found

    def _added(self, p: GpuPattern, way: Way, need: float) -> Iterator[Change]:
        rate = max(self.menus.serves(way.number, None, 1.0).rate_rps, 1e-12)
        for copies in (1, 2, 3) if rate < need else (1,):
            q = pattern(p.type, [*p.members, *[PatternMember(way.number)] * copies])
            if len(q.members) > _MOST_MEMBERS or not allowed(self.menus, q):
                return
            many = min(self.state.counts.get(p, 0), max(1, int(need / (rate * copies))))
            yield {p: -many, q: many}

    def for_model(self, m: int) -> Iterator[Change]:
        """More replicas of ``m``, or some in the place of others."""
        places = self.places(m, 4)
        yield from self.growth(m, places)
        need = self.short(m)
        for p in places:
            for x in dict.fromkeys(p.members):
                if self.menus.ways[x.way].model != m:
                    others = without(p.members, x)
                    for way in self.additions(m, pattern(p.type, others), need)[:3]:
                        yield from self._made(p, [*others, PatternMember(way.number)])
            full = None if self.many else self.full(m, p.type)
            if full is not None and p.members:
                yield from self._made(p, full.members)

    def around(self, p: GpuPattern) -> Iterator[Change]:
        """Changes of one GPU like ``p``: replicas away, at another batch or share, elsewhere, in turns, all
        confined or none."""
        ways = self.menus.ways
        for x in dict.fromkeys(p.members):
            others = without(p.members, x)
            yield from self._made(p, others)
            if x.turn >= 0:
                continue
            m = ways[x.way].model
            for way in self._beside(ways[x.way]):
                yield from self._made(p, [*others, PatternMember(way.number)])
            for q in self.places(m, 2):
                if q != p:
                    need = self.short(m) + ways[x.way].capacity_rps
                    for way in self.additions(m, q, need)[:3]:
                        grown = pattern(q.type, [*q.members, PatternMember(way.number)])
                        if allowed(self.menus, grown) and len(grown.members) <= _MOST_MEMBERS:
                            left = pattern(p.type, others)
                            yield total((p, -1), (left, 1), (q, -1), (grown, 1))
        yield from self._in_turns(p)
        yield from self._confined(p)

    def _beside(self, way: Way) -> list[Way]:
        """The other ways of its model on its GPU type: a step in batch at its share, or in share at its batch."""
        ways = self.menus.of[way.model][way.type]
        same = sorted((w for w in ways if w.share_pct == way.share_pct), key=lambda w: w.batch)
        at = same.index(way)
        found = same[max(0, at - 2) : at + 3]
        if way.share_pct < 100:
            near = sorted({w.share_pct for w in ways if w.share_pct < 100})
            i = near.index(way.share_pct)
            close = set(near[max(0, i - 1) : i + 2])
            found += [w for w in ways if w.share_pct in close and w.share_pct != way.share_pct]
        return [w for w in found if w is not way]

    def _made(self, p: GpuPattern, members: Sequence[PatternMember]) -> Iterator[Change]:
        q = pattern(p.type, members)
        if q != p and allowed(self.menus, q):
            n = self.state.counts.get(p, 0)
            for many in sorted({1, n}) if n else ():
                yield total((p, -many), (q, many))

    def _in_turns(self, p: GpuPattern, m: int | None = None) -> Iterator[Change]:
        """The models of ``p`` (and ``m``) take turns on the whole GPU; or only ``m`` and the replica that asks
        most of it, beside the others. Or what takes turns goes back to running side by side."""
        ways = self.menus.ways
        content = self.state.content(p)
        if not self.menus.turns:
            return
        if any(ways[x.way].share_pct < 100 for _, x, _ in content):
            if m is not None:
                yield from self._in_turns_confined(p, m)
            return
        needs: dict[int, float] = {}
        for model, _, capacity in content:
            needs[model] = needs.get(model, 0.0) + self._served_by(model, capacity)
        if m is None:
            if any(x.turn >= 0 for x in p.members):
                yield from self._made(p, [PatternMember(x.way) for x in p.members])
        else:
            needs[m] = needs.get(m, 0.0) + max(self.short(m), 0.0)
        if 2 <= len(needs) <= _MOST_TURNS:
            for members in self.turns(p.type, needs, m):
                yield from self._made(p, members)
        if m is not None and len(p.members) >= 2 and all(x.turn < 0 for x in p.members):
            most = max(p.members, key=lambda x: (ways[x.way].part, x))
            model = ways[most.way].model
            if model != m:
                for members in self.turns(p.type, {model: needs[model], m: needs[m]}, m):
                    yield from self._made(p, [*without(p.members, most), *members])

    def _in_turns_confined(self, p: GpuPattern, m: int) -> Iterator[Change]:
        """``m`` takes turns with what one of the shares of ``p`` holds."""
        ways = self.menus.ways
        groups = self.partitions(p)
        for turn, group in enumerate(groups):
            if len(group) >= _MOST_TURNS or any(ways[x.way].model == m for x in group):
                continue
            needs = {m: max(self.short(m), 0.0)}
            for x in group:
                model = ways[x.way].model
                needs[model] = needs.get(model, 0.0) + self._served_by(model, self.state.capacity_rps(x))
            rest = [x for i, other in enumerate(groups) if i != turn for x in other]
            free = 1 + max((x.turn for x in rest), default=-1)
            for members in self.turns(p.type, needs, m, ways[group[0].way].share_pct):
                yield from self._made(p, [*rest, *[PatternMember(x.way, free, x.cycle_ms) for x in members]])

    def partitions(self, p: GpuPattern) -> list[list[PatternMember]]:
        """Replicas of ``p`` that take turns with each other together, others alone."""
        groups: dict[int, list[PatternMember]] = {}
        for i, x in enumerate(p.members):
            groups.setdefault(-1 - i if x.turn < 0 else x.turn, []).append(x)
        return list(groups.values())

    def turns(
        self, t: int, needs: Mapping[int, float], m: int | None, share: float = 100.0
    ) -> Iterator[list[PatternMember]]:
        """Partitions of ``share`` of a GPU of type ``t`` in which the models of ``needs`` (requests a second) take
        turns: for a few cycles, each at the smallest batch that serves its need, or as much of it as the cycle
        allows; ``m`` also with a part of its need."""
        objective = min(self.menus.model(x).slo_ms for x in needs)
        ladders = {x: self._ladder(x, t, share) for x in needs}
        if not all(ladders.values()):
            return
        quickest = math.fsum(min(w.latency_ms for w in ladder) for ladder in ladders.values())
        seen: set[tuple[int, ...]] = set()
        for part, of_m in itertools.product(_CYCLES, (1.0,) if m is None else (1.0, 0.2)):
            cycle = part * objective
            if quickest > cycle:
                continue
            for scale in _SCALES:
                found: list[Way] = []
                busy = 0.0
                for x, need in needs.items():
                    want = scale * (of_m if x == m else 1.0) * need * cycle / (1e3 * _TURN_LOAD)
                    way = _turn(ladders[x], self.menus.model(x).slo_ms - cycle, want)
                    if way is None or busy + way.latency_ms > cycle:
                        break
                    busy += way.latency_ms
                    found.append(way)
                if len(found) == len(needs):
                    key = tuple(w.number for w in found)
                    if key not in seen:
                        seen.add(key)
                        cycle_ms = math.fsum(w.latency_ms for w in found)
                        yield [PatternMember(w.number, 0, cycle_ms) for w in found]
                    break

    def side_by_side(self, p: GpuPattern) -> Iterator[Change]:
        """The models of ``p``, of which some take turns, side by side: each at the smallest batch with capacity
        for what it is served, with some to spare."""
        content = self.state.content(p)
        ladders = {m: self._ladder(m, p.type) for m, _, _ in content}
        for spare in (1.1, 1.4, 2.0, 3.0):
            members = []
            for m, ladder in ladders.items():
                own = sum(c for x, _, c in content if x == m) / max(self.state.capacity[m], 1e-12)
                enough = [w for w in ladder if w.capacity_rps >= spare * own * self.state.served[m]]
                if enough:
                    members.append(PatternMember(enough[0].number))
            if len(members) == len(ladders):
                yield from self._made(p, members)

    def as_one(self, p: GpuPattern) -> Iterator[Change]:
        """One replica, from the smallest batch up, for the several that a model has side by side on ``p``."""
        ways = self.menus.ways
        for m in sorted({x[0] for x in self.state.content(p)}):
            own = [x for x in p.members if ways[x.way].model == m]
            if len(own) > 1 and all(x.turn < 0 and ways[x.way].share_pct >= 100 for x in own):
                rest = [x for x in p.members if ways[x.way].model != m]
                for way in self._ladder(m, p.type):
                    yield from self._made(p, [*rest, PatternMember(way.number)])

    def _ladder(self, m: int, t: int, share: float = 100.0) -> list[Way]:
        """Ways of ``m`` on ``share`` of the SMs of type ``t``, by ascending batch."""
        key = (m, t, share)
        if key not in self._ladders:
            ways = (w for w in self.menus.of[m].get(t, ()) if w.share_pct == share)
            self._ladders[key] = sorted(ways, key=lambda w: w.batch)
        return self._ladders[key]

    def _confined(self, p: GpuPattern, m: int | None = None) -> Iterator[Change]:
        """The models of ``p`` (and ``m``), each on an own share of the SMs by what it needs, the least needy first;
        or all of them unconfined."""
        ways = self.menus.ways
        content = self.state.content(p)
        needs: dict[int, float] = {}
        for model, _, capacity in content:
            own = self._served_by(model, capacity)
            needs[model] = needs.get(model, 0.0) + own + max(self.short(model), 0.0)
        if m is not None:
            needs[m] = needs.get(m, 0.0) + max(self.short(m), 0.0)
        if m is None and content and ways[p.members[0].way].share_pct < 100 and len(content) <= 5:
            loose = [
                self.menus.best(x, p.type, self.asked[x], most_share=100, confined=False)
                for x, _, _ in content
            ]
            if all(loose):
                yield from self._made(p, [PatternMember(found[0].number) for found in loose])
        if not 2 <= len(needs) <= 5:
            return
        for scale in (1.1, 0.6):
            left = 100.0
            members = []
            order = sorted(needs, key=lambda x: (needs[x] / self._fastest(x, p.type), x))
            for i, x in enumerate(order):
                found = self.menus.best(x, p.type, scale * needs[x], most_share=left, confined=True)
                if i < len(order) - 1:
                    found = [w for w in found if w.share_pct < left]
                if not found:
                    break
                if i < len(order) - 1:
                    way = found[0]
                else:
                    way = max(found, key=lambda w: (w.capacity_rps, -w.batch))
                members.append(PatternMember(way.number))
                left -= way.share_pct
            if len(members) == len(needs):
                yield from self._made(p, members)

    def _fastest(self, m: int, t: int) -> float:
        """Requests a second of ``m``'s fastest way on a GPU of type ``t``."""
        return max((w.capacity_rps for w in self.menus.of[m].get(t, ())), default=1.0)


def _turn(ladder: Sequence[Way], within_ms: float, batch: float) -> Way | None:
    """The smallest of at least ``batch`` within the time, or the largest that is."""
    last = None
    for way in ladder:
        if way.latency_ms <= within_ms:
            last = way
            if way.batch >= batch:
                break
    return last


def without(members: Sequence[PatternMember], x: PatternMember) -> list[PatternMember]:
    left = list(members)
    left.remove(x)
    return left


def total(*steps: tuple[GpuPattern, int]) -> Change:
    found: dict[GpuPattern, int] = {}
    for p, n in steps:
        found[p] = found.get(p, 0) + n
    return {p: n for p, n in found.items() if n}
