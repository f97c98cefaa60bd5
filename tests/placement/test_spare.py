"""Larger batches and idle GPUs where batches are formed late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _problems import problem, row, table_a1

from gkestimator.documents import plan_json, read_plan
from gkestimator.placement.gkest.policy import GkestPolicy
from gkestimator.placement.policy import Placed, Placement, PolicyError, verify
from gkestimator.placement.registry import make_policy
from gkestimator.placement.report import plan_words
from gkestimator.placement.run import place
from gkestimator.placement.spare import largest_batches, with_caps, with_spare

GIB = 1 << 30
ROWS = [
    row("m", 1, 5.0),
    row("m", 4, 10.0, mreq_bytes=2 * GIB),
    row("m", 16, 30.0, mreq_bytes=6 * GIB),
    row("m", 64, 100.0, mreq_bytes=12 * GIB),
    row("n", 1, 6.0, sm_util_mean_pct=50.0),
    row("n", 8, 40.0, mreq_bytes=9 * GIB, sm_util_mean_pct=90.0),
]
LOADS = {"m": (60.0, 50.0), "n": (60.0, 80.0)}


def placed(given, *names_and_batches):  # type: ignore[no-untyped-def]
    gpu = given.gpus[0]
    found = []
    for name, batch in names_and_batches:
        rows = given.by_name[name].candidates
        found.append(Placed(gpu=gpu, model=name, candidate=next(c for c in rows if c.batch_size == batch)))
    return found


def test_the_largest_batch_keeps_the_objective_and_the_memory() -> None:
    given = problem(ROWS, LOADS, 1, batching="late")
    (cap,) = largest_batches(given, placed(given, ("m", 1)))
    assert cap is not None
    assert cap.batch_size == 16, "64 takes 100 ms of an objective of 50"
    both = largest_batches(given, placed(given, ("m", 1), ("n", 1)))
    sizes = [c.batch_size if c else None for c in both]
    # Beside each other: 6 + 9 GiB fit, but n at 8 runs 1.3 times longer beside m at any batch, above no objective.
    assert sizes == [16, 8]
    tight = problem(ROWS, {"m": (60.0, 35.0), "n": (60.0, 80.0)}, 1, batching="late")
    sizes = [c.batch_size if c else None for c in largest_batches(tight, placed(tight, ("m", 1), ("n", 1)))]
    assert sizes == [4, 8], "m at 16 takes 30 ms alone, and above 35 beside n at 8"


def test_a_batch_that_serves_no_more_is_not_waited_for() -> None:
    rows = [row("m", 1, 5.0), row("m", 2, 10.0), row("m", 4, 19.8)]
    given = problem(rows, {"m": (60.0, 50.0)}, 1, batching="late")
    assert largest_batches(given, placed(given, ("m", 1))) == [None]


def test_memory_of_the_largest_batch_is_held_by_verify() -> None:
    given = problem(ROWS, {"m": (60.0, 500.0), "n": (60.0, 500.0)}, 1, batching="late")
    m, n = placed(given, ("m", 1), ("n", 1))
    rows = given.by_name
    large = replace(m, cap=rows["m"].candidates[-1])
    verify(GkestPolicy(), given, Placement(placed=(large,)))
    with pytest.raises(PolicyError, match="memory"):
        verify(GkestPolicy(), given, Placement(placed=(large, replace(n, cap=rows["n"].candidates[-1]))))
    with pytest.raises(PolicyError, match="kind"):
        verify(
            GkestPolicy(),
            given,
            Placement(
                placed=(replace(large, candidate=rows["m"].candidates[-1], cap=rows["m"].candidates[0]),)
            ),
        )
    slow = problem(ROWS, LOADS, 1, batching="late")
    late = replace(placed(slow, ("m", 1))[0], cap=slow.by_name["m"].candidates[-1])
    with pytest.raises(PolicyError, match="largest batch, above its SLO"):
        verify(GkestPolicy(), slow, Placement(placed=(late,)))


def test_a_plan_says_its_largest_batches_and_their_memory(tmp_path) -> None:  # type: ignore[no-untyped-def]
    given = problem(ROWS, LOADS, 3, batching="late")
    plan = place(make_policy("exclusive"), given)
    assert plan.batching == "late"
    replicas = [r for g in plan.gpus for r in g.replicas if r.model == "m"]
    assert {r.max_batch_size or r.batch_size for r in replicas} == {16}
    assert {r.mreq_bytes for r in replicas} == {6 * GIB}
    assert {r.max_wait_ms for r in replicas} == {0.0}
    path = tmp_path / "plan.json"
    path.write_text(plan_json(plan))
    assert read_plan(path) == plan
    early = place(make_policy("exclusive"), problem(ROWS, LOADS, 3))
    assert early.batching == "early"
    assert all(r.max_batch_size is None for g in early.gpus for r in g.replicas)


def test_idle_gpus_go_to_the_model_that_stands_the_smallest_burst() -> None:
    given = problem(ROWS, {"m": (20.0, 50.0), "n": (200.0, 80.0)}, 5, batching="late")
    start = placed(given, ("m", 4))
    more = with_spare(given, [*start, replace(placed(given, ("n", 8))[0], gpu=given.gpus[1])])
    assert [p.model for p in more] == ["m", "n", "n", "n", "n"], (
        "200/s of n, whose GPU serves as much, not 20 of m"
    )
    assert len({p.gpu for p in more}) == 5


def test_no_gpu_is_idle_and_nothing_is_lost_at_the_rates() -> None:
    late = problem(ROWS, LOADS, 6, batching="late")
    plain = place(GkestPolicy(spare=False), late)
    roomy = place(GkestPolicy(), late)
    assert roomy.totals.gpus_used == 6 > plain.totals.gpus_used
    assert (roomy.totals.expected_goodput_rps or 0) >= 0.999 * (plain.totals.expected_goodput_rps or 1)
    assert place(GkestPolicy(), problem(ROWS, LOADS, 6)).totals.gpus_used < 6, (
        "batches formed early are as before"
    )


def test_caps_leave_turns_as_they_are() -> None:
    given = problem(ROWS, LOADS, 1, batching="late")
    turns = [replace(p, partition="t", duty_cycle_ms=20.0) for p in placed(given, ("m", 1), ("n", 1))]
    assert with_caps(given, turns) == tuple(turns)


def test_a_model_is_not_left_behind_in_a_total_that_looks_full() -> None:
    loads = {"mobilenet_v2": (5.0, 150.0), "resnet50": (60.0, 400.0), "vgg19": (400.0, 200.0)}
    given = problem(table_a1(), loads, 1, batching="late")
    shares = {}
    for fairness in ("none", "maxmin"):
        plan = place(GkestPolicy(fairness=fairness, fairness_loss_pct=2.0, spare=False), given)
        shares[fairness] = min(m.on_time_pct or 0.0 for m in plan.models)
    assert shares["none"] < 95 < shares["maxmin"]


def test_closing_words_name_the_model_that_is_worst_off() -> None:
    loads = {"mobilenet_v2": (5.0, 150.0), "resnet50": (60.0, 400.0), "vgg19": (400.0, 200.0)}
    given = problem(table_a1(), loads, 1, batching="late")
    plan = place(GkestPolicy(fairness="none", spare=False), given)
    assert "Worst off: resnet50, 93.3 % of its requests" in plan_words(plan, given)[0]
