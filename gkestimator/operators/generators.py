"""Operators that make tensors out of nothing: fills, ranges, random numbers."""

from __future__ import annotations

from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import elementwise_kernel, input_at, memory_kernel, output_at
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

# One Philox4x32-10 call gives four numbers in ten rounds of two multiplies and four xors: 15 operations a
# number.
PHILOX_FLOPS = 15
_UNIFORM = 2  # scale, shift
_NORMAL = 6  # Box-Muller, half a pair: log, multiply, square root, sine, then scale and shift


@lowering_rule("Constant", kind="constant")
def constant(op: Operator, options: LoweringOptions) -> Lowered:
    """A value of the file: it lies in memory like a weight."""
    return Lowered(kernels=(), host_calls=0)


@lowering_rule("ConstantOfShape", "EyeLike", kind="fill", autocast="declared")
def fill(op: Operator, options: LoweringOptions) -> Lowered:
    """A fill; the identity also compares row and column."""
    variant, flops = ("eye", 1) if op.op_type == "EyeLike" else ("fill", 0)
    return Lowered(
        kernels=(elementwise_kernel(variant, (), (output_at(op),), flops_per_element=flops),), host_calls=1
    )


@lowering_rule("Range", kind="fill", autocast="declared")
def arange(op: Operator, options: LoweringOptions) -> Lowered:
    """start + i x delta."""
    return Lowered(
        kernels=(elementwise_kernel("range", (), (output_at(op),), flops_per_element=2),), host_calls=1
    )


_RANDOM = {
    "RandomUniform": ("uniform", _UNIFORM),
    "RandomUniformLike": ("uniform", _UNIFORM),
    "RandomNormal": ("normal", _NORMAL),
    "RandomNormalLike": ("normal", _NORMAL),
}


@lowering_rule("RandomNormal", "RandomUniform", kind="random", autocast="declared")
@lowering_rule("RandomNormalLike", "RandomUniformLike", kind="random")
def random_numbers(op: Operator, options: LoweringOptions) -> Lowered:
    """Counter-based random numbers; a "like" operand lends its shape alone."""
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
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("Bernoulli", kind="random")
def bernoulli(op: Operator, options: LoweringOptions) -> Lowered:
    """A uniform number compared with each probability."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.RANDOM,
        "bernoulli",
        (input_at(op, 0),),
        (result,),
        flops=(PHILOX_FLOPS + _UNIFORM + 1) * result.elements,
        rows=result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("Multinomial", kind="random")
def multinomial(op: Operator, options: LoweringOptions) -> Lowered:
    """Softmax and prefix sum of each row's log-probabilities (6 an element), then one draw and a binary
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
    return Lowered(kernels=(kernel,), host_calls=2)
