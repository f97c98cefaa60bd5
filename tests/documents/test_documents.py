"""Workload, cluster and plan files: what is read is what was written, whatever a stranger writes is answered in one line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gkestimator.core.errors import DocumentError
from gkestimator.documents import (
    PlacedGpu,
    PlacementPlan,
    PlanTotals,
    Replica,
    Unserved,
    plan_document,
    plan_json,
    read_cluster,
    read_plan,
    read_workload,
)
from gkestimator.documents.checking import Fields, valid_name
from gkestimator.documents.workload import workload_from

APPLICATION = """
applications:
- name: video
  rate_rps: 10
  slo_ms: 500
  weight: 2
  models:
  - {model: last, after: [left, right]}
  - {model: left, after: detect, fan_out: 3}
  - {model: detect}
  - {model: right, after: [detect, detect], fan_out: 0.5}
models:
- {name: timm/resnet50, rate_rps: 1.5, slo_ms: 20}
"""


def test_stages_are_ordered_and_rates_multiply(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(APPLICATION)
    workload = read_workload(tmp_path / "w.yaml")
    (application,) = workload.applications
    assert [s.model for s in application.stages] == ["detect", "left", "right", "last"]
    assert application.rates_rps() == {"detect": 10.0, "left": 30.0, "right": 5.0, "last": 30.0}
    assert application.paths() == (("detect", "left", "last"), ("detect", "right", "last"))
    assert workload.names() == ("timm/resnet50", "detect", "left", "right", "last")


@pytest.mark.parametrize(
    ("written", "rate"), [("1e3", 1000.0), ("1.5E+2", 150.0), ("1e-07", 1e-7), (".5e1", 5.0)]
)
def test_numbers_with_exponents_are_read_as_json_writes_them(
    written: str, rate: float, tmp_path: Path
) -> None:
    """YAML 1.1 takes 1e3 for a text, and so it stays where a name is expected."""
    (tmp_path / "w.yaml").write_text(f"models: [{{name: 1e3, rate_rps: {written}, slo_ms: 20}}]")
    workload = read_workload(tmp_path / "w.yaml")
    assert workload.names() == ("1e3",)
    assert workload.models[0].rate_rps == rate


@pytest.mark.parametrize("written", ["1e999", "1e", "e3", "1e3x", "'1" + "0" * 70 + "e1'"])
def test_what_is_no_finite_number_is_refused_by_name(written: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(f"models: [{{name: a, rate_rps: {written}, slo_ms: 20}}]")
    with pytest.raises(DocumentError, match=r"models\[0\]: rate_rps: found .*, expected a number above 0"):
        read_workload(tmp_path / "w.yaml")


def test_a_workload_survives_its_own_document(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(APPLICATION)
    workload = read_workload(tmp_path / "w.yaml")
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(workload.document()))
    assert read_workload(tmp_path / "again.yaml") == workload


def test_too_many_ways_are_refused_where_they_are_listed(tmp_path: Path) -> None:
    stages = ["{model: a0}"]
    for i in range(1, 30, 2):
        before = "[a0]" if i == 1 else f"[b{i - 2}, c{i - 2}]"
        stages += [f"{{model: b{i}, after: {before}}}", f"{{model: c{i}, after: {before}}}"]
    (tmp_path / "w.yaml").write_text(
        f"applications: [{{name: a, rate_rps: 1, slo_ms: 1, models: [{', '.join(stages)}]}}]"
    )
    (application,) = read_workload(tmp_path / "w.yaml").applications
    with pytest.raises(DocumentError, match="10,000 ways"):
        application.paths()


def test_clusters_say_what_they_assumed(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("gpus: [{type: v100, count: 3}, {type: NVIDIA T4, count: 1}]")
    cluster = read_cluster(tmp_path / "c.yaml")
    assert [(g.spec.name, g.count) for g in cluster.gpus] == [("V100-SXM2-16GB", 3), ("T4", 1)]
    assert len(cluster.notes) == 1 and "V100-SXM2-16GB" in cluster.notes[0]
    (tmp_path / "e.yaml").write_text("elastic: [{type: T4}, {type: L4, price_per_hour: 0.8, limit: 2}]")
    rented = read_cluster(tmp_path / "e.yaml")
    t4, l4 = rented.elastic
    assert (
        t4.price_per_hour == t4.spec.price_per_hour_usd
        and t4.limit is None
        and "USD per hour" in rented.notes[0]
    )
    assert (l4.price_per_hour, l4.limit) == (0.8, 2)


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.#+-]{0,12}", fullmatch=True).filter(valid_name)
positive = st.floats(min_value=1e-6, max_value=1e9, allow_nan=False)
maybe = st.none() | positive


@st.composite
def plans(draw: st.DrawFn) -> PlacementPlan:
    models = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    gpus = []
    for i in range(draw(st.integers(0, 3))):
        replicas = tuple(
            Replica(
                id=f"r{i}-{j}", model=draw(st.sampled_from(models)), runtime="torch", dtype="fp32", dims=draw(st.sampled_from(["", "seq=7"])),
                batch_size=draw(st.integers(1, 10**6)), sm_share_pct=draw(st.floats(0.5, 100)), partition=draw(st.none() | names),
                duty_cycle_ms=draw(maybe), latency_ms=draw(positive), goodput_rps=draw(positive), slo_ms=draw(maybe),
                throughput_rps=draw(maybe), max_wait_ms=draw(maybe), latency_low_ms=draw(maybe), latency_high_ms=draw(maybe),
                creq_pct=draw(maybe), mreq_bytes=draw(st.none() | st.integers(0, 2**50)), mreq_pct=draw(maybe),
            )
            for j in range(draw(st.integers(0, 3)))
        )  # fmt: skip
        gpus.append(
            PlacedGpu(id=f"T4-{i}", type="T4", cuti_pct=draw(maybe), muti_pct=draw(maybe), replicas=replicas)
        )
    return PlacementPlan(
        policy=draw(names), creq="sm-util-mean", objective="cost", seed=draw(st.integers(0, 2**63 - 1)),
        workload=workload_from(
            Fields({"models": [{"name": m, "rate_rps": draw(positive), "slo_ms": draw(positive)} for m in models]}, where="w", what="w")
        ),
        gpus=tuple(gpus),
        totals=PlanTotals(goodput_rps=draw(positive), expected_goodput_rps=draw(maybe), gpus_used=len(gpus), cost_per_hour=draw(maybe),
                          gap_pct=draw(maybe)),
        unserved=tuple(Unserved(model=m, rate_rps=draw(positive), reason="no room") for m in models[:1]),
        notes=("a note",),
    )  # fmt: skip


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=plans())
def test_a_plan_survives_its_file(plan: PlacementPlan, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(plan_json(plan))
    assert read_plan(tmp_path / "p.json") == plan


def a_plan() -> dict[str, Any]:
    replica = Replica(
        id="m-0", model="m", runtime="torch", dtype="fp32", dims="", batch_size=4, sm_share_pct=100.0, partition=None,
        duty_cycle_ms=None, latency_ms=3.0, goodput_rps=9.0,
    )  # fmt: skip
    plan = PlacementPlan(
        policy="p", creq="sm-util-mean", objective="goodput", seed=0,
        workload=workload_from(Fields({"models": [{"name": "m", "rate_rps": 9.0, "slo_ms": 7.0}]}, where="w", what="w")),
        gpus=(
            PlacedGpu(id="T4-0", type="T4", cuti_pct=None, muti_pct=None, replicas=(replica,)),
            PlacedGpu(id="T4-1", type="T4", cuti_pct=None, muti_pct=None, replicas=(dataclasses.replace(replica, id="m-1"),)),
        ),
        totals=PlanTotals(goodput_rps=9.0, expected_goodput_rps=None, gpus_used=2, cost_per_hour=None), unserved=(), notes=(),
    )  # fmt: skip
    return plan_document(plan)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("gpus", 0, "replicas", 0, "batch_size"), 0, r"gpus\[0\]: replicas\[0\]: batch_size: found 0"),
        (("gpus", 0, "replicas", 0, "model"), "other", "T4-0: other is not in the plan's workload"),
        (("gpus", 0, "replicas", 0, "model"), "../m", "expected a name"),
        (("gpus", 0, "replicas", 0, "id"), "m-1", "two replicas have one id"),
        (("gpus", 0, "id"), "T4-1", "two GPUs have one id"),
        (("gpus", 0, "replicas", 0, "sm_share_pct"), 101, "sm_share_pct: found 101"),
        (("gpus", 0, "replicas", 0, "latency_ms"), None, "latency_ms: found nothing"),
        (("gpus", 0, "replicas", 0, "runtime"), "a\nb", "runtime: found"),
        (("gpus", 0, "color"), "red", "'color' is not a field of a GPU of a plan"),
        (("totals", "goodput_rps"), -1, "totals: goodput_rps: found -1"),
        (("schema_version",), 2, "schema_version: found 2, expected 1"),
        (("schema_version",), True, "schema_version: found True"),
        (("notes",), [3], "notes: found something other"),
        (("unserved",), {}, "unserved: found a mapping"),
        (("workload",), None, "workload: found nothing"),
        (("seed",), 2**70, "seed: found"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_named_by_its_field(
    tmp_path: Path, path: tuple[Any, ...], value: object, words: str
) -> None:
    document = json.loads(json.dumps(a_plan()))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=words):
        read_plan(tmp_path / "p.json")


def test_a_plan_as_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(a_plan()))
    assert read_plan(tmp_path / "p.json").gpus[1].replicas[0].id == "m-1"
    (tmp_path / "p.json").write_text('{"schema_version": 1, "schema_version": 1}')
    with pytest.raises(DocumentError, match="stands twice"):
        read_plan(tmp_path / "p.json")
    (tmp_path / "p.json").write_text('{"schema_version": Infinity}')
    with pytest.raises(DocumentError, match="found Infinity"):
        read_plan(tmp_path / "p.json")


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.sampled_from(["name", "model"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
KEYS = (
    "models",
    "applications",
    "gpus",
    "elastic",
    "schema_version",
    "name",
    "rate_rps",
    "slo_ms",
    "type",
    "count",
    "after",
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(st.sampled_from(KEYS), values, max_size=4) | values)
def test_whatever_yaml_holds_is_read_or_refused_in_one_line(content: Any, tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    for read in (read_workload, read_cluster):
        try:
            read(tmp_path / "d.yaml")
        except DocumentError as e:
            assert str(e).isprintable() and "d.yaml" in str(e)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_a_file_holds_is_read_or_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(content)
    for read in (read_workload, read_cluster, read_plan):
        with pytest.raises(DocumentError) as caught:
            read(tmp_path / "d")
        assert str(caught.value).isprintable() and str(tmp_path) in str(caught.value)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 2000),
    new=st.sampled_from([b"", b"\x00", b"9", b"-", b'"', b"{", b"null", b"1e999", b"\xff", b"\n"]),
)
def test_a_plan_with_a_changed_byte_is_read_or_refused_in_one_line(
    at: int, new: bytes, tmp_path: Path
) -> None:
    data = json.dumps(a_plan()).encode()
    at %= len(data)
    (tmp_path / "p.json").write_bytes(data[:at] + new + data[at + 1 :])
    try:
        read_plan(tmp_path / "p.json")
    except DocumentError as e:
        assert str(e).isprintable() and "p.json" in str(e)


@pytest.mark.parametrize("name", ["a", "timm/resnet50", "a.b-c_d+e#f", "A" * 200])
def test_names_that_are_allowed(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "a..b", "../a", "/a", "a/", "a//b", "a/.b", "-a", "a b", "a\n", "é", "A" * 201, None, 3]
)
def test_names_that_are_not(name: object) -> None:
    assert not valid_name(name)
