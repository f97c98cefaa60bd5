"""A log that the simulator itself wrote is told back exactly; a server that is slower than the plan is told apart."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from _plans import chain, plan, replica, rows, simulated

from gkestimator.cli import run
from gkestimator.core.errors import UsageError
from gkestimator.documents import plan_json
from gkestimator.simulation.measured.against import compare_with_log
from gkestimator.simulation.measured.against_report import (
    against_csv,
    against_json,
    against_text,
    draw_against,
)
from gkestimator.simulation.measured.options import AgainstOptions
from gkestimator.simulation.measured.serving import fit_serving
from gkestimator.simulation.measured.serving_report import network_text, serving_text
from gkestimator.simulation.network import read_network
from gkestimator.simulation.requests import render_requests
from gkestimator.tables import REQUIREMENTS, write_table

NETWORK = 'schema_version = 1\nsource = "t"\nbase_ms = 0.4\nbytes_per_s = 1e6\nper_request_ms = 0.1\n'
PLACED = plan(
    [replica("a", goodput_rps=100.0)],
    [replica("b", goodput_rps=100.0)],
    models=[("a", 60.0, 60.0), ("b", 90.0, 100.0)],
)
# Other bytes a request than a's, or a time per byte could not be told from one per request.
TABLE = [*rows("a"), *(replace(r, input_bytes=5000 * r.batch_size) for r in rows("b") if r.batch_size)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with plan, table, network, and a log of 10 s that a simulation with that network wrote."""
    (tmp_path / "net.toml").write_text(NETWORK)
    network = tmp_path / "net.toml"
    options = {"keep_requests": True}
    made = simulated(PLACED, seconds=10.0, options=options, table=TABLE, network=network, admission="none")
    (tmp_path / "log.csv").write_bytes(render_requests(made.system, made.result, "csv"))
    (tmp_path / "plan.json").write_text(plan_json(PLACED))
    write_table(REQUIREMENTS, TABLE, tmp_path / "table.csv")
    return tmp_path


def test_the_network_of_a_simulation_is_told_back(files: Path) -> None:
    fit = fit_serving(files / "log.csv", [files / "table.csv"], files / "plan.json")
    law = fit.law.network
    assert law.base_ms == pytest.approx(0.4, abs=0.02) and law.per_request_ms == pytest.approx(0.1, abs=0.02)
    assert law.host_ms == 0.0 and fit.law.p90_ms < 0.01
    assert {(s.model, s.batch) for s in fit.service} >= {("a", 1), ("b", 4)}
    assert all(s.ratio == pytest.approx(1.0) for s in fit.service)
    assert "measured / table" in serving_text(fit)
    (files / "again.toml").write_text(network_text(law))
    assert read_network(files / "again.toml").delay_ms(5000.0, 3) == pytest.approx(
        law.delay_ms(5000.0, 3), rel=1e-4
    )


def test_a_log_beside_its_own_simulation(files: Path) -> None:
    options = AgainstOptions(network=str(files / "net.toml"))
    report = compare_with_log(files / "log.csv", files / "plan.json", [files / "table.csv"], options)
    assert [row.model for row in report.models] == ["a", "b", "all"]
    for row in report.models:
        for name in ("on_time_pct", "p50_ms", "p99_ms", "throughput_rps", "batch_mean", "refused_pct"):
            assert row.difference(name) == pytest.approx(0.0, abs=0.2), (row.model, name)
    assert report.whole.requests == report.models[0].requests + report.models[1].requests


def test_a_log_with_a_silence_of_months_costs_as_much_as_its_requests(files: Path) -> None:
    """One request after 115 days was ten million steps of a second (case documents:28:714 of the fuzzer)."""
    log = pandas.read_csv(files / "log.csv")
    last = log[log.model == "a"].iloc[-1:].assign(arrived_ms=9_999_999_999.0)
    pandas.concat([log, last]).to_csv(files / "long.csv", index=False)
    began = time.process_time()  # of this process alone: a busy machine does not count
    report = compare_with_log(
        files / "long.csv", files / "plan.json", [files / "table.csv"], AgainstOptions()
    )
    assert time.process_time() - began < 10
    assert report.whole.requests == len(log) + 1


def test_a_late_plan_with_a_busy_host(tmp_path: Path) -> None:
    """Requests travel alone, and wait for the host together: both are told apart, and simulated again."""
    (tmp_path / "net.toml").write_text('schema_version = 1\nsource = "t"\nbase_ms = 0.4\nhost_ms = 3.0\n')
    placed = replace(PLACED, batching="late")
    options = {"keep_requests": True, "batching": "late", "routing": "least-load"}
    network = tmp_path / "net.toml"
    made = simulated(placed, seconds=10.0, options=options, table=TABLE, network=network, admission="none")
    (tmp_path / "log.csv").write_bytes(render_requests(made.system, made.result, "csv"))
    write_table(REQUIREMENTS, TABLE, tmp_path / "table.csv")
    law = fit_serving(tmp_path / "log.csv", [tmp_path / "table.csv"], placed).law
    assert law.network.host_ms == pytest.approx(3.0, rel=0.02) and law.p90_ms < 0.1
    assert law.network.base_ms == pytest.approx(0.4, abs=0.05)
    (tmp_path / "law.toml").write_text(network_text(law.network))
    how = AgainstOptions(network=str(tmp_path / "law.toml"), routing="least-load")
    report = compare_with_log(tmp_path / "log.csv", placed, [tmp_path / "table.csv"], how)
    assert report.settings["batching"] == "late"
    assert abs(report.whole.difference("p99_ms") or 99) < 2.0
    # Without the host the queue before it is not there.
    plain = compare_with_log(
        tmp_path / "log.csv", placed, [tmp_path / "table.csv"], AgainstOptions(routing="least-load")
    )
    assert (plain.whole.difference("p99_ms") or 0) < -5.0


def test_a_slow_server_that_refuses_is_told_apart(files: Path) -> None:
    log = pandas.read_csv(files / "log.csv")
    log["total_ms"] += 30.0
    log["status"] = np.where(np.arange(len(log)) % 10 == 0, "refused", "ok")
    log = log[["arrived_ms", "model", "total_ms", "status"]]
    log.to_csv(files / "slow.csv", index=False)
    options = AgainstOptions(network=str(files / "net.toml"))
    report = compare_with_log(files / "slow.csv", files / "plan.json", [files / "table.csv"], options)
    row = report.models[0]
    assert row.real.refused_pct == pytest.approx(10.0, abs=2.0) and row.simulated.refused_pct == 0.0
    assert row.real.p50_ms == pytest.approx(row.simulated.p50_ms + 30.0, rel=0.02)
    assert row.real.batch_mean is None and row.difference("batch_mean") is None
    mine = log[(log.model == "a") & (log.status == "ok")]
    came = (log.model == "a").sum()
    assert row.real.on_time_pct == pytest.approx(100 * (mine.total_ms <= 60.0).sum() / came)
    # What it says no parts of is told with the plan alone, and is then about the constant that was added.
    fit = fit_serving(files / "slow.csv", [files / "table.csv"], files / "plan.json")
    assert not fit.in_parts and not fit.service and 25.0 < fit.law.network.delay_ms(550.0) * 2 < 36.0
    with pytest.raises(UsageError, match="no times in queue and service"):
        fit_serving(files / "slow.csv", [files / "table.csv"])


def test_the_forms_say_the_same(files: Path) -> None:
    report = compare_with_log(files / "log.csv", files / "plan.json", [files / "table.csv"])
    table = list(csv.DictReader(io.StringIO(against_csv(report))))
    document = json.loads(against_json(report))
    assert [r["model"] for r in table] == [m["model"] for m in document["models"]] == ["a", "b", "all"]
    for cells, row, model in zip(table, report.models, document["models"], strict=True):
        assert float(cells["simulated_p99_ms"]) == row.simulated.p99_ms == model["simulated"]["p99_ms"]
        assert float(cells["difference_p50_ms"]) == row.difference("p50_ms") == model["difference"]["p50_ms"]
    text = against_text(report)
    assert max(map(len, text.splitlines()[3:])) <= 110 and text.count("simulated") >= 4
    pytest.importorskip("matplotlib")
    assert draw_against(report, "png")[:4] == b"\x89PNG"


def test_what_cannot_be_compared_is_refused(files: Path) -> None:
    with pytest.raises(UsageError, match="found applications"):
        compare_with_log(files / "log.csv", plan([replica()], applications=[chain()]), [files / "table.csv"])
    with pytest.raises(UsageError, match="found model b, expected one of the plan: a"):
        compare_with_log(files / "log.csv", plan([replica()]), [files / "table.csv"])
    with pytest.raises(UsageError, match="warm-up of 99 s"):
        compare_with_log(files / "log.csv", PLACED, [files / "table.csv"], AgainstOptions(warmup_s=99))


def test_both_commands(files: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log, table, placed = (str(files / name) for name in ("log.csv", "table.csv", "plan.json"))
    law, report = files / "law.toml", files / "report.json"
    assert run(["evaluate", "--serving", log, "--table", table, "--plan", placed, "-o", str(law)]) == 0
    assert b"beyond queue and service" in capfdbinary.readouterr().out
    assert (
        run(["compare", placed, "--against", log, "--table", table, "--network", str(law), "-o", str(report)])
        == 0
    )
    whole = json.loads(report.read_text())["models"][-1]
    assert abs(whole["difference"]["p99_ms"]) < 1.0
    for arguments, words in {
        ("compare", placed, "--against", log): b"--table is missing",
        (
            "compare",
            placed,
            "--against",
            log,
            "--table",
            table,
            "--processes",
            "2",
        ): b"--processes has a use without",
        ("compare", placed, "-o", "x", "--drop", "late"): b"--drop has a use with --against alone",
        ("compare", placed): b"-o is missing",
        ("evaluate", "--plan", placed): b"--truth is missing",
        ("evaluate", "--truth", log, "--plan", placed): b"--plan has a use with --serving alone",
        ("evaluate", "--truth", log, "--serving", log): b"--serving: has a use without",
        ("evaluate", "--serving", log): b"no requirement table is named",
    }.items():
        assert run(list(arguments)) == 2, arguments
        assert words in capfdbinary.readouterr().err, arguments
