"""Power of repeated kernels by the shipped bundle: where it answers, where it does not, and its files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import Family, GemmShape, Kernel, KernelTable
from gkestimator.core.stored import StoredArrays, StoredObject
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.power import KernelPower, PowerModel
from gkestimator.operators.attention import AttentionShape

CATALOGUE = gpu_catalogue()
GPUS = {name: CATALOGUE.resolve(name)[0] for name in ("H200", "B200", "H100-SXM", "H100-PCIE", "V100-SXM2-16GB", "A100-SXM4-80GB")}  # fmt: skip
BUNDLE = load_bundle()


def product(m: int, n: int, k: int, precision: Precision = Precision.BF16, **changes: Any) -> Kernel:
    kernel = Kernel(
        name="p", family=Family.LINEAR, variant="linear", precision=precision, flops=2 * m * n * k,
        read_bytes=2 * (m * k + n * k), write_bytes=2 * m * n, weight_bytes=2 * n * k, rows=m * n, inputs=2,
        element_bytes=2, gemm=GemmShape(batch=1, m=m, n=n, k=k),
    )  # fmt: skip
    return replace(kernel, **changes)


def attention(batch: int, heads: int, tokens: int, size: int = 128) -> Kernel:
    shape = AttentionShape(
        batch=batch, heads=heads, kv_heads=heads, q_len=tokens, kv_len=tokens, qk_dim=size, v_dim=size
    )
    numbers = batch * heads * tokens * size
    return Kernel(
        name="a", family=Family.ATTENTION, variant="attention", precision=Precision.FP16,
        flops=shape.seen_scores * (4 * size + 6), read_bytes=6 * numbers, write_bytes=2 * numbers, rows=batch * heads * tokens,
        cols=tokens, inputs=3, element_bytes=2, gemm=shape.first_product, sequences=batch,
    )  # fmt: skip


LARGE = product(8192, 8192, 8192)
THIN = product(16, 65536, 65536)


def powers(gpu: str, *kernels: Kernel) -> KernelPower:
    power = BUNDLE.power
    assert power is not None
    answer = power.predict(KernelTable.from_kernels(kernels), GPUS[gpu])
    assert answer is not None
    return answer


@pytest.mark.parametrize("gpu", ["H200", "B200"])
def test_large_products_draw_the_limit_and_thin_ones_less(gpu: str) -> None:
    answer = powers(gpu, LARGE, THIN, attention(8, 32, 4096))
    limit = GPUS[gpu].power_limit_w
    assert 0.93 * limit < answer.watts[0] < 1.03 * limit
    assert 0.3 * limit < answer.watts[1] < 0.85 * limit
    assert 0.4 * limit < answer.watts[2] < 1.03 * limit
    assert (answer.low_w <= answer.watts).all() and (answer.watts <= answer.high_w).all()
    assert answer.least_w < answer.watts.min() and answer.watts.max() <= answer.most_w <= 1.02 * limit


def test_half_precision_of_both_kinds_is_one() -> None:
    answer = powers("H200", LARGE, product(8192, 8192, 8192, Precision.FP16))
    assert answer.watts[0] == answer.watts[1]


@pytest.mark.parametrize(
    "kernel",
    [
        product(8192, 8192, 8192, Precision.TF32),
        product(8192, 8192, 8192, Precision.FP8),  # on the H200 only in blocks of scales
        product(128, 512, 512),  # 1 us: nothing so short was measured
        product(8192, 8192, 8192, family=Family.BMM),
        Kernel(name="s", family=Family.ELEMENTWISE, variant="relu", precision=Precision.FP16, flops=1 << 28, read_bytes=1 << 30, write_bytes=1 << 30),
    ],
)  # fmt: skip
def test_what_was_not_measured_on_the_chip_is_unknown(kernel: Kernel) -> None:
    answer = powers("H200", kernel, LARGE)
    assert np.isnan([answer.watts[0], answer.low_w[0], answer.high_w[0]]).all()
    assert np.isfinite(answer.watts[1])


def test_fp8_is_known_where_it_was_measured() -> None:
    assert np.isfinite(powers("B200", product(8192, 8192, 8192, Precision.FP8)).watts).all()


@pytest.mark.parametrize("gpu", ["V100-SXM2-16GB", "A100-SXM4-80GB", "H100-PCIE"])
def test_other_chips_are_unknown(gpu: str) -> None:
    power = BUNDLE.power
    assert power is not None
    table = KernelTable.from_kernels([LARGE])
    assert power.predict(table, GPUS[gpu]) is None
    assert BUNDLE.predict(table, GPUS[gpu]).power is None


def test_a_board_of_the_chip_with_its_limit_gets_a_wider_interval() -> None:
    near, own = powers("H100-SXM", THIN), powers("H200", THIN)
    assert np.log(near.high_w / near.watts)[0] >= np.log(own.high_w / own.watts)[0]
    assert np.log(near.watts / near.low_w)[0] > np.log(own.watts / own.low_w)[0]
    regressor = BUNDLE.power.regressors["linear"]  # type: ignore[union-attr]
    assert regressor.chip_near(replace(GPUS["H100-SXM"], power_limit_w=350.0)) is None


def test_a_part_of_a_gpu_has_no_power_of_its_own() -> None:
    table = KernelTable.from_kernels([LARGE])
    assert BUNDLE.predict(table, GPUS["H200"]).power is not None
    assert BUNDLE.predict(table, GPUS["H200"], sm_share_pct=50.0).power is None


def test_a_bundle_without_powers_leaves_them_unknown() -> None:
    assert replace(BUNDLE, power=None).predict(KernelTable.from_kernels([LARGE]), GPUS["H200"]).power is None


def test_its_files_say_the_same() -> None:
    power = BUNDLE.power
    assert power is not None
    again = PowerModel.read(StoredObject(power.document(), "here"), StoredArrays(power.arrays(), "here"))
    table = KernelTable.from_kernels([LARGE, THIN, attention(4, 16, 2048)])
    mine, theirs = power.predict(table, GPUS["B200"]), again.predict(table, GPUS["B200"])
    assert mine is not None and theirs is not None
    for name in ("watts", "low_w", "high_w"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name))


Change = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, a: d.update(schema_version=9), "schema_version: found 9, expected 1"),
        (lambda d, a: d["regressors"].update(conv={}), "regressors: found 'conv', expected"),
        (lambda d, a: d["regressors"]["linear"].update(feature_names=3), "linear.feature_names"),
        (
            lambda d, a: d["regressors"]["linear"].update(beyond="x"),
            "linear.beyond: found 'x', expected a number",
        ),
        (lambda d, a: d["regressors"]["linear"].update(low=[1.0]), "linear.low: found a list of 1, expected"),
        (
            lambda d, a: d["regressors"]["linear"].update(chips=[]),
            "chips: found a list of 0, expected a list of 1 to 64",
        ),
        (lambda d, a: d["regressors"]["linear"]["chips"][0].update(least=-1.0), "least: found -1.0"),
        (lambda d, a: d["regressors"]["linear"]["chips"][0].update(gpus=[]), "gpus: found"),
        (lambda d, a: d["regressors"]["linear"]["chips"][0].update(chip=[9, 0]), "chips[0].chip: found"),
        (lambda d, a: a.pop("linear.leaf"), "linear.leaf"),
        (lambda d, a: a.update({"linear.base": np.array([np.nan])}), "linear.base"),
        (lambda d, a: a.update({"linear.feature": a["linear.feature"] + np.uint8(200)}), "linear.feature"),
    ],
)
def test_strangers_files_are_refused_in_one_line(change: Change, message: str) -> None:
    power = BUNDLE.power
    assert power is not None
    document, arrays = copy.deepcopy(power.document()), power.arrays()
    change(document, arrays)
    with pytest.raises(BundleError) as caught:
        PowerModel.read(StoredObject(document, "power.json"), StoredArrays(arrays, "power.json"))
    assert message in str(caught.value) and "power.json" in str(caught.value)
    assert "\n" not in str(caught.value)
