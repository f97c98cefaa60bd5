"""A plan and rows as the system that is simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from _plans import GPU, chain, plan, replica, row, rows

from gkestimator.core.errors import GkestimatorError
from gkestimator.documents import Application, PlacementPlan, Stage
from gkestimator.interference.registry import make_interference
from gkestimator.placement.expected import expect
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Gpu, PlacementModel, Problem
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.building import build_system
from gkestimator.simulation.engine.simulator import simulate
from gkestimator.simulation.network import Network
from gkestimator.simulation.options import Options
from gkestimator.simulation.system import System
from gkestimator.tables import Requirement
from gkestimator.tables.candidate import Candidate


def built(placed: PlacementPlan, given: list[Requirement] | None = None, **more: Any) -> System:
    return build_system(placed, given or rows(), **({"interference": None} | more))


def test_a_replica_runs_by_the_rows_up_to_its_batch() -> None:
    table = [
        *rows("a"),
        row("a", 8, 45.0),
        row("a", 2, 99.0, sm_share_pct=50.0),
        row("a", 2, 98.0, dtype="fp16"),
    ]
    (found,) = built(plan([replica()]), table).replicas
    assert (found.batches, found.latencies_ms) == ((1, 2, 4), (10.0, 15.0, 25.0))
    assert (found.batch_size, found.max_wait_ms, found.weight) == (4, 20.0, 100.0)
    assert (found.creq_pct, found.memory_pct) == (50.0, 10.0)
    assert found.copies_ms is found.request_ms is found.response_ms is found.features is None


def test_throughput_stands_in_for_latency_and_short_gpu_names_are_known() -> None:
    table = [row("a", 4, None, throughput_rps=160.0, gpu="Tesla V100-SXM2-16GB")]
    (found,) = built(plan([replica()]), table).replicas
    assert found.latencies_ms == (25.0,)


def test_replicas_of_a_partition_take_turns_one_after_the_other() -> None:
    turn = {"partition": "t", "duty_cycle_ms": 80.0, "latency_ms": 25.0}
    here = [replica("a", 0, **turn), replica("b", 0, batch=2, **turn), replica("a", 1, **turn)]
    placed = plan(here, [replica("b", 1, partition="t")], models=[("a", 1.0, 99.0), ("b", 1.0, 99.0)])
    found = built(placed).replicas
    assert [r.partition for r in found] == [0, 0, 0, 1]
    assert [r.turn_offset_ms for r in found] == [0.0, 25.0, 40.0, 0.0]
    assert [r.max_wait_ms for r in found] == [0.0, 0.0, 0.0, 20.0]  # turn-takers gather by themselves


@pytest.mark.parametrize(
    ("goodput", "throughput", "duty", "weight"),
    [(30.0, 90.0, None, 30.0), (0.0, 90.0, None, 90.0), (0.0, None, None, 160.0), (0.0, None, 40.0, 100.0)],
)
def test_weight(goodput: float, throughput: float | None, duty: float | None, weight: float) -> None:
    given = replica(goodput_rps=goodput, throughput_rps=throughput, duty_cycle_ms=duty, partition="t")
    assert built(plan([given])).replicas[0].weight == weight


def test_time_outs() -> None:
    placed = plan([replica(max_wait_ms=None, batch=4), replica(number=1, max_wait_ms=3.0, batch=2)])
    assert [r.max_wait_ms for r in built(placed, max_wait_ms=7.0).replicas] == [7.0, 7.0]
    with pytest.raises(
        GkestimatorError, match=r"a-0 of the plan has no max_wait_ms: give one for all with max_wait_ms"
    ):
        built(placed)
    assert built(plan([replica(max_wait_ms=None, batch=1)])).replicas[0].max_wait_ms == 0.0


def test_late_batches_hold_up_to_the_plans_most() -> None:
    table = [*rows("a"), row("a", 8, 45.0), row("a", 16, 85.0)]
    placed = plan([replica(max_wait_ms=None, max_batch_size=6)], [replica("a", 1)])
    capped, same = built(placed, table, batching="late").replicas
    # The row above the cap is needed for what lies between; sigmas and weight stay those of the plan's batch.
    assert (capped.batches, capped.latencies_ms) == ((1, 2, 4, 8), (10.0, 15.0, 25.0, 45.0))
    assert (capped.batch_size, capped.max_wait_ms, capped.weight, capped.deal) == (6, 0.0, 100.0, 1.0)
    assert (same.batch_size, same.batches, same.max_wait_ms) == (4, (1, 2, 4), 0.0)
    (turns,) = built(
        plan([replica(duty_cycle_ms=40.0, partition="t", max_batch_size=8)]), table, batching="late"
    ).replicas
    # Turns are not clocked where batches are formed late; the partition stays one server.
    assert (turns.batch_size, turns.duty_cycle_ms, turns.partition) == (8, None, 0)
    (early,) = built(plan([replica(max_batch_size=6)]), table).replicas
    assert (early.batch_size, early.batches) == (4, (1, 2, 4))
    with pytest.raises(GkestimatorError, match=r"at batch 17, .* it has batch 1, 2, 4, 8, 16"):
        built(plan([replica(max_batch_size=17)]), table, batching="late")
    with pytest.raises(GkestimatorError, match="max_wait_ms 7: has no use where batches are formed late"):
        built(placed, table, batching="late", max_wait_ms=7.0)


def test_intervals_become_sigmas() -> None:
    table = [row("a", 4, 25.0, latency_low_ms=20.0, latency_high_ms=50.0)]
    (found,) = built(plan([replica()]), table).replicas
    # 5 and 95 % points of a normal law are 1.6449 deviations out: log(25/20) and log(50/25) over it.
    assert found.sigma_below == pytest.approx(0.22314 / 1.64485, rel=1e-4)
    assert found.sigma_above == pytest.approx(0.69315 / 1.64485, rel=1e-4)


def test_sources_models_and_objectives() -> None:
    placed = plan(
        [replica("a", slo_ms=80.0), replica("b", slo_ms=None)],
        models=[("b", 10.0, 90.0)],
        applications=[chain()],
    )
    found = built(placed)
    assert [m.name for m in found.models] == ["b", "a"]
    assert [m.slo_ms for m in found.models] == [
        90.0,
        80.0,
    ]  # b: the workload's, which is below the application's
    assert [(s.name, s.application, s.slo_ms) for s in found.sources] == [
        ("b", False, 90.0),
        ("chain", True, 300.0),
    ]
    first, second = found.sources[1].stages
    assert (first.model, first.after, first.fan_out) == (1, (), 1.0)
    assert (second.model, second.after, second.fan_out) == (0, (0,), 2.0)


def test_admission_by_the_plan() -> None:
    loads = [("a", 100.0, 99.0), ("b", 100.0, 99.0), ("c", 100.0, 99.0)]
    lone = Application(name="lone", rate_rps=100.0, slo_ms=99.0, stages=(Stage(model="c"), Stage(model="a", after=("c",))))  # fmt: skip
    given = [
        replica("a", goodput_rps=50.0),
        replica("a", 1, goodput_rps=50.0),
        replica("b", goodput_rps=100.0 - 1e-9),
    ]
    placed = plan(given, models=loads, applications=[lone])
    # a: 100 of the 200 that model and application ask; b wholly, but for rounding; c has no replica.
    assert [s.admit for s in built(placed).sources] == [0.5, 1.0, 0.0, 0.0]
    assert [s.admit for s in built(placed, admission="none").sources] == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(
        GkestimatorError, match="admission 'some' is not known, expected one of plan, expected, none"
    ):
        built(placed, admission="some")


def test_admission_by_what_is_expected_on_time() -> None:
    """The rate that placement's own expectation lets in, on the same replicas."""
    placed = plan([replica(goodput_rps=160.0)], models=[("a", 400.0, 100.0)])
    candidates = tuple(
        Candidate(
            row=r, latency_ms=r.latency_ms or 0, throughput_rps=1e3 * (r.batch_size or 1) / (r.latency_ms or 1),
            creq_pct=None, memory_pct=None, memory_bytes=None,
        )
        for r in rows("a")
    )  # fmt: skip
    model = PlacementModel(name="a", rate_rps=400.0, slo_ms=100.0, candidates=candidates)
    there = Placed(gpu=Gpu(id="x", type=GPU), model="a", candidate=candidates[-1])
    expected = expect(Problem(models=(model,), specs={}, prices={}, workload=placed.workload), [there])
    let_in = expected.admitted_rps["a"]
    assert let_in is not None and 80 < let_in < 160
    assert built(placed, admission="expected").sources[0].admit == pytest.approx(let_in / 400.0)
    assert built(placed, admission="plan").sources[0].admit == pytest.approx(160.0 / 400.0)


def test_a_model_without_replicas_turns_all_away_whichever_admission() -> None:
    for admission in ("plan", "expected", "none"):
        assert [s.admit for s in built(plan(), admission=admission).sources] == [0.0]


def test_copies_and_network_are_at_the_batches_of_the_curve() -> None:
    net = Network(source="test", base_ms=1.0, bytes_per_s=1e6)
    (found,) = built(plan([replica()]), copy="serial", network=net).replicas
    assert found.copies_ms == (0.5, 1.0, 2.0)
    assert found.request_ms == (2.0, 3.0, 5.0)
    assert found.response_ms == pytest.approx((1.1, 1.2, 1.4))


@pytest.mark.parametrize(
    ("column", "more", "option"),
    [
        ("copy_ms", {"copy": "overlap"}, "copy overlap"),
        ("input_bytes", {"network": Network(source="t", base_ms=1.0, bytes_per_s=1e9)}, "network"),
        ("output_bytes", {"network": Network(source="t", base_ms=1.0, bytes_per_s=1e9)}, "network"),
    ],
)
def test_a_null_column_is_named(column: str, more: dict[str, Any], option: str) -> None:
    table = [replace(r, **{column: None}) if r.batch_size == 2 else r for r in rows("a")]
    with pytest.raises(
        GkestimatorError, match=rf"a at batch 2 on {GPU}: {column} is null, which {option} needs"
    ):
        built(plan([replica()]), table, **more)


def test_interference_is_asked_only_where_two_may_run_at_once() -> None:
    law = make_interference("contention")
    bare = [replace(r, sm_util_mean_pct=None) for r in rows()]
    turns = [replica("a", partition="t", duty_cycle_ms=60.0), replica("b", partition="t", duty_cycle_ms=60.0)]
    loads = [("a", 1.0, 99.0), ("b", 1.0, 99.0)]
    for alone in (plan([replica("a")]), plan(turns, models=loads)):
        assert all(r.features is None for r in built(alone, bare, interference=law).replicas)
    both = plan([replica("a"), replica("b")], models=loads)
    with pytest.raises(GkestimatorError, match="contention needs sm_util_mean_pct, which is null for a"):
        built(both, bare, interference=law)
    found = built(both, interference=law)
    assert all(r.features is not None and len(r.features) == len(r.batches) for r in found.replicas)
    assert any("dram_util_mean_pct and l2_util_mean_pct are null" in n for n in found.notes)


MISSING: dict[str, tuple[list[Requirement], str]] = {
    "model": (rows("b"), "it has no row of this model"),
    "batch": ([row("a", 1), row("a", 2)], "it has batch 1, 2"),
    "batch without a latency": ([row("a", 2), row("a", 4, None)], "it has batch 2, 4"),
    "GPU": ([row("a", 4, gpu="H200"), row("a", 4, gpu="L4")], "it has this model on H200, L4"),
    "runtime": ([row("a", 4, runtime="onnxruntime")], "it has this model there as onnxruntime, fp32, 100 %"),
    "share": ([row("a", 4, sm_share_pct=50.0)], "it has this model there as torch, fp32, 50 %"),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_replica_without_its_row_is_named(case: str) -> None:
    table, words = MISSING[case]
    with pytest.raises(GkestimatorError) as e:
        built(plan([replica()]), table, table="t.csv")
    assert str(e.value) == (
        f"t.csv: no row with a latency for a on {GPU} (torch, fp32) at batch 4, 100 % of the SMs, by which a-0 of the "
        f"plan runs; {words}"
    )


def test_two_rows_for_one_question_are_refused_and_equal_ones_are_not() -> None:
    assert built(plan([replica()]), [*rows("a"), *rows("a")]).replicas[0].batches == (1, 2, 4)
    with pytest.raises(
        GkestimatorError, match="two rows answer for a on .* at batch 4, 100 % of the SMs, expected one"
    ):
        built(plan([replica()]), [*rows("a"), row("a", 4, 26.0)])


def test_notes_say_where_the_table_does_not_reach_and_where_it_differs() -> None:
    found = built(plan([replica(latency_ms=20.0), replica(number=1)]), [row("a", 4, 25.0)]).notes
    assert found == (
        "batches below the table's smallest take as long as that one: a (4)",
        "1 of 2 replicas have another latency in table than in the plan (the table's counts): a-0",
    )
    assert built(plan([replica()])).notes == ()


def test_a_plan_without_gpus() -> None:
    found = built(plan())
    assert (found.gpus, found.replicas, found.sources[0].admit) == ((), (), 0.0)


def test_the_same_workload_gives_the_same_models_and_sources() -> None:
    """What re-planning relies on."""
    loads = [("a", 10.0, 99.0), ("b", 10.0, 99.0)]
    one = built(plan([replica("a")], models=loads, applications=[chain()]))
    two = built(plan([replica("b")], [replica("a")], models=loads, applications=[chain()]))
    assert [m.name for m in one.models] == [m.name for m in two.models] == ["a", "b"]
    assert [s.name for s in one.sources] == [s.name for s in two.sources] == ["a", "b", "chain"]


def test_unlike_replicas_get_what_is_meant_for_them_whether_batches_fill_or_time_out() -> None:
    """A large batch that always times out, a small one that fills, single requests: counted as full batches the first
    would get a sixth of what it is to serve."""
    asked = plan(
        [replica(number=0, batch=32, goodput_rps=300.0, max_wait_ms=10.0)],
        [replica(number=1, batch=2, goodput_rps=100.0, max_wait_ms=50.0)],
        [replica(number=2, batch=1, goodput_rps=100.0, max_wait_ms=0.0)],
        models=(("a", 500.0, 100.0),),
    )
    found = built(asked, [row(batch=b, latency_ms=1.0) for b in (1, 2, 32)])
    assert [r.deal for r in found.replicas] == [6.0, 2.0, 1.0]
    arrivals = make_arrivals("poisson", [500.0], ["a"], seed=3)
    counts = simulate(found, arrivals, Options(duration_ms=60_000)).replica_requests
    assert counts / counts.sum() == pytest.approx([0.6, 0.2, 0.2], abs=0.01)
