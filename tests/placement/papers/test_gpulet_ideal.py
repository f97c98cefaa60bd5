"""The ideal of gpu-lets against a plain enumeration, and gpulet against the ideal."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from _gpulet_problems import V100, case

from gkestimator.core.errors import UsageError
from gkestimator.interference.gpulet_law import DERIVED, GpuletCoefficients, Pressure
from gkestimator.placement.expected import goodput_rps
from gkestimator.placement.papers.gpulet.columns import best_of
from gkestimator.placement.papers.gpulet.ideal import GpuletIdealPolicy
from gkestimator.placement.papers.gpulet.policy import GpuletPolicy
from gkestimator.placement.policy import verify
from gkestimator.placement.problem import Problem

Way = tuple[dict[str, float], float, Pressure, float]


def ways(problem: Problem, size: float) -> list[Way]:
    """Every filling of a gpu-let: what it serves, memory, pressure, the slowdown it bears."""
    options = [[None, *m.on(V100, sm_share_pct=size)] for m in problem.models]
    found: list[Way] = [({}, 0.0, Pressure(own=-9, other=-9), 1e9)]
    for chosen in itertools.product(*options):
        here = [(m, c) for m, c in zip(problem.models, chosen, strict=True) if c is not None]
        if not here:
            continue
        cycle = sum(c.latency_ms for _, c in here) if len(here) > 1 else 0.0
        bears = min(m.slo_ms / (cycle + c.latency_ms) for m, c in here)
        served = {m.name: 1e3 * c.batch_size / (cycle or c.latency_ms) for m, c in here}
        memory = sum(c.memory_pct or 0.0 for _, c in here)
        if bears >= 1 and memory <= 100:
            found.append((served, memory, DERIVED.pressure([c for _, c in here]), bears))
    return found


def best(problem: Problem, coefficients: GpuletCoefficients | None) -> float:
    """The most goodput of one or two GPUs, by trying every pair of gpu-lets on each."""
    filled = set()
    whole = [(w, None) for w in ways(problem, 100.0)]
    halves = ways(problem, 50.0)
    for one, two in [*whole, *itertools.combinations_with_replacement(halves, 2)]:
        slow = [1.0, 1.0]
        if two is not None and one[0] and two[0] and coefficients is not None:
            slow = [coefficients.slowdown(one[2], two[2]), coefficients.slowdown(two[2], one[2])]
        if one[1] + (two[1] if two else 0.0) > 100 or slow[0] > one[3] or (two and slow[1] > two[3]):
            continue
        filled.add(
            tuple(
                min(
                    m.rate_rps,
                    one[0].get(m.name, 0.0) / slow[0] + (two[0].get(m.name, 0.0) / slow[1] if two else 0.0),
                )
                for m in problem.models
            )
        )
    each = np.array(sorted(filled))
    rates = np.array([m.rate_rps for m in problem.models])
    if len(problem.gpus) == 1:
        return float(each.sum(axis=1).max())
    return max(float(np.minimum(each + row, rates).sum(axis=1).max()) for row in each)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("interference", [True, False])
def test_it_reaches_what_plain_enumeration_reaches(seed: int, interference: bool) -> None:
    found = case(seed, gpus=1 + seed % 2, models=2, shares=(50.0, 100.0), batches=(1, 4))
    policy = GpuletIdealPolicy(interference=interference)
    answer = policy.place(found)
    verify(policy, found, answer)
    expected = best(found, DERIVED if interference else None)
    # The table's throughput counts in goodput, so with interference it is an upper bound of what is served.
    total = sum(goodput_rps(found, answer.placed).values())
    assert total >= expected * (1 - 1e-4 - 1e-9)
    if not interference:
        assert total == pytest.approx(expected, rel=1e-4, abs=1e-9)
    serves_all = expected >= sum(m.rate_rps for m in found.models) * (1 - 1e-9)
    assert policy.schedulable(found) == serves_all


@pytest.mark.parametrize("seed", range(25))
def test_gpulet_never_serves_more_than_its_ideal(seed: int) -> None:
    found = case(seed, gpus=2, models=3, shares=(20.0, 50.0, 80.0, 100.0), batches=(1, 8))
    ideal, gpulet = GpuletIdealPolicy(interference=False), GpuletPolicy(interference=False)
    best_total = sum(goodput_rps(found, ideal.place(found).placed).values())
    total = sum(goodput_rps(found, gpulet.place(found).placed).values())
    assert total <= best_total * (1 + 2e-4)
    if total >= sum(m.rate_rps for m in found.models) * (1 - 1e-9):
        assert ideal.schedulable(found)


def test_of_rows_those_that_no_other_matches_stay() -> None:
    rng = np.random.default_rng(1)
    goods = rng.integers(0, 6, size=(200, 3)).astype(float)
    found = set(best_of(goods).tolist())
    for i, one in enumerate(goods):
        beaten = any(
            (two >= one).all() and ((two > one).any() or j < i) for j, two in enumerate(goods) if j != i
        )
        assert (i in found) == (not beaten)


def test_what_is_too_large_is_refused_with_the_limit() -> None:
    found = case(3, models=1)
    (model,) = found.models[:1]
    many = tuple(replace(model, name=f"m{i}", slo_ms=1e9, rate_rps=1.0) for i in range(12))
    small = tuple(
        replace(m, candidates=tuple(replace(c, memory_pct=0.1) for c in m.candidates)) for m in many
    )
    with pytest.raises(UsageError, match="searches exhaustively: 12 models"):
        GpuletIdealPolicy().place(found.with_models(small))


def test_no_models_and_hopeless_ones_are_answered() -> None:
    found = case(0)
    assert GpuletIdealPolicy().place(found.with_models(())).placed == ()
    hopeless = tuple(replace(m, slo_ms=1e-6) for m in found.models)
    assert GpuletIdealPolicy().place(found.with_models(hopeless)).placed == ()
    assert not GpuletIdealPolicy().schedulable(found.with_models(hopeless))
