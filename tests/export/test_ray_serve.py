"""Ray Serve: the configuration against Ray's own schema (which accepts unknown fields: keys are compared), and refusals."""

from __future__ import annotations

import copy
import math
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
import yaml
from hypothesis import given
from hypothesis import strategies as st
from serving import deployment, instance

from gkestimator.core.errors import GkestimatorError
from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.ray_serve import ACCELERATORS, RayServeExporter, _gpus_needed, gpu_fraction
from gkestimator.exporting.ray_serve_limits import replica_limits
from gkestimator.exporting.registry import make_exporters
from gkestimator.exporting.variants import variants


def exported(found: Deployment) -> tuple[str, dict[str, Any]]:
    (exporter,) = make_exporters(("ray-serve",))
    config, *sources = exporter.files(found)
    assert str(config.path) == "serve-config.yaml"
    assert [str(file.path) for file in sources] == ["gkest_serve_app.py", "gkest_serve_worker.py"]
    return config.text, yaml.safe_load(config.text)


def two_ways() -> Deployment:
    """A model at two batch sizes on two GPUs, one of them twice, beside one in a folder."""
    return deployment(
        [
            instance("small", id="small-0", batch_size=4),
            instance("small", id="small-1", gpu_id="V100-SXM2-16GB-1", batch_size=4, slo_ms=90.0),
            instance("small", id="small-2", gpu_id="V100-SXM2-16GB-1", batch_size=2, max_batch_size=6),
            instance("zoo/other", creq_pct=20.0, mreq_bytes=None, mreq_pct=60.00001, dims="H=8,seq_len=128"),
        ]
    )


def test_the_configuration_says_what_the_plan_says() -> None:
    text, document = exported(two_ways())
    small, other = document["applications"]
    assert [a["route_prefix"] for a in (small, other)] == ["/small", "/zoo_other"]
    # num_gpus is rounded up from 31.234 %. At batch 4 and 12.5 ms a replica answers 320 a second: 28.8 within its least
    # objective of 90 ms, ten times 188.8 with half a second more. At most 6 in a batch of 12.5 ms are 480 a second.
    session = {
        "providers": ["CUDAExecutionProvider"],
        "intra_op_threads": 1,
        "memory_bytes": 2000 * serving.MIB,
    }
    assert small["deployments"] == [
        {
            "name": "small_b4",
            "num_replicas": 2,
            "max_ongoing_requests": 1888,
            "max_queued_requests": 100,
            "ray_actor_options": {"num_gpus": 0.3124, "accelerator_type": "V100"},
            "user_config": {
                "model_file": "small.onnx",
                **session,
                "max_batch_size": 4,
                "timeout_s": 1.18,
                "max_waiting": 29,
                "objective_ms": 90.0,
                "latency_ms": [[4, 12.5]],
            },
        },
        {
            "name": "small_b2",
            "num_replicas": 1,
            "max_ongoing_requests": 2880,
            "max_queued_requests": 100,
            "ray_actor_options": {"num_gpus": 0.3124, "accelerator_type": "V100"},
            "user_config": {
                "model_file": "small.onnx",
                **session,
                "max_batch_size": 6,
                "timeout_s": 1.2,
                "max_waiting": 48,
                "objective_ms": 100.0,
                "latency_ms": [[2, 12.5]],
            },
        },
        {
            "name": "small_router",
            "num_replicas": 1,
            "max_ongoing_requests": 2 * 1888 + 2880,
            "max_queued_requests": 200,
            "ray_actor_options": {"num_gpus": 0.0},
        },
    ]
    assert small["args"] == {"deployments": {"small_b4": 600.0, "small_b2": 300.0}, "router": "small_router"}
    (only,) = other["deployments"]
    assert only["ray_actor_options"]["num_gpus"] == 0.6001  # Mreq, the larger one
    assert only["user_config"]["model_file"] == "zoo/other.onnx"
    assert only["user_config"]["dims"] == {"H": 8, "seq_len": 128}
    assert document["http_options"] == {"request_timeout_s": 2.2}
    assert RayServeExporter.limits in text
    assert "these fractions fit on 2 GPUs, the plan uses 2" in text


def test_an_export_is_the_same_byte_for_byte() -> None:
    assert exported(two_ways())[0] == exported(two_ways())[0]


def test_replicas_confined_to_a_share_hold_it() -> None:
    found = instance("small", sm_share_pct=33.3, creq_pct=None)
    (way,) = exported(deployment([found]))[1]["applications"][0]["deployments"]
    assert way["ray_actor_options"]["num_gpus"] == 0.333
    variables = way["ray_actor_options"]["runtime_env"]["env_vars"]
    assert variables == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "34"}


def test_a_plan_that_one_number_cannot_say_is_told_so() -> None:
    """Compute-heavy beside memory-heavy: 90 % and 80 % in the plan, 140 % as the larger of both."""
    here = [instance("a", creq_pct=70.0), instance("b", creq_pct=20.0, mreq_bytes=None, mreq_pct=70.0)]
    (message,) = RayServeExporter().messages(deployment(here))
    assert "fit on 2 GPUs, the plan uses 1" in message and "stay pending" in message
    assert message in exported(deployment(here))[0]


@pytest.mark.slow
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40))
def test_the_gpus_that_ray_needs_are_enough_and_few(steps: list[int]) -> None:
    """No fewer than the sum or the large ones ask for; no two of them could be one."""
    found = _gpus_needed([s / 10_000 for s in steps])
    least = math.ceil(sum(steps) / 10_000)
    halves = sum(s > 5_000 for s in steps)
    assert max(least, halves) <= found <= len(steps)
    assert found <= 2 * least  # two GPUs that are both at most half full would be one


def test_a_table_without_objectives_refuses_nobody_before_the_time_out() -> None:
    row = instance("small", gpu_id=None, slo_ms=None, max_wait_ms=None, goodput_rps=None)
    text, document = exported(deployment([row], origin="table"))
    (application,) = document["applications"]
    (only,) = application["deployments"]
    assert only["max_ongoing_requests"] == only["max_queued_requests"] == 1000
    assert only["user_config"].keys().isdisjoint({"max_waiting", "objective_ms", "latency_ms"})
    assert only["user_config"]["timeout_s"] == 60
    assert application["args"] == {"deployments": {"small": 1.0}}
    assert "no SLO is known of small" in text


def test_notes_cannot_leave_their_comment() -> None:
    notes = ("a\nimport_path: evil", "b\r--- !!python/object", "c\u2028x")
    text, document = exported(deployment([instance()], notes=notes))
    assert document == exported(deployment([instance()]))[1]
    assert sum(not line.startswith("#") for line in text.splitlines()) == len(
        yaml.safe_dump(document, sort_keys=False).splitlines()
    )


def test_names_stay_apart_where_signs_are_lost() -> None:
    models = ["a/b", "a#b", "a_b", "A_B", "a_b_router"]
    _, document = exported(deployment([instance(m, id=str(n)) for n, m in enumerate(models)]))
    names = [a["name"] for a in document["applications"]]
    deployments = [d["name"] for a in document["applications"] for d in a["deployments"]]
    for found in (names, deployments):
        assert len({n.lower() for n in found}) == len(models)
        assert all(set(n) <= set("abAB_router2345") for n in found)


@given(st.floats(0, 100), st.floats(0, 100))
def test_fractions_are_rounded_up_to_four_decimals(creq: float, mreq: float) -> None:
    fraction = gpu_fraction(instance(creq_pct=creq, mreq_bytes=1, mreq_pct=mreq))
    asked = max(creq, mreq) / 100
    assert fraction == round(fraction, 4) and 0 < fraction <= 1
    assert asked * (1 - 2e-9) <= fraction <= asked + 1.01e-4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"creq_pct": None}, "resnet50-0: its Creq is not known, and ray-serve needs it"),
        ({"mreq_bytes": None, "mreq_pct": None}, "resnet50-0: its Mreq is not known"),
        ({"creq_pct": 130.0}, "resnet50-0: found a Creq of 130 %"),
        ({"mreq_bytes": 30000 * serving.MIB}, "resnet50-0: found a Mreq of 185.8 %"),
        ({"latency_ms": 101.0}, "resnet50-0: latency 101 ms is above its SLO 100 ms"),
        ({"model": "../x"}, "not a name that can be exported"),
        ({"model": "$(reboot)"}, "not a name that can be exported"),
    ],
)
def test_what_cannot_be_expressed_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(GkestimatorError) as refused:
        RayServeExporter().files(deployment([instance(**changes)]))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_replicas_that_take_turns_are_refused() -> None:
    here = [instance("a", id="a-0", partition="p"), instance("b", id="b-0", partition="p")]
    with pytest.raises(GkestimatorError, match="a-0 and b-0 take turns on V100-SXM2-16GB-0"):
        RayServeExporter().files(deployment(here))


@pytest.mark.parametrize(
    ("types_", "said"),
    [
        (("A100-SXM4-40GB", "A100-SXM4-80GB"), "both are A100"),
        (("V100-SXM2-16GB", "RTX-4090"), "no accelerator type"),
    ],
)
def test_gpu_types_that_ray_cannot_tell_apart_are_refused(types_: tuple[str, str], said: str) -> None:
    here = [instance(f"m{n}", gpu_type=t, gpu_id=f"{t}-0") for n, t in enumerate(types_)]
    with pytest.raises(GkestimatorError, match=said):
        RayServeExporter().files(deployment(here))
    assert RayServeExporter().files(deployment(here[1:]))


def test_each_gpu_type_is_asked_for_by_rays_name() -> None:
    here = [instance("m", gpu_type=t, gpu_id=f"{t}-0", id=t) for t in ("T4", "L40S", "L4", "A100-PCIE-40GB")]
    (application,) = exported(deployment(here))[1]["applications"]
    asked = [d["ray_actor_options"].get("accelerator_type") for d in application["deployments"]]
    assert asked == ["T4", "L40S", "L4", "A100", None]  # the router asks for none


def test_a_file_of_one_batch_size_is_refused_for_another(tmp_path: Path) -> None:
    file = serving.network(tmp_path / "small.onnx", batch=4)
    known = deployment([instance("small", batch_size=8)], models={"small": str(file)})
    with pytest.raises(GkestimatorError, match="small: its file runs at batch 4 alone, batch 8 is asked for"):
        RayServeExporter().files(known)
    same = deployment([instance("small", batch_size=4)], models={"small": str(file)})
    assert RayServeExporter().files(same)


# --- against Ray itself -------------------------------------------------------------------------------------------


def unknown_keys(schema: Any, value: Any, where: str = "") -> Iterator[str]:
    """Keys of ``value`` that are no fields of the pydantic model ``schema``, at any depth."""
    if typing.get_origin(schema) in (typing.Union, types.UnionType):
        models = [a for a in typing.get_args(schema) if hasattr(a, "model_fields")]
        schema = models[0] if models else schema
    if typing.get_origin(schema) is list and isinstance(value, list):
        for number, entry in enumerate(value):
            yield from unknown_keys(typing.get_args(schema)[0], entry, f"{where}[{number}]")
    elif hasattr(schema, "model_fields") and isinstance(value, dict):
        for key, entry in value.items():
            if key not in schema.model_fields:
                yield f"{where}.{key}"
            else:
                yield from unknown_keys(schema.model_fields[key].annotation, entry, f"{where}.{key}")


def check(document: dict[str, Any]) -> None:
    """Everything that can be held offline. Raises ValueError."""
    schema = pytest.importorskip("ray.serve.schema").ServeDeploySchema
    from ray._common.ray_option_utils import validate_actor_options

    if found := list(unknown_keys(schema, document)):
        raise ValueError(f"unknown: {found}")
    schema.model_validate(document)
    for application in document["applications"]:
        if not application["route_prefix"].startswith("/") or application["route_prefix"].endswith("/"):
            raise ValueError(f"route_prefix {application['route_prefix']}")  # Ray says so when it deploys
        for way in application["deployments"]:
            options = dict(way["ray_actor_options"])
            validate_actor_options(options, in_options=False)
            # Ray takes more than a GPU, and refuses five decimals only where four would be 0.
            if not 0 <= options["num_gpus"] <= 1 or round(options["num_gpus"], 4) != options["num_gpus"]:
                raise ValueError(f"num_gpus {options['num_gpus']}")


def test_ray_accepts_the_configuration() -> None:
    check(exported(two_ways())[1])
    check(exported(deployment([instance(sm_share_pct=30.0)]))[1])


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (lambda d: d["applications"][0], "route_prefx", "/x"),
        (lambda d: d["applications"][0], "route_prefix", "x"),
        (lambda d: d["applications"][0]["deployments"][0], "max_ongoing_request", 3),
        (lambda d: d["applications"][0]["deployments"][0], "num_replicas", 0),
        (lambda d: d["applications"][0]["deployments"][0]["ray_actor_options"], "num_gpu", 0.5),
        (lambda d: d["applications"][0]["deployments"][0]["ray_actor_options"], "num_gpus", 0.31241),
        (lambda d: d["applications"][0]["deployments"][0]["ray_actor_options"], "num_gpus", 0.00003),
        (lambda d: d["applications"][0]["deployments"][0]["ray_actor_options"], "num_gpus", 1.5),
    ],
)
def test_the_check_rejects_what_is_wrong(place: Any, key: str, value: Any) -> None:
    document = copy.deepcopy(exported(two_ways())[1])
    check(document)
    place(document)[key] = value
    with pytest.raises(ValueError):
        check(document)


def test_ray_has_every_accelerator_type() -> None:
    accelerators = pytest.importorskip("ray.util.accelerators.accelerators")
    known = {v for k, v in vars(accelerators).items() if k.isupper()}
    # The RTX PRO came with Ray 2.5x; an older Ray takes any name.
    assert set(ACCELERATORS.values()) - {"RTX-PRO-6000", "B200", "H20"} <= known


@given(
    latency_ms=st.floats(0.01, 5000),
    objectives=st.floats(1, 100),
    size=st.integers(1, 256),
    cap=st.none() | st.integers(1, 512),
)
def test_limits_never_let_a_replica_run_dry(
    latency_ms: float, objectives: float, size: int, cap: int | None
) -> None:
    """Two batches at least may wait; the worker refuses long before Ray's router would send its callers to sleep."""
    slo_ms = latency_ms * objectives
    found = instance(batch_size=size, max_batch_size=cap, latency_ms=latency_ms, slo_ms=slo_ms)
    (way,) = variants([found])
    limits = replica_limits(way)
    assert limits.cap == max(size, cap or size)
    capacity = limits.cap / latency_ms * 1e3
    assert limits.max_waiting is not None
    assert limits.max_waiting >= max(2 * limits.cap, capacity * slo_ms / 1e3 * (1 - 1e-9))
    assert limits.max_waiting <= max(2 * limits.cap, capacity * slo_ms / 1e3 + 1)
    assert limits.max_ongoing >= 10 * max(limits.max_waiting, capacity * (slo_ms / 1e3 + 0.5) * (1 - 1e-9))
    assert limits.max_queued >= limits.max_waiting
    assert limits.timeout_s > slo_ms / 1e3


def test_parts_of_a_gpu_come_with_a_note_for_kuberay() -> None:
    assert "Kubernetes refuses nvidia.com/gpu: 0.5" in exported(deployment([instance()]))[0]
    assert "KubeRay" not in exported(deployment([instance(creq_pct=100.0)]))[0]
