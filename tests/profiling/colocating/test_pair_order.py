"""Which pairs come when."""

from __future__ import annotations

from itertools import combinations

import pytest
from small_models import mlp

from gkestimator.profiling.colocating.jobs import DEFAULT_SHARES
from gkestimator.profiling.colocating.order import jobs, pair_order

ALL = [mlp(f"m{i}", 8 * (i + 1), batch=b) for i in range(9) for b in (1, 2)]


def names(pair: tuple) -> tuple[str, str]:
    return pair[0].model.name, pair[1].model.name


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 17, 18])
def test_every_pair_once(count: int) -> None:
    entries = ALL[:count]
    found = [frozenset((a.id, b.id)) for a, b in pair_order(entries, 3)]
    expected = {frozenset((a.id, b.id)) for a, b in combinations(entries, 2)} | {
        frozenset((e.id,)) for e in entries
    }
    assert len(found) == len(expected) and set(found) == expected


def test_different_models_first_then_sizes_then_itself() -> None:
    found = list(pair_order(ALL, 0))
    kinds = [0 if names(p)[0] != names(p)[1] else 1 if p[0].id != p[1].id else 2 for p in found]
    assert kinds == sorted(kinds)
    assert [kinds.count(k) for k in range(3)] == [18 * 17 // 2 - 9, 9, 18]


def test_the_first_pairs_are_of_eight_different_models() -> None:
    first = list(pair_order(ALL, 0))[:28]
    assert len({e.id for p in first for e in p}) == 8 == len({n for p in first for n in names(p)})
    # Round by round: the first four pairs have each of the eight once.
    assert len({e.id for p in first[:4] for e in p}) == 8


def test_the_seed_alone_decides() -> None:
    def ids(entries: list, seed: int) -> list:
        return [(a.id, b.id) for a, b in pair_order(entries, seed)]

    assert ids(ALL, 1) == ids(ALL[::-1], 1)
    assert ids(ALL, 1) != ids(ALL, 2)


def test_unconfined_first_then_shares_in_turn() -> None:
    found = jobs(ALL[:6], DEFAULT_SHARES, seed=0)
    pairs = 6 * 5 // 2 + 6
    assert [j.shares for j in found[:pairs]] == [(100.0, 100.0)] * pairs
    # Eight pairs at each other share before the next eight.
    assert [j.shares for j in found[pairs : pairs + 24]] == [s for s in DEFAULT_SHARES[1:] for _ in range(8)]
    assert len({j.key for j in found}) == len(found)
    # Of an entry with itself 20:80 and 80:20 are one.
    own = [j.shares for j in found if j.entries[0] is j.entries[1]]
    assert own.count((20.0, 80.0)) == 6 and (80.0, 20.0) not in own
    assert own.count((50.0, 50.0)) == 6


def test_as_many_pairs_as_asked_for_at_every_share() -> None:
    found = jobs(ALL, DEFAULT_SHARES, seed=0, most_pairs=3)
    assert len(found) == 12 and len({(j.entries[0].id, j.entries[1].id) for j in found}) == 3


@pytest.mark.slow
def test_a_plan_without_end_gives_no_list_without_end() -> None:
    many = [mlp(f"m{i}", 8, batch=i + 1) for i in range(300)]
    assert len(jobs(many, ((100.0, 100.0),), seed=0)) == 20_000
