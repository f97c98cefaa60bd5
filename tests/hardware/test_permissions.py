"""Dtype words that are permissions: which precisions a compiler may choose from on a GPU, and what it stores."""

from __future__ import annotations

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.hardware.runtimes.profiles import load_runtime, resolve_dtype

COMPILERS = [name for name, traits in RUNTIMES.items() if traits.permits]


@pytest.mark.parametrize("runtime", COMPILERS)
@pytest.mark.parametrize(
    ("dtype", "name", "stored", "permits"),
    [
        ("auto", "T4", "fp32", "fp32"),
        ("auto", "A100", "tf32", "tf32 fp32"),
        ("auto", "RTX-3090", "tf32", "tf32 fp32"),  # at one rate, yet its kernels may be the faster ones
        ("fp32", "H100", "fp32", "fp32"),
        ("fp16", "T4", "fp16", "fp16 fp32"),
        ("fp16", "V100", "fp16", "fp16 fp32"),
        ("fp16", "P100", "fp16", "fp16 fp32"),
        ("fp16", "GTX-1080", "fp32", "fp32"),  # half precision has no rate of its own there
        ("bf16", "L40S", "bf16", "bf16 tf32 fp32"),
        ("int8", "T4", "int8", "int8 fp16 fp32"),
        (
            "int8",
            "V100",
            "int8",
            "int8 fp16 fp32",
        ),  # without tensor cores: half precision is faster, and is permitted
        ("int8", "GTX-1080", "int8", "int8 fp32"),
        ("int8", "H100", "int8", "int8 fp16 tf32 fp32"),
        ("fp8", "L40S", "fp8", "fp8 fp16 tf32 fp32"),
    ],
)
def test_what_a_word_permits(runtime: str, dtype: str, name: str, stored: str, permits: str) -> None:
    gpu, _ = gpu_catalogue().resolve(name)
    resolved = resolve_dtype(load_runtime(runtime), dtype, gpu)
    assert resolved.stored == stored
    assert " ".join(resolved.permits) == permits
    halves = [p for p in resolved.permits if p in (Precision.FP16, Precision.BF16)]
    assert resolved.half == (halves[0] if halves else None)
    # The row says the word that was asked for; what auto means, it says itself.
    assert resolved.effective == (stored if dtype == "auto" else dtype)


@pytest.mark.parametrize(
    ("dtype", "name", "message"),
    [
        ("fp8", "A100", r"dtype fp8 needs fp8 .* A100-SXM4-80GB \(compute capability 8.0\) lacks"),
        ("int8", "P100", r"dtype int8 needs int8 .* lacks"),
        ("bf16", "T4", r"dtype bf16 needs bf16 .* lacks"),
        ("tf32", "V100", r"dtype tf32 needs tf32 .* lacks"),
        ("amp", "A100", r"tensorrt has no autocast"),
    ],
)
def test_a_word_whose_own_precision_the_gpu_lacks_is_refused(dtype: str, name: str, message: str) -> None:
    gpu, _ = gpu_catalogue().resolve(name)
    with pytest.raises(UsageError, match=message):
        resolve_dtype(load_runtime("tensorrt"), dtype, gpu)
