"""Plans for people, and their pictures: turns, shares, unknown values, GPUs that look alike, many GPUs, strange names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gkestimator.core.errors import UsageError
from gkestimator.documents import (
    Application,
    ModelLoad,
    PlacedGpu,
    PlacementPlan,
    PlanTotals,
    Replica,
    Stage,
    Unserved,
    Workload,
)
from gkestimator.placement.report import plan_csv, plan_text, render_plan


def replica(name: str, model: str = "resnet50", **fields: Any) -> Replica:
    return Replica(
        **{
            "id": name, "model": model, "runtime": "torch", "dtype": "fp32", "dims": "", "batch_size": 8, "sm_share_pct": 100.0,
            "partition": None, "duty_cycle_ms": None, "latency_ms": 9.5, "goodput_rps": 40.0, "slo_ms": 100.0,
            "throughput_rps": 800.0, "max_wait_ms": 12.0, "creq_pct": 30.0, "mreq_bytes": 2**30, "mreq_pct": 6.0,
        }
        | fields
    )  # fmt: skip


def gpu(number: int, *replicas: Replica, kind: str = "T4") -> PlacedGpu:
    return PlacedGpu(id=f"{kind}-{number}", type=kind, cuti_pct=30.0, muti_pct=6.0, replicas=replicas)


def plan(*gpus: PlacedGpu, models: tuple[ModelLoad, ...] = (), **fields: Any) -> PlacementPlan:
    named = {r.model for g in gpus for r in g.replicas}
    loads = models or tuple(ModelLoad(name=m, rate_rps=50.0, slo_ms=100.0) for m in sorted(named))
    return PlacementPlan(
        **{
            "policy": "p", "creq": "sm-util-mean", "objective": "goodput", "seed": 0, "workload": Workload(models=loads), "gpus": gpus,
            "totals": PlanTotals(goodput_rps=40.0, expected_goodput_rps=None, gpus_used=len(gpus), cost_per_hour=None),
            "unserved": (), "notes": (),
        }
        | fields
    )  # fmt: skip


def row(text: str, first: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(first))


def test_gpus_with_the_same_content_stand_once() -> None:
    text = plan_text(
        plan(*(gpu(i, replica(f"r-{i}")) for i in range(500)), gpu(500, replica("r-500", batch_size=4)))
    )
    assert row(text, "T4-0 ")[1] == "500" and row(text, "T4-500 ")[1] == "1"
    assert "T4-1 " not in text and len(text.splitlines()) < 15
    assert row(text, "resnet50 ")[-4:] == ["4,", "500", "x", "8"]


def test_shares_and_turns_have_columns_where_there_are_any() -> None:
    plain = plan_text(plan(gpu(0, replica("a"))))
    assert "SM share" not in plain and "turn" not in plain
    shared = plan_text(
        plan(
            gpu(
                0,
                replica("a", sm_share_pct=40.0, partition="x", duty_cycle_ms=25.0),
                replica("b", sm_share_pct=60.0),
            )
        )
    )
    assert "SM share" in shared and "turn ms" in shared and "25.0 a" in shared


def test_what_is_unknown_is_a_dash_and_never_zero() -> None:
    text = plan_text(plan(gpu(0, replica("a", creq_pct=None, max_wait_ms=None, mreq_pct=None))))
    assert row(text, "T4-0 ")[5:] == ["–", "–", "9.50", "–", "40.0"]
    assert "expected – req/s" in text and "cost – USD" in text
    cells = plan_csv(plan(gpu(0, replica("a", creq_pct=None)))).splitlines()[1].split(",")
    assert cells[plan_csv(plan()).strip().split(",").index("creq_pct")] == ""


def test_applications_show_their_part_and_rates_add_up() -> None:
    workload = Workload(
        models=(ModelLoad(name="resnet50", rate_rps=5.0, slo_ms=70.0),),
        applications=(
            Application(
                name="video", rate_rps=10.0, slo_ms=300.0,
                stages=(Stage(model="resnet50"), Stage(model="bert", after=("resnet50",), fan_out=3.0)),
            ),
        ),
    )  # fmt: skip
    found = plan(
        gpu(0, replica("a", slo_ms=70.0)),
        workload=workload,
        unserved=(Unserved(model="bert", rate_rps=30.0, reason="no room"),),
    )
    assert found.workload.model_rates_rps() == {"resnet50": 15.0, "bert": 30.0}
    text = plan_text(found)
    assert row(text, "resnet50 ")[1:5] == ["video", "70.0", "15.0", "15.0"]
    assert row(text, "bert ")[1:] == ["video", "–", "30.0", "0", "0.0", "0"]
    assert "  bert: 30.0 req/s: no room" in text


def test_lines_hold_100_columns_and_names_do_not_steer_the_terminal() -> None:
    long = "a/" + "very-long-name-of-a-model." * 7
    text = plan_text(
        plan(gpu(0, replica("a", model=long, runtime="onnxruntime"), replica("b", sm_share_pct=50.0, dtype="fp16\x1b[2J")), notes=("n\x1b]0;x",))
    )  # fmt: skip
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text


def test_an_empty_plan_is_said() -> None:
    text = plan_text(plan(models=(ModelLoad(name="m", rate_rps=1.0, slo_ms=2.0),)))
    assert "no GPU is used" in text and row(text, "m ")[1:4] == ["2.00", "1.00", "1.00"]
    with pytest.raises(UsageError, match="'xml'"):
        render_plan(plan(), "xml")


def drawn(found: PlacementPlan) -> str:
    pytest.importorskip("matplotlib")
    from gkestimator.placement.picture import draw

    return draw(found, "svg").decode()


def comments(svg: str) -> list[str]:
    """Texts of the picture: matplotlib leaves each in a comment beside its outlines."""
    return [line.strip()[5:-4] for line in svg.splitlines() if line.strip().startswith("<!-- ")]


def test_a_picture_names_gpus_models_and_batches() -> None:
    texts = comments(
        drawn(
            plan(
                gpu(0, replica("a"), replica("b", model="bert", batch_size=32)),
                gpu(0, replica("c"), kind="L4"),
            )
        )
    )
    assert {"T4", "L4", "resnet50", "bert", "8", "32", "% of the GPU"} <= set(texts)


@pytest.mark.slow
def test_a_picture_says_what_is_unknown_and_what_is_alike() -> None:
    assert "?" in comments(drawn(plan(gpu(0, replica("a", creq_pct=None)))))
    assert "×3" in comments(drawn(plan(*(gpu(i, replica(f"r{i}")) for i in range(3)))))


@pytest.mark.slow
def test_names_do_not_become_formulas_and_a_plan_without_gpus_has_a_picture() -> None:
    found = plan(gpu(0, replica("a", model="_x$y^2$")))
    assert any("_x" in text for text in comments(drawn(found)))
    drawn(plan())


@pytest.mark.slow
def test_hundreds_of_gpus_are_drawn_in_rows_and_thousands_are_said() -> None:
    texts = comments(
        drawn(plan(*(gpu(i, replica(f"r{i}", creq_pct=i / 5, latency_ms=1.0 + i)) for i in range(130))))
    )
    assert texts.count("% of the GPU") == 3
    many = plan(*(gpu(i, replica(f"r{i}", latency_ms=1.0 + i)) for i in range(600)))
    title = " ".join(comments(drawn(many)))
    assert "576 of 600 different GPUs are drawn" in title


def test_turns_count_with_the_part_of_the_cycle_that_they_run() -> None:
    pytest.importorskip("matplotlib")
    from gkestimator.placement.picture import _compute

    assert _compute(replica("a", creq_pct=80.0, latency_ms=5.0, duty_cycle_ms=20.0, partition="x")) == 20.0
    assert _compute(replace(replica("a"), creq_pct=None, duty_cycle_ms=20.0)) is None
