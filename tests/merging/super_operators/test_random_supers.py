"""Emitted nodes give in ONNX Runtime what the members gave, for hundreds of random super-operators."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("scipy")

from random_supers import random_convolution, random_product

from gkestimator.core.dtypes import DType


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(8))
def test_products(chunk) -> None:
    for seed in range(50 * chunk, 50 * chunk + 50):
        random_product(seed).check()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(8))
def test_convolutions(chunk) -> None:
    for seed in range(50 * chunk, 50 * chunk + 50):
        random_convolution(seed).check()


@pytest.mark.slow
def test_products_in_half_precision() -> None:
    for seed in range(1000, 1060):
        random_product(seed, DType.FLOAT16).check()


@pytest.mark.slow
def test_convolutions_in_half_precision() -> None:
    for seed in range(1000, 1060):
        random_convolution(seed, DType.FLOAT16).check()
