"""The Runtime Scheduler's program: the dynamic program against all allocations there are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.simulation.lengths.allocation import allocate, assess, even
from gkestimator.simulation.lengths.runtimes import Ladder, Runtime, ladder_of


def every(runtimes: int, gpus: int) -> Iterator[tuple[int, ...]]:
    """Every way to give ``gpus`` instances to ``runtimes`` with one or more of the longest."""
    for cuts in itertools.combinations_with_replacement(range(gpus), runtimes - 1):
        counts = np.diff([0, *cuts, gpus])
        yield tuple(int(c) for c in counts)


def drawn(rng: np.random.Generator) -> tuple[Ladder, list[float], int]:
    """A ladder whose latencies grow (one in five: not all), demand from idle to twice what fits, few GPUs."""
    runtimes, gpus = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    latencies = np.cumsum(rng.uniform(0.2, 4, runtimes))
    if rng.random() < 0.2:
        rng.shuffle(latencies)
    ladder = ladder_of(
        [Runtime(length=64 * (i + 1), latency_ms=float(t)) for i, t in enumerate(latencies)],
        float(latencies.max() * rng.uniform(1, 12)),
    )
    shares = rng.dirichlet(np.full(runtimes, 0.7))
    room = gpus * float(shares @ np.array(ladder.capacities))
    demand = rng.uniform(0, 2) * room * shares
    if rng.random() < 0.3:  # whole requests: ties and exact capacities
        demand = np.round(demand)
    return ladder, [float(q) for q in demand], gpus


@pytest.mark.slow
def test_as_good_as_the_best_of_all_allocations() -> None:
    rng = np.random.default_rng(2024)
    late = demoted = 0
    for _ in range(600):
        ladder, demand, gpus = drawn(rng)
        found = allocate(ladder, demand, gpus)
        assert sum(found.counts) == gpus and found.counts[-1] >= 1 and min(found.counts) >= 0
        all_of_them = [assess(ladder, demand, c) for c in every(len(demand), gpus)]
        least = min(a.late for a in all_of_them)
        assert found.late == pytest.approx(least, rel=1e-9, abs=1e-8)
        best = min(a.cost_ms for a in all_of_them if a.late <= least + 1e-8)
        assert found.cost_ms == pytest.approx(best, rel=1e-9)
        late += found.late > 0
        demoted += any(c > q + 1e-6 for c, q in zip(found.taken, demand, strict=True))
    assert late > 50 and demoted > 50  # the drawn cases are of every kind


def test_the_program_by_hand() -> None:
    """Two runtimes of 1 and 2 ms, SLO 10 ms: M = 10 and 5. 24 short and 3 long requests per SLO period, 3 GPUs.

    Two short instances take 20, 4 go on: the long one gets 7 of which 2 are late. One short instance takes 10, 14 go
    on: 17 to two long ones, 7 late. So (2, 1); cost 20 x 1 x (1 + 10 / 2) + 7 x 2 x (1 + 7 / 2)."""
    ladder = ladder_of([Runtime(length=64, latency_ms=1.0), Runtime(length=128, latency_ms=2.0)], 10.0)
    found = allocate(ladder, [24.0, 3.0], 3)
    assert found.counts == (2, 1)
    assert found.taken == (20.0, 7.0) and found.late == 2.0
    assert found.cost_ms == pytest.approx(20 * 6 + 7 * 2 * 4.5)


def test_more_gpus_are_never_worse_and_the_case_of_the_paper_s_size_is_solved() -> None:
    lengths = range(64, 513, 64)
    ladder = ladder_of([Runtime(length=n, latency_ms=1 + n / 90) for n in lengths], 150.0)
    demand = [4000.0, 900.0, 300.0, 120.0, 60.0, 30.0, 15.0, 8.0]
    costs = [allocate(ladder, demand, g) for g in (60, 90, 120, 200)]
    for one, other in itertools.pairwise(costs):
        assert (other.late, other.cost_ms) <= (one.late, one.cost_ms + 1e-9)


def test_overload_leaves_the_least_late_with_one_of_the_longest() -> None:
    """Short ones alone, far too many: all but one instance go to the runtime with the largest capacity."""
    ladder = ladder_of([Runtime(length=n, latency_ms=t) for n, t in ((1, 3.0), (2, 1.0), (3, 9.0))], 10.0)
    found = allocate(ladder, [500.0, 0.0, 0.0], 7)
    assert found.counts == (0, 6, 1) and found.late == 500 - 6 * 10 - 1


def test_one_runtime_takes_all() -> None:
    ladder = ladder_of([Runtime(length=512, latency_ms=5.0)], 150.0)
    assert allocate(ladder, [3.0], 4).counts == (4,)


def test_even() -> None:
    assert even(3, 8) == (2, 3, 3)
    assert even(8, 8) == (1,) * 8
    assert even(3, 1) == (0, 0, 1)


@pytest.mark.parametrize(
    ("demand", "gpus"), [([1.0], 2), ([1.0, -1.0], 2), ([1.0, float("nan")], 2), ([1.0, 1.0], 0)]
)
def test_wrong_questions_are_refused(demand: list[float], gpus: int) -> None:
    ladder = ladder_of([Runtime(length=64, latency_ms=1.0), Runtime(length=128, latency_ms=2.0)], 10.0)
    with pytest.raises(UsageError, match="expected"):
        allocate(ladder, demand, gpus)
