"""Reductions, cumulative sums and determinants."""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import (
    elementwise_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    reduction_kernel,
)
from gkestimator.operators.checks import (
    axes_of,
    axis_attribute,
    constant_ints,
    declared_tensor,
    has_input,
    length_of,
    tensor,
    without_axes,
)
from gkestimator.operators.registry import (
    Lowered,
    LoweringOptions,
    Outputs,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)

# op_type: (variant, FLOPs per source element, FLOPs per result, formula)
REDUCTIONS: dict[str, tuple[str, int, int, str]] = {
    "ReduceL1": ("l1", 2, 0, "sum |x|"),
    "ReduceL2": ("l2", 2, 1, "sqrt sum x^2"),
    "ReduceLogSum": ("log_sum", 1, 1, "log sum x"),
    "ReduceLogSumExp": ("log_sum_exp", 4, 2, "m + log sum exp(x - m): maximum, subtract, exp, add; log, add"),
    "ReduceMax": ("max", 1, 0, "max x"),
    "ReduceMean": ("mean", 1, 1, "sum x / n"),
    "ReduceMin": ("min", 1, 0, "min x"),
    "ReduceProd": ("prod", 1, 0, "prod x"),
    "ReduceSum": ("sum", 1, 0, "sum x"),
    "ReduceSumSquare": ("sum_square", 2, 0, "sum x^2"),
}
_COMPOSED_IN_TORCH = frozenset({"ReduceLogSum", "ReduceSumSquare"})
# Those that torch.autocast calculates in float32: they add up, or multiply, many elements.
_SUMS = ("ReduceL1", "ReduceL2", "ReduceProd", "ReduceSum")


@shape_rule(*REDUCTIONS, host_inputs=(1,))
def reduce_types(ctx: ShapeContext) -> Outputs:
    """Return the shape without the reduced axes, or with 1 in their places (``keepdims``).

    Without axes all are reduced, unless ``noop_with_empty_axes``.
    """
    data = tensor(ctx, 0)
    axes = constant_ints(ctx, 1, "axes")
    if axes is None and has_input(ctx, 1):
        count = length_of(ctx, 1)
        if count:
            return [_unknown_axes(ctx, data, count)]
    rank = len(data.shape)
    if not axes:
        if ctx.attributes.get("noop_with_empty_axes"):
            return [data]
        axes = tuple(range(rank))
    keep = bool(ctx.attributes.get("keepdims", 1))
    shape = without_axes(data.shape, set(axes_of(axes, rank)), keep)
    return [TensorType(data.dtype, shape)]


def _composed_in_torch(op_type: str, source: Tensor, result: Tensor) -> tuple[Kernel, Kernel]:
    """Return the two kernels of a reduction that torch has no call for: ``(x * x).sum()``, ``x.sum().log()``."""
    if op_type == "ReduceLogSum":
        total = reduction_kernel("sum", source, (result,), kept=result.elements, per_element=1)
        return total, elementwise_kernel("log", (result,), (result,), flops_per_element=1)
    name = f"{result.name}#squares"
    squares = Tensor(name=name, dtype=source.dtype, shape=source.shape, storage=name)
    product = elementwise_kernel("mul", (source,), (squares,), flops_per_element=1)
    total = reduction_kernel("sum", squares, (result,), kept=result.elements, per_element=1)
    # The squares are no tensor of the graph: they count as scratch memory of the call that reads them.
    return product, replace(total, workspace_bytes=squares.nbytes)


@lowering_rule(*_SUMS, kind="reduction", autocast="fp32")
@lowering_rule(*(name for name in REDUCTIONS if name not in _SUMS), kind="reduction")
def reduce(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel, or the two calls of a composition in torch.

    Without axes and with ``noop_with_empty_axes`` nothing is summed: the element function alone remains.
    """
    variant, per_element, per_row, _ = REDUCTIONS[op.op_type]
    source = input_at(op, 0)
    result = output_at(op)
    untouched = bool(op.attributes.get("noop_with_empty_axes", 0)) and source.shape == result.shape
    # An empty source has no elements to launch a product over.
    composed = op.op_type in _COMPOSED_IN_TORCH and source.elements > 0 and not untouched
    if options.runtime == "torch" and composed:
        return launched(*_composed_in_torch(op.op_type, source, result), calls=2)
    if untouched:
        kernel = elementwise_kernel(
            variant, (source,), (result,), flops_per_element=per_element - 1 + per_row
        )
    else:
        kernel = reduction_kernel(
            variant, source, (result,), kept=result.elements, per_element=per_element, per_row=per_row
        )
    return launched(kernel)


def _unknown_axes(ctx: ShapeContext, data: TensorType, count: int) -> TensorType:
    """Return what the file declares, else a bound over every choice of ``count`` axes to reduce."""
    shape = data.shape
    if ctx.attributes.get("keepdims", 1):
        bound = tuple([max(size, 1) for size in shape])
    else:
        # With ``count`` dims gone, dim i of the rest is one of the input's dims i to i + count.
        left = max(0, len(shape) - count)
        bound = tuple([max(shape[place : place + count + 1]) for place in range(left)])
    declared = declared_tensor(ctx, 0, data.dtype, rank=len(bound), most=bound)
    return declared or TensorType(data.dtype, bound, True)


@shape_rule("ArgMax", "ArgMin")
def arg_reduce_types(ctx: ShapeContext) -> Outputs:
    """Return the index along one axis."""
    shape = tensor(ctx, 0).shape
    axis = axis_attribute(ctx, 0, len(shape))
    keep = bool(ctx.attributes.get("keepdims", 1))
    return [TensorType(DType.INT64, without_axes(shape, (axis,), keep))]


@lowering_rule("ArgMax", "ArgMin", kind="arg_reduction")
def arg_reduce(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one comparison an element."""
    result = output_at(op)
    if op.op_type == "ArgMax":
        variant = "arg_max"
    else:
        variant = "arg_min"
    kernel = reduction_kernel(variant, input_at(op, 0), (result,), kept=result.elements, per_element=1)
    return launched(kernel)


@lowering_rule("CumSum", "CumProd", kind="scan", autocast="fp32")
def cumulate(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a prefix sum or product along one axis: one FLOP an element; rows are the lines of the axis."""
    source = input_at(op, 0)
    result = output_at(op)
    axis_input = optional_input(op, 1)
    axis = -1
    if axis_input is not None and axis_input.value is not None and axis_input.value.size == 1:
        axis = int(axis_input.value.reshape(-1)[0])
    if source.shape:
        cols = source.shape[axis]
    else:
        cols = 1
    kernel = memory_kernel(
        Family.SCAN,
        "cum_sum" if op.op_type == "CumSum" else "cum_prod",
        (source,),
        (result,),
        flops=source.elements,
        rows=max(1, source.elements // max(1, cols)),
        cols=max(1, cols),
    )
    return launched(kernel)


@lowering_rule("Det", kind="determinant")
def determinant(op: Operator, options: LoweringOptions) -> Lowered:
    """Return LU factorisation, n(n-1)(4n+1)/6 FLOPs a matrix (2/3 n^3 to leading order), then the product of the
    diagonal.
    """
    source = input_at(op, 0)
    result = output_at(op)
    n = source.shape[-1]
    factorisation = n * (n - 1) * (4 * n + 1) // 6
    each = factorisation + max(0, n - 1)
    kernel = memory_kernel(
        Family.REDUCTION,
        "det",
        (source,),
        (result,),
        flops=each * result.elements,
        rows=result.elements,
        cols=max(1, n * n),
        workspace_bytes=source.nbytes,
    )
    return launched(kernel)
