"""What whole models of a compiled runtime teach: on models whose law is known, and on versions made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
GPUS = [CATALOGUE.resolve(name)[0] for name in ("A100-SXM4-40GB", "L40S", "T4")]
BATCHES = (1, 4, 16, 64)
TRUE = RuntimeLaw(
    factors={"attention": {"fp16": 0.8}, "linear": {"fp16": 1.25}},
    added_us=0.5,
    cycles_per_score=0.3,
    block_queries=128,
    half_width=0.0,
    versions={"8.5": {"fp16": 1.1}, "10.8": {}},
    newest="10.8",
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


def models(at: int, law: RuntimeLaw = TRUE, version: str = "10.8") -> MeasuredModels:
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
        version=version,
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


def factors(ratios: Mapping[tuple[str, str], float], newest: str = "10.8") -> dict[str, float]:
    made = times(ratios)
    fitted = fit_versions(made, np.ones(len(made.time), dtype=bool), newest)
    return {version: by["fp16"] for version, by in fitted.items() if by}


TAUGHT = times({("A100-SXM4-40GB", "8.5"): 1.1, ("A100-SXM4-40GB", "10.8"): 1.0})


@pytest.mark.slow
def test_a_law_is_found_again_in_the_models_that_it_made() -> None:
    law = fit_law([models(0), models(1)], TAUGHT, load_bundle(), newest="10.8")
    assert law.factors["linear"]["fp16"] == pytest.approx(1.25, rel=0.05)
    assert law.factors["attention"]["fp16"] == pytest.approx(0.8, rel=0.15)
    assert law.block_queries == 128
    assert law.versions == {"8.5": {"fp16": 1.1}, "10.8": {}}
    unseen = models(2)
    assert predict_models(law, unseen, load_bundle()).us == pytest.approx(unseen.measured_us, rel=0.1)


def test_models_of_an_older_version_teach_the_law_of_the_newest() -> None:
    older = fit_law([models(0, version="8.5")], TAUGHT, load_bundle(), newest="10.8")
    newest = fit_law([models(0)], TAUGHT, load_bundle(), newest="10.8")
    assert older.factors["linear"]["fp16"] == pytest.approx(newest.factors["linear"]["fp16"], rel=0.02)


@pytest.mark.slow
def test_intervals_hold_on_the_gpus_that_were_left_out() -> None:
    other = replace(TRUE, factors={"attention": {"fp16": 1.6}, "linear": {"fp16": 2.5}})
    apart = [models(0), models(1, other)]
    alike = [models(0), models(1)]
    wide, narrow = (fit_law(each, TAUGHT, load_bundle(), newest="10.8") for each in (apart, alike))
    assert wide.half_width > narrow.half_width + 0.1
    held = predict_models(wide, apart[1], load_bundle()).held(apart[1].measured_us)
    assert held.mean() >= 0.8


def test_no_models_teach_no_law() -> None:
    with pytest.raises(TableError, match="no whole models"):
        fit_law([], TAUGHT, load_bundle(), newest="10.8")


def test_a_version_has_the_mean_factor_of_gpus_that_agree() -> None:
    ratios = {("a", "8.2"): 1.21, ("a", "10.8"): 1.0, ("b", "8.2"): 1.0 / 1.0, ("b", "10.8"): 1 / 1.1}
    assert factors(ratios) == pytest.approx({"8.2": np.sqrt(1.21 * 1.1)}, abs=1e-3)


def test_a_version_on_whose_sign_gpus_disagree_has_no_factor() -> None:
    ratios = {("a", "8.2"): 1.3, ("a", "10.8"): 1.0, ("b", "8.2"): 0.95, ("b", "10.8"): 1.0}
    assert factors(ratios) == {}


def test_a_version_within_the_noise_has_no_factor() -> None:
    assert factors({("a", "8.6"): 1.015, ("a", "10.8"): 1.0}) == {}


def test_a_gpu_without_the_newest_version_stands_on_what_others_say_of_its_own() -> None:
    ratios = {("a", "8.5"): 1.1, ("a", "10.8"): 1.0, ("b", "7.1"): 1.05, ("b", "8.5"): 1.0}
    assert factors(ratios) == pytest.approx({"8.5": 1.1, "7.1": 1.05 * 1.1}, abs=1e-3)


def test_versions_are_compared_model_by_model() -> None:
    made = times({("a", "8.5"): 1.2, ("a", "10.8"): 1.0})
    rows = np.ones(len(made.time), dtype=bool)
    rows[5] = False  # the newest time of one model is missing
    assert version_ratios(made, rows) == pytest.approx({"8.5": 1.2, "10.8": 1.0})
