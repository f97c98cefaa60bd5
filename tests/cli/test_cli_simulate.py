"""``gkest simulate`` on a plan and a table, as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _plans import chain, plan, replica, rows

from gkestimator.cli import run
from gkestimator.cli.simulate import COMPILING
from gkestimator.core.compiled import tell_compiling
from gkestimator.documents import plan_json
from gkestimator.documents.simulation import read_simulation
from gkestimator.simulation import running
from gkestimator.tables import REQUIREMENTS, write_table

CLUSTER = "gpus: [{type: V100-SXM2-16GB, count: 2}]\n"
Simulate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def simulate(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Simulate:
    """Runs the command on a plan of two models and an application; (status, stdout, stderr)."""
    placed = plan(
        [replica("a", goodput_rps=60.0), replica("b", goodput_rps=40.0)],
        models=[("a", 40.0, 100.0)], applications=[chain(20.0)], expected_rps=90.0,
    )  # fmt: skip
    (tmp_path / "plan.json").write_text(plan_json(placed))
    write_table(REQUIREMENTS, rows(), tmp_path / "table.csv")
    (tmp_path / "cluster.yaml").write_text(CLUSTER)

    def call(*arguments: object, seconds: float | None = 5) -> tuple[int, str, str]:
        start: list[object] = ["simulate", tmp_path / "plan.json", "--table", tmp_path / "table.csv"]
        start += [] if seconds is None else ["--duration-s", seconds]
        status = run([str(a) for a in (*start, *arguments)])
        out, err = capsysbinary.readouterr()
        # Said by whichever test is the first to compile on this machine.
        said = err.decode().replace(f"{COMPILING}\n", "")
        return status, out.decode(), said

    return call


def test_stdout_is_the_report_and_stderr_the_words(simulate: Simulate) -> None:
    status, out, err = simulate()
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "plan of by-hand · arrivals poisson · 5 s · seed 0"
    assert any(line.startswith("chain ") for line in lines)
    assert err.startswith("by-hand answers ") and "promised 100.0 and expected 90.00 req/s." in err
    assert not err.startswith("gkest: error")


def test_the_first_run_says_that_it_compiles(
    simulate: Simulate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """The engine tells it (tests/simulation/engine/test_compiled.py); the command passes it on, one line, stderr."""
    simulate()  # compiled from here on
    served = running._served

    def compiles(*arguments: Any) -> Any:
        tell_compiling()
        return served(*arguments)

    monkeypatch.setattr(running, "_served", compiles)
    files = [str(tmp_path / name) for name in ("plan.json", "table.csv", "r.json")]
    assert run(["simulate", files[0], "--table", files[1], "--duration-s", "5", "-o", files[2]]) == 0
    out, err = capsysbinary.readouterr()
    assert out == b"" and err.decode().splitlines()[0] == COMPILING and err.decode().count("compiling") == 1


@pytest.mark.slow
def test_files(simulate: Simulate, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report, picture, requests = (tmp_path / n for n in ("r.json", "p.svg", "q.csv"))
    status, out, err = simulate(
        "-o", report, "--plot", picture, "--requests", requests, "--network", network(tmp_path)
    )
    assert (status, out) == (0, "")
    found = read_simulation(report)
    assert [m.model for m in found.models] == ["a", "b"] and found.applications[0].application == "chain"
    assert found.settings.network == str(tmp_path / "net.toml")
    assert found.models[0].network.mean_ms == pytest.approx(
        2 * 0.5, abs=0.01
    )  # there and back, next to no bytes
    assert picture.read_bytes().startswith(b"<?xml")
    done = sum(1 for _ in requests.open()) - 1
    assert done == pytest.approx(5 * found.totals.throughput_rps, abs=20)
    assert [line for line in err.splitlines() if "wrote" in line] == [
        f"gkest: wrote {p}" for p in (report, picture, requests)
    ]
    status, _, err = simulate("-o", tmp_path / "r.csv")
    assert status == 0 and "gkest: note: interference contention: dram_util_mean_pct" in err


def network(folder: Path) -> Path:
    path = folder / "net.toml"
    path.write_text('schema_version = 1\nsource = "t"\nbase_ms = 0.5\nbytes_per_s = 1e12\n')
    return path


def test_one_seed_one_result(simulate: Simulate) -> None:
    hard = ("--service", "exponential", "--arrivals", "mmpp", "--bursts", "3,0.2,1", "--format", "json")
    one, two, other = simulate(*hard), simulate(*hard), simulate(*hard, "--seed", "1")
    assert one == two
    assert one[1] != other[1]
    assert json.loads(one[1])["settings"]["arrivals"] == "mmpp (bursts 3, 0.2, 1)"


@pytest.mark.parametrize(
    ("option", "value", "setting", "expected"),
    [
        ("--arrivals", "constant", "arrivals", "constant"),
        ("--arrivals", "closed:3", "arrivals", "closed:3"),
        ("--warmup-s", "1", "warmup_s", 1.0),
        ("--rate-scale", "0.5", "rate_scale", 0.5),
        ("--max-wait-ms", "7", "max_wait_ms", 7.0),
        ("--service", "interval", "service", "interval"),
        ("--interference", "none", "interference", "none"),
        ("--copy", "overlap", "copy", "overlap"),
        ("--routing", "least-load", "routing", "least-load"),
        ("--admission", "none", "admission", "none"),
        ("--admission", "expected", "admission", "expected"),
        ("--drop", "late", "drop", "late"),
        ("--batching", "late", "batching", "late"),
        ("--batching", "plan", "batching", "early"),  # which is what this plan says
        ("--window-s", "0.5", "window_s", 0.5),
        ("--seed", "7", "seed", 7),
    ],
)
def test_every_option_decides_and_is_written_down(
    option: str, value: str, setting: str, expected: object, simulate: Simulate
) -> None:
    status, out, _ = simulate(option, value, "--format", "json")
    assert status == 0
    found = json.loads(out)
    assert found["settings"][setting] == expected
    if option == "--rate-scale":
        assert found["totals"]["arrived_rps"] == pytest.approx(30.0, rel=0.25)
    if option == "--max-wait-ms":
        assert found["models"][0]["router"]["p99_ms"] <= 7.1
    if (option, value) == ("--batching", "late"):
        assert found["models"][0]["router"]["p99_ms"] == 0.0  # nothing waits to fill
    if value == "closed:3":
        (chained,) = found["applications"]
        assert chained["throughput_rps"] * chained["latency_mean_ms"] / 1e3 == pytest.approx(3, rel=0.05)
        assert any("3 clients of each model" in note for note in found["notes"])
    if option == "--copy":
        assert found["models"][0]["queue"]["mean_ms"] >= 0.5  # the copy's own time
    if option == "--window-s":
        assert len(found["timeline"][0]["arrived"]) == 10


def test_interference_slows_two_replicas_of_one_gpu(simulate: Simulate) -> None:
    alone, together = (
        json.loads(simulate("--interference", law, "--format", "json")[1])["models"][0]["gpu"]["mean_ms"]
        for law in ("none", "contention")
    )
    # 60 % of the SMs each: 1.2 times as long while both run, and they do not always.
    assert alone < together < 1.2 * alone


def test_a_trace_is_replayed_to_its_end(simulate: Simulate, tmp_path: Path) -> None:
    """Without --duration-s it lasts as long as the trace, whatever the warm-up; what it has stands in a note."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "time_s,model\n" + "".join(f"{i / 10},{'a' if i % 2 else 'chain'}\n" for i in range(1200))
    )
    status, out, _ = simulate(
        "--arrivals", trace, "--warmup-s", 70, "--trace-rates", "trace", "--format", "json", seconds=None
    )  # fmt: skip
    assert status == 0
    found = json.loads(out)
    assert found["settings"]["duration_s"] == pytest.approx(119.9, abs=0.2)
    assert found["settings"]["arrivals"] == f"{trace} (streams auto, rates trace, scaling copies)"
    assert found["totals"]["arrived_rps"] == pytest.approx(10.0, rel=0.02)
    assert any("a 600 requests at" in note for note in found["notes"])


def test_no_request_came(simulate: Simulate) -> None:
    status, out, err = simulate("--duration-s", "0.000001", "--format", "json")
    assert status == 0
    assert err.splitlines() == ["No request came in 1e-06 s: there is nothing to say of the plan."]
    found = json.loads(out)
    assert found["totals"]["on_time_pct"] is None and found["models"][0]["latency_p50_ms"] is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["usher", "gpulet"])
def test_the_policy_runs_again(kind: str, simulate: Simulate, tmp_path: Path) -> None:
    arguments = (
        "--replan",
        kind,
        "--cluster",
        tmp_path / "cluster.yaml",
        "--policy",
        "exclusive",
        "--duration-s",
        30,
    )
    status, out, err = simulate(*arguments)
    assert status == 0 and f"re-planned as {kind}" in out.splitlines()[0]
    assert err.startswith("exclusive changed its plan ")
    pytest.importorskip("matplotlib")
    assert simulate(*arguments, "--plot", tmp_path / "p.png", "-o", tmp_path / "r.json")[0] == 0
    assert json.loads((tmp_path / "r.json").read_text()) and (tmp_path / "p.png").stat().st_size > 10_000


@pytest.mark.slow
def test_only_the_picture_could_not_be_written(simulate: Simulate, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    status, out, err = simulate("--plot", tmp_path / "nowhere" / "p.png")
    assert status == 1 and out
    assert "gkest: error: --plot: " in err and "cannot be written" in err
