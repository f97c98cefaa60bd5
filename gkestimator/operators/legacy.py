"""Elementwise operators of old exporters and of ONNX Runtime's own domain, and its real Fourier transforms."""

from __future__ import annotations

from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    elementwise_kernel,
    input_at,
    memory_kernel,
    output_at,
    tensor_inputs,
)
from gkestimator.operators.microsoft.attention import MS
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule
from gkestimator.operators.signal import fft_flops

__all__: list[str] = []

# op_type: (variant, FLOPs per element, formula)
_OLD = {
    "Affine": ("affine", 2, "alpha x + beta"),
    "ParametricSoftplus": ("parametric_softplus", 5, "alpha log(1 + exp(beta x))"),
    "ScaledTanh": ("scaled_tanh", 3, "alpha tanh(beta x)"),
}


@lowering_rule(*_OLD, kind="elementwise")
def old_elementwise(op: Operator, options: LoweringOptions) -> Lowered:
    """Experimental operators of the first opsets, which old CNTK and Keras exports still hold."""
    variant, flops, _ = _OLD[op.op_type]
    kernel = elementwise_kernel(variant, tensor_inputs(op), (output_at(op),), flops_per_element=flops)
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("ScaledSiLU", domain=MS, kind="elementwise")
def scaled_silu(op: Operator, options: LoweringOptions) -> Lowered:
    """x sigmoid(alpha x) (6), times a scale where there is one."""
    operands = tensor_inputs(op)
    flops = 6 + (1 if len(operands) > 1 else 0)
    kernel = elementwise_kernel("scaled_silu", operands, (output_at(op),), flops_per_element=flops)
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("ComplexMul", "ComplexMulConj", domain=MS, kind="elementwise")
def complex_product(op: Operator, options: LoweringOptions) -> Lowered:
    """(a + bi)(c + di): four products and two sums for two result elements."""
    kernel = elementwise_kernel("complex_mul", tensor_inputs(op), (output_at(op),), flops_per_element=3)
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("Rfft", "Irfft", domain=MS, kind="fft")
def real_fft(op: Operator, options: LoweringOptions) -> Lowered:
    """Real transforms of the last axis (cuFFT); the inverse is scaled by a kernel of its own."""
    source = input_at(op, 0)
    result = output_at(op)
    inverse = op.op_type == "Irfft"
    if inverse:
        length = result.shape[-1]
    else:
        length = source.shape[-1]
    rows = (result if inverse else source).elements // max(1, length)
    kernel = memory_kernel(
        Family.FFT,
        "fft",
        (source,),
        (result,),
        flops=rows * fft_flops(length, real=True),
        rows=max(1, rows),
        cols=max(1, length),
        workspace_bytes=max(source.nbytes, result.nbytes),
    )
    if not inverse:
        return Lowered(kernels=(kernel,), host_calls=1)
    scale = elementwise_kernel("mul", (result,), (result,), flops_per_element=1)
    return Lowered(kernels=(kernel, scale), host_calls=1)
