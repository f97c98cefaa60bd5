"""Kernels of ``com.microsoft`` attention under ONNX Runtime: a fused one, or the composition that it falls back to.

The CUDA provider (contrib_ops/cuda/bert/attention_impl.cu) takes a fused kernel where one fits. Else it transposes Q,
K and V to heads first, multiplies batch by batch through cuBLAS with the scale as its factor, runs one softmax kernel
that adds the mask, multiplies again, and transposes the result back.
"""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.attention import attention_kernels
from gkestimator.operators.builders import SOFTMAX_FLOPS, copy_kernel, gemm_kernel, row_kernel, scratch
from gkestimator.operators.composed_attention import AttentionShape
from gkestimator.operators.registry import Kernels, LoweringOptions

# attention_kernel_options.h, kDefaultMinSeqLenForEfficientAttentionFp32: its only fused kernel for float32 is taken
# from this length on.
_FEWEST_FP32_TOKENS = 256
# attention.cc: that kernel takes a mask only as its MASK_1D_KEY_SEQ_LEN_START form, 3 x batch + 2 integers.
_STARTS_PER_SEQUENCE, _STARTS_MORE = 3, 2


def microsoft_attention(
    shape: AttentionShape,
    qkv: Sequence[Tensor],
    result: Tensor,
    options: LoweringOptions,
    *,
    extra_reads: Sequence[Tensor] = (),
    masked: bool = False,
) -> Kernels:
    """Return attention over ``qkv``, fused where ``options`` and ONNX Runtime's own rules allow it.

    ``extra_reads`` begins with the mask where there is one. Torch, which knows no such operator, stays with the rules
    of :func:`gkestimator.operators.attention.attention_kernels`.
    """
    composed = options.attention == "eager" or not _has_fused_kernel(shape, qkv[0].dtype, extra_reads[:1])
    if options.runtime == "onnxruntime" and composed:
        return _composed(shape, qkv, result, options, extra_reads[:1])
    return attention_kernels(shape, qkv, result, options, extra_reads=extra_reads, masked=masked)


def _has_fused_kernel(shape: AttentionShape, dtype: DType, mask: Sequence[Tensor]) -> bool:
    """Return whether a fused kernel takes the operator: any in half precision, one alone in float32."""
    if dtype is not DType.FLOAT:
        return True
    starts = (_STARTS_PER_SEQUENCE * shape.batch + _STARTS_MORE,)
    plain = not mask or mask[0].shape == starts
    return plain and shape.q_len >= _FEWEST_FP32_TOKENS


def _composed(
    shape: AttentionShape,
    qkv: Sequence[Tensor],
    result: Tensor,
    options: LoweringOptions,
    mask: Sequence[Tensor],
) -> Kernels:
    dtype = qkv[0].dtype
    heads = (shape.batch, shape.heads)
    width = 2 * shape.qk_dim + shape.v_dim
    turned = scratch(result, "heads", (*heads, max(shape.q_len, shape.kv_len), width), dtype)
    scores = scratch(result, "scores", (*heads, shape.q_len, shape.kv_len), dtype)
    probabilities = scratch(result, "probabilities", scores.shape, dtype)
    context = scratch(result, "context", (*heads, shape.q_len, shape.v_dim), dtype)
    second = GemmShape(batch=shape.batch * shape.heads, m=shape.q_len, n=shape.v_dim, k=shape.kv_len)
    softmax: Kernel = row_kernel(
        Family.SOFTMAX,
        "softmax",
        (scores, *mask),
        (probabilities,),
        rows=scores.elements // shape.kv_len,
        cols=shape.kv_len,
        flops=(SOFTMAX_FLOPS + len(mask)) * scores.elements,
    )
    queries = scratch(result, "queries", (*heads, shape.q_len, shape.qk_dim), dtype)
    keys = scratch(result, "keys", (*heads, shape.kv_len, shape.qk_dim), dtype)
    values = scratch(result, "values", (*heads, shape.kv_len, shape.v_dim), dtype)
    return (
        copy_kernel("transpose", qkv, (turned,)),
        gemm_kernel(shape.first_product, (queries, keys), (scores,), options),
        softmax,
        gemm_kernel(second, (probabilities, values), (context,), options),
        copy_kernel("transpose", (context,), (result,)),
    )
