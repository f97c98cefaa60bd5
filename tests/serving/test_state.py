"""What a service knows after its death: the plan that ran and its version, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from _served_plans import write_inputs

from gkestimator.core.errors import DocumentError
from gkestimator.documents import read_plan
from gkestimator.serving.state import ServiceState, plan_digest, read_state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("serving"))


def test_a_state_is_read_as_it_was_written(folder: Path, tmp_path: Path) -> None:
    plan = read_plan(folder / "plan.json")
    state = ServiceState(plan=plan, version=7, began=plan_digest(plan), settings={"port": 8000})
    state.save(tmp_path / "state.json")
    assert read_state(tmp_path / "state.json") == state


def test_plans_are_told_apart(folder: Path) -> None:
    plan = read_plan(folder / "plan.json")
    assert plan_digest(plan) == plan_digest(read_plan(folder / "plan.json"))
    other = json.loads((folder / "plan.json").read_text()) | {"seed": 5}
    (folder / "other.json").write_text(json.dumps(other))
    assert plan_digest(plan) != plan_digest(read_plan(folder / "other.json"))


@pytest.mark.parametrize(
    ("change", "field"),
    [({"plan_version": 0}, "plan_version"), ({"plan": {}}, "schema_version"), ({"more": 1}, "more")],
)
def test_what_is_wrong_is_named(folder: Path, tmp_path: Path, change: dict[str, object], field: str) -> None:
    plan = read_plan(folder / "plan.json")
    path = tmp_path / "state.json"
    ServiceState(plan=plan, version=1, began="x", settings={}).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DocumentError, match=field):
        read_state(path)
