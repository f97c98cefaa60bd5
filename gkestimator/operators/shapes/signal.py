"""Shape rules of signal processing: Fourier transforms, mel weights, windows."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    axis_of,
    broadcast,
    constant_int,
    dtype_attribute,
    has_input,
    int_attribute,
    optional_tensor,
    refuse,
    tensor,
    unknown_value,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule

__all__: list[str] = []


@shape_rule("DFT", host_inputs=(1, 2))
def _dft(ctx: ShapeContext) -> Outputs:
    """The last dimension is 1 (real) or 2 (complex); one-sided keeps length // 2 + 1 bins."""
    x = tensor(ctx, 0, min_rank=2)
    rank = len(x.shape)
    if x.shape[-1] not in (1, 2):
        refuse(ctx, f"input is {list(x.shape)}, expected 1 (real) or 2 (complex) in the last dimension")
    if ctx.version < 20:
        axis: int | None = int_attribute(ctx, "axis", 1)
    elif has_input(ctx, 2):
        axis = constant_int(ctx, 2)
    else:
        axis = -2
    inverse = int_attribute(ctx, "inverse", 0) == 1
    onesided = int_attribute(ctx, "onesided", 0) == 1
    if axis is None:
        return [unknown_value(ctx, 2, "axis", x.dtype, rank=rank)]
    axis = axis_of(ctx, axis, rank)
    if axis == rank - 1:
        refuse(ctx, "axis is the last dimension, which holds real and imaginary parts")
    length = constant_int(ctx, 1)
    if length is None:
        if has_input(ctx, 1):
            return [unknown_value(ctx, 1, "dft_length", x.dtype, rank=rank)]
        # the inverse of a one-sided transform makes 2 (bins - 1) real samples
        if inverse and onesided:
            length = 2 * (x.shape[axis] - 1)
        else:
            length = x.shape[axis]
    if length < 0:
        refuse(ctx, f"dft_length is {length}, expected a positive number")
    out = list(x.shape)
    out[axis] = length // 2 + 1 if onesided and not inverse else length
    out[-1] = 1 if onesided and inverse else 2
    return [TensorType(x.dtype, tuple(out))]


@shape_rule("STFT", host_inputs=(1,))
def _stft(ctx: ShapeContext) -> Outputs:
    """signal (batch, length[, 1 or 2]) to (batch, frames, bins, 2)."""
    x = tensor(ctx, 0, min_rank=2)
    step = constant_int(ctx, 1)
    length = constant_int(ctx, 3)
    window = optional_tensor(ctx, 2)
    if length is None:
        if window is not None and window.shape:
            length = window.shape[0]
        elif has_input(ctx, 3):
            return [unknown_value(ctx, 3, "frame_length", x.dtype, rank=4)]
        else:
            length = x.shape[1]
    if step is None:
        return [unknown_value(ctx, 1, "frame_step", x.dtype, rank=4)]
    if step < 1 or not 0 < length <= x.shape[1]:
        refuse(ctx, f"frames of {length} every {step} samples over a signal of {x.shape[1]}")
    if int_attribute(ctx, "onesided", 1) == 1:
        bins = length // 2 + 1
    else:
        bins = length
    return [TensorType(x.dtype, (x.shape[0], (x.shape[1] - length) // step + 1, bins, 2))]


@shape_rule("MelWeightMatrix", host_inputs=(0, 1, 2, 3, 4))
def _mel(ctx: ShapeContext) -> Outputs:
    dtype = dtype_attribute(ctx, "output_datatype", DType.FLOAT)
    mels = constant_int(ctx, 0)
    length = constant_int(ctx, 1)
    if mels is None or length is None:
        return [unknown_value(ctx, 0 if mels is None else 1, "a size", dtype, rank=2)]
    if mels < 0 or length < 0:
        refuse(ctx, f"num_mel_bins is {mels} and dft_length {length}, expected positive numbers")
    return [TensorType(dtype, (length // 2 + 1, mels))]


@shape_rule("HannWindow", "HammingWindow", "BlackmanWindow", host_inputs=(0,))
def _window(ctx: ShapeContext) -> Outputs:
    dtype = dtype_attribute(ctx, "output_datatype", DType.FLOAT)
    size = constant_int(ctx, 0)
    if size is None:
        return [unknown_value(ctx, 0, "size", dtype, rank=1)]
    if size < 0:
        refuse(ctx, f"size is {size}, expected a positive number")
    return [TensorType(dtype, (size,))]


@shape_rule("Rfft", domain="com.microsoft")
def _rfft(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=1)
    _one_dimension(ctx)
    return [TensorType(x.dtype, (*x.shape[:-1], x.shape[-1] // 2 + 1, 2))]


@shape_rule("Irfft", domain="com.microsoft")
def _irfft(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=2)
    _one_dimension(ctx)
    if x.shape[-1] != 2 or x.shape[-2] < 1:
        refuse(ctx, f"input is {list(x.shape)}, expected 2 (complex) in the last dimension")
    return [TensorType(x.dtype, (*x.shape[:-2], 2 * (x.shape[-2] - 1)))]


def _one_dimension(ctx: ShapeContext) -> None:
    if int_attribute(ctx, "onesided", 1) != 1:
        refuse(ctx, "onesided is 0, expected 1 (the only form the operator has)")


@shape_rule("ComplexMul", "ComplexMulConj", domain="com.microsoft")
def _complex_product(ctx: ShapeContext) -> Outputs:
    a = tensor(ctx, 0, min_rank=1)
    b = tensor(ctx, 1, min_rank=1)
    if a.shape[-1] != 2 or b.shape[-1] != 2:
        refuse(
            ctx, f"inputs are {list(a.shape)} and {list(b.shape)}, expected 2 (complex) in the last dimension"
        )
    return [TensorType(a.dtype, broadcast(ctx, a.shape, b.shape))]
