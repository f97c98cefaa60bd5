"""Building a placement up from the fluid optimum, and improving it change by change.

A change is looked at twice: by the quick estimate, which sorts out most, then by the evaluator that
placements are judged by; only what gains there is kept. So errors of the estimate cost time, never quality.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from gkestimator.placement.gkest.fluid import Fluid
from gkestimator.placement.gkest.moves import Moves, total
from gkestimator.placement.gkest.starts import packed_starts, replacing
from gkestimator.placement.gkest.state import (
    Change,
    GpuPattern,
    Members,
    PatternMember,
    PlacementState,
    Saved,
    Trial,
    allowed,
    groups_of,
    pattern,
)
from gkestimator.placement.gkest.turns import without
from gkestimator.placement.problem import Floats

_TINY = 1e-7
_WORSE = 0.004
_HAIR = 3e-4
_FEW = 16  # models; with more, only the fluid optima are starts
# A part of a model's worth: changes that lose so much by the estimate are not looked at again.
_HOPELESS = 0.05
_STARVED = 0.5  # a model that is served a smaller part of its rate
_MODEL_ANEW = 0.3  # how often all replicas of a model are taken away instead of all of a few GPUs
_TIDY_WORK = 4000  # that tidying may take with many models, in looks
_NO_END = 1_000_000_000

# Whether a state still holds what a caller asks for.
Holds: TypeAlias = Callable[[PlacementState], bool]


class _Look(NamedTuple):
    """Hold a change that the estimate liked; looks sort by the first two, as no two have one number."""

    loss: float
    number: int
    change: Change
    guess: Trial


class Search(Moves):
    """Make moves on a :class:`PlacementState`. ``budget`` counts looks at changes; it is what ends a search
    (or a worth of ``enough``), so that the clock decides nothing; with less than ``near`` it goes on for ``further``
    looks. ``wanted``: requests a second on time by
    model, where that is less than its rate."""

    def __init__(
        self,
        state: PlacementState,
        *,
        budget: int,
        seed: int,
        wanted: Floats | None = None,
        enough: float = math.inf,
        near: float = math.inf,
        further: int = 0,
    ) -> None:
        super().__init__(state, wanted)
        self.budget = budget
        self.enough = enough
        self.near = near
        self.further = further
        self.random = random.Random(seed)
        self.close = 1e-3 if wanted is None else 1e-9

    def run(self, optima: Sequence[Fluid], sure: Fluid | None = None, starts: Iterable[Change] = ()) -> None:
        """Build up from each of the fluid ``optima``, from ``sure`` with narrow ways alone, and from one
        replica a GPU; with more models from packed rests and from ``starts`` (others' answers) too. Improve
        the best, and try anew until the budget is spent or all is served."""
        state = self.state
        empty = state.saved()
        built: list[tuple[float, Saved]] = []
        for optimum in optima:
            if not self.many:  # else it takes too long, and comes to less than packing
                state.restore(empty)
                self.construct(optimum)
                built.append((state.value, state.saved()))
                if state.value >= self.enough:
                    return
        if len(self.asked) <= _FEW:
            state.restore(empty)
            self.spread()
            built.append((state.value, state.saved()))
            if sure is not None:
                state.restore(empty)
                self.narrow = True
                self.construct(sure)
                self.narrow = False
                built.append((state.value, state.saved()))
        else:
            free = [int(empty.counts.get(GpuPattern(t), 0)) for t in range(len(self.menus.types))]
            for counts in itertools.chain(packed_starts(self, optima[0], free, self.close), starts):
                state.restore(empty)
                state.commit(replacing(counts))
                built.append((state.value, state.saved()))
                if state.value >= self.near:
                    break
        state.restore(max(built, key=lambda b: b[0])[1])
        self._better()
        if state.value < self.near and self.further:
            self.budget = self.further
            self.enough = self.near
            self._better()

    def _better(self) -> None:
        while self.more() and self.improve():
            pass
        self.anew()

    def more(self) -> bool:
        """Return whether to look further: the budget lasts, and more than ``enough`` may be had."""
        return self.budget > 0 and self.state.value < self.enough

    @contextmanager
    def _without_end(self) -> Iterator[None]:
        """Leave the budget alone: what is done meanwhile ends by itself."""
        budget = self.budget
        self.budget = _NO_END
        yield
        self.budget = budget

    def construct(self, optimum: Fluid) -> None:
        """Fill whole GPUs where the fluid optimum gives a model at least one, then the rest by best fit, the
        largest first. Not on the budget."""
        state = self.state
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
        with self._without_end():
            for _, m in rest:
                self.serve(m, wide=wide)
            self.fill(wide=wide)

    def spread(self) -> None:
        """Put one replica alone on each GPU, always the one that serves the most requests still wanted; then
        fill what room is left. Not on the budget."""
        state = self.state
        left = list(self.wanted)
        free = {p.type: n for p, n in state.counts.items() if not p.members}
        options = self._alone_options(free)
        steps: list[tuple[GpuPattern, int]] = []
        worth = state.worth
        while any(free.values()):
            gains = []
            for rate, way, m, t in options:
                if free[t]:
                    served = self.wanted[m] - left[m]
                    gain = worth(m, served + min(rate, left[m])) - worth(m, served)
                    gains.append((gain, way, rate, m, t))
            if not gains:
                break
            gain, way, rate, m, t = max(gains)
            if gain <= 1e-9:
                break
            many = max(1, min(free[t], int(left[m] / max(rate, 1e-12))))
            steps += [(GpuPattern(t), -many), (pattern(t, [PatternMember(-way)]), many)]
            free[t] -= many
            left[m] = max(0.0, left[m] - many * rate)
        state.commit(total(*steps))
        with self._without_end():
            self.fill(wide=3)

    def _alone_options(self, types: Iterable[int]) -> list[tuple[float, int, int, int]]:
        """Return (requests a second, minus its number, model, type) of the best unconfined way of each model
        on each of the GPU ``types``."""
        options = []
        for m, by_type in enumerate(self.menus.of):
            for t, ways in sorted(by_type.items()):
                rates = [(self.menus.rate(w), -w.number) for w in ways if w.share_pct >= 100]
                if rates and t in types:
                    options.append((*max(rates), m, t))
        return options

    def fill(self, *, wide: int, shuffled: bool = False) -> None:
        """Give every model that is short what still gains, the shortest in requests first (or in random
        order), until nothing does."""
        barren: set[int] = set()
        while self.budget > 0:
            short = []
            for m in range(len(self.asked)):
                if m not in barren and self._is_short(m):
                    short.append((self.short(m), m))
            if not short:
                return
            short.sort(key=lambda s: (-s[0], s[1]))
            if shuffled:
                self.random.shuffle(short)
            for _, m in short:
                if not self.serve(m, wide=wide):
                    barren.add(m)

    def _is_short(self, m: int) -> bool:
        return bool(self.menus.of[m]) and self.short(m) > self.close * self.wanted[m]

    def serve(self, m: int, *, wide: int) -> bool:
        """Add a replica (or several) of ``m`` in the best way; return whether that gained."""
        looks = 2
        if self.many:
            looks = 1
        return self.take_best(self.growth(m, self.places(m, wide)), looks=looks)

    def take_best(self, changes: Iterable[Change], *, looks: int = 2) -> bool:
        """Make the change that gains most, if one does; return whether. The ``looks`` best by the estimate
        are judged by the evaluator."""
        state = self.state
        before = self.menus.work
        ranked = []
        for number, change in enumerate(changes):
            if self.budget + before - self.menus.work <= 0:
                break
            self.budget -= 1
            guess = state.trial(change, exact=False)
            ranked.append(_Look(-guess.gain, number, change, guess))
        ranked.sort(key=lambda r: r[:2])
        scale = max(state.value, 1.0)
        most = _TINY * scale
        best: tuple[_Look, Trial] | None = None
        for look in ranked[:looks]:
            if look.loss >= 1e-3 * scale:
                break
            exact = state.trial(look.change, exact=True)
            net = exact.gain
            if _more_turns(look.change):
                net -= _HAIR * scale
            if net > most:
                most = net
                best = (look, exact)
        self.budget -= self.menus.work - before
        if best is None:
            return False
        look, exact = best
        state.apply(look.change, exact, look.guess)
        return True

    def improve(self) -> bool:
        """Go one round over all models that are short and all GPUs; return whether anything gained."""
        gained = False
        models = sorted(range(len(self.asked)), key=lambda m: (-self.short(m), m))
        for m in models:
            if self._is_short(m):
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
        while self._anything_short() and self.more():
            before = state.value
            earlier = state.saved()
            if not self._empty_some():
                break
            self.fill(wide=2, shuffled=True)
            for p in sorted(state.counts):
                if p.members and p not in earlier.counts and p in state.counts:
                    self.take_best(self.around(p))
            if state.value > top * (1 + _TINY):
                best = state.saved()
                top = state.value
            elif state.value < before - _WORSE * top * self.random.random():
                state.restore(earlier)
        if state.value < top:
            state.restore(best)

    def _anything_short(self) -> bool:
        return any(self.short(m) > 1e-6 * w for m, w in enumerate(self.wanted) if self.menus.of[m])

    def _empty_some(self) -> bool:
        """Take away all replicas of a random model, or all of one to three random GPUs; return False where
        nothing is held."""
        state = self.state
        held = []
        for p, count in sorted(state.counts.items()):
            if p.members:
                held += [p] * min(count, 3)
        if not held:
            return False
        choice = self.random.choice
        if self.random.random() < _MODEL_ANEW:
            self.without_model(choice(sorted({x[0] for p in held for x in state.content(p)})))
            return True
        emptied = self.random.sample(held, min(len(held), choice((1, 2, 2, 3))))
        taken = [(p, -1) for p in emptied]
        empty = [(GpuPattern(p.type), 1) for p in emptied]
        state.commit(total(*taken, *empty))
        return True

    def without_model(self, m: int) -> None:
        """Take every replica of ``m`` away."""
        steps = []
        for p in list(self.state.hosts[m]):
            count = self.state.counts[p]
            left: Members = []
            for group in groups_of(p):
                left += self._rest_of_turns(group, m)
            q = pattern(p.type, left)
            if not allowed(self.menus, q):
                q = GpuPattern(p.type)
            steps += [(p, -count), (q, count)]
        self.state.commit(total(*steps))

    def _rest_of_turns(self, group: Members, m: int) -> Members:
        """Return ``group`` without the replicas of ``m``: the others' turns come round sooner."""
        ways = self.ways
        stay = [x for x in group if ways[x.way].model != m]
        if len(stay) == len(group):
            return stay
        if len(stay) <= 1:
            return [PatternMember(x.way) for x in stay]
        cycle = math.fsum(ways[x.way].latency_ms for x in stay)
        return [PatternMember(x.way, x.turn, cycle) for x in stay]

    def level(self, loss: float, looks: int, starved: float = _STARVED) -> None:
        """Raise the smallest served share of a rate, then the next, while it is below ``starved`` and the worth
        stays within ``loss`` (a part) of what it is now. A change counts if the smallest share among the
        models it touches rises."""
        state = self.state
        least = state.value * (1 - loss)
        left = {m for m in range(len(self.asked)) if self.menus.of[m]}
        self.budget = looks
        while self.budget > 0 and left:
            share, m = min((state.served[m] / self.asked[m], m) for m in left)
            if share >= starved:
                return
            if not self._raise(m, least):
                left.remove(m)

    def _raise(self, m: int, least: float) -> bool:
        state = self.state
        ranked = []
        for number, change in enumerate(self.for_model(m)):
            self.budget -= 1
            guess = state.trial(change, exact=False)
            rise = guess.served.get(m, 0.0) - state.guess[m]
            if rise > 1e-3 * self.asked[m] and state.value + guess.gain >= least - 0.01 * abs(least):
                ranked.append(_Look(max(-guess.gain, 0.0) / rise, number, change, guess))
        ranked.sort(key=lambda r: r[:2])
        for look in ranked[:4]:
            exact = state.trial(look.change, exact=True)
            before = min(state.served[x] / self.asked[x] for x in exact.served)
            after = min(rate / self.asked[x] for x, rate in exact.served.items())
            if after > before + 1e-3 and state.value + exact.gain >= least:
                state.apply(look.change, exact, look.guess)
                return True
        return False

    def tidy(self, holds: Holds | None = None) -> None:
        """Take fewer replicas where that costs less than a hair (_HAIR of what the model is served, and of
        the whole), and smaller batches wherever it costs nothing; ``holds`` must still hold."""
        least = self.state.value * (1 - _HAIR)
        end = self.menus.work + (_TIDY_WORK if self.many else _NO_END)
        for p in sorted(self.state.counts):
            if self.menus.work < end:
                self._with_fewer(p, least, holds)
        for p in sorted(self.state.counts):
            if self.menus.work >= end:
                return
            now = p
            for x in p.members:
                if now in self.state.counts and x in now.members:
                    now = self._with_smaller(now, x, least, holds)

    def _with_fewer(self, p: GpuPattern, least: float, holds: Holds | None) -> None:
        """Put what takes turns on ``p`` side by side, else one replica in the place of several."""
        state = self.state
        in_turns = any(x.turn >= 0 for x in p.members)
        for change in self.side_by_side(p) if in_turns else self.as_one(p):
            self.menus.work += 1
            if state.value + state.trial(change, exact=False).gain < least - 0.02 * abs(least):
                continue
            exact = state.trial(change, exact=True)
            if state.value + exact.gain >= least and self._stays(change, exact, holds):
                return

    def _with_smaller(self, p: GpuPattern, x: PatternMember, least: float, holds: Holds | None) -> GpuPattern:
        """Take ``x`` away from GPUs like ``p``, or give it a smaller batch; return what they hold then."""
        if x.turn >= 0:
            return p
        state = self.state
        way = self.ways[x.way]
        others = without(p.members, x)
        options = [others]
        for smaller in self.menus.of[way.model][way.type]:
            if smaller.batch < way.batch and smaller.share_pct == way.share_pct:
                options.append([*others, PatternMember(smaller.number)])
        for members in options:
            q = pattern(p.type, members)
            if not allowed(self.menus, q):
                continue
            change = total((p, -state.counts[p]), (q, state.counts[p]))
            self.menus.work += 1
            worth = state.worth(way.model, state.served[way.model])
            if state.trial(change, exact=False).gain < -_HOPELESS * worth:
                continue
            exact = state.trial(change, exact=True)
            spare = _HAIR * worth if members is others else 0.0
            if exact.gain < -spare - 1e-9 * state.value or state.value + exact.gain < least:
                continue
            if self._stays(change, exact, holds):
                return q
        return p

    def _stays(self, change: Change, exact: Trial, holds: Holds | None) -> bool:
        """Make ``change``, and unmake it if ``holds`` no longer does; return whether it stays."""
        before = self.state.saved()
        self.state.apply(change, exact, self.state.trial(change, exact=False))
        if holds is not None and not holds(self.state):
            self.state.restore(before)
            return False
        return True


def _more_turns(change: Change) -> bool:
    """Return whether more replicas take turns after ``change``: few schedulers can be told of it."""
    return sum(n * sum(x.turn >= 0 for x in p.members) for p, n in change.items()) > 0
