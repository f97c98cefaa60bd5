"""Packing by runs of equal GPUs, and the order in which models are placed."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from _usher_reference import instance, placing_order, problem_of, row

from gkestimator.placement.papers.usher.configurations import UsherChoice, choices_of, in_order, then
from gkestimator.placement.papers.usher.packing import Garage, Packing, fits, put, settled

V100 = "V100-SXM2-16GB"


def one_by_one(
    used: list[list[float]], group: list[int], demand: tuple[float, float], number: int, limit: int
) -> int:
    """The same on a list of [free Creq, free Mreq] of each used GPU; ``group`` in the order it came to them.
    Returns what was placed."""
    touched: set[int] = set()
    for _ in range(number):
        order = [*group, *(i for i in range(len(used)) if i not in group)]
        at = next(
            (
                i
                for i in order
                if i not in touched and all(f >= d - 1e-9 for f, d in zip(used[i], demand, strict=True))
            ),
            None,
        )
        if at is None:
            if len(used) == limit or max(demand) > 100:
                break
            used.append([100.0, 100.0])
            at = len(used) - 1
        used[at] = [f - d for f, d in zip(used[at], demand, strict=True)]
        touched.add(at)
        if at not in group:
            group.append(at)
    return len(touched)


def walked(packing: Packing) -> dict[int, tuple[float, float]]:
    found = {}
    for _, c, m, count, start, seq in (*packing.inside, *packing.outside):
        assert start == seq  # one type: opened in the order of the cluster
        for i in range(count):
            assert start + i not in found
            found[start + i] = (round(c, 6), round(m, 6))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_runs_pack_as_gpus_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.choice((3, 10, 40))
    garage = Garage(limits=(float(limit),), order=(0,), prices=(1.0,))
    packing = Packing([], [], (0,))
    used: list[list[float]] = []
    for _ in range(3):
        group: list[int] = []
        for _ in range(4):
            demand = (rng.choice((10.0, 25.0, 60.0, 33.3)), rng.choice((5.0, 20.0, 70.0)))
            number = rng.randint(1, 25)
            room = fits(packing, demand[:1], demand[1:], number, garage)
            packing, taken = put(packing, demand[:1], demand[1:], number, garage)
            placed = one_by_one(used, group, demand, number, limit)
            assert sum(run[3] for run in taken) == placed
            assert min(number, sum(n for _, n in (*room[0], *room[1]))) == placed
            assert walked(packing) == {i: (round(c, 6), round(m, 6)) for i, (c, m) in enumerate(used)}
            assert packing.opened == (len(used),)
        packing = Packing([], settled(packing), packing.opened)
        assert [run[5] for run in packing.outside] == sorted(run[5] for run in packing.outside)


def test_new_gpus_are_of_the_cheapest_type_that_can_run_it_until_it_is_used_up() -> None:
    garage = Garage(limits=(2.0, math.inf, 5.0), order=(0, 2, 1), prices=(1.0, 3.0, 2.0))
    packing, taken = put(
        Packing([], [], (0, 0, 0)), (50.0, 20.0, math.inf), (10.0, 10.0, math.inf), 6, garage
    )
    assert [(run[0], run[3], run[4], run[5]) for run in taken] == [(0, 2, 0, 0), (1, 4, 0, 2)]
    assert packing.opened == (2, 4, 0)


def test_equal_neighbours_become_one_run_again() -> None:
    garage = Garage(limits=(100.0,), order=(0,), prices=(1.0,))
    packing, _ = put(Packing([], [], (0,)), (30.0,), (10.0,), 60, garage)
    packing, _ = put(Packing([], settled(packing), packing.opened), (30.0,), (10.0,), 20, garage)
    packing, _ = put(Packing([], settled(packing), packing.opened), (30.0,), (10.0,), 60, garage)
    # First fit: 20 GPUs with three replicas, 40 with two.
    assert [(run[1], run[3]) for run in settled(packing)] == [(10.0, 20), (40.0, 40)]


def test_c_heavy_and_m_heavy_take_turns() -> None:
    demands = {
        "c1": (60.0, 10.0),
        "c2": (80.0, 10.0),
        "c3": (70.0, 10.0),
        "m1": (10.0, 90.0),
        "n1": (50.0, 45.0),
    }
    models = [
        (n, 100.0, 50.0, [row(n, V100, 4, latency_ms=5, throughput_rps=100, creq=c, mreq=m)])
        for n, (c, m) in demands.items()
    ]
    problem = problem_of(models, {V100: 4})
    chosen = [choices_of(m, i, types=problem.types, most=4)[0] for i, m in enumerate(problem.models)]
    assert [c.name for c in in_order(chosen)] == ["c2", "m1", "c3", "c1", "n1"]
    plain = [
        choices_of(m, i, types=problem.types, most=4, heavy=False)[0] for i, m in enumerate(problem.models)
    ]
    assert [c.name for c in in_order(plain)] == ["c2", "c3", "c1", "n1", "m1"]
    given = [
        choices_of(m, i, types=problem.types, most=4, sort=False)[0] for i, m in enumerate(problem.models)
    ]
    assert [c.name for c in in_order(given)] == ["c1", "m1", "c2", "c3", "n1"]


def orders(left: dict[int, list[UsherChoice]], turn: int = 0) -> list[list[UsherChoice]]:
    """Every whole order that ``then`` allows."""
    if not left:
        return [[]]
    found = []
    for model, choices in left.items():
        others = {m: c for m, c in left.items() if m != model}
        for choice in choices:
            rest = then(turn, choice, others)
            if rest is not None:
                following = 1 - choice.heavy if choice.heavy < 2 else turn
                found += [[choice, *more] for more in orders(rest, following)]
    return found


@pytest.mark.parametrize("heavy", [True, False])
def test_the_search_meets_each_choice_of_batch_sizes_once_in_its_order(heavy: bool) -> None:
    for seed in range(12):
        problem = instance(seed, most=3000)
        models = problem.models[:4]
        choices = [choices_of(m, i, types=problem.types, most=99, heavy=heavy) for i, m in enumerate(models)]
        choices = [c for c in choices if c]
        met = orders({i: list(c) for i, c in enumerate(choices)})
        assert len(met) == math.prod(map(len, choices))
        expected = {
            tuple(c.number for c in p): [c.name for c in in_order(p)] for p in itertools.product(*choices)
        }
        for order in met:
            by_model = sorted(order, key=lambda c: c.model)
            names = [c.name for c in order]
            assert names == expected[tuple(c.number for c in by_model)]
            batches = {c.name: next(r.batch_size for r in c.candidates if r is not None) for c in by_model}
            assert names == placing_order(problem, batches, heavy=heavy)


def test_degrees_are_multiples_of_what_the_largest_batch_needs() -> None:
    rows = [row("m", V100, b, latency_ms=b, throughput_rps=25.0 * b, creq=10, mreq=10) for b in (4, 8, 16)]
    problem = problem_of([("m", 450.0, 9.0, rows)], {V100: 7})
    found = choices_of(problem.models[0], 0, types=problem.types, most=7)
    # Batch 16 is too late; batch 8 serves 200 req/s: c = 3.
    assert [(c.rps, c.degrees, c.number) for c in found] == [((100.0,), (3, 6), 0), ((200.0,), (3, 6), 2)]
    assert choices_of(problem.models[0], 0, types=problem.types, most=2) == ()
    unlimited = choices_of(problem.models[0], 0, types=problem.types, most=math.inf)
    assert unlimited[0].degrees == (3, 6, 9, 12, 15, 18)
