"""One change of plan, step by step: what is loaded when, what ends when, and what memory it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import pytest
import reference
from _replans import V100, Short, building, plan, replica

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan, Workload
from gkestimator.simulation.arrivals.streams import TimesInMemory
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.control import Replanned, control
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.simulation.system import SimGpu, SimReplica, System


class Simulator(reference.Simulator):
    """The reference, that keeps when which replicas were added, and from when on they may serve."""

    added: ClassVar[list[tuple[float, str, float]]] = []

    def __init__(self, system: System, options: Options) -> None:
        self.added.clear()
        super().__init__(system, options)

    def add(
        self, replicas: Sequence[SimReplica], available_ms: Sequence[float], *, gpus: Sequence[SimGpu] = ()
    ) -> list[int]:
        names = [self.system.models[r.model].name for r in replicas]
        self.added.extend((self.now_ms, n, a) for n, a in zip(names, available_ms, strict=True))
        return super().add(replicas, available_ms, gpus=gpus)


RATES = {"a": 100.0, "b": 100.0, "c": 100.0, "d": 100.0}
Gpus = Mapping[str, Sequence[Short]]


def changed(
    before: PlacementPlan,
    after: PlacementPlan,
    times: Mapping[str, Sequence[float]] | None = None,
    *,
    gpus: int | None = 4,
    duration: float = 4000.0,
    **settings: object,
) -> Replanned:
    """``before`` serves; at 1,000 ms the policy answers ``after``, for ever. Requests to each model at ``times``."""
    names = [m.name for m in before.workload.models]
    given = times or {}
    replanning = Replanning(
        **(
            {"kind": "gpulet", "period_ms": 1000.0, "background_from_ms": 630.0, "background_to_ms": 630.0}
            | settings
        )
    )  # type: ignore[arg-type]
    return control(
        before,
        lambda workload: after,
        building(names, gpus=[V100, "T4"], shares=[50.0, 100.0]),
        TimesInMemory([list(given.get(n, ())) for n in names]),
        Options(duration_ms=duration, keep_requests=True),
        replanning,
        pool=None if gpus is None else {V100: [f"{V100}-{i}" for i in range(gpus)], "T4": ["T4-0"]},
        simulator=Simulator,  # type: ignore[arg-type]
    )


USHER = {"kind": "usher", "threshold_rps": 1.0}


def by_usher(
    before: Gpus, after: Gpus, times: Mapping[str, Sequence[float]] | None = None, **kwargs: object
) -> Replanned:
    """The change of :func:`changed` by USHER's rules: without requests every rate has moved by 100."""
    return changed(plan(before, RATES), plan(after, RATES), times, **(USHER | kwargs))  # type: ignore[arg-type]


def test_the_same_plan_moves_nothing_wherever_its_gpus_stand_in_it() -> None:
    here = {f"{V100}-0": [("a", 1, 10.0), ("b", 4, 10.0)], f"{V100}-1": [("c", 8, 10.0)]}
    turned = {f"{V100}-1": [("b", 4, 10.0), ("a", 1, 10.0)], f"{V100}-0": [("c", 8, 10.0)]}
    run = by_usher(here, turned)
    first = run.decisions[0]
    assert first.counted is not None
    assert (first.counted.kept, first.counted.reset, first.counted.loads, first.counted.ends) == (3, 0, 0, 0)
    assert first.ready_ms == first.time_ms == 1000
    assert len(run.system.replicas) == 3  # nobody was told anything


def test_a_loaded_model_serves_after_its_load_and_the_old_one_until_then() -> None:
    times = [float(t) for t in range(0, 3000, 50)]
    run = changed(
        plan({f"{V100}-0": [("a", 1, 10.0)], f"{V100}-1": [("b", 1, 10.0)]}, RATES),
        plan({f"{V100}-0": [("b", 1, 10.0)], "T4-0": [("a", 1, 10.0)]}, RATES, {"T4-0": "T4"}),
        {"a": times},
        load_ms=630.0,
        **USHER,
    )
    counted = run.decisions[0].counted
    assert counted is not None
    assert (counted.kept, counted.loads, counted.ends, counted.moves, counted.retired_first) == (
        1,
        1,
        1,
        1,
        0,
    )
    assert run.decisions[0].ready_ms == 1630
    requests = run.result.requests
    assert requests is not None
    assert {(t < 1630, r) for t, r in zip(requests.arrived_ms, requests.replica, strict=True)} == {
        (True, 0),
        (False, 2),
    }
    assert set(requests.gpu_ms) == {10.0}
    assert set(requests.router_ms + requests.queue_ms) == {0.0}


def test_loads_on_one_gpu_follow_each_other_and_those_on_others_go_beside() -> None:
    run = by_usher(
        {f"{V100}-0": [("a", 1, 10.0)]},
        {f"{V100}-0": [("a", 1, 10.0), ("b", 1, 10.0), ("c", 1, 10.0)], f"{V100}-1": [("d", 1, 10.0)]},
    )
    assert run.decisions[0].ready_ms == 1000 + 2 * 630
    assert [x for x in Simulator.added if x[0]] == [
        (1000, "b", 1630),
        (1000, "c", 2260),
        (1000, "d", 1630),
    ]


def test_gpulet_switches_all_at_once_after_the_background() -> None:
    run = changed(
        plan({f"{V100}-0": [("a", 1, 10.0), ("b", 1, 10.0)]}, RATES),
        plan({f"{V100}-0": [("a", 4, 10.0)], f"{V100}-1": [("b", 8, 10.0)]}, RATES),
        {"a": [900.0, 1600.0, 1700.0], "b": [1600.0, 1700.0]},
    )
    first = run.decisions[0]
    assert first.ready_ms == 1630
    assert first.counted is not None
    assert (first.counted.reset, first.counted.loads, first.counted.ends) == (1, 1, 1)
    requests = run.result.requests
    assert requests is not None
    where = sorted(
        zip(requests.arrived_ms.tolist(), requests.model.tolist(), requests.replica.tolist(), strict=True)
    )
    # 2 is b's new replica, 3 the process of a with batch 4.
    assert where == [(900, 0, 0), (1600, 0, 0), (1600, 1, 1), (1700, 0, 3), (1700, 1, 2)]


def test_other_settings_need_no_load_and_one_process_runs_one_batch_at_a_time() -> None:
    run = by_usher(
        {f"{V100}-0": [("a", 1, 10.0)]},
        {f"{V100}-0": [("a", 4, 10.0)]},
        {"a": [994.0, 995.0, 996.0, *[1000.0] * 4]},
    )
    counted = run.decisions[0].counted
    assert counted is not None
    assert (counted.kept, counted.reset, counted.loads, counted.ends) == (0, 1, 0, 0)
    requests = run.result.requests
    assert requests is not None
    assert requests.batch.tolist() == [1, 1, 1, 4, 4, 4, 4]
    # Three of 10 ms from 994 on, then the batch of four.
    assert requests.queue_ms[3:].tolist() == [24.0] * 4


def test_without_room_for_both_the_old_ends_first_and_the_load_waits_for_its_memory() -> None:
    # 20 requests of 10 ms are waiting at 1,000 ms: the old replica is done at 1,200.
    run = by_usher(
        {f"{V100}-0": [("a", 1, 60.0)]},
        {f"{V100}-0": [("b", 1, 70.0)]},
        {"a": [999.0] * 20},
        gpus=1,
    )
    counted = run.decisions[0].counted
    assert counted is not None
    assert (counted.loads, counted.ends, counted.retired_first) == (1, 1, 1)
    assert run.peak_memory_pct == {f"{V100}-0": 70.0}
    requests = run.result.requests
    assert requests is not None
    assert (requests.arrived_ms + requests.queue_ms + requests.gpu_ms).max() == 1199.0
    # Looked at every 100 ms; then the load.
    assert [x for x in Simulator.added if x[0]] == [(1200, "b", 1830)]


def test_two_gpus_that_change_models_without_room_do_not_wait_for_each_other() -> None:
    before = {f"{V100}-0": [("a", 1, 60.0), ("c", 1, 30.0)], f"{V100}-1": [("b", 1, 60.0), ("d", 1, 30.0)]}
    after = {f"{V100}-0": [("a", 1, 60.0), ("d", 1, 30.0)], f"{V100}-1": [("b", 1, 60.0), ("c", 1, 30.0)]}
    times = [float(t) for t in range(0, 3000, 20)]
    run = by_usher(before, after, dict.fromkeys("abcd", times), gpus=2)
    counted = run.decisions[0].counted
    assert counted is not None
    assert (counted.kept, counted.loads, counted.moves, counted.retired_first) == (2, 2, 2, 2)
    assert max(m or 0 for m in run.peak_memory_pct.values()) <= 100
    assert run.result.source_done.sum() == run.result.source_arrived.sum() == 4 * len(times)


@pytest.mark.parametrize("after", [[("a", 64, 80.0)], [("a", 1, 5.0), ("c", 1, 60.0)]])
def test_memory_that_settings_take_more_or_free_counts_too(after: list[Short]) -> None:
    run = by_usher(
        {f"{V100}-0": [("a", 8, 50.0), ("b", 1, 30.0)]}, {f"{V100}-0": after},
        {"a": [float(t) for t in range(0, 3000, 7)], "b": [999.0] * 10}, gpus=1,
    )  # fmt: skip
    counted = run.decisions[0].counted
    assert counted is not None
    assert (counted.reset, counted.ends, counted.retired_first) == (1, 1, 1)
    assert run.peak_memory_pct[f"{V100}-0"] == 80.0
    assert run.decisions[0].ready_ms is not None
    assert run.decisions[0].ready_ms > 1000


def test_memory_that_is_unknown_is_not_taken_for_none() -> None:
    run = by_usher({f"{V100}-0": [("a", 1, None)]}, {f"{V100}-0": [("b", 1, 1.0)]}, gpus=1)
    assert run.decisions[0].counted is not None
    assert run.decisions[0].counted.retired_first == 1
    assert run.peak_memory_pct == {f"{V100}-0": None}


def test_memory_that_stays_unknown_is_not_waited_for() -> None:
    """``a`` takes more, ``b`` stays and nobody knows what it holds: once nothing is to leave, the change goes on."""
    run = by_usher(
        {f"{V100}-0": [("a", 4, 10.0), ("b", 1, None), ("c", 1, 10.0)]},
        {f"{V100}-0": [("a", 64, 20.0), ("b", 1, None), ("d", 1, 10.0)]},
        {"c": [999.0] * 20},
        gpus=1,
    )
    first = run.decisions[0]
    assert first.counted is not None
    assert (first.counted.kept, first.counted.reset, first.counted.loads, first.counted.retired_first) == (
        1,
        1,
        1,
        1,
    )
    # The 20 requests of c are done at 1,200; then the load of d.
    assert first.ready_ms == 1830
    assert run.decisions[-1].ready_ms is not None


def test_a_replica_that_stays_is_dealt_as_much_as_an_equal_one_that_joins_it() -> None:
    """Its batches hold 3 requests at 100 req/s and 64 at 5,000: the router must count both replicas' alike."""

    def served(*gpus: str, rate: float) -> PlacementPlan:
        each = replica("a", 64, goodput_rps=rate / len(gpus), throughput_rps=6400.0)
        return plan({gpu: [each] for gpu in gpus}, {"a": rate})

    run = changed(
        served(f"{V100}-0", rate=100.0),
        served(f"{V100}-0", f"{V100}-1", rate=5000.0),
        {"a": [2000 + 0.25 * k for k in range(8000)]},
        **USHER,
    )
    assert run.decisions[0].counted is not None
    assert (run.decisions[0].counted.kept, run.decisions[0].counted.loads) == (1, 1)
    by_gpu = [0, 0]
    for what, count in zip(run.system.replicas, run.result.replica_requests, strict=True):
        by_gpu[what.gpu] += int(count)
    assert sum(by_gpu) == 8000
    assert max(by_gpu) - min(by_gpu) <= 64


def test_a_model_that_loses_all_replicas_and_gets_them_back_loses_no_request() -> None:
    names = {"a": 100.0, "b": 100.0}
    plans = iter([plan({f"{V100}-0": [("b", 1, 90.0)]}, names), plan({f"{V100}-0": [("a", 1, 90.0)]}, names)])
    last = plan({f"{V100}-0": [("a", 1, 90.0)]}, names)
    run = control(
        plan({f"{V100}-0": [("a", 1, 90.0)]}, names),
        lambda workload: next(plans, last),
        building("ab"),
        TimesInMemory([[float(t) for t in range(0, 4000, 100)], []]),
        Options(duration_ms=4000.0),
        Replanning(kind="gpulet", period_ms=1000.0, background_from_ms=500.0, background_to_ms=500.0),
        pool={V100: [f"{V100}-0"]},
        simulator=Simulator,  # type: ignore[arg-type]
    )
    arrived, rejected, done = (getattr(run.result, f"source_{n}")[0] for n in ("arrived", "rejected", "done"))
    assert arrived == rejected + done == 40
    assert rejected > 0  # while the plan served nothing of it


def test_turns_go_on_in_their_server() -> None:
    def turns(*batches: tuple[str, int], cycle: float) -> list[object]:
        return [replica(m, b, 10.0, partition="p", duty_cycle_ms=cycle) for m, b in batches]

    times = [float(t) for t in range(0, 3000, 30)]
    run = changed(
        plan({f"{V100}-0": turns(("a", 4), ("b", 4), cycle=40.0)}, RATES),  # type: ignore[arg-type, dict-item]
        plan({f"{V100}-0": turns(("a", 4), ("c", 4), cycle=60.0)}, RATES),  # type: ignore[arg-type, dict-item]
        {"a": times, "b": times[:30], "c": times[60:]},
        **USHER,
    )
    assert len({r.partition for r in run.system.replicas}) == 1
    assert run.result.source_done.sum() == run.result.source_arrived.sum()
    requests = run.result.requests
    assert requests is not None
    spans = sorted({(s, s + g) for s, g in zip((requests.arrived_ms + requests.router_ms + requests.queue_ms).round(6), requests.gpu_ms, strict=True)})  # fmt: skip
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert {s % 60 for s, _ in spans if s > 1700} == {0.0, 10.0}


def test_a_rented_gpu_that_was_not_in_use_starts_first_and_counts_from_then() -> None:
    run = by_usher(
        {f"{V100}-0": [("a", 1, 10.0)]},
        {f"{V100}-0": [("a", 1, 10.0), ("b", 1, 10.0)], f"{V100}-1": [("c", 1, 10.0)]},
        gpus=None,
        gpu_start_ms=500.0,
    )
    assert run.decisions[0].ready_ms == 1000 + 500 + 630
    assert [(u.gpu, u.start_ms) for u in run.uses] == [(f"{V100}-0", 0.0), (f"{V100}-1", 1000.0)]


def test_a_gpu_counts_until_its_last_batch_is_done() -> None:
    run = by_usher(
        {f"{V100}-0": [("a", 1, 10.0)], f"{V100}-1": [("b", 1, 10.0)]},
        {f"{V100}-0": [("a", 1, 10.0)]},
        {"b": [995.0] * 30},
    )
    ends = {u.gpu: u.end_ms(run.result.last_done_ms, 4000.0) for u in run.uses}
    assert ends == {f"{V100}-0": 4000.0, f"{V100}-1": 995.0 + 300}


def test_rented_gpus_are_not_named_like_those_that_still_serve() -> None:
    plans = iter(
        [{f"{V100}-0": [("a", 1, 10.0)]}, {f"{V100}-0": [("a", 1, 10.0)], f"{V100}-7": [("b", 1, 10.0)]}]
    )
    last = plan({f"{V100}-0": [("a", 1, 10.0)], f"{V100}-7": [("b", 1, 10.0)]}, RATES)
    run = control(
        plan({f"{V100}-0": [("a", 1, 10.0)], f"{V100}-1": [("b", 1, 10.0)]}, RATES),
        lambda workload: plan(p, RATES) if (p := next(plans, None)) else last,
        building("abcd"),
        TimesInMemory([[], [999.0] * 300, [], []]),  # 3 s of work for the GPU that is given back
        Options(duration_ms=4000.0),
        Replanning(kind="gpulet", period_ms=1000.0, background_from_ms=0.0, background_to_ms=0.0),
        simulator=Simulator,  # type: ignore[arg-type]
    )
    assert [u.gpu for u in run.uses] == [f"{V100}-0", f"{V100}-1", f"{V100}-2"]


def test_more_gpus_than_there_are_is_an_error() -> None:
    with pytest.raises(UsageError, match="expected no more GPUs of a type than there are"):
        by_usher(
            {f"{V100}-0": [("a", 1, 10.0)]},
            {f"{V100}-0": [("a", 1, 10.0)], f"{V100}-1": [("b", 1, 10.0)]},
            gpus=1,
        )


def test_changes_are_made_after_the_time_of_the_decision() -> None:
    run = by_usher({f"{V100}-0": [("a", 1, 10.0)]}, {f"{V100}-1": [("b", 1, 10.0)]}, decision_ms=250.0)
    assert run.decisions[0].ready_ms == 1250 + 630
    workload: Workload = run.decisions[0].plan.workload  # type: ignore[union-attr]
    assert [m.name for m in workload.models] == list(RATES)
