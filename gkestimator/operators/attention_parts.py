"""Parts of attention: its sizes; fused kernels of few queries on a cache, what a decoder runs for its next token;
products and a softmax, as authors write them, and as torch's call does where no fused kernel fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Tensor
from gkestimator.core.kernels import BYTE_CACHE, DECODE, UNCUT, WINDOW, Family, GemmShape, Kernel
from gkestimator.core.records import frozen
from gkestimator.operators.builders import (
    copy_kernel,
    distinct,
    elementwise_kernel,
    gemm_kernel,
    scratch,
    softmax_kernel,
    total_bytes,
    weight_bytes,
)
from gkestimator.operators.matmul import autocast_kernels
from gkestimator.operators.registry import Kernels, LoweringOptions, Shape, matrix_precision

_FEW_QUERIES = 16
_KEYS_PER_QUERY = 16


@frozen
class AttentionShape:
    """Hold the sizes of one scaled dot-product attention; ``kv_heads`` < ``heads`` is grouped-query attention."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    qk_dim: int
    v_dim: int

    @property
    def scores(self) -> int:
        """Return the elements of the score matrix."""
        return self.batch * self.heads * self.q_len * self.kv_len

    @property
    def seen_scores(self) -> int:
        """Return those on and below the diagonal that ends in the last query's last key."""
        rows = min(self.q_len, self.kv_len)
        seen = rows * (self.kv_len - rows) + rows * (rows + 1) // 2
        return self.batch * self.heads * seen

    @property
    def first_product(self) -> GemmShape:
        """Return the product of queries and keys."""
        return GemmShape(batch=self.batch * self.heads, m=self.q_len, n=self.kv_len, k=self.qk_dim)

    @property
    def second_product(self) -> GemmShape:
        """Return the product of probabilities and values."""
        return GemmShape(batch=self.batch * self.heads, m=self.q_len, n=self.v_dim, k=self.kv_len)

    @property
    def score_shape(self) -> Shape:
        """Return the shape of the scores, batch dimensions joined."""
        return (self.batch, self.heads, self.q_len, self.kv_len)


def composed_attention(
    shape: AttentionShape,
    operands: Sequence[Tensor],
    result: Tensor,
    options: LoweringOptions,
    mask: Sequence[Tensor],
    masked: bool,
    softcap: bool,
) -> Kernels:
    """Return the product of queries and keys, scale, soft cap, mask, softmax and the product with the values."""
    dtype = operands[0].dtype
    scores = scratch(result, "scores", shape.score_shape, dtype)
    wide_type = DType.FLOAT if options.dtype == "amp" else dtype
    wide = scratch(result, "probabilities", shape.score_shape, wide_type)
    steps = ["mul"]
    if softcap:
        steps += ["div", "tanh", "mul"]
    queries_and_keys = operands[: max(1, len(operands) - 1)]
    kernels = [gemm_kernel(shape.first_product, queries_and_keys, (scores,), options)]
    for step in steps:
        kernels.append(elementwise_kernel(step, (scores,), (scores,), flops_per_element=1))
    if masked:
        kernels.append(elementwise_kernel("add", (scores, *mask), (scores,), flops_per_element=1))
    kernels.append(softmax_kernel("softmax", scores, wide, -1))
    casts, probabilities = autocast_kernels((wide,), options)
    product = gemm_kernel(shape.second_product, (*probabilities, operands[-1]), (result,), options)
    return (*kernels, *casts, product)


def composed_by_call(
    shape: AttentionShape,
    qkv: Sequence[Tensor],
    result: Tensor,
    options: LoweringOptions,
    mask: Sequence[Tensor],
) -> Kernels:
    """Return what F.scaled_dot_product_attention launches where no fused kernel takes its operands.

    All of it in the type of the operands, the softmax too: autocast converts at the call and not inside it.
    (aten/src/ATen/native/transformers/attention.cpp, ``_scaled_dot_product_attention_math``.)
    """
    casts, (queries, keys, values) = autocast_kernels(tuple(qkv), options)
    scores = scratch(result, "scores", shape.score_shape, queries.dtype)
    # The first product goes first because its needs decide which operands are made contiguous.
    kernels = [*casts, gemm_kernel(shape.first_product, (queries, keys), (scores,), options)]
    for factor in (queries, keys):
        kernels.append(elementwise_kernel("mul", (factor,), (factor,), flops_per_element=1))
    if shape.kv_heads != shape.heads:
        for narrow in (keys, values):
            size = (shape.batch, shape.heads, *narrow.shape[-2:])
            kernels.append(copy_kernel("expand", (narrow,), (scratch(narrow, "expanded", size),)))
    if mask:
        kernels.append(elementwise_kernel("add", (scores, *mask[:1]), (scores,), flops_per_element=1))
    kernels.append(softmax_kernel("softmax", scores, scores, -1))
    kernels.append(gemm_kernel(shape.second_product, (scores, values), (result,), options))
    return tuple(kernels)


def few_queries(shape: AttentionShape) -> bool:
    """Return whether the keys are cut between blocks, because there are too few queries to fill a GPU with tiles."""
    return shape.q_len <= _FEW_QUERIES and shape.kv_len >= _KEYS_PER_QUERY * shape.q_len


@frozen
class DecodeWork:
    """Hold what a decoding kernel does: FLOPs ``per_score`` beside the products, the ``window`` of keys that it sees
    (0: all), and whether its keys stay ``uncut``, as in kernels that take a mask tensor.
    """

    per_score: int
    window: int
    uncut: bool


def decode_kernel(
    shape: AttentionShape,
    work: DecodeWork,
    operands: Sequence[Tensor],
    masks: Sequence[Tensor],
    result: Tensor,
    options: LoweringOptions,
) -> Kernel:
    """Return fused attention of few queries on the keys and values of a cache, of which it reads those it sees.

    The first operand holds the queries, the last the cache.
    """
    seen = shape.kv_len
    if work.window:
        seen = min(seen, work.window + shape.q_len - 1)
    cache = operands[-1]
    rows = shape.batch * shape.heads * shape.q_len
    cached = shape.batch * shape.kv_heads * seen * (shape.qk_dim + shape.v_dim)
    words = [DECODE]
    if work.window:
        words.append(WINDOW)
    if cache.dtype.bits <= 8:
        words.append(BYTE_CACHE)
    if work.uncut:
        words.append(UNCUT)
    if options.runtime == "tensorrt":
        words.append("trtllm")
    reads = (rows * shape.qk_dim * operands[0].dtype.bits + cached * cache.dtype.bits) // 8
    return Kernel(
        name="attention.decode",
        family=Family.DECODE,
        variant=".".join(words),
        precision=matrix_precision(operands[0].dtype, options),
        flops=rows * seen * (2 * (shape.qk_dim + shape.v_dim) + work.per_score),
        read_bytes=reads + total_bytes(masks),
        write_bytes=result.nbytes,
        weight_bytes=weight_bytes(distinct((*operands, *masks))),
        rows=rows,
        cols=shape.kv_len,
        element_bytes=result.dtype.bits / 8,
        inputs=3,
        gemm=GemmShape(batch=shape.batch * shape.heads, m=shape.q_len, n=seen, k=shape.qk_dim),
        sequences=shape.batch,
    )
