"""Fourier transforms, windows and filter banks."""

from __future__ import annotations

import math

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    elementwise_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    present_inputs,
)
from gkestimator.operators.checks import (
    constant_int,
    has_input,
    int_attribute,
    optional_tensor,
    tensor,
    unknown_value,
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

# FLOPs per sample: argument (multiply, divide), cosine, multiply, subtract; Blackman has a second cosine
# term.
_WINDOWS = {
    "HannWindow": ("hann_window", 5),
    "HammingWindow": ("hamming_window", 5),
    "BlackmanWindow": ("blackman_window", 9),
}


def fft_flops(length: int, *, real: bool) -> int:
    """Return 5 n log2 n for a complex transform of ``length`` (the usual count of a radix-2 FFT), half of it for a
    real one.
    """
    if length > 1:
        flops = math.ceil(5 * length * math.log2(length))
    else:
        flops = 0
    return flops // 2 if real else flops


@lowering_rule("DFT", kind="fft", host_inputs=(1, 2))
def dft(op: Operator, options: LoweringOptions) -> Lowered:
    """Return batched FFT along one axis; the last dimension holds 1 (real) or 2 (complex) components."""
    source = input_at(op, 0)
    result = output_at(op)
    rank = len(source.shape)
    axis_input = optional_input(op, 2)
    if axis_input is not None and axis_input.value is not None and axis_input.value.size == 1:
        axis = int(axis_input.value.reshape(-1)[0])
    else:
        attribute = op.attributes.get("axis", 1 if op.version < 20 else -2)
        if isinstance(attribute, int):
            axis = attribute
        else:
            axis = -2
    axis = axis % rank if rank else 0
    length = max(source.shape[axis], result.shape[axis])
    rows = 1
    for dim, size in enumerate(result.shape):
        # Neither the transformed axis nor the pair of real and imaginary part is a row.
        if dim not in (axis, rank - 1):
            rows *= size
    kernel = memory_kernel(
        Family.FFT,
        "fft",
        (source,),
        (result,),
        flops=rows * fft_flops(length, real=source.shape[-1] == 1),
        rows=max(1, rows),
        cols=max(1, length),
        workspace_bytes=result.nbytes,
    )
    return launched(kernel)


@shape_rule("STFT", host_inputs=(1,))
def stft_types(ctx: ShapeContext) -> Outputs:
    """Return (batch, frames, bins, 2) for a signal (batch, length[, 1 or 2])."""
    x = tensor(ctx, 0, min_rank=2)
    batch, samples = x.shape[:2]
    step = constant_int(ctx, 1)
    window = optional_tensor(ctx, 2)
    length = constant_int(ctx, 3)
    if length is None and window is not None and window.shape:
        length = window.shape[0]
    if step is None or (length is None and has_input(ctx, 3)):
        return [unknown_value(ctx, 1, "frame_step or frame_length", x.dtype, rank=4)]
    if length is None:
        length = samples
    if step < 1 or not 0 < length <= samples:
        raise ShapeError(f"frames of {length} every {step} samples over a signal of {samples}")
    bins = length
    if int_attribute(ctx, "onesided", 1) == 1:
        bins = length // 2 + 1
    frames = (samples - length) // step + 1
    return [TensorType(x.dtype, (batch, frames, bins, 2))]


@lowering_rule("STFT", kind="fft")
def stft(op: Operator, options: LoweringOptions) -> Lowered:
    """Return frames times the window (1 an element), then one FFT a frame."""
    source = input_at(op, 0)
    result = output_at(op)
    window = optional_input(op, 2)
    batch, frames, bins, _ = result.shape
    onesided = bool(op.attributes.get("onesided", 1))
    if window is not None:
        length = window.elements
    elif onesided:
        length = 2 * (bins - 1)
    else:
        length = bins
    rows = batch * frames
    real = len(source.shape) < 3 or source.shape[-1] == 1
    per_frame = fft_flops(length, real=real)
    if window is not None:
        per_frame += length  # the window's multiplications
    kernel = memory_kernel(
        Family.FFT,
        "stft",
        present_inputs(op, 0, 2),
        (result,),
        flops=rows * per_frame,
        rows=max(1, rows),
        cols=max(1, length),
        workspace_bytes=rows * length * source.dtype.bits // 8,
    )
    return launched(kernel, calls=2)


@lowering_rule(*_WINDOWS, kind="window", host_inputs=(0,))
def window(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a cosine window, computed per sample."""
    variant, flops = _WINDOWS[op.op_type]
    kernel = elementwise_kernel(variant, (), (output_at(op),), flops_per_element=flops)
    return launched(kernel)


@lowering_rule("MelWeightMatrix", kind="filter_bank", host_inputs=(0, 1, 2, 3, 4))
def mel_weight_matrix(op: Operator, options: LoweringOptions) -> Lowered:
    """Return triangular filters: per entry two slopes (subtract, divide each), a minimum and a maximum."""
    kernel = elementwise_kernel("mel_weights", (), (output_at(op),), flops_per_element=6)
    return launched(kernel)
