"""Fused attention of few queries on a cache of keys and values: what a decoder runs for its next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gkestimator.core.graph import Tensor
from gkestimator.core.kernels import BYTE_CACHE, DECODE, UNCUT, WINDOW, Family, GemmShape, Kernel
from gkestimator.core.records import frozen
from gkestimator.operators.builders import distinct, total_bytes, weight_bytes
from gkestimator.operators.registry import LoweringOptions, matrix_precision

_FEW_QUERIES = 16
_KEYS_PER_QUERY = 16


class AttentionSizes(Protocol):
    """Say what an attention calculates (the fields of :class:`gkestimator.operators.attention.AttentionShape`)."""

    @property
    def batch(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def q_len(self) -> int: ...
    @property
    def kv_len(self) -> int: ...
    @property
    def qk_dim(self) -> int: ...
    @property
    def v_dim(self) -> int: ...


def few_queries(shape: AttentionSizes) -> bool:
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
    shape: AttentionSizes,
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
    )
