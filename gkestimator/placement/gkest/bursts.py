"""Give what the mean rates do not need to bursts, at next to no cost while there is none.

Expected goodput takes arrivals to be Poisson at the workload's rates, and the fewest GPUs reach its most. Where
batches are formed late a burst is served as fast as the GPUs allow, so how they are divided decides what is on time
then. The search goes on for the sum of two: requests on time at the rates themselves, and ``_WEIGHT`` of the mean
share on time at 2, 4 and 8 times the rates, where neighbours are taken to run without a pause at their largest
batches. The plan is kept if it costs at most ``_LOSS`` of the requests on time at the rates, and ``_LOSS_OF_ONE`` of
any model's share; else a smaller weight is tried. Derivation: ours; the factors are those of no trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from typing import TypeAlias

from gkestimator.placement.gkest.menu import Menus
from gkestimator.placement.gkest.moves import total
from gkestimator.placement.gkest.state import (
    Change,
    Changes,
    GpuPattern,
    PatternMember,
    PlacementState,
    allowed,
    pattern,
)
from gkestimator.placement.gkest.turns import without
from gkestimator.placement.gkest.ways import Ways
from gkestimator.placement.problem import FloatPair, Problem

Worth: TypeAlias = Callable[[int, float], float]
# Where the search starts: the ways to choose from, and GPUs by what they hold.
Start: TypeAlias = tuple[Menus, Change]

_BURSTS = (2.0, 4.0, 8.0)
_WEIGHT = 0.2
_TRIES = 3
_LESS = 0.25  # of the weight, where it cost too much
_LOSS = 1e-3
_LOSS_OF_ONE = 0.02
_TINY = 1e-6  # of the worth: gains that are not worth a change
_JUDGED = 24  # changes of a round that the evaluator looks at
_MOST_MEMBERS = 5
_BATCHES = 2  # planned batches that a model is tried at: the smallest
_PARTNERS = 16  # kinds of GPUs that a replica may move to for a try; of more, a random choice


def stand_bursts(starts: Sequence[Start], worth: Worth, *, looks: int, seed: int) -> Change:
    """Return the GPUs by what they hold that stand bursts best, from the best of ``starts``, the first of which
    is what must not be lost at the rates of its menus' problem."""
    menus, first = starts[0]
    plain = PlacementState(menus, first, worth)
    weight = _WEIGHT
    for _ in range(_TRIES):
        counts = climbed(starts, worth, over_bursts(menus.problem, weight), looks=looks, seed=seed)
        if _costs_little(plain, PlacementState(menus, counts, worth)):
            return counts
        weight *= _LESS
    return first


def climbed(starts: Sequence[Start], worth: Worth, problem: Problem, *, looks: int, seed: int) -> Change:
    """Return the GPUs by what they hold that are worth most for ``problem``, from the best of ``starts``."""
    searches = []
    for menus, counts in starts:
        search = BurstSearch(PlacementState(menus.asked(problem), counts, worth), looks=looks, seed=seed)
        search.climb()
        searches.append(search)
    best = max(searches, key=lambda search: search.state.value)
    best.climb_anew()
    return best.state.counts


def over_bursts(problem: Problem, weight: float) -> Problem:
    """Return ``problem`` with bursts that count ``weight`` of what the rates themselves do, each request on
    time as much whatever the burst."""
    whole = 1.0 + weight
    moments: list[FloatPair] = [(1.0, 1.0 / whole)]
    moments += [(burst, weight / len(_BURSTS) / burst / whole) for burst in _BURSTS]
    return replace(problem, factors=tuple(moments))


def _costs_little(plain: PlacementState, other: PlacementState) -> bool:
    """Return whether ``other`` serves nearly what ``plain`` does."""
    if other.value < (1 - _LOSS) * plain.value:
        return False
    models = plain.menus.problem.models
    return all(
        other.served[m] >= plain.served[m] - _LOSS_OF_ONE * model.rate_rps for m, model in enumerate(models)
    )


class BurstSearch:
    """Climb from a placement by changes of one or two GPUs, replicas side by side alone: planned batches matter
    little where batches are formed late, who shares a GPU with whom does. ``looks``: at changes, for each climb."""

    def __init__(self, state: PlacementState, *, looks: int, seed: int) -> None:
        self.state = state
        self._menus = state.menus
        self._looks = looks
        self._budget = looks
        self._random = random.Random(seed)
        self._small: dict[tuple[int, int], Ways] = {}

    def climb(self) -> None:
        """Make the changes that gain, the best by the estimate first, until none does or the budget is spent."""
        self._budget = self._looks
        while self._budget > 0 and self._round(set(self.state.counts)):
            pass

    def climb_anew(self) -> None:
        """Empty two random GPUs and climb again by changes of them, as long as the budget lasts; keep the best."""
        self._budget = self._looks
        best = self.state.saved()
        top = self.state.value
        while self._budget > 0:
            before = set(self.state.counts)
            self._empty_some()
            while self._budget > 0 and self._round(
                {p for p in self.state.counts if p not in before or not p.members}
            ):
                pass
            if self.state.value > top * (1 + _TINY):
                top = self.state.value
                best = self.state.saved()
            else:
                self.state.restore(best)
        self.state.restore(best)

    def _empty_some(self) -> None:
        held = [p for p, n in sorted(self.state.counts.items()) if p.members for _ in range(min(n, 2))]
        chosen = self._random.sample(held, min(2, len(held)))
        steps = [(p, -1) for p in chosen] + [(GpuPattern(p.type), 1) for p in chosen]
        self.state.commit(total(*steps))

    def _round(self, near: Set[GpuPattern]) -> bool:
        """Make those changes of GPUs like ``near`` (and others) that gain; return whether any did."""
        state = self.state
        ranked = []
        for number, change in enumerate(self._changes(near)):
            if self._budget <= 0:
                break
            self._budget -= 1
            ranked.append((-state.trial(change, exact=False).gain, number, change))
        ranked.sort(key=lambda r: r[:2])
        gained = False
        for _, _, change in ranked[:_JUDGED]:
            if any(state.counts.get(p, 0) + n < 0 for p, n in change.items()):
                continue
            exact = state.trial(change, exact=True)
            if exact.gain > _TINY * state.value:
                state.apply(change, exact, state.trial(change, exact=False))
                gained = True
        return gained

    def _changes(self, near: Set[GpuPattern]) -> Changes:
        patterns = sorted(self.state.counts)
        for p in patterns:
            partners = patterns
            if p in near:
                for q in self._grown(p):
                    yield total((p, -1), (q, 1))
            else:
                partners = [q for q in patterns if q in near]
            for x in dict.fromkeys(p.members):
                left = pattern(p.type, without(p.members, x))
                if not allowed(self._menus, left):
                    continue
                if len(partners) > _PARTNERS:
                    partners = self._random.sample(partners, _PARTNERS)
                if p in near:
                    yield total((p, -1), (left, 1))
                    for q in self._grown(left, but=self._model(x)):
                        yield total((p, -1), (q, 1))
                yield from self._moved(p, x, left, partners)

    def _model(self, x: PatternMember) -> int:
        return self._menus.ways[x.way].model

    def _grown(self, p: GpuPattern, but: int = -1) -> Iterator[GpuPattern]:
        """Yield ``p`` with one replica more, of any model but ``but``."""
        for m in range(len(self._menus.of)):
            if m != but:
                yield from self._with(p, m)

    def _with(self, p: GpuPattern, m: int) -> Iterator[GpuPattern]:
        """Yield ``p`` with a replica of ``m`` more."""
        if len(p.members) >= _MOST_MEMBERS:
            return
        for way in self._smallest(m, p.type):
            q = pattern(p.type, [*p.members, PatternMember(way.number)])
            if allowed(self._menus, q):
                yield q

    def _smallest(self, m: int, t: int) -> Ways:
        """Return the unconfined ways of ``m`` on type ``t`` at its smallest batches."""
        ways = self._small.get((m, t))
        if ways is None:
            ways = sorted(
                (w for w in self._menus.of[m].get(t, ()) if w.share_pct >= 100), key=lambda w: w.batch
            )
            ways = self._small[m, t] = ways[:_BATCHES]
        return ways

    def _moved(
        self, p: GpuPattern, x: PatternMember, left: GpuPattern, partners: Sequence[GpuPattern]
    ) -> Changes:
        """Yield changes that move ``x`` from ``p``, of which ``left`` is left, to one of ``partners``, or exchange it
        for what is there."""
        counts = self.state.counts
        m = self._model(x)
        for q in partners:
            if q == p and counts[p] < 2:
                continue
            for grown in self._with(q, m):
                yield total((p, -1), (left, 1), (q, -1), (grown, 1))
            for y in dict.fromkeys(q.members):
                n = self._model(y)
                if n == m or q == p:
                    continue
                rest = pattern(q.type, without(q.members, y))
                for ours in self._with(left, n):
                    for theirs in self._with(rest, m):
                        yield total((p, -1), (ours, 1), (q, -1), (theirs, 1))
