"""The figures that each target is told, and what it is refused."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gkestimator.core.errors import UsageError
from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.kubernetes import product_labels
from gkestimator.exporting.loading import load_deployment
from gkestimator.exporting.registry import exporter_class, make_exporters
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.tables import REQUIREMENTS, Requirement, read_table, write_table

Make = Callable[..., Deployment]
V100, A100 = "V100-SXM2-16GB", "A100-SXM4-40GB"


def texts(target: str, deployment: Deployment, **options: Any) -> dict[str, str]:
    (exporter,) = make_exporters((target,), **options)
    return {str(f.path): f.text for f in exporter.files(deployment)}


def objects(target: str, deployment: Deployment, name: str = "deployments.yaml", **options: Any) -> list[Any]:
    return list(yaml.safe_load_all(texts(target, deployment, **options)[name]))


def limits(thing: Any) -> Any:
    return thing["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_hami_is_told_memory_and_cores_as_whole_numbers(make: Make) -> None:
    (found,) = objects("hami", make({"model": "a", "creq_pct": 30.2, "mreq_bytes": 3000 * 2**20 - 5}))
    assert limits(found) == {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 31}


def test_volcano_is_told_memory_and_cores(make: Make) -> None:
    (found,) = objects("volcano", make({"model": "a", "creq_pct": 30.0, "mreq_bytes": 2**20 + 1}))
    assert limits(found) == {
        "volcano.sh/vgpu-number": 1,
        "volcano.sh/vgpu-memory": 2,
        "volcano.sh/vgpu-cores": 30,
    }
    assert found["spec"]["template"]["spec"]["schedulerName"] == "volcano"


def test_kai_is_told_memory_as_text_and_a_queue(make: Make) -> None:
    (found,) = objects(
        "kai", make({"model": "a", "mreq_bytes": 2000 * 2**20, "creq_pct": None}), queue="team-a"
    )
    template = found["spec"]["template"]
    assert template["metadata"]["annotations"]["gpu-memory"] == "2000"
    assert template["metadata"]["labels"]["kai.scheduler/queue"] == "team-a"
    assert template["spec"]["schedulerName"] == "kai-scheduler"
    assert "resources" not in template["spec"]["containers"][0]


def test_like_replicas_are_one_deployment_and_unlike_ones_several(make: Make) -> None:
    gpus = {f"{V100}-{i}": (V100, [{"model": "timm/net", "batch_size": b}]) for i, b in enumerate((8, 8, 4))}
    found = objects("hami", make(gpus=gpus))
    assert [(o["metadata"]["name"], o["spec"]["replicas"]) for o in found] == [
        ("timm-net-0", 2),
        ("timm-net-1", 1),
    ]
    notes = [o["metadata"]["annotations"] for o in found]
    assert [n["gkestimator/model"] for n in notes] == ["timm/net"] * 2
    assert notes[0]["gkestimator/planned-gpus"] == f"{V100}-0, {V100}-1"
    env = {e["name"]: e["value"] for e in found[0]["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env == {
        "GKEST_MODEL": "timm/net", "GKEST_BATCH_SIZE": "8", "GKEST_RUNTIME": "torch", "GKEST_DTYPE": "fp32",
        "GKEST_MAX_WAIT_MS": "12.345",
    }  # fmt: skip


def test_numbers_behind_names_never_meet_another_models_name(make: Make) -> None:
    gpus = {f"{V100}-{i}": (V100, [{"model": "a", "batch_size": b}]) for i, b in enumerate((8, 4))}
    gpus[f"{V100}-2"] = (V100, [{"model": "a-0", "id": "other"}, {"model": "A_0", "id": "third"}])
    found = objects("hami", make(gpus=gpus))
    names = [o["metadata"]["name"] for o in found]
    assert len(set(names)) == 4 and "a-0" in names
    by_name = {o["metadata"]["name"]: o["metadata"]["annotations"]["gkestimator/model"] for o in found}
    assert by_name["a-0"] == "a-0"


def test_pods_go_to_nodes_with_their_gpu(make: Make) -> None:
    (found,) = objects("hami", make({"model": "a"}))
    affinity = found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["key"] == "nvidia.com/gpu.product"
    assert "Tesla-V100-SXM2-16GB" in term["matchExpressions"][0]["values"]


@pytest.mark.parametrize(
    ("gpu", "label"),  # as GPU feature discovery writes them: the driver's name with hyphens for spaces
    [
        ("V100-SXM2-16GB", "Tesla-V100-SXM2-16GB"), ("T4", "Tesla-T4"), ("A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ("A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"), ("A100-PCIE-80GB", "NVIDIA-A100-80GB-PCIe"),
        ("H100-SXM", "NVIDIA-H100-80GB-HBM3"), ("H100-PCIE", "NVIDIA-H100-PCIe"), ("H200", "NVIDIA-H200"),
        ("L4", "NVIDIA-L4"), ("L40S", "NVIDIA-L40S"), ("RTX-4090", "NVIDIA-GeForce-RTX-4090"),
        ("RTX-2080-TI", "NVIDIA-GeForce-RTX-2080-Ti"), ("P100-SXM2", "Tesla-P100-SXM2-16GB"),
    ],
)  # fmt: skip
def test_product_labels_hold_what_drivers_call_the_gpu(gpu: str, label: str) -> None:
    catalogue = gpu_catalogue()
    assert label in product_labels(catalogue.spec(gpu))
    owners = [n for n in catalogue.complete_names() if label in product_labels(catalogue.spec(n))]
    assert owners == [gpu]


def test_an_image_is_named_or_asked_for(make: Make) -> None:
    made = make({"model": "a"})
    (found,) = objects("hami", made, image="registry.local/serve:1")
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.local/serve:1"
    (exporter,) = make_exporters(("hami",))
    assert any("by image" in line for line in exporter.messages(made))
    (exporter,) = make_exporters(("hami",), image="x")
    assert not exporter.messages(made)


@pytest.mark.parametrize(
    ("target", "option"),
    [
        ("hami", {"image": "a b"}), ("hami", {"image": "$(id)"}), ("hami", {"image": "a\nb"}), ("kai", {"queue": "a b"}),
        ("kai", {"queue": "-"}), ("kserve", {"storage_uri": "models"}), ("kserve", {"storage_uri": "s3://a b"}),
        ("csv", {"image": "x"}), ("hami", {"queue": "q"}),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(target: str, option: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        make_exporters((target,), **option)


def test_unknown_targets_are_refused_with_the_closest() -> None:
    with pytest.raises(UsageError, match="did you mean hami"):
        exporter_class("hammi")


# --- the device plugin


def plugin(make: Make, gpus: Any) -> dict[str, Any]:
    found = texts("device-plugin", make(gpus=gpus))
    return {name: list(yaml.safe_load_all(text)) for name, text in found.items()}


def test_shares_are_as_many_as_the_largest_demand_allows(make: Make) -> None:
    found = plugin(
        make, {f"{V100}-0": (V100, [{"model": "a", "creq_pct": 30.2}, {"model": "b", "creq_pct": 22.0}])}
    )
    assert found["config-v100-sxm2-16gb-mps-3.yaml"] == [
        {"version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 3}]}}}
    ]
    for one in found["deployments.yaml"]:
        assert limits(one) == {"nvidia.com/gpu": 1}
        terms = one["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        expressions = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0][
            "matchExpressions"
        ]
        assert expressions[1] == {
            "key": "nvidia.com/device-plugin.config", "operator": "In", "values": ["v100-sxm2-16gb-mps-3"]
        }  # fmt: skip
        assert "Tesla-V100-SXM2-16GB-SHARED" in expressions[0]["values"]


@pytest.mark.parametrize(
    ("creq", "mreq_pct", "shares"),
    [
        (100 / 3, 1.0, 3),
        (33.4, 1.0, 2),
        (1.0, 25.0, 4),
        (10.0, 26.0, 3),
        (0.5, 0.5, 48),
        (60.0, 1.0, 1),
        (100.0, 1.0, 1),
    ],
)
def test_replicas_are_floor_of_the_smaller_quotient(
    make: Make, creq: float, mreq_pct: float, shares: int
) -> None:
    found = plugin(
        make,
        {f"{V100}-0": (V100, [{"model": "a", "creq_pct": creq, "mreq_bytes": None, "mreq_pct": mreq_pct}])},
    )
    (config,) = next(v for k, v in found.items() if k.startswith("config"))
    if shares == 1:
        assert config == {"version": "v1"}  # a whole GPU: the plugin takes no sharing of one
    else:
        assert config["sharing"]["mps"]["resources"] == [{"name": "nvidia.com/gpu", "replicas": shares}]


def test_gpus_cut_differently_get_configurations_of_their_own(make: Make) -> None:
    small, large = {"model": "a", "creq_pct": 20.0}, {"model": "b", "creq_pct": 60.0}
    found = plugin(
        make, {f"{V100}-0": (V100, [small]), f"{V100}-1": (V100, [large]), "T4-0": ("T4", [small])}
    )
    assert set(found) == {
        "config-v100-sxm2-16gb-mps-5.yaml", "config-v100-sxm2-16gb-whole.yaml", "config-t4-mps-5.yaml", "deployments.yaml"
    }  # fmt: skip


def test_unequal_neighbours_cannot_have_equal_shares(make: Make) -> None:
    with pytest.raises(UsageError, match=r"V100-SXM2-16GB-0: holds 2 replicas, and a-0 needs a share of 1/1"):
        plugin(
            make, {f"{V100}-0": (V100, [{"model": "a", "creq_pct": 60.0}, {"model": "b", "creq_pct": 30.0}])}
        )


@pytest.mark.parametrize("target", ["device-plugin", "mps"])
def test_mps_needs_volta(make: Make, target: str) -> None:
    with pytest.raises(UsageError, match=r"P100-PCIE-16GB: found compute capability 6.0, expected 7.0"):
        texts(target, make({"model": "a"}, gpu="P100-PCIE-16GB"))


# --- MPS


def test_mps_limits_are_read_back_by_a_shell(make: Make, tmp_path: Path) -> None:
    dims = "seq=$(touch owned);'\"`id`"
    made = make(
        {"model": "a", "creq_pct": 30.2, "mreq_bytes": 3000 * 2**20, "dims": dims},
        {"model": "b", "sm_share_pct": 40.0},
    )
    found = texts("mps", made)
    assert set(found) == {"v100-sxm2-16gb-0/a-0.env", "v100-sxm2-16gb-0/b-0.env", "README.txt"}
    (tmp_path / "a.env").write_text(found["v100-sxm2-16gb-0/a-0.env"])
    done = subprocess.run(
        ["sh", "-c", "set -a; . ./a.env; env -0"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    env = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "31"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3000M"
    assert env["GKEST_DIMS"] == dims
    assert not (tmp_path / "owned").exists()
    lines = [line for line in found["v100-sxm2-16gb-0/b-0.env"].splitlines() if not line.startswith("#")]
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40" in lines
    assert all(len(shlex.split(line)) == 1 for line in lines)


def test_mps_takes_at_most_48_clients(make: Make) -> None:
    with pytest.raises(UsageError, match="ask for 49 MPS clients, expected at most 48"):
        texts("mps", make(*[{"model": f"m{i}", "mreq_bytes": 2**20} for i in range(49)]))


# --- KServe


def test_kserve_has_replicas_batch_and_whole_gpus(make: Make) -> None:
    gpus = {f"{V100}-{i}": (V100, [{"model": "timm/net#2"}]) for i in range(3)}
    (found,) = objects("kserve", make(gpus=gpus), "inferenceservices.yaml", storage_uri="s3://bucket/models/")
    predictor = found["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (3, 3)
    assert predictor["batcher"] == {"maxBatchSize": 8, "maxLatency": 12}
    assert predictor["model"]["storageUri"] == "s3://bucket/models/timm/net%232"
    assert predictor["model"]["resources"]["limits"] == {"nvidia.com/gpu": 1}


def test_kserve_waits_as_long_as_the_objective_leaves_and_says_what_it_takes(make: Make) -> None:
    made = make({"model": "a", "max_wait_ms": None}, {"model": "b", "max_wait_ms": None, "slo_ms": None})
    first, second = objects("kserve", made, "inferenceservices.yaml")
    assert first["spec"]["predictor"]["batcher"] == {"maxBatchSize": 8, "maxLatency": 80}
    assert second["spec"]["predictor"]["batcher"] == {"maxBatchSize": 8}
    (exporter,) = make_exporters(("kserve",), storage_uri="s3://b")
    assert exporter.messages(made) == ("its 2 replicas take a whole GPU each; the plan has them on 1",)


# --- CSV and JSON


def test_a_plans_replicas_as_a_flat_table(make: Make) -> None:
    made = make(
        {"model": "a", "partition": "p", "duty_cycle_ms": 30.5},
        {"model": "b", "partition": "p", "creq_pct": None},
    )
    rows = list(csv.DictReader(io.StringIO(texts("csv", made)["replicas.csv"])))
    assert [(r["gpu"], r["gpu_type"], r["id"], r["duty_cycle_ms"], r["creq_pct"]) for r in rows] == [
        (f"{V100}-0", V100, "a-0", "30.5", "30.2"), (f"{V100}-0", V100, "b-0", "", "")
    ]  # fmt: skip
    document = json.loads(texts("json", made)["replicas.json"])
    assert [r["id"] for r in document["rows"]] == ["a-0", "b-0"]
    assert document["rows"][1]["creq_pct"] is None
    assert document["totals"]["gpus_used"] == 1
    assert list(document["rows"][0]) == list(rows[0]) == list(document["_notes"]["columns"])
    readme = texts("csv", made)["README.txt"]
    assert all(f"  {name} " in readme for name in rows[0])


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_tables_rows_come_back_as_they_stand(tmp_path: Path, form: str) -> None:
    rows = (
        Requirement(model="a/b", gpu="V9", runtime="torch", dtype="fp32", batch_size=None, latency_ms=0.1 + 0.2, host_bound=True,
                    warnings="one; two, \"three\"", source="measured", occupancy_source=None, memory_source=None),
        Requirement(model="c", gpu="T4", runtime="r", dtype="d", batch_size=3, source="measured", occupancy_source=None,
                    memory_source=None),
    )  # fmt: skip
    rows = (rows[1], Requirement(**{f: getattr(rows[0], f) for f in REQUIREMENTS.names} | {"gpu": "T4"}))
    write_table(REQUIREMENTS, rows, tmp_path / "t.csv")
    text = texts(form, load_deployment(tmp_path / "t.csv"))[f"requirements.{form}"]
    (tmp_path / f"back.{form}").write_text(text)
    assert read_table(tmp_path / f"back.{form}", REQUIREMENTS) == rows
