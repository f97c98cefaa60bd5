"""Sweep plans as files: there and back, edited by hand, split, and from strangers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import OutputError, UsageError
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.plan import PlanEntry, SweepPlan, entry_id, plan_of, read_plan, write_plan


def relu(size: int) -> Fragment:
    return Fragment(
        opsets={"": 17},
        nodes=(FragmentNode(op_type="Relu", domain="", attributes={}, inputs=("x",), outputs=("y",)),),
        tensors=(FragmentTensor(name="x", dtype=DType.FLOAT, shape=(size, 3)),),
        outputs=("y",),
    )


@pytest.fixture
def plan() -> SweepPlan:
    return plan_of([(relu(i), "fp32", "catalogue:test") for i in range(1, 8)], runtime="torch")


@pytest.fixture
def file(plan: SweepPlan, tmp_path: Path) -> Path:
    write_plan(plan, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_plan_comes_back_as_it_was(plan: SweepPlan, file: Path) -> None:
    assert read_plan(file) == plan


def test_an_entry_is_one_line_so_that_people_can_edit_and_diff(plan: SweepPlan, file: Path) -> None:
    lines = file.read_text().splitlines()
    assert sum(e.id in line for line in lines for e in plan.entries) == len(plan.entries)
    kept = [line for line in lines if plan.entries[2].id not in line]
    file.write_text("\n".join(kept))
    assert [e.id for e in read_plan(file).entries] == [e.id for i, e in enumerate(plan.entries) if i != 2]


def test_an_entry_without_id_is_given_its_own(plan: SweepPlan, file: Path) -> None:
    document = json.loads(file.read_text())
    for entry in document["entries"]:
        del entry["id"], entry["estimated_s"], entry["counters"], entry["source"]
    file.write_text(json.dumps(document))
    found = read_plan(file)
    assert [e.id for e in found.entries] == [e.id for e in plan.entries]
    assert {e.source for e in found.entries} == {"by hand"}


def test_an_edited_entry_that_keeps_its_id_is_refused(file: Path) -> None:
    document = json.loads(file.read_text())
    document["entries"][3]["fragment"]["tensors"][0]["shape"] = [99, 99]
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"entry 4: id .* remove the id of an edited entry"):
        read_plan(file)


def test_parts_hold_every_entry_once(plan: SweepPlan) -> None:
    parts = plan.split(3)
    assert sorted(e.id for p in parts for e in p.entries) == sorted(e.id for e in plan.entries)
    assert [len(p.entries) for p in parts] == [3, 2, 2]
    with pytest.raises(UsageError, match="7 entries into 8"):
        plan.split(8)


def test_the_time_of_a_plan_is_unknown_where_that_of_an_entry_is(plan: SweepPlan) -> None:
    assert plan.estimated_s is None
    timed = tuple(
        PlanEntry(id=e.id, fragment=e.fragment, dtype=e.dtype, source=e.source, estimated_s=0.5)
        for e in plan.entries
    )
    assert SweepPlan(runtime="torch", entries=timed).estimated_s == pytest.approx(3.5)


def test_the_arithmetic_is_part_of_the_id() -> None:
    assert entry_id(relu(2), "fp32") != entry_id(relu(2), "tf32")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema_version=2), "schema_version"),
        (lambda d: d.update(runtime="tensorflow"), "runtime"),
        (lambda d: d.update(entries=[]), "entries"),
        (lambda d: d.update(entries={}), "entries"),
        (lambda d: d.update(minutes=-1), "minutes"),
        (lambda d: d.update(seed="x"), "seed"),
        (lambda d: d.update(colour="red"), "colour"),
        (lambda d: d["entries"].append(d["entries"][0]), "entries 1 and 8 are both"),
        (lambda d: d["entries"][1].update(dtype="fp8"), "entry 2: dtype"),
        (lambda d: d["entries"][1].update(counters="yes"), "entry 2: counters"),
        (lambda d: d["entries"][1].update(estimated_s=-3), "entry 2: estimated_s"),
        (lambda d: d["entries"][1].update(source="a\nb"), "entry 2: source"),
        (lambda d: d["entries"][1].update(id="../../etc/passwd"), "entry 2: id"),
        (lambda d: d["entries"][1].pop("fragment"), "entry 2: fragment"),
        (lambda d: d["entries"].__setitem__(1, 7), "entry 2: found int"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said_in_one_line(file: Path, change: Any, says: str) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=says) as caught:
        read_plan(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": NaN}']
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="plan"):
        read_plan(path)


def test_a_pipe_or_a_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing.json"):
        with pytest.raises(UsageError):
            read_plan(path)


def test_a_plan_that_cannot_be_written_leaves_nothing(plan: SweepPlan, tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        write_plan(plan, tmp_path / "nowhere" / "plan.json")
    assert list(tmp_path.iterdir()) == []
