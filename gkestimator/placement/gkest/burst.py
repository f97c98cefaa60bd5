"""Headroom for bursts: GPUs that a plan for mean rates would leave idle, used to answer more than the mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gkestimator.placement.expected import Expected, expect
from gkestimator.placement.policy import Placement
from gkestimator.placement.problem import Problem

_STEPS = 4  # factors tried: burst, and its powers 3/4, 1/2, 1/4
_LOSS = 1e-3  # of the requests on time at the mean rates that headroom may cost


def with_headroom(place: Callable[[Problem], Placement], problem: Problem, burst: float) -> Placement:
    """``place`` for rates up to ``burst`` times those of ``problem``.

    Where every rate must be met at the least cost, that is a plan for ``burst`` times the rates. On a fixed cluster
    for goodput it is the plan for the largest of a few factors up to ``burst`` that costs at the rates themselves at
    most 0.1 % of the requests expected on time (weighted), and of the smallest share of its rate that a model is
    served; with the gap of the plan for the rates themselves. Derivation: ours. Expected goodput takes arrivals to be
    Poisson and its most is reached by the fewest GPUs; arrivals that come in bursts wait there while GPUs stand idle.
    """
    if problem.elastic or problem.objective == "cost":
        return place(_scaled(problem, burst))
    plain = place(problem)
    base = _worth(problem, expect(problem, plain.placed))
    if base is None:
        return plain
    no_room = replace(plain, notes=(*plain.notes, "no room for bursts on these GPUs"))
    if base[1] < 1 - _LOSS:
        return no_room
    for step in range(_STEPS, 0, -1):
        factor = burst ** (step / _STEPS)
        found = place(_scaled(problem, factor))
        worth = _worth(problem, expect(problem, found.placed))
        if worth is not None and all(a >= (1 - _LOSS) * b for a, b in zip(worth, base, strict=True)):
            note = f"planned for bursts of {factor:.3g} times the rates"
            return replace(found, gap_pct=plain.gap_pct, notes=(*found.notes, note))
    return no_room


def _scaled(problem: Problem, factor: float) -> Problem:
    return problem.with_models(tuple(replace(m, rate_rps=factor * m.rate_rps) for m in problem.models))


def _worth(problem: Problem, expected: Expected) -> tuple[float, float] | None:
    """Requests on time, weighted, and the smallest share of its rate that a model is served; None where unknown."""
    served = [expected.by_model[m.name] for m in problem.models]
    if not problem.models or any(s is None for s in served):
        return None
    pairs = [(m, s or 0.0) for m, s in zip(problem.models, served, strict=True)]
    return sum(m.weight * s for m, s in pairs), min(s / m.rate_rps for m, s in pairs)
