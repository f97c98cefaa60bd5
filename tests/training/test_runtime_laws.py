"""What whole models of a compiled runtime teach: on models whose law is known, and on versions made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.bundles.runtime_laws import RuntimeLaw
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.training.runtime_laws import (
    MeasuredModels,
    VersionTimes,
    fit_law,
    fit_versions,
    predict_models,
    version_ratios,
)

CATALOGUE = gpu_catalogue()
A100, L40S, T4 = "A100-SXM4-40GB", "L40S", "T4"
GPUS = [CATALOGUE.resolve(name)[0] for name in (A100, L40S, T4)]
BATCHES = (1, 4, 16, 64)
TRUE = RuntimeLaw(
    factors={"attention": {"fp16": 0.8}, "linear": {"fp16": 1.25}},
    added_us=0.5,
    cycles_per_score=0.3,
    longest=128,
    half_width=0.0,
    widest=5.0,
    versions={"8.5": {}, "10.8": {}},
    measured_versions={"8.0": {"8.5": {"fp16": 1.1}, "10.8": {}}, "8.9": {}},
)


def product(rows: int) -> Kernel:
    return Kernel(
        name="linear",
        family=Family.LINEAR,
        variant="matmul.tensorrt",
        precision=Precision.FP16,
        flops=2 * rows * 1024 * 1024,
        read_bytes=2 * (rows * 1024 + 1024 * 1024),
        write_bytes=2 * rows * 1024,
        weight_bytes=2 * 1024 * 1024,
        rows=rows,
        element_bytes=2.0,
        inputs=2,
        gemm=GemmShape(batch=1, m=rows, n=1024, k=1024),
    )


def attention(batch: int) -> Kernel:
    return Kernel(
        name="attention",
        family=Family.ATTENTION,
        variant="attention.tensorrt",
        precision=Precision.FP16,
        flops=batch * 16 * 128 * 128 * 256,
        read_bytes=2 * batch * 3 * 128 * 1024,
        write_bytes=2 * batch * 128 * 1024,
        rows=batch * 16 * 128,
        cols=128,
        element_bytes=2.0,
        inputs=3,
        gemm=GemmShape(batch=batch * 16, m=128, n=128, k=64),
        sequences=batch,
    )


def models(at: int, law: RuntimeLaw = TRUE) -> MeasuredModels:
    kernels = [each for batch in BATCHES for each in (product(128 * batch), attention(batch))]
    launches = np.zeros((2 * len(BATCHES), len(kernels)))
    group = np.empty(len(launches), dtype=object)
    for number in range(len(BATCHES)):
        # Models of one kind are mostly products, of the other mostly attention, so that both can be told apart.
        launches[number, 2 * number : 2 * number + 2] = (80, 5)
        launches[number + len(BATCHES), 2 * number : 2 * number + 2] = (10, 40)
    group[: len(BATCHES)] = "products"
    group[len(BATCHES) :] = "attention"
    made = MeasuredModels(
        gpu=GPUS[at],
        table=KernelTable.from_kernels(kernels),
        launches=launches,
        measured_us=np.ones(len(launches)),
        group=group,
    )
    return replace(made, measured_us=predict_models(law, made, load_bundle()).us)


def times(ratios: Mapping[tuple[str, str], float], precision: str = "fp16") -> VersionTimes:
    """Times of five models by (GPU, version)."""
    names = [key for key in ratios for _ in range(5)]
    return VersionTimes(
        gpu=np.array([gpu for gpu, _ in names], dtype=object),
        precision=np.array([precision] * len(names), dtype=object),
        model=np.array([f"{gpu} {n % 5}" for n, (gpu, _) in enumerate(names)], dtype=object),
        version=np.array([version for _, version in names], dtype=object),
        time=np.array([ratios[key] * (1 + n % 5) for n, key in enumerate(names)]),
    )


def fitted(ratios: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    return fit_versions(times(ratios), GPUS)


TAUGHT = times({(A100, "8.5"): 1.1, (A100, "10.8"): 1.0})


@pytest.mark.slow
def test_a_law_is_found_again_in_the_models_that_it_made() -> None:
    law = fit_law([models(0), models(1)], TAUGHT, load_bundle())
    assert law.factors["linear"]["fp16"] == pytest.approx(1.25, rel=0.05)
    assert law.factors["attention"]["fp16"] == pytest.approx(0.8, rel=0.15)
    assert law.longest == 128
    assert law.versions == TRUE.versions
    assert law.measured_versions == TRUE.measured_versions
    unseen = models(2)
    assert predict_models(law, unseen, load_bundle()).us == pytest.approx(unseen.measured_us, rel=0.1)


@pytest.mark.slow
def test_intervals_hold_on_the_gpus_that_were_left_out() -> None:
    other = replace(TRUE, factors={"attention": {"fp16": 1.6}, "linear": {"fp16": 2.5}})
    apart = [models(0), models(1, other)]
    alike = [models(0), models(1)]
    wide, narrow = (fit_law(each, TAUGHT, load_bundle()) for each in (apart, alike))
    assert wide.half_width > narrow.half_width + 0.1
    held = predict_models(wide, apart[1], load_bundle()).held(apart[1].measured_us)
    assert held.mean() >= 0.8


def test_no_models_teach_no_law() -> None:
    with pytest.raises(TableError, match="no whole models"):
        fit_law([], TAUGHT, load_bundle())


def test_a_version_has_the_factor_of_each_gpu_and_elsewhere_the_mean_of_those_that_agree() -> None:
    law = fitted({(A100, "8.2"): 1.21, (A100, "10.8"): 1.0, (T4, "8.2"): 1.1, (T4, "8.5"): 1.0})
    assert law["measured_versions"] == {
        "8.0": {"8.2": {"fp16": 1.21}, "10.8": {}},
        "8.9": {},
        "7.5": {"8.2": {"fp16": 1.1}, "8.5": {}},
    }
    assert law["versions"] == {"8.2": {"fp16": round(1.331**0.5, 3)}, "8.5": {}, "10.8": {}}


@pytest.mark.parametrize("ratio", [0.95, 1.0])
def test_a_version_on_whose_sign_gpus_disagree_changes_nothing_elsewhere(ratio: float) -> None:
    law = fitted({(A100, "8.2"): 1.3, (A100, "10.8"): 1.0, (T4, "8.2"): ratio, (T4, "8.5"): 1.0})
    assert law["versions"]["8.2"] == {}
    assert law["measured_versions"]["8.0"]["8.2"] == {"fp16": 1.3}


def test_what_one_gpu_says_of_a_version_holds_for_no_other() -> None:
    law = fitted({(A100, "8.2"): 1.3, (A100, "10.8"): 1.0, (T4, "8.5"): 1.0})
    assert law["versions"]["8.2"] == {}


def test_a_version_within_the_noise_has_no_factor() -> None:
    law = fitted({(A100, "8.6"): 1.015, (A100, "10.8"): 1.0})
    assert law["measured_versions"]["8.0"] == {"8.6": {}, "10.8": {}}


def test_versions_are_compared_model_by_model() -> None:
    made = times({("a", "8.5"): 1.2, ("a", "10.8"): 1.0})
    rows = np.ones(len(made.time), dtype=bool)
    rows[5] = False  # the newest time of one model is missing
    assert version_ratios(made, rows) == pytest.approx({"8.5": 1.2, "10.8": 1.0})
