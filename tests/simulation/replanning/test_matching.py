"""As few loads as possible, against every assignment there is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from _replans import V100, replica

from gkestimator.documents import PlacedGpu, Replica
from gkestimator.simulation.replanning.matching import (
    Content,
    assign,
    match_gpus,
    pair_replicas,
    process_key,
    setting_key,
)


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 3), (4, 6), (6, 4), (5, 5), (2, 7)])
def test_an_assignment_is_the_best_of_all(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows * 10 + columns)
    for _ in range(60):
        profit = rng.integers(0, 4, (rows, columns)).astype(float)
        found = assign(profit)
        taken = [c for c in found if c is not None]
        assert len(taken) == len(set(taken)) == min(rows, columns)
        total = sum(profit[r, c] for r, c in enumerate(found) if c is not None)
        few, many = min(rows, columns), max(rows, columns)
        table = profit if rows <= columns else profit.T
        best = max(sum(table[r, p[r]] for r in range(few)) for p in itertools.permutations(range(many), few))
        assert total == best


def test_nothing_to_assign() -> None:
    assert assign(np.zeros((0, 3))) == []
    assert assign(np.zeros((2, 0))) == [None, None]


def loads_and_settings(pairs: Sequence[tuple[Sequence[Replica], Sequence[Replica]]]) -> tuple[int, int]:
    """Loads and changed settings when each planned GPU becomes the running one beside it."""
    loads = changed = 0
    for old, new in pairs:
        stay = (Counter(map(process_key, old)) & Counter(map(process_key, new))).total()
        same = (Counter(map(setting_key, old)) & Counter(map(setting_key, new))).total()
        loads, changed = loads + len(new) - stay, changed + stay - same
    return loads, changed


@pytest.mark.parametrize("seed", range(150))
def test_gpus_are_matched_with_the_fewest_loads_of_all_assignments(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def content() -> tuple[Replica, ...]:
        return tuple(
            replica("abc"[rng.integers(3)], (1, 4)[rng.integers(2)]) for _ in range(rng.integers(0, 4))
        )

    running = [Content(id=f"r{i}", type=V100, replicas=content()) for i in range(rng.integers(1, 6))]
    planned = [
        PlacedGpu(id=f"p{i}", type=V100, cuti_pct=None, muti_pct=None, replicas=content())
        for i in range(rng.integers(1, len(running) + 1))
    ]
    found = match_gpus(running, planned)
    assert len(set(found.values())) == len(planned)
    by_id = {c.id: c.replicas for c in running}
    cost = loads_and_settings([(by_id[found[g.id] or ""], g.replicas) for g in planned])
    best = min(
        loads_and_settings([(c.replicas, g.replicas) for c, g in zip(chosen, planned, strict=True)])
        for chosen in itertools.permutations(running, len(planned))
    )
    assert cost == best


def test_the_same_plan_stays_where_it_is() -> None:
    alike = (replica("a"),)
    running = [Content(id=f"g{i}", type=V100, replicas=alike) for i in range(3)]
    planned = [
        PlacedGpu(id=f"g{i}", type=V100, cuti_pct=None, muti_pct=None, replicas=alike) for i in (2, 0, 1)
    ]
    assert match_gpus(running, planned) == {f"g{i}": f"g{i}" for i in range(3)}


def test_a_gpu_in_use_is_taken_before_a_free_one_and_types_are_kept_apart() -> None:
    running = [
        Content(id="free", type=V100),
        Content(id="used", type=V100, replicas=(replica("a"),)),
        Content(id="t4", type="T4", replicas=(replica("b"),)),
    ]
    planned = [
        PlacedGpu(id="new", type=V100, cuti_pct=None, muti_pct=None, replicas=(replica("b"),)),
        PlacedGpu(id="more", type="T4", cuti_pct=None, muti_pct=None, replicas=(replica("c"),)),
        PlacedGpu(id="most", type="T4", cuti_pct=None, muti_pct=None, replicas=(replica("c"),)),
    ]
    assert match_gpus(running, planned) == {"new": "used", "more": "t4", "most": None}


def test_replicas_go_on_with_equal_settings_first_and_then_as_near_as_can_be() -> None:
    running = [replica("a", 64), replica("a", 4), replica("b", 1), replica("a", 1)]
    planned = [replica("a", 8), replica("a", 64), replica("c", 1), replica("a", 4, sm_share_pct=50.0)]
    assert pair_replicas(running, planned) == {1: 0, 0: 3}
    assert pair_replicas([], planned) == {}
    # As they stand, one to one.
    assert pair_replicas(running, running) == {i: i for i in range(4)}


def test_two_that_are_equal_are_paired_once_each() -> None:
    two = [replica("a"), replica("a")]
    assert sorted(pair_replicas(two, [*two, replica("a")]).values()) == [0, 1]
