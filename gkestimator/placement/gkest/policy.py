"""Our own policy: the most requests expected on time, no model starved for nothing, or the least cost at which
every model is on time."""

from __future__ import annotations

from collections.abc import Mapping

from gkestimator.core.errors import UsageError
from gkestimator.placement.gkest.burst import with_headroom
from gkestimator.placement.gkest.fluid import fluid, most_rps
from gkestimator.placement.gkest.menu import MANY, Menus
from gkestimator.placement.gkest.moves import narrow_rates, whole_gpu_rates
from gkestimator.placement.gkest.rent import Renting
from gkestimator.placement.gkest.search import Search
from gkestimator.placement.gkest.state import GpuPattern, PlacementState
from gkestimator.placement.options import check_flags
from gkestimator.placement.policy import Placed, Placement, Policy
from gkestimator.placement.problem import Problem

FAIRNESS = ("none", "maxmin", "weighted")
_LOOKS = 2400  # at changes, for each unit of effort
_FEW = 16  # models; with more, half the looks, as each takes longer, and fewer starts
_ENOUGH = 1e-3  # of the bound may be left


class GkestPolicy(Policy):
    """Maximises :func:`gkestimator.placement.expected.expect`: requests answered within their objective after
    the batch has filled, the replica's queue, the neighbours' slowdown and the estimate's interval.

    How: (1) each model's ways (batch size, SM share) that could matter; (2) the fluid relaxation, by HiGHS,
    which says how much of which GPU type each model should have, and bounds the optimum (`gap_pct`); (3) whole
    GPUs by it, the rest by best fit; (4) changes of one or two GPUs, and GPUs emptied and filled anew, each
    kept only if the evaluator gains. Replicas of one model may differ in batch size, several may share a GPU,
    and a model has no place in an order or group.

    The sum of Creq on a GPU stays within 100 %, turns counted by the time that they take; where models must
    share a GPU that each of them fills, they take turns in one partition or get shares of the SMs.
    ``oversubscribe`` lifts that: what it costs is then counted by the contention model alone. Confined
    replicas are never mixed with unconfined ones.

    Options. ``fairness``: ``none``: the most requests on time, all alike; ``weighted``: requests count with
    their model's weight (1 unless the workload says so); ``maxmin`` (default): as ``weighted``, then the
    smallest share of its rate that a model is served is raised, and the next smallest, as long as it is below
    a half and the total stays within ``fairness_loss_pct`` (default 0.5) of the most. ``attainment`` (default
    0.99): the part of each rate that must be on time where the objective is cost. ``effort`` (default 1)
    scales the search. ``turns`` (default true): false for plans that go to schedulers without turns (HAMi, Ray
    Serve). ``burst`` (default 1): plan for rates that are for a while so many times what the workload says
    (:mod:`~gkestimator.placement.gkest.burst`). Within 0.03 % of equal worth, replicas run side by
    side instead of in turns, and the fewest replicas are taken; at equal worth the smallest batch. Source:
    ours; answers what Elvinger (ETH Zurich, 2024) found wrong with the others.
    """

    name = "gkest"
    summary = "ours: most requests expected on time (filling, queueing, interference, interval), fair, or least cost"
    needs = ("memory",)
    packs_by_creq = True
    options = ("fairness", "fairness_loss_pct", "attainment", "effort", "oversubscribe", "turns", "burst")

    def __init__(
        self,
        *,
        fairness: str = "maxmin",
        fairness_loss_pct: float = 0.5,
        attainment: float = 0.99,
        effort: float = 1.0,
        oversubscribe: bool = False,
        turns: bool = True,
        burst: float = 1.0,
    ) -> None:
        if fairness not in FAIRNESS:
            raise UsageError(f"policy gkest: fairness {fairness!r}: expected one of {', '.join(FAIRNESS)}")
        for name, value, low, high in (
            ("fairness-loss-pct", fairness_loss_pct, 0.0, 100.0),
            ("attainment", attainment, 1e-3, 1.0),
            ("effort", effort, 0.0, 1000.0),
            ("burst", burst, 1.0, 1000.0),
        ):
            if not (isinstance(value, int | float) and low <= value <= high):
                raise UsageError(
                    f"policy gkest: {name} {value!r}: expected a number from {low:g} to {high:g}"
                )
        check_flags(self.name, oversubscribe=oversubscribe, turns=turns)
        self.fairness = fairness
        self.fairness_loss_pct = fairness_loss_pct
        self.attainment = attainment
        self.effort = effort
        self.oversubscribe = oversubscribe
        self.turns = turns
        self.burst = burst
        self.packs_by_creq = not oversubscribe  # type: ignore[misc]

    def place(self, problem: Problem) -> Placement:
        """See :class:`Policy`; ``gap_pct`` is against the fluid relaxation's optimum, which no placement
        without mixed confinement passes. With ``maxmin`` it includes what fairness gave up."""
        if self.burst > 1:
            return with_headroom(self._place, problem, self.burst)
        return self._place(problem)

    def _place(self, problem: Problem) -> Placement:
        by_name = tuple(
            sorted(problem.models, key=lambda m: m.name)
        )  # so that their order in the file decides nothing
        menus = Menus(problem.with_models(by_name), oversubscribe=self.oversubscribe, turns=self.turns)
        if not menus.ways:
            return Placement(gap_pct=None)
        if problem.elastic or problem.objective == "cost":
            renting = Renting(menus, attainment=self.attainment, looks=self.looks(menus), seed=problem.seed)
            found = renting.run()
            if found is not None:
                return Placement(placed=_placed(menus, found), notes=renting.notes, gap_pct=renting.gap_pct)
            notes = renting.notes
            menus = Menus(
                menus.problem, oversubscribe=self.oversubscribe, turns=self.turns
            )  # renting left some out
        else:
            notes = ()
        state, bound = self.most(menus)
        value = state.value
        return Placement(
            placed=_placed(menus, state.counts),
            reasons=self._reasons(menus, state),
            notes=notes,
            gap_pct=100 * max(0.0, 1 - value / bound) if bound > 0 else 0.0,
        )

    def looks(self, menus: Menus) -> int:
        """Looks at changes that the search may take."""
        models = len(menus.of)
        return int(self.effort * (_LOOKS if models <= _FEW else max(_LOOKS // 2, 2 * models)))

    def most(self, menus: Menus) -> tuple[PlacementState, float]:
        """The placement of most worth that was found, and a bound on it."""
        problem = menus.problem
        weights = [1.0 if self.fairness == "none" else m.weight for m in problem.models]
        pools = problem.pools
        most = [most_rps(menus, w) for w in menus.ways]
        many = len(menus.of) > MANY
        bound = fluid(menus, most, pools=pools, weights=weights)
        # with many models the bound's optimum is near enough to start from
        if many:
            rates = most
        else:
            rates = [menus.rate(w) for w in menus.ways]
        aim = fluid(menus, rates, pools=pools, weights=weights)
        by_gpu = sure = None
        if len(menus.of) <= _FEW:
            by_gpu = fluid(menus, whole_gpu_rates(menus), pools=pools, weights=weights)
            narrow = narrow_rates(menus)
            if narrow is not None:
                sure = fluid(menus, narrow, pools=pools, weights=weights)
        assert bound is not None and aim is not None  # nothing served is a solution
        state = PlacementState(
            menus, {GpuPattern(t): int(n) for t, n in enumerate(pools) if n}, lambda m, v: weights[m] * v
        )
        search = Search(
            state, budget=self.looks(menus), seed=problem.seed, enough=bound.value * (1 - _ENOUGH)
        )
        search.run([aim, *([] if by_gpu is None else [by_gpu])], sure)
        if self.fairness == "maxmin":
            search.level(self.fairness_loss_pct / 100, self.looks(menus) // 4)
        search.tidy()
        return state, bound.value

    def _reasons(self, menus: Menus, state: PlacementState) -> Mapping[str, str]:
        found = {}
        for m, model in enumerate(menus.problem.models):
            if menus.of[m] and state.served[m] <= 0:
                found[model.name] = (
                    "on these GPUs a request of it takes the place of more requests of other models "
                    f"(fairness {self.fairness})"
                )
        return found


def _placed(menus: Menus, counts: Mapping[GpuPattern, int]) -> tuple[Placed, ...]:
    problem = menus.problem
    found = []
    for t, name in enumerate(problem.types):
        number = 0
        for p in sorted(q for q in counts if q.type == t and q.members):
            for _ in range(counts[p]):
                gpu = problem.gpu(name, number)
                number += 1
                for x in p.members:
                    way = menus.ways[x.way]
                    found.append(
                        Placed(
                            gpu=gpu,
                            model=menus.model(way.model).name,
                            candidate=way.candidate,
                            partition=None if x.turn < 0 else f"turns-{x.turn}",
                            duty_cycle_ms=x.cycle_ms or None,
                        )
                    )
    return tuple(found)
