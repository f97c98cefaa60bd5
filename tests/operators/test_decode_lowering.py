"""Steps of a decoder: one kernel that reads the cache once, by the operator's heads, window and element type."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gkestimator.onnx_io  # noqa: F401  (registers the shape rules)
from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.lowering import LOWERINGS, LoweringOptions

OPTIONS = LoweringOptions(
    runtime="onnxruntime", dtype="fp16", matmul_precision=Precision.FP16, conv_precision=Precision.FP16
)
TORCH = replace(OPTIONS, runtime="torch")
MS = "com.microsoft"


def tensor(name: str, *shape: int, dtype: DType = DType.FLOAT16) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, storage=name, is_weight=False)


def lower(
    op_type: str,
    inputs: tuple[Tensor | None, ...],
    *outputs: Tensor,
    domain: str = MS,
    options: LoweringOptions = OPTIONS,
    **attributes: int,
) -> tuple[Kernel, ...]:
    op = Operator(
        name="op",
        domain=domain,
        op_type=op_type,
        version=1,
        attributes=attributes,
        inputs=inputs,
        outputs=outputs,
    )
    return LOWERINGS[domain, op_type](op, options).kernels


def grouped(
    kv_len: int, *, past: int, tokens: int = 1, dtype: DType = DType.FLOAT16, **options: object
) -> list[Kernel]:
    """Lower GroupQueryAttention of 2 sequences, 32 heads on 8 caches of head size 64."""
    new = tensor("k", 2, tokens, 512), tensor("v", 2, tokens, 512)
    pasts = (tensor(name, 2, 8, past, 64, dtype=dtype) for name in ("pk", "pv"))
    presents = (tensor(name, 2, 8, kv_len, 64, dtype=dtype) for name in ("k2", "v2"))
    query = tensor("q", 2, tokens, 2048)
    inputs = (query, *new, *pasts)
    return list(
        lower(
            "GroupQueryAttention", inputs, tensor("y", 2, tokens, 2048), *presents, num_heads=32, kv_num_heads=8, **options
        )  # type: ignore[arg-type]
    )  # fmt: skip


def test_one_token_reads_the_cache_of_the_key_heads_once() -> None:
    *copies, kernel = grouped(1024, past=1023)
    assert [copy.family for copy in copies] == [Family.COPY] * 2
    assert (kernel.name, kernel.family, kernel.variant) == ("attention.decode", Family.DECODE, "decode")
    assert kernel.read_bytes == 2 * 32 * 64 * 2 + 2 * 2 * 8 * 1024 * 64 * 2
    assert kernel.gemm is not None
    assert (kernel.gemm.batch, kernel.gemm.m, kernel.gemm.n, kernel.gemm.k) == (64, 1, 1024, 64)


def test_a_prompt_keeps_the_kernel_of_prompts() -> None:
    kernel = grouped(1024, past=512, tokens=512)[-1]
    assert kernel.family == Family.ATTENTION


def test_a_prompt_reads_its_keys_once_and_sees_no_later_ones() -> None:
    packed = tensor("qkv", 2, 512, 3072)
    held = [tensor(name, 2, 8, 512, 64) for name in ("pk", "pv", "k2", "v2")]
    inputs = (packed, None, None, *held[:2])
    sizes = {"num_heads": 32, "kv_num_heads": 8}
    *_, kernel = lower(
        "GroupQueryAttention", inputs, tensor("y", 2, 512, 2048), *held[2:], options=TORCH, **sizes
    )
    assert kernel.family == Family.ATTENTION
    assert kernel.read_bytes == 2 * 512 * 2048 * 2 + 2 * 2 * 8 * 512 * 64 * 2
    assert kernel.flops == 2 * 32 * (512 * 513 // 2) * (2 * 128 + 7)


def test_a_window_is_all_that_is_read() -> None:
    kernel = grouped(8192, past=8191, local_window_size=1024)[-1]
    assert kernel.variant == "decode.window"
    assert kernel.read_bytes == 2 * 32 * 64 * 2 + 2 * 2 * 8 * 1024 * 64 * 2
    assert kernel.cols == 8192


@pytest.mark.parametrize("dtype", [DType.FLOAT8E4M3FN, DType.INT8])
def test_a_cache_of_bytes_is_read_as_such(dtype: DType) -> None:
    kernel = grouped(1024, past=1023, dtype=dtype)[-1]
    assert kernel.variant == "decode.byte_cache"
    assert kernel.read_bytes == 2 * 32 * 64 * 2 + 2 * 2 * 8 * 1024 * 64
    assert kernel.precision == Precision.FP16


def test_a_buffer_for_all_tokens_is_not_copied() -> None:
    copies = grouped(1024, past=1024)[:-1]
    assert sum(copy.read_bytes for copy in copies) == 2 * 2 * 512 * 2
    longer = grouped(1024, past=1023)[:-1]
    assert sum(copy.read_bytes for copy in longer) > 100 * 2 * 2 * 512 * 2


def test_tensorrt_runs_its_own_kernels() -> None:
    kernel = grouped(1024, past=1023, options=replace(OPTIONS, runtime="tensorrt"))[-1]
    assert kernel.variant == "decode.trtllm"


def test_torch_cuts_no_keys_where_a_mask_is_a_tensor() -> None:
    q, k, v = tensor("q", 2, 8, 1, 64), tensor("k", 2, 8, 512, 64), tensor("v", 2, 8, 512, 64)
    mask = tensor("m", 2, 1, 1, 512)
    (plain,) = lower("Attention", (q, k, v), tensor("y", 2, 8, 1, 64), domain="", options=TORCH)
    (masked,) = lower("Attention", (q, k, v, mask), tensor("y", 2, 8, 1, 64), domain="", options=TORCH)
    assert (plain.variant, masked.variant) == ("decode", "decode.uncut")
    assert masked.read_bytes == plain.read_bytes + mask.nbytes


def test_a_past_of_the_standard_operator_counts() -> None:
    q, k, v = tensor("q", 2, 8, 1, 64), tensor("k", 2, 2, 1, 64), tensor("v", 2, 2, 1, 64)
    past = tensor("pk", 2, 2, 511, 64), tensor("pv", 2, 2, 511, 64)
    outputs = tensor("y", 2, 8, 1, 64), tensor("k2", 2, 2, 512, 64), tensor("v2", 2, 2, 512, 64)
    *_, kernel = lower("Attention", (q, k, v, None, *past), *outputs, domain="")
    assert kernel.family == Family.DECODE
    assert kernel.read_bytes == 2 * 8 * 64 * 2 + 2 * 2 * 2 * 512 * 64 * 2


@pytest.mark.parametrize("op_type", ["MultiHeadAttention", "Attention"])
def test_packed_operators_with_a_past(op_type: str) -> None:
    if op_type == "MultiHeadAttention":
        past = tensor("pk", 2, 8, 511, 64), tensor("pv", 2, 8, 511, 64)
        presents = tensor("k2", 2, 8, 512, 64), tensor("v2", 2, 8, 512, 64)
        new = (tensor(name, 2, 1, 512) for name in "qkv")
        inputs: tuple[Tensor | None, ...] = (*new, None, None, None, *past)
    else:
        presents = (tensor("p2", 2, 2, 8, 512, 64),)
        weight = replace(tensor("w", 512, 1536), is_weight=True)
        inputs = (tensor("x", 2, 1, 512), weight, None, None, tensor("p", 2, 2, 8, 511, 64))
    kernel = lower(op_type, inputs, tensor("y", 2, 1, 512), *presents, num_heads=8)[-1]
    assert kernel.family == Family.DECODE
    assert kernel.read_bytes == 2 * 8 * 64 * 2 + 2 * 2 * 8 * 512 * 64 * 2
