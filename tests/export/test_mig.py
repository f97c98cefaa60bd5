"""MIG: which profiles there are, which fit together, and what Pods and mig-parted are told."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gkestimator.core.errors import UsageError
from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.mig_profiles import MIG_GPUS, fits_together, mig_profiles, smallest_profile
from gkestimator.exporting.registry import make_exporters
from gkestimator.hardware.gpus import gpu_catalogue

Make = Callable[..., Deployment]
A100 = "A100-SXM4-40GB"
# How many of each profile mig-parted's own configurations cut a GPU into.
PARTED = {
    "A100-SXM4-40GB": {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1},
    "A100-SXM4-80GB": {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1},
    "H100-SXM": {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1},
    "H200": {"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1},
}


def parsed(make: Make, gpus: Any) -> tuple[dict[str, Any], list[Any]]:
    (exporter,) = make_exporters(("mig",))
    found = {str(f.path): list(yaml.safe_load_all(f.text)) for f in exporter.files(make(gpus=gpus))}
    pods = found.pop("deployments.yaml")
    return {name: documents[0]["mig-configs"] for name, documents in found.items()}, pods


@pytest.mark.parametrize("gpu", PARTED)
def test_as_many_of_each_profile_fit_as_mig_parted_says(gpu: str) -> None:
    counts = {p.name: max(n for n in range(1, 10) if fits_together([p] * n)) for p in mig_profiles(gpu)}
    assert counts == PARTED[gpu]


@pytest.mark.parametrize(
    ("names", "fit"),
    [
        ("3g 3g", True), ("4g 3g", True), ("4g 2g 1g", True), ("3g 2g 1g 1g", True), ("2g 2g 2g 1g", True), ("3g 3g 1g", False),
        ("4g 4g", False), ("7g 1g", False), ("4g 3g 1g", False), ("2g 2g 2g 2g", False), ("3g 2g 2g 1g", False), ("", True),
    ],
)  # fmt: skip
def test_profiles_that_fit_on_one_gpu(names: str, fit: bool) -> None:
    by_shape = {
        p.name.partition(".")[0]: p for p in reversed(mig_profiles(A100))
    }  # 1g.5gb rather than 1g.10gb
    for order in set(itertools.permutations(names.split())):
        assert fits_together([by_shape[n] for n in order]) is fit


@pytest.mark.parametrize("gpu", MIG_GPUS)
def test_profiles_grow_and_promise_no_more_memory_than_there_is(gpu: str) -> None:
    profiles = mig_profiles(gpu)
    spec = gpu_catalogue().spec(gpu)
    assert spec.name == gpu
    for smaller, larger in itertools.pairwise(profiles):
        assert smaller.sevenths <= larger.sevenths and smaller.memory_bytes <= larger.memory_bytes
    for p in profiles:
        assert (
            0.85 * p.eighths / 8 * spec.memory_visible_bytes
            < p.memory_bytes
            <= p.eighths / 8 * spec.memory_visible_bytes
        )
    assert profiles[-1].compute_pct == 100


@pytest.mark.parametrize(
    ("compute", "gigabytes", "expected"),
    [
        (10, 4, "1g.5gb"), (100 / 7, 5, "1g.5gb"), (14.3, 5, "2g.10gb"), (10, 6, "1g.10gb"), (28.5, 1, "2g.10gb"), (29, 1, "3g.20gb"),
        (1, 15, "3g.20gb"), (50, 1, "4g.20gb"), (58, 1, "7g.40gb"), (1, 25, "7g.40gb"), (100, 40, "7g.40gb"), (1, 41, None),
    ],
)  # fmt: skip
def test_the_smallest_profile_that_holds_both(compute: float, gigabytes: int, expected: str | None) -> None:
    found = smallest_profile(A100, compute, gigabytes * 10**9)
    assert (found.name if found else None) == expected


def test_gpus_cut_alike_share_a_configuration(make: Make) -> None:
    pair = [{"model": "a", "creq_pct": 40.0}, {"model": "b", "creq_pct": 12.0}]
    configs, pods = parsed(
        make,
        {
            f"{A100}-0": (A100, pair),
            f"{A100}-1": (A100, pair),
            f"{A100}-2": (A100, [{"model": "a", "creq_pct": 40.0}]),
        },
    )
    assert configs == {
        "mig-parted-a100-sxm4-40gb.yaml": {
            "a100-sxm4-40gb-0": [
                {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 1, "3g.20gb": 1}}
            ],
            "a100-sxm4-40gb-1": [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.20gb": 1}}],
        }
    }
    asked = {
        p["metadata"]["name"]: p["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        for p in pods
    }
    assert asked == {"a": {"nvidia.com/mig-3g.20gb": 1}, "b": {"nvidia.com/mig-1g.5gb": 1}}
    assert {p["metadata"]["name"]: p["spec"]["replicas"] for p in pods} == {"a": 3, "b": 2}


def test_each_gpu_type_has_a_file_of_its_own(make: Make) -> None:
    one = [{"model": "a", "creq_pct": 12.0}]
    configs, _ = parsed(make, {f"{A100}-0": (A100, one), "H200-0": ("H200", one)})
    assert {name: list(c) for name, c in configs.items()} == {
        "mig-parted-a100-sxm4-40gb.yaml": ["a100-sxm4-40gb-0"], "mig-parted-h200.yaml": ["h200-0"]
    }  # fmt: skip
    assert configs["mig-parted-h200.yaml"]["h200-0"][0]["mig-devices"] == {"1g.18gb": 1}


@pytest.mark.parametrize(
    ("gpu", "replicas", "words"),
    [
        ("V100-SXM2-16GB", [{"model": "a"}], "V100-SXM2-16GB: no MIG profiles are known of it"),
        (
            A100,
            [{"model": "a", "mreq_bytes": 41 * 10**9}],
            "a-0: found 30.2 % of the compute and 41,000,000,000 bytes",
        ),
        (
            A100,
            [{"model": "a", "creq_pct": 60.0}, {"model": "b", "creq_pct": 10.0}],
            "its replicas need 7g.40gb, 1g.5gb",
        ),
        (A100, [{"model": "a", "creq_pct": None}], "a-0: its Creq is not known"),
        (A100, [{"model": "a", "creq_pct": 130.0}], "a-0: found a Creq of 130 %"),
    ],
)
def test_what_mig_cannot_express_is_refused(
    make: Make, gpu: str, replicas: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parsed(make, {f"{gpu}-0": (gpu, replicas)})
