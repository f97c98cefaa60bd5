"""The state that the `gkest` policy searches on: the same figures as the evaluator, and back again."""

from __future__ import annotations

import random

import pytest
from _gkest_cases import random_problem
from _problems import V100, problem, row

from gkestimator.placement.contention import slowdowns
from gkestimator.placement.expected import expect
from gkestimator.placement.gkest.fluid import fluid, most_rps
from gkestimator.placement.gkest.menu import Menus
from gkestimator.placement.gkest.policy import _placed
from gkestimator.placement.gkest.state import GpuPattern, PatternMember, PlacementState, allowed, pattern
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Gpu


def drawn(menus: Menus, seed: int, gpus: int) -> dict[GpuPattern, int]:
    """Random patterns for ``gpus`` GPUs, side by side and in turns."""
    draw = random.Random(seed)
    found: dict[GpuPattern, int] = {}
    for _ in range(gpus):
        members: list[PatternMember] = []
        for way in draw.sample(menus.ways, min(4, len(menus.ways))):
            if allowed(menus, pattern(0, [*members, PatternMember(way.number)])):
                members.append(PatternMember(way.number))
        if draw.random() < 0.5 and len(members) > 1:
            cycle = sum(menus.ways[x.way].latency_ms for x in members)
            turns = pattern(0, [PatternMember(x.way, 0, cycle) for x in members])
            members = list(turns.members) if allowed(menus, turns) else members
        p = pattern(0, members)
        found[p] = found.get(p, 0) + 1
    return found


@pytest.mark.parametrize("seed", range(6))
def test_as_the_evaluator_says(seed: int) -> None:
    given = random_problem(seed, gpus=4, models=4)
    menus = Menus(given)
    state = PlacementState(menus, drawn(menus, seed, 4), lambda m, v: v)
    truth = expect(given, _placed(menus, state.counts))
    for m, model in enumerate(given.models):
        assert state.served[m] == pytest.approx(truth.by_model[model.name], rel=1e-4, abs=1e-9)
    assert state.value == pytest.approx(truth.goodput_rps, rel=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_change_by_change_ends_where_a_new_state_begins(seed: int) -> None:
    given = random_problem(seed, gpus=4, models=4)
    menus = Menus(given)
    state = PlacementState(menus, {GpuPattern(0): 4}, lambda m, v: v)
    target = drawn(menus, seed + 50, 4)
    before = state.saved()
    for p, n in target.items():
        for _ in range(n):
            change = {GpuPattern(0): -1, p: 1} if p.members else {}
            gain = state.trial(change, exact=True).gain
            old = state.value
            state.commit(change)
            assert state.value == pytest.approx(old + gain, rel=1e-9, abs=1e-9)
    fresh = PlacementState(menus, target, lambda m, v: v)
    assert state.value == pytest.approx(fresh.value, rel=1e-9)
    state.restore(before)
    assert state.value == 0 and state.counts == {GpuPattern(0): 4}


def test_what_a_gpu_may_hold() -> None:
    rows = [row("a", 1, 10.0, sm_util_mean_pct=60.0), row("b", 1, 20.0, sm_util_mean_pct=50.0)]
    rows += [row(m, 1, 15.0, sm_util_mean_pct=40.0, sm_share_pct=50.0) for m in ("a", "b")]
    rows += [row("c", 1, 10.0, sm_util_mean_pct=1.0, mreq_bytes=9 << 30)]
    given = problem(rows, {"a": (1, 100), "b": (1, 45), "c": (1, 100)}, {V100: 1})
    menus = Menus(given)
    way = {(w.candidate.row.model, w.share_pct): w.number for w in menus.ways}
    a, b, c = (way[m, 100.0] for m in "abc")
    half = [way[m, 50.0] for m in "ab"]
    assert allowed(menus, pattern(0, [PatternMember(a)])) and allowed(
        menus, pattern(0, [PatternMember(x) for x in half])
    )
    assert not allowed(menus, pattern(0, [PatternMember(a), PatternMember(b)]))  # Creq 110 %
    assert allowed(Menus(given, oversubscribe=True), pattern(0, [PatternMember(a), PatternMember(b)]))
    assert not allowed(menus, pattern(0, [PatternMember(c), PatternMember(c)]))  # memory
    assert not allowed(
        menus, pattern(0, [PatternMember(half[0]), PatternMember(c)])
    )  # confined beside unconfined
    assert not allowed(menus, pattern(0, [PatternMember(x) for x in (*half, half[0])]))  # 150 % of the SMs
    assert not allowed(
        menus, pattern(0, [PatternMember(a, 0, 30.0), PatternMember(b, 0, 30.0)])
    )  # b: 20 + 30 > 45 ms
    assert not allowed(
        menus, pattern(0, [PatternMember(a, 0, 20.0), PatternMember(b, 0, 20.0)])
    )  # 30 ms of turns in 20
    assert allowed(menus, pattern(0, [PatternMember(a, 0, 20.0), PatternMember(a, 0, 20.0)]))
    in_half = [PatternMember(x, 0, 30.0) for x in half]  # two take turns on one half, a third has the other
    assert allowed(menus, pattern(0, [*in_half, PatternMember(half[0])]))
    assert not allowed(menus, pattern(0, [*in_half, PatternMember(half[0]), PatternMember(half[1])]))


@pytest.mark.parametrize("seed", range(20))
def test_compute_is_conserved_side_by_side(seed: int) -> None:
    """What the fluid bound rests on: parts of capacity served times demand stay within the GPU."""
    draw = random.Random(seed)
    size = draw.randint(2, 6)
    rows = [row(f"m{i}", 1, draw.uniform(1, 50), sm_util_mean_pct=draw.uniform(5, 100)) for i in range(size)]
    given = problem(rows, {f"m{i}": (1, 1e4) for i in range(size)}, {V100: 1})
    placed = [
        Placed(gpu=Gpu(id="g", type=V100), model=m.name, candidate=m.candidates[0]) for m in given.models
    ]
    loads = [draw.uniform(0, 1) for _ in placed]
    factors = slowdowns(placed, [u * p.capacity_rps for u, p in zip(loads, placed, strict=True)])
    demand = 0.0
    for load, p, factor in zip(loads, placed, factors, strict=True):
        assert factor is not None
        served = min(load, 1 / factor)
        demand += served * (p.candidate.row.sm_util_mean_pct or 0.0)
    assert demand <= 100 * (1 + 1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_fluid_optimum_is_above_any_drawn_placement(seed: int) -> None:
    given = random_problem(seed, gpus=4, models=4)
    menus = Menus(given)
    found = fluid(menus, [most_rps(menus, w) for w in menus.ways], pools=[4.0], weights=[1.0] * 4)
    assert found is not None
    for other in range(10):
        state = PlacementState(menus, drawn(menus, 10 * seed + other, 4), lambda m, v: v)
        assert state.value <= found.value * (1 + 1e-6)


def test_fluid_by_hand() -> None:
    """100 req/s at 10 ms take a whole GPU of two; the other serves half of 200 req/s at 10 ms."""
    rows = [row(m, 1, 10.0, sm_util_mean_pct=100.0) for m in ("a", "b")]
    given = problem(rows, {"a": (100, 1e4), "b": (200, 1e4)}, {V100: 2})
    menus = Menus(given)
    rates = [100.0 for _ in menus.ways]
    found = fluid(menus, rates, pools=[2.0], weights=[2.0, 1.0])
    assert found is not None and found.value == pytest.approx(2 * 100 + 100)
    assert found.share[0] == pytest.approx({0: 1.0}) and found.share[1] == pytest.approx({0: 1.0})
    cheapest = fluid(menus, rates, pools=[float("inf")], weights=[1.0, 1.0], prices=[3.0])
    assert (
        cheapest is not None
        and cheapest.value == pytest.approx(9.0)
        and cheapest.gpus == pytest.approx((3.0,))
    )
    assert fluid(menus, rates, pools=[2.0], weights=[1.0, 1.0], prices=[3.0]) is None
