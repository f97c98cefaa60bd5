"""Building a placement up from the fluid optimum, and improving it change by change.

A change is looked at twice: by the quick estimate, which sorts out most, then by the evaluator that placements
are judged by; only what gains there is kept. So errors of the estimate cost time, never quality.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

from gkestimator.placement.gkest.fluid import Fluid
from gkestimator.placement.gkest.moves import Moves, total, without
from gkestimator.placement.gkest.state import (
    Change,
    GpuPattern,
    PatternMember,
    PlacementState,
    Trial,
    allowed,
    pattern,
)

_TINY = 1e-7
_WORSE = 0.004
_HAIR = 3e-4
_FEW = 16  # models; with more, only the fluid optima are starts
_HOPELESS = (
    0.05  # a part of a model's worth: changes that lose so much by the estimate are not looked at again
)
_STARVED = 0.5  # a model that is served a smaller part of its rate
_MODEL_ANEW = 0.3  # how often all replicas of a model are taken away instead of all of a few GPUs
_NO_END = 1_000_000_000


class Search(Moves):
    """Moves on a :class:`PlacementState`. ``budget`` counts looks at changes; it is what ends a search (or a worth of
    ``enough``), so that the clock decides nothing. ``wanted``: requests a second on time by model, where that
    is less than its rate."""

    def __init__(
        self,
        state: PlacementState,
        *,
        budget: int,
        seed: int,
        wanted: Sequence[float] | None = None,
        enough: float = math.inf,
    ) -> None:
        super().__init__(state, wanted)
        self.budget = budget
        self.enough = enough
        self.random = random.Random(seed)
        self.close = 1e-3 if wanted is None else 1e-9

    def run(self, optima: Sequence[Fluid], sure: Fluid | None = None) -> None:
        """Build up from each of the fluid ``optima``, from ``sure`` with narrow ways alone, and from one
        replica a GPU; improve the best, and try anew until the budget is spent or all is served."""
        state = self.state
        empty = state.saved()
        built = []
        for optimum in optima:
            state.restore(empty)
            self.construct(optimum)
            built.append((state.value, state.saved()))
            if state.value >= self.enough:
                return
        if len(self.asked) <= _FEW:
            state.restore(empty)
            self.spread()
            built.append((state.value, state.saved()))
        if sure is not None and len(self.asked) <= _FEW:
            state.restore(empty)
            self.narrow = True
            self.construct(sure)
            self.narrow = False
            built.append((state.value, state.saved()))
        state.restore(max(built, key=lambda b: b[0])[1])
        while self.more() and self.improve():
            pass
        self.anew()

    def more(self) -> bool:
        """Whether to look further: the budget lasts, and more than ``enough`` may be had."""
        return self.budget > 0 and self.state.value < self.enough

    def construct(self, optimum: Fluid) -> None:
        """Whole GPUs where the fluid optimum gives a model at least one, then the rest by best fit, the
        largest first. Not on the budget: it ends by itself."""
        state = self.state
        budget = self.budget
        self.budget = _NO_END
        rest: list[tuple[float, int]] = []
        for m, by_type in enumerate(optimum.share):
            left = 0.0
            for t, share in sorted(by_type.items()):
                empty = GpuPattern(t)
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

    def spread(self) -> None:
        """One replica alone on each GPU, always the one that serves the most requests still wanted; then fill
        what room is left."""
        state = self.state
        budget = self.budget
        self.budget = _NO_END
        left = list(self.wanted)
        free = {p.type: n for p, n in state.counts.items() if not p.members}
        options = []
        for m, by_type in enumerate(self.menus.of):
            for t, ways in sorted(by_type.items()):
                rates = [(self.menus.rate(w), -w.number) for w in ways if w.share_pct >= 100]
                if rates and t in free:
                    options.append((*max(rates), m, t))
        steps: list[tuple[GpuPattern, int]] = []
        worth = state.worth
        while any(free.values()):
            gains = [
                (
                    worth(m, self.wanted[m] - left[m] + min(rate, left[m]))
                    - worth(m, self.wanted[m] - left[m]),
                    way,
                    rate,
                    m,
                    t,
                )
                for rate, way, m, t in options
                if free[t]
            ]
            if not gains or max(gains)[0] <= 1e-9:
                break
            _, way, rate, m, t = max(gains)
            many = max(1, min(free[t], int(left[m] / max(rate, 1e-12))))
            steps += [(GpuPattern(t), -many), (pattern(t, [PatternMember(-way)]), many)]
            free[t] -= many
            left[m] = max(0.0, left[m] - many * rate)
        state.commit(total(*steps))
        self.fill(wide=3)
        self.budget = budget

    def fill(self, *, wide: int, shuffled: bool = False) -> None:
        """Give every model that is short what still gains, the shortest in requests first (or in random
        order), until nothing does."""
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

    def serve(self, m: int, *, wide: int) -> bool:
        """The best way to add a replica (or several) of ``m``; whether one gained."""
        return self.take_best(self.growth(m, self.places(m, wide)), looks=1 if self.many else 2)

    def take_best(self, changes: Iterable[Change], *, looks: int = 2) -> bool:
        """Make the change that gains most, if one does: the ``looks`` best by the estimate are judged by the
        evaluator."""
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
            net = exact.gain - (_HAIR * scale if _more_turns(change) else 0.0)
            if net > _TINY * scale and (best is None or net > best[0]):
                best = (net, exact, change, guess)
        self.budget -= self.menus.work - before
        if best is None:
            return False
        self.state.apply(best[2], best[1], best[3])
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

    def anew(self) -> None:
        """Empty a few GPUs, fill them again in random order, go on from what is better or little worse, until
        the budget is spent or nothing is short; the best that was seen stays."""
        state = self.state
        best = state.saved()
        top = state.value
        while any(self.short(m) > 1e-6 * w for m, w in enumerate(self.wanted) if self.menus.of[m]):
            held = [p for p in sorted(state.counts) if p.members for _ in range(min(state.counts[p], 3))]
            if not self.more() or not held:
                break
            before = state.value
            kept = state.saved()
            if self.random.random() < _MODEL_ANEW:
                self.without_model(self.random.choice(sorted({x[0] for p in held for x in state.content(p)})))
            else:
                chosen = self.random.sample(held, min(len(held), self.random.choice((1, 2, 2, 3))))
                state.commit(total(*[(p, -1) for p in chosen], *[(GpuPattern(p.type), 1) for p in chosen]))
            self.fill(wide=2, shuffled=True)
            for p in sorted(state.counts):
                if p.members and p not in kept.counts and p in state.counts:
                    self.take_best(self.around(p))
            if state.value > top * (1 + _TINY):
                best = state.saved()
                top = state.value
            elif state.value < before - _WORSE * top * self.random.random():
                state.restore(kept)
        if state.value < top:
            state.restore(best)

    def without_model(self, m: int) -> None:
        """Take every replica of ``m`` away."""
        ways = self.menus.ways
        steps = []
        for p in list(self.state.hosts[m]):
            n = self.state.counts[p]
            left: list[PatternMember] = []
            for group in self.partitions(p):
                stay = [x for x in group if ways[x.way].model != m]
                if len(stay) < len(group) and len(stay) > 1:  # the others' turns come round sooner
                    cycle = math.fsum(ways[x.way].latency_ms for x in stay)
                    stay = [PatternMember(x.way, x.turn, cycle) for x in stay]
                elif len(stay) < len(group):
                    stay = [PatternMember(x.way) for x in stay]
                left += stay
            q = pattern(p.type, left)
            steps += [(p, -n), (q if allowed(self.menus, q) else GpuPattern(p.type), n)]
        self.state.commit(total(*steps))

    def level(self, loss: float, looks: int) -> None:
        """Raise the smallest served share of a rate, then the next, while it is below _STARVED and the worth
        stays within ``loss`` (a part) of what it is now. A change counts if the smallest share among the
        models it touches rises."""
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
            if not shares or shares[0][0] >= _STARVED:
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

    def tidy(self, holds: Callable[[PlacementState], bool] | None = None) -> None:
        """Fewer replicas where that costs less than a hair (_HAIR of what the model is served, and of the
        whole), smaller batches wherever it costs nothing; ``holds`` must still hold."""
        state = self.state
        ways = self.menus.ways
        least = state.value * (1 - _HAIR)
        for p in sorted(state.counts):
            in_turns = any(x.turn >= 0 for x in p.members)
            for change in self.side_by_side(p) if in_turns else self.as_one(p):
                if state.value + state.trial(change, exact=False).gain < least - 0.02 * abs(least):
                    continue
                exact = state.trial(change, exact=True)
                if state.value + exact.gain >= least and self._kept(change, exact, holds):
                    break
        for p in sorted(state.counts):
            changed = p
            for x in p.members:
                if changed not in state.counts or x not in changed.members:
                    continue
                others = without(changed.members, x)
                way = ways[x.way]
                smaller = [
                    PatternMember(w.number)
                    for w in self.menus.of[way.model][way.type]
                    if w.batch < way.batch and w.share_pct == way.share_pct and x.turn < 0
                ]
                options: list[list[PatternMember]] = [others] if x.turn < 0 else []
                for members in [*options, *[[*others, s] for s in smaller]]:
                    q = pattern(p.type, members)
                    if not allowed(self.menus, q):
                        continue
                    change = total((changed, -state.counts[changed]), (q, state.counts[changed]))
                    worth = state.worth(way.model, state.served[way.model])
                    if state.trial(change, exact=False).gain < -_HOPELESS * worth:
                        continue
                    exact = state.trial(change, exact=True)
                    if members is others:
                        spare = _HAIR * self.state.worth(way.model, state.served[way.model])
                    else:
                        spare = 0.0
                    if exact.gain < -spare - 1e-9 * state.value or state.value + exact.gain < least:
                        continue
                    if not self._kept(change, exact, holds):
                        continue
                    changed = q
                    break

    def _kept(self, change: Change, exact: Trial, holds: Callable[[PlacementState], bool] | None) -> bool:
        """Make ``change``, and unmake it if ``holds`` no longer does; whether it stays."""
        kept = self.state.saved()
        self.state.apply(change, exact, self.state.trial(change, exact=False))
        if holds is not None and not holds(self.state):
            self.state.restore(kept)
            return False
        return True


def _more_turns(change: Change) -> bool:
    """Whether more replicas take turns after ``change``: to be exported to few schedulers, so it has to be
    worth it."""
    return sum(n * sum(x.turn >= 0 for x in p.members) for p, n in change.items()) > 0
