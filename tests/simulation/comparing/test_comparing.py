"""A whole comparison: its table, files and pictures; what fails in it; what is computed anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _specs import cells, results, rows, write_spec

from gkestimator.core.errors import OutputError
from gkestimator.documents import read_plan
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.comparing.report import write_report
from gkestimator.simulation.comparing.results import rows_from, rows_of
from gkestimator.simulation.comparing.run import Compared, run_comparison
from gkestimator.simulation.comparing.spec import read_spec
from gkestimator.simulation.options import Options
from gkestimator.simulation.running import simulate_plan
from gkestimator.tables import REQUIREMENTS, write_table

Compare = Callable[..., Compared]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Compares into ``tmp_path``/out what the spec with the given changes says; writes the report too."""

    def call(out: str = "out", processes: int = 1, **changes: Any) -> Compared:
        spec = read_spec(write_spec(tmp_path, **changes))
        found = run_comparison(spec, tmp_path / out, processes=processes)
        write_report(spec, found, tmp_path / out)
        return found

    return call


def test_a_report_that_cannot_be_written_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read_spec(write_spec(tmp_path, policies=["exclusive"], rate_scale=[1.0], duration_s=1, warmup_s=0))
    compared = run_comparison(spec, tmp_path / "out", processes=1)

    def refuse(folder: Path, files: object) -> None:
        raise OutputError(f"{folder}/results.csv: cannot be written: No space left on device")

    monkeypatch.setattr("gkestimator.simulation.comparing.report.write_folder", refuse)
    report = write_report(spec, compared, tmp_path / "out")
    assert "exclusive" in report.text and not report.whole
    assert f"gkest: error: {tmp_path}/out/results.csv: cannot be written" in report.words[1]
    assert not any("report.md" in line for line in report.words)


@pytest.mark.slow
def test_a_cell_is_the_plan_of_schedule_served_by_simulate(tmp_path: Path, compare: Compare) -> None:
    from gkestimator.cli import run

    found = rows_of(
        compare(policies=["nexus"], rate_scale=[1.0], seeds=[7], duration_s=5, warmup_s=1, drop="late")
    )
    (tmp_path / "w.yaml").write_text(
        "models: [{name: a, rate_rps: 60, slo_ms: 100}, {name: b, rate_rps: 30, slo_ms: 100}]"
    )
    (tmp_path / "c.yaml").write_text("gpus: [{type: V100, count: 2}]")
    given = ["--workload", "w.yaml", "--cluster", "c.yaml", "--policy", "nexus", "-o", "plan.json"]
    paths = [str(tmp_path / g) if "." in g else g for g in given]
    assert run(["schedule", str(tmp_path / "table.csv"), *paths]) == 0
    plan = read_plan(tmp_path / "plan.json")
    options = Options(duration_ms=5000, warmup_ms=1000, interference="contention", drop="late", seed=7)
    arrivals = make_arrivals("poisson", [60, 30], ["a", "b"], seed=7)
    totals = simulate_plan(plan, rows(), arrivals, options).report.totals
    (row,) = found
    assert (row.goodput_rps, row.latency_p99_ms) == (totals.goodput_rps, totals.latency_p99_ms)
    assert (row.promised_rps, row.expected_rps) == (plan.totals.goodput_rps, plan.totals.expected_goodput_rps)
    assert row.gpus_used == len(plan.gpus) and row.asked_rps == 90


@pytest.mark.slow
def test_every_combination_is_a_row_in_the_order_of_the_spec(tmp_path: Path, compare: Compare) -> None:
    found = compare(slo_scale=[0.4, 1.0], seeds=[0, 1], arrivals=["poisson", "constant"])
    assert found.computed == 32
    lines = results(tmp_path / "out")
    assert [(r["slo_scale"], r["rate_scale"], r["policy"], r["arrivals"], r["seed"]) for r in lines[:5]] == [
        ("0.4", "0.5", "exclusive", "poisson", "0"),
        ("0.4", "0.5", "exclusive", "poisson", "1"),
        ("0.4", "0.5", "exclusive", "constant", "0"),
        ("0.4", "0.5", "exclusive", "constant", "1"),
        ("0.4", "0.5", "nexus", "poisson", "0"),
    ]
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert document["schema_version"] > 1 and rows_from(document) == rows_of(found)
    assert {r.status for r in rows_of(found)} == {"ok"}
    by_load = [r.asked_rps for r in rows_of(found) if r.policy == "nexus" and r.seed == 0]
    assert sorted(set(by_load)) == [45, 90]


@pytest.mark.slow
def test_repeated_runs_are_alike_to_the_byte(tmp_path: Path, compare: Compare) -> None:
    for out in ("one", "two"):
        compare(out, seeds=[3], slo_scale=[0.5, 1.0], processes=1 if out == "one" else 2)
    one, two = (cells(tmp_path / out) for out in ("one", "two"))
    for cell in (*one.values(), *two.values()):
        assert cell.pop("decision_ms") > 0  # of the clock; all else is of the spec
    assert one == two and results(tmp_path / "one") == results(tmp_path / "two")
    pictures = sorted(p.name for p in (tmp_path / "one").glob("*.svg"))
    assert pictures == ["two-pair-by-load-at-0.5.svg", "two-pair-by-load-at-1.svg", "two-pair-by-slo-at-0.5.svg",
                        "two-pair-by-slo-at-1.svg", "two-pair-latency.svg"]  # fmt: skip
    for name in pictures:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
def test_what_is_there_is_not_computed_again(tmp_path: Path, compare: Compare) -> None:
    assert compare().computed == 4
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "cells").iterdir()}
    assert compare().computed == 0
    assert compare(rate_scale=[0.5, 1.0, 1.5], policies=["nexus", "selftuning", "exclusive"]).computed == 5
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert len(results(tmp_path / "out")) == 9


@pytest.mark.slow
def test_a_damaged_cell_is_computed_again(tmp_path: Path, compare: Compare) -> None:
    compare()
    whole = results(tmp_path / "out")
    first, second, *_ = sorted((tmp_path / "out" / "cells").iterdir())
    first.write_text(first.read_text()[:100])
    second.write_text('{"key": "another", "status": "ok"}')
    (tmp_path / "out" / "cells" / "notes.txt").write_text("mine")
    assert compare().computed == 2 and results(tmp_path / "out") == whole


DEFECT = """
    def place(self, problem):
        if len(problem.models) and problem.models[0].rate_rps > 40:
            raise ZeroDivisionError("rates\\nabove 40")
        return super().place(problem)
"""


@pytest.mark.slow
def test_refused_and_failed_cells_are_rows_with_the_reason(
    tmp_path: Path, compare: Compare, first_fit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (first_fit / "first_fit.py").open("a") as stream:
        stream.write(f"\n\nclass Defect(FirstFit):\n    name = 'first-fit'\n{DEFECT}\n")
    names = first_fit / "first_fit_policy-1.0.dist-info" / "entry_points.txt"
    names.write_text("[gkestimator.policies]\nfirst-fit = first_fit:Defect\n")
    lacking = [*rows(occupancy_max_pct=None)]
    write_table(REQUIREMENTS, lacking, tmp_path / "table.csv")
    found = rows_of(compare(policies=["exclusive", "usher", "first-fit"]))
    by = {(r.policy, r.rate_scale): r for r in found}
    assert {by["exclusive", x].status for x in (0.5, 1.0)} == {"ok"}
    assert by["first-fit", 0.5].status == "ok" and by["first-fit", 0.5].goodput_rps
    assert by["first-fit", 1.0].status == "failed"
    assert by["first-fit", 1.0].reason == "ZeroDivisionError: rates above 40"
    for x in (0.5, 1.0):
        assert by["usher", x].status == "refused" and "occupancy_max_pct" in (by["usher", x].reason or "")
        assert by["usher", x].goodput_rps is None
    text = (tmp_path / "out" / "report.md").read_text()
    assert "- first-fit failed in 1 cell: ZeroDivisionError: rates above 40" in text
    assert "- usher refused in 2 cells: " in text and "| usher | – | – |" in text.replace("  ", " ")


@pytest.mark.slow
def test_a_trace_is_dealt_to_the_models_in_turn(tmp_path: Path, compare: Compare) -> None:
    lines = "".join(f"2023-11-16 18:15:{s:02d}.0000000,10,20\n" for s in range(50))
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines)
    trace = {"trace": "t.csv", "label": "even", "start_s": 5, "duration_s": 40, "assign": "requests"}
    bursts = {"kind": "mmpp", "label": "burst", "burst_factor": 5, "burst_share": 0.2, "burst_s": 1}
    found = rows_of(
        compare(policies=["exclusive"], rate_scale=[1.0], arrivals=[trace, bursts, "mmpp"], duration_s=30)
    )
    even, burst, mmpp = found
    assert even.arrived_rps == pytest.approx(90, rel=0.1)
    assert burst.goodput_rps != mmpp.goodput_rps  # its bursts are those that were asked for
    short = rows_of(compare(policies=["exclusive"], rate_scale=[1.0], arrivals=[trace], duration_s=60))
    assert short[0].status == "refused" and "t.csv" in (short[0].reason or "")


@pytest.mark.slow
def test_an_unlike_door_and_queue(compare: Compare) -> None:
    """At twice what the GPUs can do: everybody let in, the plan's part, late ones given up."""
    alone = [{"label": "a", "models": [{"name": "a", "rate_rps": 60, "slo_ms": 100}]}]
    asked = {"policies": ["exclusive"], "workloads": alone, "rate_scale": [10.0], "duration_s": 20}
    (let_in,) = rows_of(compare(admission="none", **asked))
    (door,) = rows_of(compare(**asked))
    (given_up,) = rows_of(compare(admission="none", drop="late", **asked))
    assert let_in.rejected_pct == 0 and let_in.dropped_pct == 0 and (let_in.on_time_pct or 0) < 10
    assert (door.rejected_pct or 0) > 30 and (door.on_time_pct or 0) > (let_in.on_time_pct or 0)
    assert (given_up.dropped_pct or 0) > 30 and (given_up.on_time_pct or 0) > (let_in.on_time_pct or 0)
