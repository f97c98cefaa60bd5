"""Every file of the Kubernetes targets, as Kubernetes and the target's own reader would take it.

The checks are those that work without a cluster: Kubernetes' own schema, strictly, and by hand what it lets
pass (fractions of extended resources); strict schemas of mig-parted's and the device plugin's files and of
KServe's InferenceService, whose fields are those of ``kserve.models`` 0.21 (V1beta1PredictorSpec,
V1beta1ModelSpec, V1beta1Batcher).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.registry import make_exporters

jsonschema = pytest.importorskip("jsonschema")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

Make = Callable[..., Deployment]
DRA = ("dra", "dra-mig", "dra-capacity")
PODS = ("hami", "kai", "volcano", "device-plugin", "mig", *DRA)


def texts(target: str, deployment: Deployment) -> dict[str, str]:
    return {str(f.path): f.text for f in make_exporters((target,))[0].files(deployment)}


_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNT = {"type": "integer", "minimum": 1}


def _form(required: tuple[str, ...] | None = None, **fields: Any) -> dict[str, Any]:
    needed = list(fields) if required is None else list(required)
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}


KSERVE = _form(
    apiVersion={"const": "serving.kserve.io/v1beta1"},
    kind={"const": "InferenceService"},
    metadata=_form(
        name={"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$"}, annotations=_TEXTS
    ),
    spec=_form(
        predictor=_form(
            minReplicas=_COUNT,
            maxReplicas=_COUNT,
            affinity={"type": "object"},  # a Pod's: checked as one below
            batcher=_form(("maxBatchSize",), maxBatchSize=_COUNT, maxLatency=_COUNT),
            model=_form(
                modelFormat=_form(name={"const": "onnx"}),
                storageUri={"type": "string", "pattern": "^[a-z][a-z0-9+.-]*://[^ ]+$"},
                resources=_form(limits={"type": "object"}, requests={"type": "object"}),
            ),
        )
    ),
)
MODELMESH = _form(
    apiVersion={"const": "serving.kserve.io/v1beta1"},
    kind={"const": "InferenceService"},
    metadata=_form(
        name=KSERVE["properties"]["metadata"]["properties"]["name"],
        annotations=_TEXTS
        | {
            "required": ["serving.kserve.io/deploymentMode"],
            "properties": {"serving.kserve.io/deploymentMode": {"const": "ModelMesh"}},
        },
    ),
    spec=_form(
        predictor=_form(
            model=_form(
                modelFormat=_form(name={"const": "onnx"}),
                storageUri={"type": "string", "pattern": "^[a-z][a-z0-9+.-]*://[^ ]+$"},
            )
        )
    ),
)
# Kubernetes takes any parameters of a driver; these are those of resource.nvidia.com/v1beta1 that we write.
GPU_CONFIG = _form(
    apiVersion={"const": "resource.nvidia.com/v1beta1"},
    kind={"const": "GpuConfig"},
    sharing=_form(
        strategy={"const": "MPS"},
        mpsConfig=_form(
            defaultActiveThreadPercentage={"type": "integer", "minimum": 1, "maximum": 100},
            defaultPinnedDeviceMemoryLimit={"type": "string", "pattern": "^[1-9][0-9]*Mi$"},
        ),
    ),
)
MIG_PARTED = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "mig-configs"],
    "properties": {
        "version": {"const": "v1"},
        "mig-configs": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["devices", "mig-enabled", "mig-devices"],
                    "properties": {
                        "devices": {
                            "anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "integer"}}]
                        },
                        "mig-enabled": {"type": "boolean"},
                        "mig-devices": {
                            "type": "object",
                            "additionalProperties": False,
                            "minProperties": 1,
                            "patternProperties": {"^[1-7]g\\.[0-9]+gb$": _COUNT},
                        },
                    },
                },
            },
        },
    },
}
DEVICE_PLUGIN = _form(
    ("version",),
    version={"const": "v1"},
    sharing=_form(
        mps=_form(
            resources={
                "type": "array",
                "minItems": 1,
                "items": _form(name={"const": "nvidia.com/gpu"}, replicas={"type": "integer", "minimum": 2}),
            }
        )
    ),
)
RESOURCES = {
    "hami": {"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"},
    "volcano": {"volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"},
    "device-plugin": {"nvidia.com/gpu"},
    "mig": {"nvidia.com/mig-3g.40gb"},
    "kserve": {"nvidia.com/gpu"},
}


def check_claim(thing: Any, target: str) -> None:
    """Raises where the API server or the driver would refuse a claim, or a template of one."""
    kubernetes_validate.validate(thing, desired_version="1.34", strict=True)
    if thing["kind"] == "ResourceClaimTemplate":
        spec = thing["spec"]["spec"]
    else:
        spec = thing["spec"]
    (request,) = spec["devices"]["requests"]
    classes = {
        "dra": "gpu.nvidia.com",
        "dra-mig": "mig.nvidia.com",
        "dra-capacity": "hami-core-gpu.project-hami.io",
    }
    assert request["exactly"]["deviceClassName"] == classes[target]
    assert len(request["exactly"].get("selectors", [])) == {"dra": 1, "dra-mig": 2, "dra-capacity": 0}[target]
    if target == "dra-capacity":
        assert set(request["exactly"]["capacity"]["requests"]) == {"cores", "memory"}
    for config in spec["devices"]["config"] if target == "dra" else ():
        assert config["requests"] == [request["name"]]
        assert config["opaque"]["driver"] == "gpu.nvidia.com"
        jsonschema.validate(config["opaque"]["parameters"], GPU_CONFIG)


def check_kubernetes(thing: Any, target: str) -> None:
    """Raises where the API server, or the target's own webhook, would refuse ``thing``."""
    if target == "modelmesh":
        jsonschema.validate(thing, MODELMESH)
        return
    if thing["kind"] == "InferenceService":
        jsonschema.validate(thing, KSERVE)
        predictor = thing["spec"]["predictor"]
        container = {"name": "x", "image": "x", "resources": predictor["model"]["resources"]}
        pod = {"affinity": predictor["affinity"], "containers": [container]}
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod},
            desired_version="1.34",
            strict=True,
        )
        found = predictor["model"]["resources"]
    else:
        kubernetes_validate.validate(thing, desired_version="1.34", strict=True)
        template = thing["spec"]["template"]
        assert thing["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert template["spec"]["containers"][0]["image"]
        found = dict(template["spec"]["containers"][0].get("resources", {}))
        if target in DRA:
            (claim,), (named,) = template["spec"]["resourceClaims"], found.pop("claims")
            # Exactly one of the two, which the schema does not say.
            assert len({"resourceClaimName", "resourceClaimTemplateName"} & set(claim)) == 1
            assert claim["name"] == named["name"]
        if target == "kai":
            assert template["spec"]["schedulerName"] == "kai-scheduler"
            assert int(template["metadata"]["annotations"]["gpu-memory"]) >= 1
            assert template["metadata"]["labels"]["kai.scheduler/queue"]
    for amounts in found.values():
        assert set(amounts) == RESOURCES[target]
        # The API server takes no part of an extended resource; the schema above does.
        assert all(type(amount) is int and amount >= 1 for amount in amounts.values())


def check(target: str, path: str, thing: Any) -> None:
    """The check for one document of one file."""
    if path.startswith("config-"):
        jsonschema.validate(thing, DEVICE_PLUGIN)
    elif path.startswith("mig-parted-"):
        jsonschema.validate(thing, MIG_PARTED)
    elif path == "claims.yaml":
        check_claim(thing, target)
    else:
        check_kubernetes(thing, target)


def documents(target: str, deployment: Deployment) -> list[tuple[str, Any]]:
    return [
        (path, document)
        for path, text in texts(target, deployment).items()
        for document in yaml.safe_load_all(text)
    ]


@pytest.fixture
def plan(make: Make) -> Deployment:
    """A plan that every Kubernetes target can express, with a configuration of each kind."""
    a, b = {"model": "timm/net_a", "creq_pct": 33.0}, {"model": "bert", "creq_pct": 30.0}
    usual = {"mreq_bytes": 5_000_000_000, "dims": "seq=128"}
    return make(gpus={"H100-0": ("H100", [a | usual, b | usual]), "H100-1": ("H100", [a | usual])})


@pytest.mark.parametrize("target", [*PODS, "kserve", "modelmesh"])
def test_kubernetes_takes_what_is_written(target: str, plan: Deployment) -> None:
    found = documents(target, plan)
    beside = ("config-", "mig-parted-", "claims.yaml")
    # Pods that share a claim and those that have one each are of two kinds.
    assert len([1 for path, _ in found if not path.startswith(beside)]) == (3 if target == "dra" else 2)
    for path, document in found:
        check(target, path, document)


# Keys below these are free (labels, names of configurations), so no check can tell a typo there.
FREE = ("labels", "annotations", "mig-configs")
Edit = tuple[str, Callable[[Any], None]]


def typos(thing: Any, path: str = "") -> Iterator[Edit]:
    """One edit for each key of ``thing``: the key with a letter too many."""
    if isinstance(thing, dict):
        for key, value in thing.items():
            below = f"{path}.{key}"
            if path.rpartition(".")[2] not in FREE:

                def edit(root: Any, path: str = path, key: str = key) -> None:
                    at = _at(root, path)
                    at[f"{key}z"] = at.pop(key)

                yield below, edit
            yield from typos(value, below)
    elif isinstance(thing, list):
        for i, value in enumerate(thing):
            yield from typos(value, f"{path}.{i}")


def _at(root: Any, path: str) -> Any:
    """Keys hold dots, so each step takes the longest key that matches."""
    rest = path.removeprefix(".")
    while rest:
        if isinstance(root, list):
            head, _, rest = rest.partition(".")
            root = root[int(head)]
            continue
        key = max((k for k in root if rest == k or rest.startswith(f"{k}.")), key=len)
        root, rest = root[key], rest[len(key) + 1 :]
    return root


@pytest.mark.slow
@pytest.mark.parametrize("target", [*PODS, "kserve", "modelmesh"])
def test_a_typo_in_any_key_is_found(target: str, plan: Deployment) -> None:
    """So that the checks above can fail."""
    seen = set()
    for path, document in documents(target, plan):
        kind = path if path.startswith(("config-", "mig-parted-")) else document["kind"]
        if kind in seen:
            continue
        seen.add(kind)
        edits = list(typos(document))
        assert len(edits) >= (25 if kind == "Deployment" or target == "kserve" else 6)
        for where, edit in edits:
            broken = copy.deepcopy(document)
            edit(broken)
            with pytest.raises(
                (kubernetes_validate.ValidationError, jsonschema.ValidationError, AssertionError, KeyError)
            ):
                check(target, path, broken)
                pytest.fail(f"{target}: {path}: {where} misspelt was not found")


@pytest.mark.parametrize(
    ("target", "edit"),
    [
        ("hami", lambda d: _limits(d).update({"nvidia.com/gpu": 0.5})),
        ("hami", lambda d: _limits(d).update({"nvidia.com/gpucores": "30%"})),
        ("volcano", lambda d: _limits(d).pop("volcano.sh/vgpu-cores")),
        ("kai", lambda d: d["spec"]["template"]["metadata"]["annotations"].update({"gpu-memory": 2000})),
        ("kai", lambda d: d["spec"]["template"]["metadata"]["labels"].pop("kai.scheduler/queue")),
        ("kserve", lambda d: d["spec"]["predictor"]["batcher"].update({"maxBatchSize": "8"})),
        ("kserve", lambda d: d["metadata"].update({"name": "Net_A"})),
        ("mig", lambda d: _limits(d).update({"nvidia.com/mig-9g.90gb": 1})),
        ("modelmesh", lambda d: d["metadata"]["annotations"].pop("serving.kserve.io/deploymentMode")),
        ("dra", lambda d: _mps(d).update(defaultActiveThreadPercentage="31")),
        ("dra", lambda d: _mps(d).update(defaultPinnedDeviceMemoryLimit="4.5Gi")),
        (
            "dra-mig",
            lambda d: d["spec"]["template"]["spec"]["resourceClaims"][0].update(resourceClaimName="x"),
        ),
        ("dra-capacity", lambda d: d["spec"]["spec"]["devices"]["requests"][0]["exactly"].pop("capacity")),
    ],
)
def test_a_wrong_value_is_found(target: str, edit: Callable[[Any], None], plan: Deployment) -> None:
    path, document = next((p, d) for p, d in documents(target, plan) if "kind" in d)
    check(target, path, document)
    edit(document)
    with pytest.raises(
        (kubernetes_validate.ValidationError, jsonschema.ValidationError, AssertionError, KeyError)
    ):
        check(target, path, document)


def _limits(document: Any) -> Any:
    return document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]


def _mps(document: Any) -> Any:
    (config,) = document["spec"]["devices"]["config"]
    return config["opaque"]["parameters"]["sharing"]["mpsConfig"]
