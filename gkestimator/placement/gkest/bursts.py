"""Give what the mean rates do not need to bursts, at next to no cost while there is none.

Expected goodput takes arrivals to be Poisson at the workload's rates, and the fewest GPUs reach its most. Where
batches are formed late a burst is served as fast as the GPUs allow, so how they are divided decides what is on time
then. The search goes on for the sum of two: requests on time at the rates themselves, and ``_WEIGHT`` of the mean
share on time at 2, 4 and 8 times the rates, where neighbours are taken to run without a pause at their largest
batches. The plan is kept if it costs at most ``_LOSS`` of the requests on time at the rates, and ``_LOSS_OF_ONE`` of
any model's share; else a smaller weight is tried. Derivation: ours; the factors are those of no trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gkestimator.placement.gkest.menu import Menus
from gkestimator.placement.gkest.search import Search
from gkestimator.placement.gkest.state import Change, PlacementState
from gkestimator.placement.problem import FloatPair, Problem

_BURSTS = (2.0, 4.0, 8.0)
_WEIGHT = 0.2
_TRIES = 3
_LESS = 0.25  # of the weight, where it cost too much
_LOSS = 1e-3
_LOSS_OF_ONE = 0.02


def stand_bursts(
    starts: Sequence[tuple[Menus, Change]],
    worth: Callable[[int, float], float],
    *,
    looks: int,
    seed: int,
) -> Change:
    """Return the GPUs by what they hold that stand bursts best, from the best of ``starts`` (placements for
    the rates of their menus' problem, the first of which is what must not be lost)."""
    menus, first = starts[0]
    plain = PlacementState(menus, first, worth)
    weight = _WEIGHT
    for _ in range(_TRIES):
        found = _best(starts, worth, over_bursts(menus.problem, weight), looks, seed)
        if _costs_little(plain, PlacementState(menus, found, worth)):
            return found
        weight *= _LESS
    return first


def over_bursts(problem: Problem, weight: float) -> Problem:
    """Return ``problem`` with bursts that count ``weight`` of what the rates themselves do, each request on
    time as much whatever the burst."""
    whole = 1.0 + weight
    moments: list[FloatPair] = [(1.0, 1.0 / whole)]
    moments += [(burst, weight / len(_BURSTS) / burst / whole) for burst in _BURSTS]
    return replace(problem, factors=tuple(moments))


def _best(
    starts: Sequence[tuple[Menus, Change]],
    worth: Callable[[int, float], float],
    problem: Problem,
    looks: int,
    seed: int,
) -> Change:
    """Return the placement of most worth that the search comes to from ``starts`` for ``problem``."""
    searches = []
    for menus, counts in starts:
        state = PlacementState(menus.asked(problem), counts, worth)
        search = Search(state, budget=looks, seed=seed)
        while search.more() and search.improve():
            pass
        searches.append(search)
    best = max(searches, key=lambda search: search.state.value)
    best.budget += looks
    best.anew()
    best.tidy()
    return best.state.counts


def _costs_little(plain: PlacementState, other: PlacementState) -> bool:
    """Return whether ``other`` serves nearly what ``plain`` does."""
    if other.value < (1 - _LOSS) * plain.value:
        return False
    models = plain.menus.problem.models
    return all(
        other.served[m] >= plain.served[m] - _LOSS_OF_ONE * model.rate_rps for m, model in enumerate(models)
    )
