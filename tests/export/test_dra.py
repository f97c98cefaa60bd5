"""What Pods claim of Kubernetes' Dynamic Resource Allocation, and what of a plan the claims hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gkestimator.core.errors import UsageError
from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.registry import make_exporters

Make = Callable[..., Deployment]
A100, V100 = "A100-SXM4-80GB", "V100-SXM2-16GB"
GIB = 2**30


def written(target: str, deployment: Deployment) -> tuple[dict[str, Any], list[Any]]:
    """The claims and templates by name, and the Pods' specifications."""
    (exporter,) = make_exporters((target,))
    files = {str(f.path): list(yaml.safe_load_all(f.text)) for f in exporter.files(deployment)}
    claims = {c["metadata"]["name"]: c for c in files["claims.yaml"]}
    assert len(claims) == len(files["claims.yaml"])
    return claims, files["deployments.yaml"]


def pod(thing: Any) -> Any:
    return thing["spec"]["template"]["spec"]


def environment(thing: Any) -> dict[str, str]:
    return {e["name"]: e["value"] for e in pod(thing)["containers"][0]["env"] if e["name"].startswith("CUDA")}


def mps(claim: Any) -> tuple[int, str]:
    (config,) = claim["devices"]["config"]
    found = config["opaque"]["parameters"]["sharing"]["mpsConfig"]
    return found["defaultActiveThreadPercentage"], found["defaultPinnedDeviceMemoryLimit"]


def test_replicas_of_one_gpu_name_one_claim_and_keep_their_own_shares_in_it(make: Make) -> None:
    a = {"model": "a", "creq_pct": 30.2, "mreq_bytes": 3 * GIB}
    b = {"model": "b", "creq_pct": 55.0, "mreq_bytes": 2 * GIB - 1}
    claims, pods = written("dra", make(a, b, gpu=A100))
    ((name, claim),) = claims.items()
    assert claim["kind"] == "ResourceClaim"
    # The daemon's limits hold for whoever comes: those of the largest.
    assert mps(claim["spec"]) == (55, "3072Mi")
    assert [pod(p)["resourceClaims"] for p in pods] == [[{"name": "gpu", "resourceClaimName": name}]] * 2
    assert [environment(p) for p in pods] == [
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "31", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "55", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M"},
    ]
    assert all("affinity" not in pod(p) for p in pods)  # the claim says which GPU


def test_the_same_model_on_two_shared_gpus_is_two_deployments(make: Make) -> None:
    here = [{"model": "a"}, {"model": "b"}]
    claims, pods = written("dra", make(gpus={"g-0": (A100, here), "g-1": (A100, here)}))
    assert len(claims) == 2 and len(pods) == 4
    named = {pod(p)["resourceClaims"][0]["resourceClaimName"] for p in pods}
    assert named == set(claims)


def test_replicas_alone_on_their_gpus_share_a_template(make: Make) -> None:
    gpus = {f"g-{i}": (A100, [{"model": "a"}]) for i in range(3)}
    claims, (only,) = written("dra", make(gpus=gpus))
    ((name, template),) = claims.items()
    assert template["kind"] == "ResourceClaimTemplate"
    assert mps(template["spec"]["spec"]) == (31, "1908Mi")
    assert only["spec"]["replicas"] == 3
    assert pod(only)["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": name}]


def test_two_types_of_gpu_never_share_a_template(make: Make) -> None:
    gpus = {"g-0": (A100, [{"model": "a"}]), "g-1": (V100, [{"model": "a"}])}
    claims, pods = written("dra", make(gpus=gpus))
    assert len(claims) == len(pods) == 2


@pytest.mark.parametrize(
    ("gpu", "product"),
    [(A100, "NVIDIA A100-SXM4-80GB"), (V100, "Tesla V100-SXM2-16GB"), ("H100-SXM", "NVIDIA H100 80GB HBM3")],
)
def test_the_selector_takes_its_gpu_and_no_other(make: Make, gpu: str, product: str) -> None:
    """Evaluated as CEL, over attributes as NVIDIA's driver publishes them."""
    cel = pytest.importorskip("cel")
    claims, _ = written("dra", make({"model": "a"}, gpu=gpu))
    (template,) = claims.values()
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    (selector,) = request["exactly"]["selectors"]

    def takes(name: str) -> bool:
        device = {"attributes": {"gpu.nvidia.com": {"productName": name}}}
        return bool(cel.evaluate(selector["cel"]["expression"], {"device": device}))

    assert takes(product)
    assert not any(takes(f"{product}{more}") for more in ("X", " MIG"))
    assert not takes("NVIDIA A100-SXM4-40GB")


def test_a_mig_claim_takes_its_profile_alone(make: Make) -> None:
    cel = pytest.importorskip("cel")
    claims, (only,) = written("dra-mig", make({"model": "a", "mreq_bytes": 30 * GIB}, gpu=A100))
    ((name, template),) = claims.items()
    assert pod(only)["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": name}]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "mig.nvidia.com"
    expression = request["exactly"]["selectors"][1]["cel"]["expression"]
    for profile, fits in (("3g.40gb", True), ("4g.40gb", False), ("3g.20gb", False)):
        device = {"attributes": {"gpu.nvidia.com": {"profile": profile}}}
        assert cel.evaluate(expression, {"device": device}) is fits


def test_mig_parted_files_of_both_mig_targets_are_alike(make: Make) -> None:
    made = make({"model": "a"}, {"model": "b", "creq_pct": 40.0}, gpu=A100)
    parted = []
    for target in ("mig", "dra-mig"):
        (exporter,) = make_exporters((target,))
        parted += [
            yaml.safe_load(f.text) for f in exporter.files(made) if f.path.name.startswith("mig-parted-")
        ]
    assert len(parted) == 2 and parted[0] == parted[1]


def test_capacity_is_asked_for_by_memory_and_cores(make: Make) -> None:
    claims, (only,) = written("dra-capacity", make({"model": "a", "mreq_bytes": 2**20 + 1}))
    (template,) = claims.values()
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"cores": "31", "memory": "2Mi"}
    assert "Tesla-V100-SXM2-16GB" in str(pod(only)["affinity"])


@pytest.mark.parametrize("target", ["dra", "dra-capacity"])
def test_more_memory_than_a_gpu_has_is_refused(target: str, make: Make) -> None:
    made = make(*({"model": m, "mreq_bytes": 10 * GIB} for m in "ab"))
    with pytest.raises(UsageError, match="MiB, expected at most"):
        written(target, made)


def test_a_gpu_before_volta_is_refused(make: Make) -> None:
    with pytest.raises(UsageError, match=r"6\.0.*dra cannot hold them"):
        written("dra", make({"model": "a"}, gpu="P100-SXM2"))
