"""The suite of relations: it passes what is shipped, and catches what is broken on purpose."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pytest

from gkestimator.cli import run
from gkestimator.documents import PlacementPlan
from gkestimator.library.relations import estimates, plans
from gkestimator.library.relations.checking import RelationCheck, Subject
from gkestimator.library.relations.suite import CHECKS, _outcome, check_bundles, outcomes_text

BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """Two of the GPUs and three of the networks, for time; the slow test looks at all."""
    small = Subject((), tmp_path, plans=1)
    small.gpus = ("T4", "H100-SXM")
    small.networks = small.networks[:3]
    return small


@pytest.fixture
def decreasing(tmp_path: Path) -> Path:
    """The shipped bundle with one regressor whose times fall with the rows of a product."""
    folder = tmp_path / "decreasing"
    with as_file(files("gkestimator.models") / "default") as shipped:
        shutil.copytree(shipped, folder)
    model = json.loads((folder / "stack.json").read_text())["models"][0]
    names = model["feature_names"]
    path = folder / f"{model['name']}.npz"
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files if name.startswith("uncertainty")}
    arrays["weights"] = np.array([1.0, 0, 0, 0, 0])
    arrays["bounds"] = np.array([-20.0, 20.0])
    arrays["lasso.mean"] = np.zeros(len(names))
    arrays["lasso.scale"] = np.ones(len(names))
    arrays["lasso.weights"] = np.where(np.array(names) == "log_m", -2.0, 0.0)
    arrays["lasso.intercept"] = np.array([15.0])
    np.savez(path, **arrays)
    return folder


@pytest.mark.parametrize("name", [check.name for check in estimates.CHECKS if check.name != "hash seeds"])
def test_the_shipped_bundle_keeps_every_relation(name: str, subject: Subject) -> None:
    outcome = _outcome(BY_NAME[name], subject)
    assert outcome.cases
    assert not outcome.failed, outcome
    if outcome.beyond:
        assert outcome.check.reason


@pytest.mark.slow  # every policy searches, the simulator is compiled, processes are started
def test_the_shipped_bundle_passes_the_whole_suite() -> None:
    for outcome in check_bundles(plans=1):
        assert outcome.cases
        assert not outcome.failed, outcome


def test_a_regressor_that_falls_with_the_batch_is_caught(decreasing: Path, tmp_path: Path) -> None:
    outcome = _outcome(BY_NAME["batch"], Subject((decreasing,), tmp_path, plans=1))
    assert outcome.failed
    assert outcome.worst > 0.05
    assert "batch" in outcome.where
    assert f"{100 * outcome.worst:.3g} %" in outcomes_text([outcome])


@pytest.mark.parametrize(
    ("column", "factor", "name"),
    [
        ("latency_low_ms", 3.0, "interval"),
        ("sm_util_max_pct", 1.3, "bounds"),
        ("reserved_bytes", 1.01, "sums"),
        ("flops", -1.0, "work"),
    ],
)
def test_a_row_that_breaks_a_relation_is_caught(
    column: str, factor: float, name: str, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gkestimator.estimation import api

    made = api.answered

    def broken(*arguments: object, **options: object) -> api.EstimateResult:
        result = made(*arguments, **options)
        rows = [
            replace(row, **{column: type(getattr(row, column))(getattr(row, column) * factor)})
            for row in result.rows
        ]
        return replace(result, rows=tuple(rows))

    monkeypatch.setattr(api, "answered", broken)
    assert _outcome(BY_NAME[name], subject).failed


@pytest.mark.parametrize(("column", "moved"), [("latency_high_ms", 1e-5), ("kernels", 1), ("host_ms", None)])
def test_a_row_that_hangs_on_its_place_is_caught(
    column: str, moved: float | None, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gkestimator.estimation import api

    made = api.answered

    def broken(*arguments: object, **options: object) -> api.EstimateResult:
        result = made(*arguments, **options)
        value = None if moved is None else getattr(result.rows[0], column) + moved
        first = replace(result.rows[0], **{column: value})
        return replace(result, rows=(first, *result.rows[1:]))

    assert not _outcome(BY_NAME["order"], subject).failed
    monkeypatch.setattr(api, "answered", broken)
    assert _outcome(BY_NAME["order"], subject).failed


def test_a_plan_that_holds_too_much_is_counted(subject: Subject) -> None:
    rows_of = plans._rows(subject)
    drawn = plans._drawn(np.random.default_rng(3), rows_of)
    plan = drawn.plan("exclusive", 3)
    assert not excesses(drawn, plan)
    gpu = plan.gpus[0]
    replica = replace(gpu.replicas[0], sm_share_pct=50.0)
    crowded = replace(gpu, replicas=tuple(replace(replica, id=f"{n}") for n in range(60)))
    over = excesses(drawn, replace(plan, gpus=(crowded, *plan.gpus[1:])))
    assert any(where.endswith("shares") for where in over)
    assert any(where.endswith("memory") for where in over)
    others = [replace(gpu, id=f"{gpu.type}-{n}") for n in range(9)]
    assert any("GPUs of" in where for where in excesses(drawn, replace(plan, gpus=tuple(others))))
    in_turns = replace(gpu.replicas[0], partition="p", duty_cycle_ms=1e-6)
    late = replace(gpu, replicas=(in_turns,))
    assert any(where.endswith("turns") for where in excesses(drawn, replace(plan, gpus=(late,))))


def excesses(drawn: plans.RandomQuestion, plan: PlacementPlan) -> list[str]:
    return [case.where for case in plans._counted(drawn, plan, "plan") if case.excess > 1e-6]


def test_the_command_writes_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    from gkestimator.library.relations import suite

    holds = RelationCheck(name="holds", holds="nothing", cases=lambda _: iter([plans.Case("here", 0.0)]))
    fails = RelationCheck(
        name="fails", holds="much", cases=lambda _: iter([plans.Case("there", float("nan"))])
    )
    monkeypatch.setattr(suite, "CHECKS", (holds,))
    assert run(["doctor", "--bundle", "--quiet"]) == 0
    assert b"holds" in capsysbinary.readouterr().out
    monkeypatch.setattr(suite, "CHECKS", (holds, fails))
    assert run(["doctor", "--bundle", "--format", "json", "--quiet"]) == 1
    first, second = json.loads(capsysbinary.readouterr().out)
    assert (first["failed"], second["failed"], second["where"]) == (0, 1, "there")


@pytest.mark.parametrize("arguments", [["--plans", "3"], ["--format", "json"], ["--bundle", "missing"]])
def test_bad_usage_is_one_line(arguments: list[str], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["doctor", *arguments]) == 2
    said = capsysbinary.readouterr().err.decode().splitlines()
    assert len([line for line in said if "error" in line.lower()]) == 1


def test_a_damaged_bundle_is_one_line(decreasing: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (decreasing / "stack.json").write_text("[]")
    assert run(["doctor", "--bundle", str(decreasing)]) == 2
    assert "stack.json" in capsysbinary.readouterr().err.decode()
    with pytest.raises(Exception, match="stack.json"):
        next(check_bundles([decreasing]))
