"""Our own policy: the most requests expected on time, no model starved for nothing, or the least cost at
which every model is on time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from gkestimator.core.errors import UsageError
from gkestimator.placement.expected import Expected, expect
from gkestimator.placement.gkest.bursts import climbed, stand_bursts
from gkestimator.placement.gkest.fluid import bounds_rps, fluid
from gkestimator.placement.gkest.menu import Menus
from gkestimator.placement.gkest.moves import narrow_rates, whole_gpu_rates
from gkestimator.placement.gkest.rent import Renting
from gkestimator.placement.gkest.search import Search
from gkestimator.placement.gkest.starts import other_starts
from gkestimator.placement.gkest.state import Change, GpuPattern, PlacementState
from gkestimator.placement.policy import Placed, Placement, Policy, check_flags
from gkestimator.placement.problem import STEADY, FloatPair, Names, Problem
from gkestimator.placement.rates import Moments, expected_over, mean_factor, moments_of
from gkestimator.placement.spare import with_caps, with_spare

FAIRNESS = ("none", "maxmin", "weighted")
_LOOKS = 2400  # at changes, for each unit of effort
_BURST_LOOKS = 6000  # the same, for what is left over under late batching
_FEW = 16  # models; with more, half the looks, as each takes longer, and fewer starts
# With more models, looks for each of them (and at most) that are added while a part _NEAR of the bound is left.
_FURTHER = 30
_MOST_FURTHER = 6000
_NEAR = 0.01
_ENOUGH = 1e-3  # of the bound may be left
# The share of its rate below which a model is starved, by the law of batching: the earlier law keeps its plans.
_STARVED = 0.5
_STARVED_LATE = 0.95
_BURST_STEPS = 4  # factors tried: burst, and its powers 3/4, 1/2, 1/4
_BURST_LOSS = 1e-3  # of the requests on time at the mean rates that headroom may cost


class GkestPolicy(Policy):
    """Maximise :func:`gkestimator.placement.expected.expect`: requests answered within their objective after
    the batch has filled, the replica's queue, the neighbours' slowdown and the estimate's interval.

    Steps: (1) each model's ways (batch size, SM share) that could matter; (2) the fluid relaxation, by HiGHS,
    which says how much of which GPU type each model should have, and bounds the optimum (`gap_pct`); (3)
    whole GPUs by it, the rest by best fit; (4) changes of one or two GPUs, and GPUs emptied and filled anew,
    each kept only if the evaluator gains. Replicas of one model may differ in batch size, several may share a
    GPU, and a model has no place in an order or group.

    The sum of Creq on a GPU stays within 100 %, turns counted by the time that they take; where models must
    share a GPU that each of them fills, they take turns in one partition or get shares of the SMs.
    ``oversubscribe`` lifts that: what it costs is then counted by the contention model alone. Confined
    replicas are never mixed with unconfined ones.

    Options. ``fairness``: ``none``: the most requests on time, all alike; ``weighted``: requests count with their
    model's weight (1 unless the workload says so); ``maxmin`` (default): as ``weighted``, then the smallest share
    of its rate that a model is served is raised, and the next smallest, as long as it is below a half (95 % where
    batches are formed late) and the total stays within ``fairness_loss_pct`` (default 0.5) of the most.
    ``attainment`` (default 0.99): the part of each rate that must be on time where the objective is cost.
    ``effort`` (default 1) scales the search. ``turns`` (default true): false for plans that go to schedulers
    without turns (HAMi, Ray Serve). ``burst`` (default 1): plan for rates that are for a while so many times what
    the workload says (:func:`with_headroom`). ``rates``: how the rates vary (:mod:`gkestimator.placement.rates`);
    what is expected over all of them is maximised. ``spare`` (default true): where batches are formed late, what
    the rates do not need goes to bursts (:mod:`gkestimator.placement.gkest.bursts`). Within 0.03 % of equal
    worth, replicas run side by side instead of in turns, and the fewest replicas are taken; at equal worth the
    smallest batch. Source: ours; answers what Elvinger (ETH Zurich, 2024) found wrong with the others."""

    name = "gkest"
    summary = "ours: most requests expected on time (filling, queueing, interference, interval), fair, or least cost"
    needs = ("memory",)
    spares = ("memory",)
    packs_by_creq = True
    options = (
        "fairness",
        "fairness_loss_pct",
        "attainment",
        "effort",
        "oversubscribe",
        "turns",
        "burst",
        "spare",
        "rates",
    )

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
        spare: bool = True,
        rates: object = None,
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
        check_flags(self.name, oversubscribe=oversubscribe, turns=turns, spare=spare)
        self.fairness = fairness
        self.fairness_loss_pct = fairness_loss_pct
        self.attainment = attainment
        self.effort = effort
        self.oversubscribe = oversubscribe
        self.turns = turns
        self.burst = burst
        self.spare = spare
        self.moments: Moments | None = None
        if rates is not None:
            if burst > 1:
                raise UsageError("policy gkest: burst and rates: expected one of them")
            self.moments = moments_of(rates)
        self.packs_by_creq = not oversubscribe  # type: ignore[misc]

    def place(self, problem: Problem) -> Placement:
        """Return replicas; see :class:`Policy`. ``gap_pct`` is against the fluid relaxation's optimum, which
        no placement without mixed confinement passes. With ``maxmin`` it includes what fairness gave up."""
        if self.burst > 1:
            return with_headroom(self._place, problem, self.burst)
        if self.moments is not None:
            return self._over(problem, self.moments)
        return self._place(problem)

    def _over(self, problem: Problem, moments: Moments) -> Placement:
        """Return the placement of most worth over ``moments`` of the rates."""
        mean = mean_factor(moments)
        factors = tuple((factor / mean, part) for factor, part in moments)
        answer = self._place(replace(problem.times(mean), factors=factors))
        placed = answer.placed
        if problem.batching == "late":
            placed = with_caps(problem, placed)
        share = expected_over(problem, placed, moments)
        if share is None:
            return answer
        lowest = moments[0][0]
        highest = moments[-1][0]
        note = (
            f"planned for {len(moments)} rates of {lowest:.3g} to {highest:.3g} times the workload's: over all of them "
            f"{100 * share:.4g} % of the requests are expected on time"
        )
        return replace(answer, notes=(*answer.notes, note))

    def _place(self, problem: Problem) -> Placement:
        # By name, so that their order in the file decides nothing.
        models = sorted(problem.models, key=lambda m: m.name)
        problem = problem.with_models(tuple(models))
        menus = self._menus(problem)
        if not menus.ways:
            return Placement(gap_pct=None)
        notes: Names = ()
        if problem.elastic or problem.objective == "cost":
            renting = Renting(menus, attainment=self.attainment, looks=self.looks(menus), seed=problem.seed)
            counts = renting.run()
            notes = renting.notes
            if counts is not None:
                return Placement(placed=_placed(menus, counts), notes=notes, gap_pct=renting.gap_pct)
            menus = self._menus(problem)  # renting left ways out
        state, bound = self.most(menus)
        spare = self.spare and problem.batching == "late"
        if spare and not menus.many:
            counts = self._standing_bursts(menus, state)
            state = PlacementState(menus, counts, state.worth)
        if bound > 0:
            gap = 100 * max(0.0, 1 - state.value / bound)
        else:
            gap = 0.0
        reasons = self._reasons(menus, state)
        placed = _placed(menus, state.counts)
        if spare:
            placed = with_spare(problem, placed)
        return Placement(placed=placed, reasons=reasons, notes=notes, gap_pct=gap)

    def _menus(self, problem: Problem, *, turns: bool = True) -> Menus:
        return Menus(problem, oversubscribe=self.oversubscribe, turns=self.turns and turns)

    def _standing_bursts(self, menus: Menus, state: PlacementState) -> Change:
        """Return the placement that stands bursts best at next to no cost for the rates themselves."""
        starts = [(menus, state.counts)]
        if self.turns:
            # A replica that takes turns cannot run ahead in a burst: the best without any may be the better start.
            side_by_side = self._menus(menus.problem, turns=False)
            starts.append((side_by_side, self.most(side_by_side)[0].counts))
        problem = menus.problem
        looks = int(self.effort * _BURST_LOOKS)
        if problem.factors != STEADY:
            return climbed(starts, state.worth, problem, looks=looks, seed=problem.seed)
        return stand_bursts(starts, state.worth, looks=looks, seed=problem.seed)

    def looks(self, menus: Menus) -> int:
        """Return how many looks at changes the search may take."""
        models = len(menus.of)
        if models <= _FEW:
            looks = _LOOKS
        else:
            looks = max(_LOOKS // 2, 2 * models)
        return int(self.effort * looks)

    def most(self, menus: Menus) -> tuple[PlacementState, float]:
        """Return the placement of most worth that the search comes to, and a bound on it."""
        problem = menus.problem
        weights = [1.0 if self.fairness == "none" else m.weight for m in problem.models]
        pools = problem.pools
        most = bounds_rps(menus)
        optimum_of = partial(fluid, menus, pools=pools, weights=weights)
        bound = optimum_of(most)
        rates = [menus.rate(w) for w in menus.ways]
        optima = [optimum_of(rates)]
        sure = None
        if len(menus.of) <= _FEW:
            optima.append(optimum_of(whole_gpu_rates(menus)))
            narrow = narrow_rates(menus)
            if narrow is not None:
                sure = optimum_of(narrow)
        assert bound is not None and optima[0] is not None  # nothing served is a solution
        empty = {GpuPattern(t): int(n) for t, n in enumerate(pools) if n}
        state = PlacementState(menus, empty, lambda m, rate: weights[m] * rate)
        looks = self.looks(menus)
        further = 0
        if len(menus.of) > _FEW:
            further = int(self.effort * min(_FURTHER * len(menus.of), _MOST_FURTHER))
        search = Search(
            state,
            budget=looks,
            seed=problem.seed,
            enough=bound.value * (1 - _ENOUGH),
            near=bound.value * (1 - _NEAR),
            further=further,
        )
        starts = other_starts(menus) if len(menus.of) > _FEW else ()
        search.run([optimum for optimum in optima if optimum is not None], sure, starts)
        if self.fairness == "maxmin":
            starved = _STARVED_LATE if problem.batching == "late" else _STARVED
            search.level(self.fairness_loss_pct / 100, looks // 4, starved)
        search.tidy()
        return state, bound.value

    def _reasons(self, menus: Menus, state: PlacementState) -> Mapping[str, str]:
        reasons = {}
        for m, model in enumerate(menus.problem.models):
            if menus.of[m] and state.served[m] <= 0:
                reasons[model.name] = (
                    "on these GPUs a request of it takes the place of more requests of other models "
                    f"(fairness {self.fairness})"
                )
        return reasons


def _placed(menus: Menus, counts: Mapping[GpuPattern, int]) -> tuple[Placed, ...]:
    problem = menus.problem
    placed = []
    numbers = [0] * len(problem.types)
    for p in sorted(q for q in counts if q.members):
        for _ in range(counts[p]):
            gpu = problem.gpu(problem.types[p.type], numbers[p.type])
            numbers[p.type] += 1
            for x in p.members:
                way = menus.ways[x.way]
                partition = None
                if x.turn >= 0:
                    partition = f"turns-{x.turn}"
                replica = Placed(
                    gpu=gpu,
                    model=menus.model(way.model).name,
                    candidate=way.candidate,
                    partition=partition,
                    duty_cycle_ms=x.cycle_ms or None,
                )
                placed.append(replica)
    return tuple(placed)


def with_headroom(place: Callable[[Problem], Placement], problem: Problem, burst: float) -> Placement:
    """Return what ``place`` answers for rates up to ``burst`` times those of ``problem``: GPUs that a plan
    for mean rates would leave idle answer more than the mean.

    Where every rate must be met at the least cost, that is a plan for ``burst`` times the rates. On a fixed
    cluster for goodput it is the plan for the largest of a few factors up to ``burst`` that costs at the
    rates themselves at most 0.1 % of the requests expected on time (weighted), and of the smallest share of
    its rate that a model is served; with the gap of the plan for the rates themselves. Derivation: ours.
    Expected goodput takes arrivals to be Poisson and its most is reached by the fewest GPUs; arrivals that
    come in bursts wait there while GPUs stand idle."""
    if problem.elastic or problem.objective == "cost":
        return place(_scaled(problem, burst))
    plain = place(problem)
    base = _worth(problem, expect(problem, plain.placed))
    if base is None:
        return plain
    least = [(1 - _BURST_LOSS) * b for b in base]
    if base[1] >= 1 - _BURST_LOSS:
        for step in range(_BURST_STEPS, 0, -1):
            factor = burst ** (step / _BURST_STEPS)
            wider = place(_scaled(problem, factor))
            worth = _worth(problem, expect(problem, wider.placed))
            if worth is not None and worth[0] >= least[0] and worth[1] >= least[1]:
                note = f"planned for bursts of {factor:.3g} times the rates"
                return replace(wider, gap_pct=plain.gap_pct, notes=(*wider.notes, note))
    return replace(plain, notes=(*plain.notes, "no room for bursts on these GPUs"))


def _scaled(problem: Problem, factor: float) -> Problem:
    return problem.with_models(tuple(replace(m, rate_rps=factor * m.rate_rps) for m in problem.models))


def _worth(problem: Problem, expected: Expected) -> FloatPair | None:
    """Return the requests on time, weighted, and the smallest share of its rate that a model is served; None
    where unknown."""
    weighted = 0.0
    shares = []
    for model in problem.models:
        served = expected.by_model[model.name]
        if served is None:
            return None
        weighted += model.weight * served
        shares.append(served / model.rate_rps)
    if shares:
        return (weighted, min(shares))
    return None
