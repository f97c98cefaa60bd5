"""Gathers and scatters: elements read or written where indices say."""

from __future__ import annotations

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import input_at, memory_kernel, optional_input, output_at, total_bytes
from gkestimator.operators.checks import axis_attribute, int_attribute, tensor, with_sizes
from gkestimator.operators.registry import (
    SAME_STORAGE,
    Lowered,
    LoweringOptions,
    Outputs,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)

_GATHERS = {"Gather": "gather", "GatherElements": "gather_elements", "GatherND": "gather_nd"}
_SCATTERS = {
    "Scatter": "scatter",
    "ScatterElements": "scatter_elements",
    "ScatterND": "scatter_nd",
    "TensorScatter": "tensor_scatter",
}


@shape_rule("Scatter", "ScatterElements")
def scatter_types(ctx: ShapeContext) -> Outputs:
    """Return the type of the data."""
    data = tensor(ctx, 0, min_rank=1)
    indices = tensor(ctx, 1, rank=len(data.shape))
    updates = tensor(ctx, 2)
    axis_attribute(ctx, 0, len(data.shape))
    if indices.shape != updates.shape:
        raise ShapeError(f"indices are {indices} and updates {updates}")
    return [data]


@shape_rule("ScatterND")
def scatter_nd_types(ctx: ShapeContext) -> Outputs:
    """Return the type of the data."""
    data = tensor(ctx, 0, min_rank=1)
    indices = tensor(ctx, 1, min_rank=1)
    updates = tensor(ctx, 2)
    depth = indices.shape[-1]
    if depth > len(data.shape):
        raise ShapeError(f"indices {indices} name {depth} dimensions of data {data}")
    expected = indices.shape[:-1] + data.shape[depth:]
    if not indices.bounded and updates.shape != expected:
        raise ShapeError(f"updates are {updates}, expected {list(expected)}")
    return [data]


@shape_rule("TensorScatter")
def tensor_scatter_types(ctx: ShapeContext) -> Outputs:
    """Return the type of the cache."""
    cache = tensor(ctx, 0)
    tensor(ctx, 1, rank=len(cache.shape))
    return [cache]


@lowering_rule("Col2Im", kind="column_scatter", host_inputs=(1, 2))
def col2im(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the addition of every column element to its pixel: one FLOP each."""
    source = input_at(op, 0)
    result = output_at(op)
    kernel = memory_kernel(
        Family.SCATTER,
        "col2im",
        (source,),
        (result,),
        flops=source.elements,
        rows=result.elements,
        cols=max(1, source.elements // max(1, result.elements)),
    )
    return launched(kernel)


@shape_rule("Gather")
def gather_types(ctx: ShapeContext) -> Outputs:
    """Return the data's shape with ``axis`` replaced by the shape of the indices."""
    data = tensor(ctx, 0)
    indices = tensor(ctx, 1)
    axis = axis_attribute(ctx, 0, len(data.shape))
    shape = with_sizes(data.shape, axis, *indices.shape)
    return [TensorType(data.dtype, shape)]


@shape_rule("GatherElements")
def gather_elements_types(ctx: ShapeContext) -> Outputs:
    """Return the shape of the indices."""
    data = tensor(ctx, 0)
    indices = tensor(ctx, 1)
    if len(data.shape) != len(indices.shape):
        raise ShapeError(f"data {data} and indices {indices} differ in rank")
    return [TensorType(data.dtype, indices.shape)]


@shape_rule("GatherND")
def gather_nd_types(ctx: ShapeContext) -> Outputs:
    """Return the indices' leading dims, then what their last dim leaves of the data."""
    data = tensor(ctx, 0)
    indices = tensor(ctx, 1, min_rank=1)
    named = int_attribute(ctx, "batch_dims", 0) + indices.shape[-1]
    if named > len(data.shape):
        raise ShapeError(f"indices {indices} do not fit data {data}")
    shape = indices.shape[:-1] + data.shape[named:]
    return [TensorType(data.dtype, shape)]


def gather_kernel(op: Operator, variant: str) -> Kernel:
    """Return a kernel that reads the chosen elements (not the whole table) and the indices.

    ``cols`` are the contiguous elements that each index moves.
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
    """Return embedding look-ups and indexing; in torch a constant scalar index is a view (select)."""
    index = input_at(op, 1)
    if options.runtime == "torch" and op.op_type == "Gather" and index.is_weight and not index.shape:
        return SAME_STORAGE
    return launched(gather_kernel(op, _GATHERS[op.op_type]))


@lowering_rule(*_SCATTERS, kind="scatter")
def scatter(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a copy of the data, then one write per update; a reduction reads the target and costs one FLOP an
    update.

    TensorScatter (cache update) writes in place, as its purpose is.
    """
    cached = op.op_type == "TensorScatter"
    data = input_at(op, 0)
    result = output_at(op)
    updates = input_at(op, 1 if cached else 2)
    reads = [updates]
    indices = optional_input(op, 2 if cached else 1)
    if indices is not None:
        reads.append(indices)
    reduces = op.attributes.get("reduction", "none") not in ("none", None)
    written = (updates,)
    if reduces:
        flops = updates.elements
    else:
        flops = 0
    write = memory_kernel(
        Family.SCATTER,
        _SCATTERS[op.op_type],
        (*reads, updates),
        written,
        flops=flops,
        rows=max(1, indices.elements if indices is not None else 1),
        cols=max(1, updates.elements // max(1, indices.elements if indices is not None else 1)),
        read_bytes=total_bytes(reads) + (updates.nbytes if reduces else 0),
    )
    if cached:
        return Lowered(kernels=(write,), host_calls=1, aliases={0: 0})
    clone = memory_kernel(Family.COPY, "clone", (data,), (result,), flops=0, rows=result.elements)
    return launched(clone, write)


@lowering_rule("OneHot", kind="one_hot", host_inputs=(1,))
def one_hot(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the comparison of every result element's position with the index."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.ELEMENTWISE,
        "one_hot",
        (input_at(op, 0), input_at(op, 2)),
        (result,),
        flops=result.elements,
        rows=result.elements,
    )
    return launched(kernel)
