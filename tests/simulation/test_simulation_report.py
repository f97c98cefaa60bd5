"""From counts to the report, its text, CSV, picture and table of requests: figures that must hold whatever ran."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from _plans import chain, plan, replica, row, simulated

from gkestimator.core.errors import GkestimatorError
from gkestimator.documents import PlacementPlan
from gkestimator.documents.simulation import QUANTILES_PCT
from gkestimator.reporting.simulated import share_text
from gkestimator.simulation.picture import draw
from gkestimator.simulation.report import (
    render_simulation,
    simulation_csv,
    simulation_text,
    simulation_words,
)
from gkestimator.simulation.requests import render_requests


def both(rate: float = 40.0) -> PlacementPlan:
    given = [replica("a"), replica("b", goodput_rps=160.0)]
    return plan(given, models=[("a", rate, 100.0)], applications=[chain(20.0)], expected_rps=90.0)


def test_one_request_at_a_time_is_what_the_curve_says() -> None:
    """Ten requests a second, evenly spaced, in batches of one of 10 ms: every figure is known."""
    placed = plan([replica(batch=1, latency_ms=10.0)], models=[("a", 10.0, 10.0)])
    found = simulated(placed, arrivals="constant", seconds=10.0).report
    (model,), totals = found.models, found.totals
    assert model.arrived_rps == model.goodput_rps == model.throughput_rps == totals.goodput_rps == 10.0
    assert (model.latency_mean_ms, model.wait_mean_ms, model.batch_mean) == (pytest.approx(10.0), 0.0, 1.0)
    assert (model.gpu.mean_ms, model.queue.mean_ms, model.router.mean_ms, model.network.mean_ms) == (pytest.approx(10.0), 0, 0, 0)  # fmt: skip
    assert model.latency_p99_ms == pytest.approx(10.0, rel=0.005)  # the histogram's bins
    assert model.on_time_pct == totals.on_time_pct == 100.0
    assert found.gpus[0].busy_pct == pytest.approx(10.0)  # 100 of 1,000 ms
    assert found.gpus[0].cuti_pct == totals.cuti_pct == pytest.approx(5.0)  # of which Creq is 50 %
    assert (found.gpus[0].muti_pct, totals.cost_per_hour, totals.gpus_used) == (20.0, 3.06, 1)
    assert found.timeline[0].arrived == found.timeline[0].on_time == (10,) * 10
    assert (totals.promised_goodput_rps, model.promised_rps, totals.asked_rps) == (100.0, 100.0, 10.0)


def test_a_tenth_of_a_millisecond_makes_all_late() -> None:
    placed = plan([replica(batch=1, latency_ms=10.0, slo_ms=9.9)], models=[("a", 10.0, 9.9)])
    found = simulated(placed, arrivals="constant", seconds=5.0).report
    assert found.totals.goodput_rps == found.totals.on_time_pct == 0.0
    assert found.totals.throughput_rps == pytest.approx(10.0)


def test_an_overloaded_model_does_what_its_replica_can() -> None:
    """A warm-up that leaves a backlog takes nothing off the throughput: 4 in 25 ms."""
    placed = plan([replica(goodput_rps=160.0)], models=[("a", 400.0, 100.0)])
    found = simulated(placed, seconds=10.0, options={"warmup_ms": 4000.0}, admission="none").report
    assert found.models[0].throughput_rps == pytest.approx(160.0, rel=0.01)
    assert found.models[0].goodput_rps < 16
    assert found.models[0].rejected_rps == 0
    assert found.gpus[0].busy_pct == pytest.approx(100.0)


def test_late_requests_are_dropped_and_said() -> None:
    placed = plan([replica(goodput_rps=160.0)], models=[("a", 400.0, 100.0)])
    found = simulated(placed, seconds=10.0, options={"drop": "late"}, admission="none").report
    (model,) = found.models
    assert model.goodput_rps > 100  # without drops next to nothing is on time
    assert model.dropped_rps == pytest.approx(model.arrived_rps - model.throughput_rps, rel=0.02)
    assert found.totals.dropped_rps == model.dropped_rps > 200
    assert "dropped/s" in simulation_text(found) and "drop late" in simulation_text(found)
    assert "% dropped as too late" in simulation_words(found)[1]


def test_the_timeline_s_wait_is_of_those_that_were_served() -> None:
    """Dropped requests have no wait: they must not thin out that of the others."""
    placed = plan([replica(goodput_rps=160.0)], models=[("a", 400.0, 100.0)])
    made = simulated(
        placed,
        seconds=5.0,
        options={"drop": "late", "keep_requests": True},
        admission="none",
        arrivals="mmpp",
    )
    kept, timeline = made.result.requests, made.report.timeline[0]
    assert kept is not None and made.report.totals.dropped_rps > 100
    for window, wait in enumerate(timeline.wait_mean_ms):
        here = kept.arrived_ms // 1000 == window
        assert wait == pytest.approx((kept.router_ms + kept.network_ms + kept.queue_ms)[here].mean())
        assert here.sum() < timeline.arrived[window]


def test_sums_hold() -> None:
    made = simulated(both(), seconds=10.0, options={"warmup_ms": 1000.0, "keep_requests": True})
    found, kept = made.report, made.result.requests
    assert kept is not None
    totals = found.totals
    assert totals.goodput_rps == pytest.approx(sum(m.goodput_rps for m in found.models))
    for i, m in enumerate(found.models):
        assert m.latency_mean_ms is not None and m.wait_mean_ms is not None and m.gpu.mean_ms is not None
        assert m.goodput_rps <= m.throughput_rps + 1e-9
        parts = [s.mean_ms for s in (m.router, m.network, m.queue, m.gpu)]
        assert sum(p for p in parts if p) == pytest.approx(m.latency_mean_ms)
        assert m.wait_mean_ms == pytest.approx(m.latency_mean_ms - m.gpu.mean_ms)  # no network
        mine = kept.model == i
        total = (kept.router_ms + kept.network_ms + kept.queue_ms + kept.gpu_ms)[mine]
        assert m.latency_mean_ms == pytest.approx(total.mean())
        assert m.latency_p90_ms == pytest.approx(np.quantile(total, 0.9), rel=0.02)
        assert (total <= m.slo_ms * (1 + 1e-9)).sum() / 9.0 == pytest.approx(m.goodput_rps)
        assert m.latency_quantiles_ms is not None
        assert list(m.latency_quantiles_ms) == sorted(m.latency_quantiles_ms)
        assert len(m.latency_quantiles_ms) == len(QUANTILES_PCT)
        assert m.batch_mean is not None and 1 <= m.batch_mean <= 4
    (application,) = found.applications
    assert application.arrived_rps * 2 == pytest.approx(found.models[1].arrived_rps)  # b twice for each
    came = found.models[0].arrived_rps  # a by itself and once for each of the application
    assert totals.arrived_rps == pytest.approx(came)


def test_requests_refused_at_the_door_count_as_not_on_time() -> None:
    placed = plan([replica(goodput_rps=50.0)], models=[("a", 100.0, 1000.0)])
    found = simulated(placed, seconds=20.0)
    (model,) = found.report.models
    assert model.rejected_rps == pytest.approx(50.0, rel=0.15)
    assert model.goodput_rps + model.rejected_rps == pytest.approx(model.arrived_rps)
    assert model.on_time_pct == pytest.approx(100 * model.goodput_rps / model.arrived_rps)
    assert "refused at the door" in simulation_words(found.report)[1]
    assert "refused/s" in simulation_text(found.report)


def test_the_table_of_requests() -> None:
    made = simulated(both(), seconds=3.0, options={"keep_requests": True})
    data = render_requests(made.system, made.result, "csv")
    found = list(csv.DictReader(io.StringIO(data.decode())))
    kept = list(made.report.models)
    assert len(found) == sum(int(n) for n in made.result.done)
    for model in kept:
        mine = [r for r in found if r["model"] == model.model]
        on_time = sum(r["on_time"] == "True" for r in mine)
        assert on_time / 3.0 == pytest.approx(model.goodput_rps)
        assert {r["replica"] for r in mine} <= {f"{model.model}-0"}
    assert {r["source"] for r in found} == {"a", "chain"}
    assert all(float(r["total_ms"]) == pytest.approx(sum(float(r[f"{s}_ms"]) for s in ("router", "network", "queue", "gpu"))) for r in found)  # fmt: skip
    pytest.importorskip("pyarrow")
    import pandas

    again = pandas.read_parquet(io.BytesIO(render_requests(made.system, made.result, "parquet")))
    assert list(again.columns) == list(found[0])
    assert again["total_ms"].sum() == pytest.approx(sum(float(r["total_ms"]) for r in found))


def test_requests_that_were_not_kept_are_refused() -> None:
    made = simulated(both(), seconds=1.0)
    with pytest.raises(GkestimatorError, match="kept no requests"):
        render_requests(made.system, made.result, "csv")


def test_text_is_at_most_100_columns_wide() -> None:
    name = "a" * 60
    table = [row(name, b, latency, copy_ms=0.1) for b, latency in ((1, 10.0), (4, 25.0))]
    placed = plan([replica(name, goodput_rps=5.0)], models=[(name, 5000.0, 100.0)])
    made = simulated(placed, table=table, options={"copy": "serial"})
    lines = simulation_text(made.report).splitlines()
    tables = lines[3 : lines.index("", lines.index("", 3) + 1)]
    assert max(len(line) for line in tables) <= 100
    assert "…" in tables[2]


def test_csv_has_a_row_a_model_and_every_number_in_full() -> None:
    report = simulated(both()).report
    found = list(csv.DictReader(io.StringIO(simulation_csv(report))))
    assert [r["model"] for r in found] == ["a", "b"]
    for line, model in zip(found, report.models, strict=True):
        assert float(line["goodput_rps"]) == model.goodput_rps
        assert float(line["queue_p99_ms"]) == model.queue.p99_ms
        assert "latency_quantiles_ms" not in line
    empty = next(csv.DictReader(io.StringIO(simulation_csv(simulated(plan()).report))))
    assert empty["latency_p50_ms"] == empty["batch_mean"] == ""


def test_words() -> None:
    good = simulation_words(simulated(both(10.0), seconds=3.0).report)
    assert good[0].startswith("by-hand answers ") and "promised 260.0 and expected 90.00 req/s" in good[0]
    assert "(3.06 USD per hour)" in good[0]
    report = simulated(both(10.0), seconds=3.0).report
    unpriced = replace(report, totals=replace(report.totals, cost_per_hour=None))
    assert "(price unknown)" in simulation_words(unpriced)[0]
    assert good[1] == "Each of 2 models keeps its SLO for at least 99 % of its requests."
    late = plan([replica(goodput_rps=400.0)], models=[("a", 400.0, 100.0)])
    said = simulation_words(simulated(late).report)
    assert said[1].startswith("Less than 99 % on time: a ") and "most in the queue: mean" in said[1]
    none = simulation_words(simulated(both(), seconds=1e-6).report)
    assert none == ["No request came in 1e-06 s: there is nothing to say of the plan."]


def test_a_share_is_never_rounded_up_to_all() -> None:
    assert [share_text(v) for v in (100.0, 99.999, 99.0, 0.04, None)] == ["100", "99.9", "99.0", "0.0", "–"]


def test_one_seed_one_report() -> None:
    one, two = (simulated(both(), options={"service": "exponential"}) for _ in range(2))
    other = simulated(both(), options={"service": "exponential", "seed": 4})
    for form in ("table", "csv", "json"):
        assert render_simulation(one.report, form) == render_simulation(two.report, form)
        assert render_simulation(one.report, form) != render_simulation(other.report, form)
    with pytest.raises(GkestimatorError, match="format 'xml' is not known"):
        render_simulation(one.report, "xml")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_pictures_are_the_same_bytes_each_time(form: str) -> None:
    pytest.importorskip("matplotlib")
    report = simulated(both(), options={"warmup_ms": 1000.0}).report
    data = draw(report, form)
    assert data == draw(report, form)
    assert data[:4] in (b"\x89PNG", b"<?xm", b"%PDF")


@pytest.mark.slow
def test_pictures_of_nothing_and_of_odd_names() -> None:
    pytest.importorskip("matplotlib")
    table = [row("_a", 4, 25.0)]
    odd = plan([replica("_a")], models=[("_a", 5.0, 100.0), ("b#+", 5.0, 100.0)])
    svg = draw(simulated(odd, table=table).report, "svg").decode()
    assert "b#+" in svg and "nothing answered" in svg
    assert draw(simulated(plan()).report, "svg")


def test_progress_and_arrivals_of_another_plan() -> None:
    told: list[tuple[str, int, int]] = []
    simulated(both(), seconds=3.0, progress=lambda *a: told.append(a))
    assert told[-1] == ("seconds simulated", 3, 3)
    import gkestimator.simulation.running as running
    from gkestimator.simulation.arrivals.making import make_arrivals
    from gkestimator.simulation.options import Options

    came = make_arrivals("poisson", [1.0], ["a"])
    with pytest.raises(
        GkestimatorError, match="found 1 streams, expected 2: one for each model and application"
    ):
        running.simulate_plan(both(), [row("a", 4, 25.0), row("b", 4, 25.0)], came, Options(duration_ms=1e3))
