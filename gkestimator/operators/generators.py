"""Operators that make tensors out of nothing: fills, ranges, random numbers."""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import elementwise_kernel, input_at, memory_kernel, output_at
from gkestimator.operators.checks import (
    constant,
    constant_ints,
    dtype_of_array,
    length_of,
    tensor,
    unknown_value,
)
from gkestimator.operators.registry import (
    NO_KERNEL,
    Lowered,
    LoweringOptions,
    Outputs,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)

# One Philox4x32-10 call gives four numbers in ten rounds of two multiplies and four xors: 15 operations a
# number.
PHILOX_FLOPS = 15
_UNIFORM = 2  # scale, shift
_NORMAL = 6  # Box-Muller, half a pair: log, multiply, square root, sine, then scale and shift
_RANDOM = {
    "RandomUniform": ("uniform", _UNIFORM),
    "RandomUniformLike": ("uniform", _UNIFORM),
    "RandomNormal": ("normal", _NORMAL),
    "RandomNormalLike": ("normal", _NORMAL),
}


@lowering_rule("Constant", kind="constant")
def file_constant(op: Operator, options: LoweringOptions) -> Lowered:
    """Return no kernel: a value of the file lies in memory like a weight."""
    return NO_KERNEL


@shape_rule("ConstantOfShape", host_inputs=(0,))
def constant_of_shape_types(ctx: ShapeContext) -> Outputs:
    """Return the shape that is the input's value, in the element type of attribute ``value``."""
    value = ctx.attributes.get("value")
    if value is None:
        dtype = DType.FLOAT
    else:
        dtype = dtype_of_array(value)
    shape = constant_ints(ctx, 0)
    if shape is None:
        return [unknown_value(ctx, 0, "shape", dtype, rank=length_of(ctx, 0))]
    return [TensorType(dtype, shape)]


@lowering_rule("ConstantOfShape", "EyeLike", kind="fill", autocast="declared")
def fill(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a fill; the identity also compares row and column."""
    variant, flops = ("eye", 1) if op.op_type == "EyeLike" else ("fill", 0)
    kernel = elementwise_kernel(variant, (), (output_at(op),), flops_per_element=flops)
    return launched(kernel)


@shape_rule("Range", host_inputs=(0, 1, 2))
def range_types(ctx: ShapeContext) -> Outputs:
    """Return max(0, ceil((limit - start) / delta)) elements; nothing is allocated to find out."""
    start, limit, delta = (constant(ctx, place) for place in range(3))
    dtype = tensor(ctx, 0).dtype
    if start is None or limit is None or delta is None:
        return [unknown_value(ctx, 0, "start, limit or delta", dtype, rank=1)]
    first, last, step = (value.reshape(()).item() for value in (start, limit, delta))
    if step == 0:
        raise ShapeError("delta is 0")
    if isinstance(step, int):
        count = -((first - last) // step)
    else:
        count = math.ceil((last - first) / step)
    return [TensorType(dtype, (max(0, int(count)),))]


@lowering_rule("Range", kind="fill", autocast="declared")
def arange(op: Operator, options: LoweringOptions) -> Lowered:
    """Return start + i x delta."""
    return launched(elementwise_kernel("range", (), (output_at(op),), flops_per_element=2))


@lowering_rule("RandomNormal", "RandomUniform", kind="random", random=True, autocast="declared")
@lowering_rule("RandomNormalLike", "RandomUniformLike", kind="random", random=True)
def random_numbers(op: Operator, options: LoweringOptions) -> Lowered:
    """Return counter-based random numbers; a "like" operand lends its shape alone."""
    variant, flops = _RANDOM[op.op_type]
    result = output_at(op)
    kernel = memory_kernel(
        Family.RANDOM,
        variant,
        (),
        (result,),
        flops=(PHILOX_FLOPS + flops) * result.elements,
        rows=result.elements,
    )
    return launched(kernel)


@lowering_rule("Bernoulli", kind="random", random=True)
def bernoulli(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a uniform number compared with each probability."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.RANDOM,
        "bernoulli",
        (input_at(op, 0),),
        (result,),
        flops=(PHILOX_FLOPS + _UNIFORM + 1) * result.elements,
        rows=result.elements,
    )
    return launched(kernel)


@lowering_rule("Multinomial", kind="random", random=True)
def multinomial(op: Operator, options: LoweringOptions) -> Lowered:
    """Return softmax and prefix sum of each row's log-probabilities (6 an element), then one draw and a binary
    search a sample.
    """
    source = input_at(op, 0)
    result = output_at(op)
    classes = source.shape[-1]
    search = max(1, classes - 1).bit_length()
    kernel = memory_kernel(
        Family.RANDOM,
        "multinomial",
        (source,),
        (result,),
        flops=6 * source.elements + (PHILOX_FLOPS + search) * result.elements,
        rows=source.shape[0],
        cols=classes,
        workspace_bytes=source.nbytes,
    )
    return launched(kernel, calls=2)
