"""What every target of ``gkest export`` must do; iterates the table of targets, so a new one is held to it as
it is added.

The forms of the single targets are checked in ``tests/export``: test_kubernetes_forms, test_triton,
test_ray_serve.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.exporting.deployment import Deployment, Exporter
from gkestimator.exporting.loading import load_deployment
from gkestimator.exporting.registry import EXPORTERS, exporter_class, make_exporters
from gkestimator.exporting.writing import write_files
from gkestimator.tables import REQUIREMENTS, Requirement, write_table

H100 = "H100-SXM"
DRA = ("dra", "dra-mig", "dra-capacity")
PODS = ("hami", "kai", "volcano", "device-plugin", "mig", *DRA)
# Targets that give out parts of a GPU by compute or memory, and so cannot do without them.
NEED_CREQ = ("hami", "volcano", "device-plugin", "mig", "mps", "triton", "ray-serve", *DRA)
NEED_MREQ = (*NEED_CREQ, "kai", "modelmesh")
TAKE_TURNS_APART = (
    "csv",
    "json",
    "kserve",
    "triton",
)  # these keep turns, need none, or run one thing at a time
KUBERNETES_GROUPS = ("v1", "apps/v1", "batch/v1", "resource.k8s.io/v1")
NO_SHARES = ("triton",)  # cannot confine a replica to a part of the SMs
Replica = dict[str, Any]


def replica(model: str, number: int = 0, **given: Any) -> Replica:
    return {
        "id": f"{model}-{number}", "model": model, "runtime": "onnxruntime", "dtype": "fp16", "dims": "seq=128", "batch_size": 8,
        "sm_share_pct": 100.0, "partition": None, "duty_cycle_ms": None, "latency_ms": 20.0, "goodput_rps": 100.0,
        "slo_ms": 100.0, "throughput_rps": 400.0, "max_wait_ms": 12.5, "creq_pct": 30.25, "mreq_bytes": 5_000_000_000,
        "mreq_pct": None,
    } | given  # fmt: skip


def plan(folder: Path, *gpus: tuple[Replica, ...], kind: str = H100) -> Deployment:
    names = dict.fromkeys(r["model"] for here in gpus for r in here)
    document = {
        "schema_version": 1, "policy": "usher", "creq": "sm-util-mean", "objective": "goodput", "seed": 0,
        "workload": {"models": [{"name": n, "rate_rps": 100, "slo_ms": 100} for n in names]},
        "gpus": [
            {"id": f"{kind}-{i}", "type": kind, "cuti_pct": None, "muti_pct": None, "replicas": list(here)}
            for i, here in enumerate(gpus)
        ],
        "totals": {"goodput_rps": 1.0, "expected_goodput_rps": None, "gpus_used": len(gpus), "cost_per_hour": None},
    }  # fmt: skip
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    return load_deployment(path)


@pytest.fixture
def shared(tmp_path: Path) -> Deployment:
    """Two models on two GPUs, three replicas, one of them twice."""
    first = (replica("timm/net_a"), replica("bert", creq_pct=31.0))
    return plan(tmp_path, first, (replica("timm/net_a", 1),))


@pytest.fixture
def table(tmp_path: Path) -> Deployment:
    """A measured table with a row for each of two models."""
    rows = [
        Requirement(
            model=name, gpu=H100, runtime="torch", dtype="fp32", batch_size=batch, latency_ms=3.0, sm_util_mean_pct=22.5,
            reserved_bytes=1_500_000_001, source="measured", occupancy_source="measured", memory_source="measured",
        )
        for name, batch in (("timm/net_a", 8), ("bert", 1))
    ]  # fmt: skip
    path = tmp_path / "table.csv"
    write_table(REQUIREMENTS, rows, path)
    return load_deployment(path)


def exporter(name: str) -> Exporter:
    return make_exporters((name,))[0]


def texts(name: str, deployment: Deployment) -> dict[str, str]:
    return {str(f.path): f.text for f in exporter(name).files(deployment)}


def words(text: str) -> str:
    """Text without line breaks, comment signs and quotes of its serialiser."""
    return "".join(c for c in text if c.isalnum())


# --- what each must say and keep


@pytest.mark.parametrize("name", EXPORTERS)
def test_a_target_names_itself_and_its_options(name: str) -> None:
    found = exporter_class(name)
    assert found.name == name
    assert found.summary and "\n" not in found.summary
    assert len(found.limits) > 20
    parameters = inspect.signature(found.__init__).parameters
    assert all(parameters[o].kind is inspect.Parameter.KEYWORD_ONLY for o in found.options)
    assert all(parameters[o].default is not inspect.Parameter.empty for o in found.options)


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("source", ["shared", "table"])
def test_the_same_input_gives_the_same_files(name: str, source: str, request: pytest.FixtureRequest) -> None:
    deployment = request.getfixturevalue(source)
    first = texts(name, deployment)
    assert first and texts(name, deployment) == first
    assert all(text.endswith("\n") or not text for text in first.values())


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("source", ["shared", "table"])
def test_every_folder_says_what_is_enforced(name: str, source: str, request: pytest.FixtureRequest) -> None:
    """In the file itself where its form allows a comment, else in a text beside it."""
    found = texts(name, request.getfixturevalue(source))
    limits = words(exporter_class(name).limits)
    silent = [path for path, text in found.items() if limits not in words(text)]
    if name == "csv":
        assert limits in words(found["README.txt"])
    elif name == "ray-serve":
        assert not [path for path in silent if path.endswith((".yaml", ".yml"))]
    else:
        assert not silent


@pytest.mark.parametrize("name", EXPORTERS)
def test_files_are_written_below_their_folder(name: str, shared: Deployment, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    written = write_files(folder, exporter(name).files(shared))
    assert sorted(written) == sorted(p for p in folder.rglob("*") if p.is_file())
    assert all(folder in p.parents for p in written)


@pytest.mark.parametrize("name", EXPORTERS)
def test_kubernetes_objects_hold_no_key_that_kubernetes_does_not_know(name: str, shared: Deployment) -> None:
    """Objects of other groups (KServe's) and names of resources are checked in tests/export."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for path, text in texts(name, shared).items():
        if not path.endswith(".yaml"):
            continue
        for thing in yaml.safe_load_all(text):
            if isinstance(thing, dict) and thing.get("apiVersion") in KUBERNETES_GROUPS:
                kubernetes_validate.validate(thing, desired_version="1.34", strict=True)


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_model_is_named(name: str, shared: Deployment) -> None:
    everything = "".join(texts(name, shared).values())
    assert "timm/net_a" in everything or "timm_net_a" in everything
    assert "bert" in everything


@pytest.mark.parametrize("name", NEED_CREQ)
def test_an_unknown_creq_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a-0.*(Creq|creq)"):
        texts(name, plan(tmp_path, (replica("a", creq_pct=None),)))


@pytest.mark.parametrize("name", NEED_MREQ)
def test_an_unknown_mreq_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a-0.*(Mreq|mreq)"):
        texts(name, plan(tmp_path, (replica("a", mreq_bytes=None),)))


@pytest.mark.parametrize("name", [n for n in EXPORTERS if n not in ("csv", "json")])
@pytest.mark.parametrize(
    "given", [{"creq_pct": 130.0}, {"mreq_bytes": None, "mreq_pct": 130.0}], ids=["Creq", "Mreq"]
)
def test_more_than_one_gpu_is_refused(name: str, given: Replica, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="130") as caught:
        texts(name, plan(tmp_path, (replica("a", **given),)))
    assert "a-0" in str(caught.value)


@pytest.mark.parametrize("name", EXPORTERS)
def test_turns_are_refused_where_the_target_has_none(name: str, tmp_path: Path) -> None:
    turns = {"partition": "p0", "duty_cycle_ms": 50.0}
    made = plan(tmp_path, (replica("a", **turns), replica("b", **turns)))
    if name in TAKE_TURNS_APART:
        assert texts(name, made)
    else:
        with pytest.raises(UsageError, match="take turns"):
            texts(name, made)


@pytest.mark.parametrize("name", EXPORTERS)
def test_a_share_of_the_sms_is_kept_or_refused(name: str, tmp_path: Path) -> None:
    made = plan(tmp_path, (replica("a", sm_share_pct=37.0, creq_pct=20.0),))
    if name in NO_SHARES:
        with pytest.raises(UsageError, match="37"):
            texts(name, made)
    elif name not in ("device-plugin", "mig", "dra-mig"):  # these round it up to a share of their own
        assert "37" in "".join(texts(name, made).values())


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("hostile", ["1e3", "yes", "0x10", "a#b", "_-.", "A/b", "null", "x" * 200])
def test_names_that_read_as_something_else_stay_names(name: str, hostile: str, tmp_path: Path) -> None:
    found = texts(name, plan(tmp_path, (replica(hostile, id="r"), replica("other", id="s"))))
    for path, text in found.items():
        if path.endswith((".yaml", ".yml")):
            for document in yaml.safe_load_all(text):
                assert all(isinstance(v, str) for v in _named(document))


def _named(thing: Any) -> Iterator[Any]:
    """Values of every key called name, and of annotations and labels."""
    if isinstance(thing, dict):
        for key, value in thing.items():
            if key in ("annotations", "labels", "matchLabels"):
                yield from value.values()
            elif key in ("name", "app_name") and not isinstance(value, dict):
                yield value
            yield from _named(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from _named(value)


@pytest.mark.parametrize("name", EXPORTERS)
def test_models_whose_names_would_collide_stay_apart(name: str, tmp_path: Path) -> None:
    models = ("a_b", "a.b", "a-b", "A_B", "a/b")
    small = {"creq_pct": 12.0, "mreq_bytes": 2**30}
    made = plan(tmp_path, tuple(replica(m, id=f"r{i}", **small) for i, m in enumerate(models)))
    found = exporter(name).files(made)
    assert len({str(f.path).casefold() for f in found}) == len(found)
    if name in PODS:
        objects = list(yaml.safe_load_all(texts(name, made)["deployments.yaml"]))
        by_name = {o["metadata"]["name"]: o["metadata"]["annotations"]["gkestimator/model"] for o in objects}
        assert sorted(by_name.values()) == sorted(models)


@pytest.mark.parametrize("name", EXPORTERS)
def test_texts_of_a_plan_never_become_anything_but_values(name: str, tmp_path: Path) -> None:
    """Runtime, dtype and dims are free text on one line: they must come back as they are, or be refused."""
    nasty = "x: {y}, # $(touch z) `id` \"quoted\" 'single' \\ %s - | > & *a !t"
    try:
        found = texts(name, plan(tmp_path, (replica("a", dtype=nasty, runtime=nasty, dims=nasty),)))
    except GkestimatorError as e:
        assert "\n" not in str(e)
        return
    for path, text in found.items():
        if path.endswith((".yaml", ".yml")):
            values = list(_strings(list(yaml.safe_load_all(text))))
            assert all(nasty in v for v in values if "touch z" in v)
        elif path.endswith(".json"):
            assert json.loads(text)["rows"][0]["dtype"] == nasty


def _strings(thing: Any) -> Iterator[str]:
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from _strings(key)
            yield from _strings(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from _strings(value)
