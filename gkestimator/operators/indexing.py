"""Gathers, scatters, and operators that sort or select by value."""

from __future__ import annotations

import math

from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import input_at, memory_kernel, optional_input, output_at, tensor_outputs
from gkestimator.operators.normalisation import axis_of
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

_GATHERS = {"Gather": "gather", "GatherElements": "gather_elements", "GatherND": "gather_nd"}


def gather_kernel(op: Operator, variant: str) -> Kernel:
    """Reads the chosen elements (not the whole table) and the indices; cols = contiguous elements moved per
    index.
    """
    source = input_at(op, 0)
    indices = input_at(op, 1)
    result = output_at(op)
    chosen = min(source.nbytes, result.nbytes)
    return memory_kernel(
        Family.GATHER,
        variant,
        (source, indices),
        (result,),
        flops=0,
        rows=max(1, indices.elements),
        cols=max(1, result.elements // max(1, indices.elements)),
        read_bytes=chosen + indices.nbytes,
    )


@lowering_rule("Gather", kind="gather", strides="select")
@lowering_rule("GatherElements", "GatherND", kind="gather")
def gather(op: Operator, options: LoweringOptions) -> Lowered:
    """Embedding look-ups and indexing; in torch a constant scalar index is a view (select)."""
    index = input_at(op, 1)
    if options.runtime == "torch" and op.op_type == "Gather" and index.is_weight and not index.shape:
        return Lowered(kernels=(), host_calls=0, aliases={0: 0})
    return Lowered(kernels=(gather_kernel(op, _GATHERS[op.op_type]),), host_calls=1)


_SCATTERS = {
    "Scatter": "scatter",
    "ScatterElements": "scatter_elements",
    "ScatterND": "scatter_nd",
    "TensorScatter": "tensor_scatter",
}


@lowering_rule(*_SCATTERS, kind="scatter")
def scatter(op: Operator, options: LoweringOptions) -> Lowered:
    """A copy of the data, then one write per update; a reduction reads the target and costs one FLOP an
    update.

    TensorScatter (cache update) writes in place, as its purpose is.
    """
    cached = op.op_type == "TensorScatter"
    data = input_at(op, 0)
    result = output_at(op)
    updates = input_at(op, 1 if cached else 2)
    indices = optional_input(op, 2 if cached else 1)
    reads = (updates,) if indices is None else (updates, indices)
    reduces = op.attributes.get("reduction", "none") not in ("none", None)
    written = (updates,)
    write = memory_kernel(
        Family.SCATTER,
        _SCATTERS[op.op_type],
        (*reads, updates),
        written,
        flops=updates.elements if reduces else 0,
        rows=max(1, indices.elements if indices is not None else 1),
        cols=max(1, updates.elements // max(1, indices.elements if indices is not None else 1)),
        read_bytes=sum(t.nbytes for t in reads) + (updates.nbytes if reduces else 0),
    )
    if cached:
        return Lowered(kernels=(write,), host_calls=1, aliases={0: 0})
    clone = memory_kernel(Family.COPY, "clone", (data,), (result,), flops=0, rows=result.elements)
    return Lowered(kernels=(clone, write), host_calls=1)


def _log2(n: int) -> int:
    return max(1, math.ceil(math.log2(max(2, n))))


@lowering_rule("TopK", kind="top_k")
def top_k(op: Operator, options: LoweringOptions) -> Lowered:
    """Radix select compares each element once per 8-bit digit; the k found are sorted (k log2 k)."""
    source = input_at(op, 0)
    writes = tensor_outputs(op)
    axis = axis_of(op, len(source.shape), -1)
    cols = source.shape[axis] if source.shape else 1
    rows = source.elements // max(1, cols)
    if writes[0].shape:
        k = writes[0].shape[axis]
    else:
        k = 1
    digits = max(1, source.dtype.bits // 8)
    flops = digits * source.elements + rows * k * _log2(k)
    kernel = memory_kernel(
        Family.SORT, "top_k", (source,), writes, flops=flops, rows=max(1, rows), cols=max(1, cols)
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("Unique", kind="sort")
def unique(op: Operator, options: LoweringOptions) -> Lowered:
    """A sort (n log2 n comparisons), neighbours compared, a compaction; the count goes back to the host."""
    source = input_at(op, 0)
    n = source.elements
    kernel = memory_kernel(
        Family.SORT,
        "unique",
        (source,),
        tensor_outputs(op),
        flops=n * _log2(n) + n,
        rows=1,
        cols=max(1, n),
        workspace_bytes=2 * source.nbytes + 8 * n,
    )
    return Lowered(kernels=(kernel,), host_calls=2)


@lowering_rule("NonZero", "Compress", kind="selection")
def select(op: Operator, options: LoweringOptions) -> Lowered:
    """A test and a prefix sum over the flags (2 an element), then the selected elements are written; host
    waits for the count.
    """
    source = input_at(op, 0)
    condition = optional_input(op, 1)
    flags = source.elements if condition is None else condition.elements
    reads = (source,) if condition is None else (source, condition)
    kernel = memory_kernel(
        Family.SORT,
        "non_zero" if condition is None else "compress",
        reads,
        tensor_outputs(op),
        flops=2 * flags,
        rows=1,
        cols=max(1, flags),
        workspace_bytes=4 * flags,
    )
    return Lowered(kernels=(kernel,), host_calls=2)


@lowering_rule("NonMaxSuppression", kind="non_max_suppression")
def non_max_suppression(op: Operator, options: LoweringOptions) -> Lowered:
    """Sort the scores of each class, then every pair's overlap: 14 FLOPs (4 min/max, 2 differences, 2 clips,
    area, union, ratio).

    The pairs bound the work; n(n-1)/2 a class.
    """
    boxes = input_at(op, 0)
    scores = input_at(op, 1)
    batch, classes, count = scores.shape
    pairs = count * (count - 1) // 2
    flops = batch * classes * (count * _log2(count) + 14 * pairs)
    kernel = memory_kernel(
        Family.SORT,
        "non_max_suppression",
        (boxes, scores),
        tensor_outputs(op),
        flops=flops,
        rows=max(1, batch * classes),
        cols=max(1, count),
        workspace_bytes=batch * classes * count * (8 + (count + 63) // 64 * 8),
    )
    return Lowered(kernels=(kernel,), host_calls=2)


@lowering_rule("OneHot", kind="one_hot")
def one_hot(op: Operator, options: LoweringOptions) -> Lowered:
    """Every result element compares its position with the index."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.ELEMENTWISE,
        "one_hot",
        (input_at(op, 0), input_at(op, 2)),
        (result,),
        flops=result.elements,
        rows=result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("ArrayFeatureExtractor", domain="ai.onnx.ml", kind="gather")
def array_feature_extractor(op: Operator, options: LoweringOptions) -> Lowered:
    """Columns picked by index."""
    return Lowered(kernels=(gather_kernel(op, "gather"),), host_calls=1)
