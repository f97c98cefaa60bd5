"""Building a placement up from the fluid optimum, and improving it change by change.

A change is looked at twice: by the quick estimate, which sorts out most, then by the evaluator that placements are judged by; only
what gains there is kept. So errors of the estimate cost time, never quality.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gkestimator.placement.policies.gkest_fluid import Fluid
from gkestimator.placement.policies.gkest_menu import Menus, Way
from gkestimator.placement.policies.gkest_state import Change, Member, Pattern, State, Trial, allowed, pattern

__all__ = ["Search", "saturated", "whole_gpu_rates"]

_TINY = 1e-7
_WORSE = 0.004
_HAIR = 1e-3
_MOST_TURNS = 4
# Cycles tried, as parts of the shortest objective; parts of the needs, where all of them do not fit; load of a turn's batch.
_CYCLES = (0.2, 0.33, 0.48)
_SCALES = (1.0, 0.7, 0.45, 0.25, 0.1)
_TURN_LOAD = 0.85
_NO_END = 1_000_000_000
_MOST_COPIES = 8
_MOST_MEMBERS = 10


def saturated(menus: Menus, m: int, t: int) -> tuple[float, Pattern] | None:
    """The GPU of type ``t`` filled with replicas of model ``m`` alone that serves the most on time, and how many requests a second that
    are; at a tie the fewest replicas, then the smallest batch. None: it has no way on that type."""
    best: tuple[float, Pattern] | None = None
    for way in sorted(menus.of[m].get(t, ()), key=lambda w: (w.batch, w.number)):
        last = 0.0
        for copies in range(1, _MOST_COPIES + 1):
            p = pattern(t, [Member(way.number)] * copies)
            if not allowed(menus, p):
                break
            slowdown = 1.0 if way.share_pct < 100 else max(1.0, copies * (way.demand_pct or 0.0) / 100)
            rate = copies * menus.serves(way.number, None, slowdown).rate_rps
            if rate <= last * (1 + 1e-3):
                break
            last = rate
            if best is None or rate > best[0] * (1 + 1e-3):
                best = (rate, p)
    return best


def whole_gpu_rates(menus: Menus) -> list[float]:
    """By way: what it serves as part of its model's :func:`saturated` GPU, 0 for ways that are not in it. Where objectives are tight this
    is nearer to what can be had than the rate of one replica without neighbours."""
    rates = [0.0] * len(menus.ways)
    for m, by_type in enumerate(menus.of):
        for t in by_type:
            found = saturated(menus, m, t)
            if found is not None:
                for x in found[1].members:
                    rates[x.way] = found[0] * menus.ways[x.way].part
    return rates


class Search:
    """Moves on a :class:`State`. ``budget`` counts looks at changes; it is what ends a search (or a worth of ``enough``), so that the clock
    decides nothing. ``wanted``: requests a second on time by model, where that is less than its rate."""

    def __init__(
        self,
        state: State,
        *,
        budget: int,
        seed: int,
        wanted: Sequence[float] | None = None,
        enough: float = math.inf,
    ) -> None:
        self.state = state
        self.menus: Menus = state.menus
        self.budget = budget
        self.enough = enough
        self.random = random.Random(seed)
        self.asked = [m.rate_rps for m in self.menus.problem.models]
        self._usage: dict[Pattern, tuple[tuple[float, ...], float]] = {}
        self._ladders: dict[tuple[int, int], list[Way]] = {}
        self._full: dict[tuple[int, int], Pattern | None] = {}
        self.close = 1e-3 if wanted is None else 1e-9
        self.wanted = list(wanted) if wanted is not None else self.asked

    def run(self, optima: Sequence[Fluid]) -> None:
        """Build up from each of the fluid ``optima``, improve the best, and try anew until the budget is spent or all is served."""
        state = self.state
        empty, built = state.saved(), []
        for optimum in optima:
            state.restore(empty)
            self.construct(optimum)
            built.append((state.value, state.saved()))
        state.restore(max(built, key=lambda b: b[0])[1])
        while self.more() and self.improve():
            pass
        self.anew()

    def more(self) -> bool:
        """Whether to look further: the budget lasts, and more than ``enough`` may be had."""
        return self.budget > 0 and self.state.value < self.enough

    # -- building up ------------------------------------------------------------------------------------------------

    def construct(self, optimum: Fluid) -> None:
        """Whole GPUs where the fluid optimum gives a model at least one, then the rest by best fit, the largest first. Not on the budget: it
        ends by itself."""
        state, budget = self.state, self.budget
        self.budget = _NO_END
        rest: list[tuple[float, int]] = []
        for m, by_type in enumerate(optimum.share):
            left = 0.0
            for t, share in sorted(by_type.items()):
                empty = Pattern(t)
                whole = min(math.floor(share + 1e-6), state.counts.get(empty, 0))
                full = self.full(m, t) if whole else None
                if full is not None:
                    state.commit({empty: -whole, full: whole})
                left += share - whole
            if left > 1e-9:
                rest.append((left, m))
        rest.sort(key=lambda x: (-x[0], x[1]))
        wide = 3 if len(rest) < 100 else 1
        for _, m in rest:
            self.serve(m, wide=wide)
        self.fill(wide=wide)
        self.budget = budget

    def fill(self, *, wide: int, shuffled: bool = False) -> None:
        """Give every model that is short what still gains, the shortest in requests first (or in random order), until nothing does."""
        barren: set[int] = set()
        while self.budget > 0:
            short = [
                (self.short(m), m) for m in range(len(self.asked)) if m not in barren and self.menus.of[m]
            ]
            short = [s for s in short if s[0] > self.close * self.wanted[s[1]]]
            if not short:
                return
            short.sort(key=lambda s: (-s[0], s[1]))
            if shuffled:
                self.random.shuffle(short)
            for _, m in short:
                if not self.serve(m, wide=wide):
                    barren.add(m)

    def short(self, m: int) -> float:
        """Requests a second of ``m`` that are wanted on time and are not."""
        return self.wanted[m] - self.state.served[m]

    def serve(self, m: int, *, wide: int) -> bool:
        """The best way to add a replica (or several) of ``m``; whether one gained."""
        return self.take_best(self.growth(m, self.places(m, wide)))

    def places(self, m: int, wide: int) -> list[Pattern]:
        """GPUs on which ``m`` is worth a try, of each type: an empty one, the fullest ``wide`` that seem to have room, and the emptiest."""
        found: list[Pattern] = []
        for t in sorted(self.menus.of[m]):
            need = min(w.part / w.capacity_rps for w in self.menus.of[m][t]) * max(self.short(m), 0.0)
            empty = Pattern(t)
            room = [(1.0 - self.usage(p), p) for p in self.state.counts if p.type == t and p.members]
            fits = heapq.nsmallest(wide, (x for x in room if x[0] >= min(need, 0.999)))
            free = heapq.nlargest(wide, room)
            found += [empty] if empty in self.state.counts else []
            found += dict.fromkeys(p for _, p in (*fits, *free))
        return found

    def usage(self, p: Pattern) -> float:
        """Part of the GPU's compute that ``p`` keeps busy."""
        state = self.state
        loads = tuple(min(1.0, self.asked[m] / max(state.capacity[m], 1e-12)) for m, _, _ in state.content(p))
        known = self._usage.get(p)
        if known is not None and known[0] == loads:
            return known[1]
        total = 0.0
        for load, (_, x, capacity) in zip(loads, state.content(p), strict=True):
            way = self.menus.ways[x.way]
            total += way.part * (1.0 if way.share_pct < 100 else load * capacity / way.capacity_rps)
        self._usage[p] = (loads, total)
        return total

    def growth(self, m: int, places: Iterable[Pattern]) -> Iterator[Change]:
        """Changes that add replicas of ``m`` to GPUs like ``places``."""
        need = max(self.short(m), 0.0)
        for p in places:
            for way in self.additions(m, p, need):
                yield from self._added(p, way, need)
            if not p.members:
                full = self.full(m, p.type)
                if full is not None:
                    yield {p: -1, full: 1}
            else:
                yield from self._together(p, m)
                yield from self._in_turns(p, m)

    def full(self, m: int, t: int) -> Pattern | None:
        """:func:`saturated`, worked out once."""
        if (m, t) not in self._full:
            found = saturated(self.menus, m, t)
            self._full[m, t] = None if found is None else found[1]
        return self._full[m, t]

    def _together(self, p: Pattern, m: int) -> Iterator[Change]:
        """``m`` beside the models of ``p``, one replica each, all at batches quick enough to share the GPU."""
        models = sorted({x[0] for x in self.state.content(p)} | {m})
        if not 2 <= len(models) <= 4:
            return
        for part in (0.5, 0.8):
            quick = [self._quick(x, p.type, part * self.menus.model(x).slo_ms / len(models)) for x in models]
            if all(w is not None for w in quick):
                yield from self._made(p, [Member(w.number) for w in quick if w is not None])

    def _quick(self, m: int, t: int, within_ms: float) -> Way | None:
        ways = [w for w in self.menus.of[m].get(t, ()) if w.share_pct >= 100]
        fast = [w for w in ways if w.latency_ms <= within_ms]
        if fast:
            return max(fast, key=lambda w: (w.capacity_rps / w.part, -w.batch))
        return min(ways, key=lambda w: w.latency_ms, default=None)

    def additions(self, m: int, p: Pattern, need: float) -> list[Way]:
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
        return found

    def _added(self, p: Pattern, way: Way, need: float) -> Iterator[Change]:
        rate = max(self.menus.serves(way.number, None, 1.0).rate_rps, 1e-12)
        for copies in (1, 2, 3) if rate < need else (1,):
            q = pattern(p.type, [*p.members, *[Member(way.number)] * copies])
            if len(q.members) > _MOST_MEMBERS or not allowed(self.menus, q):
                return
            many = min(self.state.counts.get(p, 0), max(1, int(need / (rate * copies))))
            yield {p: -many, q: many}

    # -- improving --------------------------------------------------------------------------------------------------

    def take_best(self, changes: Iterable[Change], *, looks: int = 2) -> bool:
        """Make the change that gains most, if one does: the ``looks`` best by the estimate are judged by the evaluator."""
        ranked: list[tuple[float, int, Change, Trial]] = []
        before = self.menus.work
        for i, change in enumerate(changes):
            if self.budget + before - self.menus.work <= 0:
                break
            self.budget -= 1
            guess = self.state.trial(change, exact=False)
            ranked.append((-guess.gain, i, change, guess))
        ranked.sort(key=lambda r: r[:2])
        scale = max(self.state.value, 1.0)
        best = None
        for gain, _, change, guess in ranked[:looks]:
            if -gain <= -1e-3 * scale:
                break
            exact = self.state.trial(change, exact=True)
            if exact.gain > _TINY * scale and (best is None or exact.gain > best[0].gain):
                best = (exact, change, guess)
        self.budget -= self.menus.work - before
        if best is None:
            return False
        self.state.apply(best[1], best[0], best[2])
        return True

    def improve(self) -> bool:
        """One round over all models that are short and all GPUs; whether anything gained."""
        gained = False
        models = sorted(range(len(self.asked)), key=lambda m: (-self.short(m), m))
        for m in models:
            if self.menus.of[m] and self.short(m) > self.close * self.wanted[m]:
                gained |= self.take_best(self.for_model(m))
        for p in sorted(self.state.counts):
            if not self.more():
                break
            if p.members and p in self.state.counts:
                gained |= self.take_best(self.around(p), looks=3)
        return gained

    def for_model(self, m: int) -> Iterator[Change]:
        """More replicas of ``m``, or some in the place of others."""
        places = self.places(m, 4)
        yield from self.growth(m, places)
        need = self.short(m)
        for p in places:
            for x in dict.fromkeys(p.members):
                if self.menus.ways[x.way].model != m:
                    others = _without(p.members, x)
                    for way in self.additions(m, pattern(p.type, others), need)[:3]:
                        yield from self._made(p, [*others, Member(way.number)])
            full = self.full(m, p.type)
            if full is not None and p.members:
                yield from self._made(p, full.members)

    def around(self, p: Pattern) -> Iterator[Change]:
        """Changes of one GPU like ``p``: replicas away, at another batch or share, elsewhere, in turns, all confined or none."""
        ways = self.menus.ways
        for x in dict.fromkeys(p.members):
            others = _without(p.members, x)
            yield from self._made(p, others)
            if x.turn >= 0:
                continue
            m = ways[x.way].model
            for way in self._beside(ways[x.way]):
                yield from self._made(p, [*others, Member(way.number)])
            for q in self.places(m, 2):
                if q != p:
                    need = self.short(m) + ways[x.way].capacity_rps
                    for way in self.additions(m, q, need)[:3]:
                        grown = pattern(q.type, [*q.members, Member(way.number)])
                        if allowed(self.menus, grown) and len(grown.members) <= _MOST_MEMBERS:
                            left = pattern(p.type, others)
                            yield _sum((p, -1), (left, 1), (q, -1), (grown, 1))
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

    def _made(self, p: Pattern, members: Sequence[Member]) -> Iterator[Change]:
        q = pattern(p.type, members)
        if q != p and allowed(self.menus, q):
            n = self.state.counts.get(p, 0)
            for many in sorted({1, n}) if n else ():
                yield _sum((p, -many), (q, many))

    def _in_turns(self, p: Pattern, m: int | None = None) -> Iterator[Change]:
        """The models of ``p`` (and ``m``) take turns on the whole GPU; or only ``m`` and the replica that asks most of it, beside the
        others. Or what takes turns goes back to running side by side."""
        ways, content = self.menus.ways, self.state.content(p)
        if any(ways[x.way].share_pct < 100 for _, x, _ in content):
            return
        needs: dict[int, float] = {}
        for model, _, capacity in content:
            part = capacity / max(self.state.capacity[model], 1e-12)
            needs[model] = needs.get(model, 0.0) + self.state.served[model] * part
        if m is None:
            if any(x.turn >= 0 for x in p.members):
                yield from self._made(p, [Member(x.way) for x in p.members])
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
                    yield from self._made(p, [*_without(p.members, most), *members])

    def turns(self, t: int, needs: Mapping[int, float], m: int | None) -> Iterator[list[Member]]:
        """Partitions of one GPU of type ``t`` in which the models of ``needs`` (requests a second) take turns: for a few cycles, each at
        the smallest batch that serves its need, or as much of it as the cycle allows; ``m`` also with a part of its
        need."""
        objective = min(self.menus.model(x).slo_ms for x in needs)
        ladders = {x: self._ladder(x, t) for x in needs}
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
                        yield [Member(w.number, 0, cycle_ms) for w in found]
                    break

    def _ladder(self, m: int, t: int) -> list[Way]:
        """Ways of ``m`` on whole GPUs of type ``t``, by ascending batch."""
        key = (m, t)
        if key not in self._ladders:
            ways = (w for w in self.menus.of[m].get(t, ()) if w.share_pct >= 100)
            self._ladders[key] = sorted(ways, key=lambda w: w.batch)
        return self._ladders[key]

    def _confined(self, p: Pattern) -> Iterator[Change]:
        """The same models, each on an own share of the SMs by what it needs; or all of them unconfined."""
        ways = self.menus.ways
        if not 2 <= len(p.members) <= 5 or any(x.turn >= 0 for x in p.members):
            return
        models = [ways[x.way].model for x in p.members]
        if ways[p.members[0].way].share_pct < 100:
            loose = [
                self.menus.best(m, p.type, self.asked[m], most_share=100, confined=False) for m in models
            ]
            if all(loose):
                yield from self._made(p, [Member(found[0].number) for found in loose])
            return
        left, members = 100.0, []
        for x, m in sorted(zip(p.members, models, strict=True), key=lambda y: ways[y[0].way].capacity_rps):
            served = self.state.served[m] * ways[x.way].capacity_rps / max(self.state.capacity[m], 1e-12)
            found = self.menus.best(m, p.type, served, most_share=left, confined=True)
            if not found:
                return
            members.append(Member(found[0].number))
            left -= found[0].share_pct
        yield from self._made(p, members)

    def anew(self) -> None:
        """Empty a few GPUs, fill them again in random order, go on from what is better or little worse, until the budget is spent or
        nothing is short; the best that was seen stays."""
        state = self.state
        best, top = state.saved(), state.value
        while any(self.short(m) > 1e-6 * w for m, w in enumerate(self.wanted) if self.menus.of[m]):
            held = [p for p in sorted(state.counts) if p.members for _ in range(min(state.counts[p], 3))]
            if not self.more() or not held:
                break
            before, kept = state.value, state.saved()
            chosen = self.random.sample(held, min(len(held), self.random.choice((1, 2, 2, 3))))
            state.commit(_sum(*[(p, -1) for p in chosen], *[(Pattern(p.type), 1) for p in chosen]))
            self.fill(wide=2, shuffled=True)
            for p in sorted(state.counts):
                if p.members and p not in kept.counts and p in state.counts:
                    self.take_best(self.around(p))
            if state.value > top * (1 + _TINY):
                best, top = state.saved(), state.value
            elif state.value < before - _WORSE * top * self.random.random():
                state.restore(kept)
        if state.value < top:
            state.restore(best)

    # -- fairness and order -----------------------------------------------------------------------------------------

    def level(self, loss: float, looks: int) -> None:
        """Raise the smallest served share of a rate, then the next, while the worth stays within ``loss`` (a part) of what it is now. A
        change counts if the smallest share among the models it touches rises."""
        state = self.state
        least = state.value * (1 - loss)
        done: set[int] = set()
        self.budget = looks
        while self.budget > 0:
            shares = sorted(
                (state.served[m] / self.asked[m], m)
                for m in range(len(self.asked))
                if m not in done and self.menus.of[m]
            )
            if not shares or shares[0][0] > 0.999:
                return
            m = shares[0][1]
            if not self._raise(m, least):
                done.add(m)

    def _raise(self, m: int, least: float) -> bool:
        state = self.state
        ranked = []
        for i, change in enumerate(self.for_model(m)):
            self.budget -= 1
            guess = state.trial(change, exact=False)
            rise = guess.served.get(m, 0.0) - state.guess[m]
            if rise > 1e-3 * self.asked[m] and state.value + guess.gain >= least - 0.01 * abs(least):
                ranked.append((max(-guess.gain, 0.0) / rise, i, change, guess))
        ranked.sort(key=lambda r: r[:2])
        for _, _, change, guess in ranked[:4]:
            exact = state.trial(change, exact=True)
            before = min(state.served[x] / self.asked[x] for x in exact.served)
            after = min(v / self.asked[x] for x, v in exact.served.items())
            if after > before + 1e-3 and state.value + exact.gain >= least:
                state.apply(change, exact, guess)
                return True
        return False

    def tidy(self, holds: Callable[[State], bool] | None = None) -> None:
        """Fewer replicas where that costs less than a hair (_HAIR of what the model is served, and of the whole), smaller
        batches wherever it costs nothing; ``holds`` must still hold."""
        state, ways = self.state, self.menus.ways
        least = state.value * (1 - _HAIR)
        for p in sorted(state.counts):
            changed = p
            for x in p.members:
                if changed not in state.counts or x not in changed.members:
                    continue
                others = _without(changed.members, x)
                way = ways[x.way]
                smaller = [
                    Member(w.number)
                    for w in self.menus.of[way.model][way.type]
                    if w.batch < way.batch and w.share_pct == way.share_pct and x.turn < 0
                ]
                options: list[list[Member]] = [others] if x.turn < 0 else []
                for members in [*options, *[[*others, s] for s in smaller]]:
                    q = pattern(p.type, members)
                    if not allowed(self.menus, q):
                        continue
                    change = _sum((changed, -state.counts[changed]), (q, state.counts[changed]))
                    exact = state.trial(change, exact=True)
                    spare = _HAIR * self.state.worth(way.model, state.served[way.model]) if members is others else 0.0
                    if exact.gain < -spare - 1e-9 * state.value or state.value + exact.gain < least:
                        continue
                    kept = state.saved()
                    state.apply(change, exact, state.trial(change, exact=False))
                    if holds is not None and not holds(state):
                        state.restore(kept)
                        continue
                    changed = q
                    break


def _turn(ladder: Sequence[Way], within_ms: float, batch: float) -> Way | None:
    """The smallest of at least ``batch`` within the time, or the largest that is."""
    last = None
    for way in ladder:
        if way.latency_ms <= within_ms:
            last = way
            if way.batch >= batch:
                break
    return last


def _without(members: Sequence[Member], x: Member) -> list[Member]:
    left = list(members)
    left.remove(x)
    return left


def _sum(*steps: tuple[Pattern, int]) -> Change:
    found: dict[Pattern, int] = {}
    for p, n in steps:
        found[p] = found.get(p, 0) + n
    return {p: n for p, n in found.items() if n}
