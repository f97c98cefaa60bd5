"""Kernels that permit wider precisions: the fastest is predicted, and with it everything that follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import Tensor
from gkestimator.core.kernels import GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.operators.builders import gemm_kernel
from gkestimator.operators.registry import LoweringOptions

WORDS = {"int8": DType.INT8, "fp16": DType.FLOAT16, "fp32": DType.FLOAT}
WIDER = {"int8": (Precision.FP16, Precision.FP32), "fp16": (Precision.FP32,), "fp32": ()}


def product(word: str, m: int, n: int, k: int, *, permits: bool = True) -> Kernel:
    """Return a matrix product of operands and results in the type of ``word``."""
    options = LoweringOptions(
        runtime="tensorrt", dtype=word, matmul_precision=Precision.FP32, conv_precision=Precision.FP32
    )
    dtype = WORDS[word]
    a = Tensor(name="a", dtype=dtype, shape=(m, k), storage="a")
    b = Tensor(name="b", dtype=dtype, shape=(k, n), storage="b", is_weight=True)
    y = Tensor(name="y", dtype=dtype, shape=(m, n), storage="y")
    kernel = gemm_kernel(GemmShape(batch=1, m=m, n=n, k=k), (a, b), (y,), options, variant="matmul.tensorrt")
    return replace(kernel, permits=WIDER[word] if permits else ())


SHAPES = [(1, 1024, 1024), (64, 64, 64), (512, 4096, 4096), (8192, 8192, 8192), (4096, 64, 256)]


@pytest.mark.parametrize("name", ["T4", "V100", "GTX-1080", "H100", "L40S"])
def test_the_best_of_the_permitted_is_never_slower_than_any_of_them_alone(name: str) -> None:
    gpu, _ = gpu_catalogue().resolve(name)
    bundle = load_bundle()
    alone = {}
    for word in ("int8", "fp16", "fp32"):
        table = KernelTable.from_kernels([product(word, *shape, permits=False) for shape in SHAPES])
        alone[word] = bundle.predict(table, gpu).duration_us
    table = KernelTable.from_kernels([product("int8", *shape) for shape in SHAPES])
    best = bundle.predict(table, gpu)
    assert best.duration_us == pytest.approx(np.minimum.reduce(list(alone.values())), rel=1e-9)
    assert best.precision is not None
    for row, word in enumerate(best.precision):
        assert best.duration_us[row] == pytest.approx(alone[word][row], rel=1e-9)


def test_half_precision_wins_where_bytes_have_no_tensor_cores() -> None:
    large = [product("int8", 8192, 8192, 8192)]
    chosen = {}
    for name in ("V100", "T4", "L40S"):
        gpu, _ = gpu_catalogue().resolve(name)
        precision = load_bundle().predict(KernelTable.from_kernels(large), gpu).precision
        assert precision is not None
        chosen[name] = precision[0]
    # V100: 62.7 TOP/s of DP4A beside 125 TFLOP/s of tensor cores.
    assert chosen == {"V100": "fp16", "T4": "int8", "L40S": "int8"}


def test_a_wider_kernel_moves_its_own_bytes() -> None:
    table = KernelTable.from_kernels([product("int8", 64, 32, 16)])
    wide = table.widened(Precision.FP16)
    direct = KernelTable.from_kernels([product("fp16", 64, 32, 16)])
    for column in ("read_bytes", "write_bytes", "weight_bytes", "element_bytes", "flops"):
        assert wide.columns[column] == direct.columns[column], column
    # A result that is in half precision already stays as it is.
    half_out = replace(product("int8", 64, 32, 16), element_bytes=2.0, write_bytes=2 * 64 * 32)
    assert KernelTable.from_kernels([half_out]).widened(Precision.FP16).columns["write_bytes"] == 2 * 64 * 32


def test_kernels_that_permit_nothing_keep_their_precision() -> None:
    gpu, _ = gpu_catalogue().resolve("V100")
    kernels = [product("int8", 8192, 8192, 8192, permits=False), product("fp16", 64, 64, 64)]
    predictions = load_bundle().predict(KernelTable.from_kernels(kernels), gpu)
    assert predictions.precision is not None
    assert predictions.precision[0] == "int8"
    mixed = load_bundle().predict(KernelTable.from_kernels(kernels[:1]), gpu)
    assert predictions.duration_us[0] == mixed.duration_us[0]
