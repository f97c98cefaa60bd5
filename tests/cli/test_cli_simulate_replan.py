"""``gkest simulate --replan``, as a user runs it: table A.1 from the estimate's place to the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from gkestimator.cli import run
from gkestimator.cli.simulate import COMPILING

TABLE = Path(str(files("gkestimator.datasets"))) / "published" / "ethz_v100.csv"
WORKLOAD = (
    "models:\n- {name: resnet50, rate_rps: 100, slo_ms: 200}\n- {name: alexnet, rate_rps: 100, slo_ms: 200}\n"
)
CLUSTER = "elastic:\n- {type: V100, price_per_hour: 3.06}\n"
RATES = "time_s,model,rate_rps\n0,resnet50,100\n0,alexnet,100\n2,resnet50,1500\n"
Replan = Callable[..., tuple[int, str, str]]


@pytest.fixture
def replan(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Replan:
    """A plan by usher for WORKLOAD, then the command; (status, stdout, stderr)."""
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "rates.csv").write_text(RATES)
    plan = tmp_path / "plan.json"
    asked = [
        "--workload",
        tmp_path / "w.yaml",
        "--cluster",
        tmp_path / "c.yaml",
        "--policy",
        "usher",
        "-o",
        plan,
    ]
    assert run([str(a) for a in ("schedule", TABLE, *asked)]) == 0
    capsysbinary.readouterr()

    def call(*arguments: object) -> tuple[int, str, str]:
        start = ["simulate", plan, "--table", TABLE, "--arrivals", tmp_path / "rates.csv", "--duration-s", 6]
        status = run([str(a) for a in (*start, *arguments)])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode().replace(f"{COMPILING}\n", "")

    return call


def test_the_policy_runs_again_when_the_rate_moves(replan: Replan, tmp_path: Path) -> None:
    given = [
        "--replan",
        "usher",
        "--cluster",
        tmp_path / "c.yaml",
        "--window-s",
        1,
        "--replan-option",
        "headroom=1.3",
    ]
    status, out, err = replan(*given)
    assert status == 0, err
    assert out.splitlines()[0].startswith("policy usher · re-planned as usher · ")
    assert "resnet50: from 100 to " in out
    status, out, _ = replan(*given, "--format", "json")
    found = json.loads(out)
    assert [d["time_s"] for d in found["decisions"]] == [3.0]
    assert found["decisions"][0]["ready_s"] == 3.63
    assert found["replan"]["headroom"] == 1.3
    gpus = found["timeline"]["gpus"]
    assert gpus[:3] == [gpus[0]] * 3
    assert gpus[3] > gpus[0]
    assert replan(*given, "--format", "json")[1] == out


def test_without_it_the_plan_stands(replan: Replan) -> None:
    status, out, _ = replan("--format", "json")
    assert status == 0
    assert "decisions" not in json.loads(out)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--replan", "usher"], "--cluster is missing"),
        (["--cluster", "c.yaml"], "--cluster c.yaml: has no use with --replan none"),
        (["--replan-option", "headroom=2"], "--replan-option headroom=2: has no use with --replan none"),
        (["--replan", "usher", "--cluster", "C", "--replan-option", "speed=2"], "replan has no option speed"),
        (["--replan", "usher", "--cluster", "C", "--replan-option", "headroom"], "--replan-option headroom: expected NAME=VALUE"),
        (["--replan", "usher", "--cluster", "C", "--replan-option", "headroom=0"], "replan headroom: found 0, expected a number above 0"),
        (["--replan", "usher", "--cluster", "C", "--replan-option", "load-ms=nan"], "--replan-option load-ms: found nan, expected a finite number"),
        (["--replan", "usher", "--cluster", "C", "--policy", "usherr"], "unknown policy 'usherr'; did you mean usher?"),
        (["--replan", "usher", "--cluster", "missing.yaml"], "missing.yaml"),
        (["--replan", "gpulet", "--cluster", "C", "--requests", "q.csv"], "requests are not kept where the policy runs again"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(replan: Replan, tmp_path: Path, arguments: list[str], message: str) -> None:
    status, out, err = replan(*[str(tmp_path / "c.yaml") if a == "C" else a for a in arguments])
    assert (status, out) == (2, "")
    assert err.startswith("gkest: error: ") and message in err
    assert err.count("\n") == 1
