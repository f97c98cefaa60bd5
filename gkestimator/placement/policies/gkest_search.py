"""Building a placement up from the fluid optimum, and improving it change by change.

A change is looked at twice: by the quick estimate, which sorts out most, then by the evaluator that placements are judged by; only
what gains there is kept. So errors of the estimate cost time, never quality.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from gkestimator.placement.policies.gkest_fluid import Fluid
from gkestimator.placement.policies.gkest_menu import Menus, Way
from gkestimator.placement.policies.gkest_state import Change, Member, Pattern, State, allowed, pattern

__all__ = ["Search", "saturated"]

_TINY = 1e-7
_MOST_COPIES = 8
_MOST_MEMBERS = 10


def saturated(menus: Menus, m: int, t: int) -> Pattern | None:
    """The GPU of type ``t`` filled with replicas of model ``m`` alone that serves the most on time; at a tie the fewest replicas, then
    the smallest batch. None: it has no way on that type."""
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
    return None if best is None else best[1]


class Search:
    """Moves on a :class:`State`. ``budget`` counts looks at changes; it is what ends a search, so that the clock decides nothing."""

    def __init__(
        self, state: State, *, budget: int, seed: int, wanted: Sequence[float] | None = None
    ) -> None:
        self.state = state
        self.menus: Menus = state.menus
        self.budget = budget
        self.random = random.Random(seed)
        self.asked = [m.rate_rps for m in self.menus.problem.models]
        self.close = 1e-3 if wanted is None else 1e-9
        self.wanted = list(wanted) if wanted is not None else self.asked

    def run(self, optimum: Fluid) -> None:
        """Build up, improve, and try anew until the budget is spent or all is served."""
        self.construct(optimum)
        while self.budget > 0 and self.improve():
            pass
        self.anew()

    # -- building up ------------------------------------------------------------------------------------------------

    def construct(self, optimum: Fluid) -> None:
        """Whole GPUs where the fluid optimum gives a model at least one, then the rest by best fit, the largest first."""
        state = self.state
        rest: list[tuple[float, int]] = []
        for m, by_type in enumerate(optimum.share):
            left = 0.0
            for t, share in sorted(by_type.items()):
                empty = Pattern(t)
                whole = min(math.floor(share + 1e-6), state.counts.get(empty, 0))
                full = saturated(self.menus, m, t) if whole else None
                if full is not None:
                    state.commit({empty: -whole, full: whole})
                left += share - whole
            if left > 1e-9:
                rest.append((left, m))
        rest.sort(key=lambda x: (-x[0], x[1]))
        for _, m in rest:
            self.serve(m, wide=3)
        self.fill(wide=3)

    def fill(self, *, wide: int) -> None:
        """Give every model that is short what still gains, the shortest in requests first, until nothing does."""
        barren: set[int] = set()
        while self.budget > 0:
            short = [
                (self.short(m), m) for m in range(len(self.asked)) if m not in barren and self.menus.of[m]
            ]
            short = [s for s in short if s[0] > self.close * self.wanted[s[1]]]
            if not short:
                return
            for _, m in sorted(short, key=lambda s: (-s[0], s[1])):
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
            room = sorted(
                ((1.0 - self.usage(p), p) for p in self.state.counts if p.type == t),
                key=lambda x: (x[0], x[1]),
            )
            fits = [p for r, p in room if r >= min(need, 0.999) and p.members][:wide]
            empty = [p for _, p in room if not p.members]
            found += dict.fromkeys([*empty, *fits, *[p for _, p in room[-wide:]]])
        return found

    def usage(self, p: Pattern) -> float:
        """Part of the GPU's compute that ``p`` keeps busy."""
        state, total = self.state, 0.0
        for m, x, capacity in state.content(p):
            way = self.menus.ways[x.way]
            load = min(1.0, self.asked[m] / max(state.capacity[m], 1e-12))
            total += way.part * (1.0 if way.share_pct < 100 else load * capacity / way.capacity_rps)
        return total

    def growth(self, m: int, places: Iterable[Pattern]) -> Iterator[Change]:
        """Changes that add replicas of ``m`` to GPUs like ``places``."""
        need = max(self.short(m), 0.0)
        for p in places:
            for way in self.additions(m, p, need):
                yield from self._added(p, way, need)

    def additions(self, m: int, p: Pattern, need: float) -> list[Way]:
        """Ways of ``m`` to try beside what ``p`` holds."""
        shares = {x.turn if x.turn >= 0 else -1 - i: self.menus.ways[x.way].share_pct for i, x in enumerate(p.members)}
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
        ranked = []
        for i, change in enumerate(changes):
            if self.budget <= 0:
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
            before = self.state.evaluations
            exact = self.state.trial(change, exact=True)
            self.budget -= 3 * (self.state.evaluations - before)
            if exact.gain > _TINY * scale and (best is None or exact.gain > best[0].gain):
                best = (exact, change, guess)
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
            if self.budget <= 0:
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
            for i, x in enumerate(p.members):
                if self.menus.ways[x.way].model != m:
                    others = [*p.members[:i], *p.members[i + 1 :]]
                    for way in self.additions(m, pattern(p.type, others), need)[:3]:
                        yield from self._made(p, [*others, Member(way.number)])

    def around(self, p: Pattern) -> Iterator[Change]:
        """Changes of one GPU like ``p``: replicas away, at another batch or share, elsewhere, in turns, all confined or none."""
        ways = self.menus.ways
        for i, x in enumerate(p.members):
            others = [*p.members[:i], *p.members[i + 1 :]]
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

    def _in_turns(self, p: Pattern) -> Iterator[Change]:
        """Two or more replicas of one share take turns, or go back to running side by side."""
        ways = self.menus.ways
        by_share: dict[float, list[Member]] = {}
        for x in p.members:
            by_share.setdefault(ways[x.way].share_pct, []).append(x)
        for share, members in by_share.items():
            rest = [x for x in p.members if ways[x.way].share_pct != share]
            if any(x.turn >= 0 for x in members):
                yield from self._made(p, [*rest, *[Member(x.way) for x in members]])
            elif 2 <= len(members) <= 4:
                cycle = math.fsum(ways[x.way].latency_ms for x in members)
                turn = 1 + max((x.turn for x in rest), default=-1)
                yield from self._made(p, [*rest, *[Member(x.way, turn, cycle) for x in members]])

    def _confined(self, p: Pattern) -> Iterator[Change]:
        """The same models, each on an own share of the SMs by what it needs; or all of them unconfined."""
        ways = self.menus.ways
        if not 2 <= len(p.members) <= 5 or any(x.turn >= 0 for x in p.members):
            return
        models = [ways[x.way].model for x in p.members]
        if ways[p.members[0].way].share_pct < 100:
            loose = [self.menus.best(m, p.type, self.asked[m], most_share=100, confined=False) for m in models]
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
        """Empty a few GPUs, fill them again, keep what is better, until the budget is spent or nothing is short."""
        state = self.state
        while any(self.short(m) > 1e-6 * w for m, w in enumerate(self.wanted) if self.menus.of[m]):
            held = [p for p in sorted(state.counts) if p.members for _ in range(min(state.counts[p], 3))]
            if self.budget <= 0 or not held:
                return
            before, kept = state.value, state.saved()
            chosen = self.random.sample(held, min(len(held), self.random.choice((1, 2, 2, 3))))
            state.commit(_sum(*[(p, -1) for p in chosen], *[(Pattern(p.type), 1) for p in chosen]))
            self.fill(wide=2)
            for p in sorted(state.counts):
                if p.members and p not in kept.counts and p in state.counts:
                    self.take_best(self.around(p))
            if state.value <= before * (1 + _TINY):
                state.restore(kept)


    # -- fairness and order -----------------------------------------------------------------------------------------

    def level(self, loss: float) -> None:
        """Raise the smallest served share of a rate, then the next, while the worth stays within ``loss`` (a part) of what it is now. A
        change counts if the smallest share among the models it touches rises."""
        state = self.state
        least = state.value * (1 - loss)
        done: set[int] = set()
        budget = 40 + 4 * len(self.asked)
        while budget > 0:
            shares = sorted(
                (state.served[m] / self.asked[m], m)
                for m in range(len(self.asked))
                if m not in done and self.menus.of[m]
            )
            if not shares or shares[0][0] > 0.999:
                return
            budget -= 1
            m = shares[0][1]
            if not self._raise(m, least):
                done.add(m)

    def _raise(self, m: int, least: float) -> bool:
        state = self.state
        ranked = []
        for i, change in enumerate(self.for_model(m)):
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
        """Fewer replicas and smaller batches wherever that costs nothing (and ``holds`` still does)."""
        state, ways = self.state, self.menus.ways
        for p in sorted(state.counts):
            changed = p
            for x in p.members:
                if x not in changed.members:
                    continue
                others = list(changed.members)
                others.remove(x)
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
                    if exact.gain < -1e-9 * max(state.value, 1.0):
                        continue
                    kept = state.saved()
                    state.apply(change, exact, state.trial(change, exact=False))
                    if holds is not None and not holds(state):
                        state.restore(kept)
                        continue
                    changed = q
                    break


def _sum(*steps: tuple[Pattern, int]) -> Change:
    found: dict[Pattern, int] = {}
    for p, n in steps:
        found[p] = found.get(p, 0) + n
    return {p: n for p, n in found.items() if n}
