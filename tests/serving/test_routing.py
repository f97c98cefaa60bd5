"""Who answers a request: the least outstanding work, in expected milliseconds, of those that run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from _served_plans import served, write_inputs

from gkestimator.documents import read_plan
from gkestimator.serving.routing import LaneLoad, ReplicaLoad, Routes
from gkestimator.serving.served import ServedReplica


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> ServedReplica:
    """A replica with 10 ms for one request and 25 for four, its cap."""
    folder = write_inputs(tmp_path_factory.mktemp("serving"))
    first = served(read_plan(folder / "plan.json")).replicas[0]
    return replace(first, cap=4, batches=(1, 2, 4), times_ms=(10.0, 15.0, 25.0))


def load(
    replica: ServedReplica, *, lane: LaneLoad | None = None, alive: bool = True, **more: Any
) -> ReplicaLoad:
    link: Any = SimpleNamespace(alive=alive)
    return ReplicaLoad(replica, link, lane or LaneLoad(), **({"limit": None, "timeout_s": 1.0} | more))


def routes(replica: ServedReplica, *loads: ReplicaLoad) -> Routes:
    return Routes(loads, {replica.model: 100.0}, 1)


def test_work_is_full_batches_and_the_rest(replica: ServedReplica) -> None:
    own = load(replica)
    assert [own.work_ms(n) for n in (0, 1, 2, 3, 4, 5, 8)] == [0.0, 10.0, 15.0, 20.0, 25.0, 35.0, 50.0]


def test_the_least_work_is_chosen_not_the_fewest_requests(replica: ServedReplica) -> None:
    slow = load(replace(replica, times_ms=(100.0, 150.0, 250.0)))
    fast = load(replica)
    slow.add(1)
    fast.add(5)
    assert routes(replica, slow, fast).choose(replica.model) is fast


def test_replicas_of_a_lane_wait_for_each_other(replica: ServedReplica) -> None:
    lane = LaneLoad()
    beside, other = load(replica, lane=lane), load(replica, lane=lane)
    alone = load(replica)
    other.add(4)
    alone.add(1)
    assert routes(replica, beside, alone).choose(replica.model) is alone


def test_equals_take_turns_and_the_dead_none(replica: ServedReplica) -> None:
    loads = [load(replica) for _ in range(3)]
    dead = load(replica, alive=False)
    table = routes(replica, *loads, dead)
    chosen = [table.choose(replica.model) for _ in range(6)]
    assert {id(c) for c in chosen} == {id(own) for own in loads}
    assert routes(replica, dead).choose(replica.model) is None
    assert not routes(replica, dead).ready()
    assert table.ready()


def test_a_finished_request_gives_its_work_back(replica: ServedReplica) -> None:
    own = load(replica)
    for count in (1, 1, 1, -1, -1, -1):
        own.add(count)
    assert (own.count, own.lane.work_ms) == (0, 0.0)


def test_a_queue_holds_what_can_be_answered_until_the_time_out(replica: ServedReplica) -> None:
    assert load(replica).limit == 160  # 40 batches of 4 in a second
    assert load(replica, limit=7).limit == 7
