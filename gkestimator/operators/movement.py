"""Data movement: views that cost nothing, and copies.

Which operators are views depends on the runtime (trait ``view_in``); whether a torch
view can stay
one depends on its strides, which the assembly tracks.
"""

from __future__ import annotations

from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.operators.builders import (
    cast_kernel,
    copy_kernel,
    input_at,
    memory_kernel,
    output_at,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

__all__: list[str] = []


def _view(op: Operator) -> Lowered:
    outputs = range(len(op.outputs))
    return Lowered(kernels=(), host_calls=0, aliases={i: 0 for i in outputs if op.outputs[i] is not None})


@lowering_rule(
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    kind="view",
    view_in=("torch", "onnxruntime"),
    strides="reshape",
)
@lowering_rule("Identity", kind="view", view_in=("torch", "onnxruntime"), strides="same", keeps_layout=True)
@lowering_rule("BitCast", kind="view")
def reshape(op: Operator, options: LoweringOptions) -> Lowered:
    """The same elements under another shape: no kernel."""
    return _view(op)


@lowering_rule("Dropout", kind="view", view_in=("torch", "onnxruntime"), strides="same", keeps_layout=True)
def dropout(op: Operator, options: LoweringOptions) -> Lowered:
    """Nothing at inference; a requested mask is a fill with ones. Training draws random numbers."""
    if len(op.inputs) > 2:
        mode = op.inputs[2]
    else:
        mode = None
    value = getattr(mode, "value", None)
    training = value is not None and value.size == 1 and bool(value.reshape(-1)[0])
    outputs = tensor_outputs(op)
    if training:
        kernel = memory_kernel(
            Family.RANDOM,
            "dropout",
            (input_at(op, 0),),
            outputs,
            flops=3 * outputs[0].elements,
            rows=outputs[0].elements,
        )
        return Lowered(kernels=(kernel,), host_calls=1)
    if len(outputs) > 1:
        fill = memory_kernel(Family.ELEMENTWISE, "fill", (), outputs[1:2], flops=0, rows=outputs[1].elements)
        return Lowered(kernels=(fill,), host_calls=1, aliases={0: 0})
    return Lowered(kernels=(), host_calls=0, aliases={0: 0})


_COPIES = {"Transpose": "transpose", "Expand": "expand", "Slice": "slice", "Split": "split"}


@lowering_rule("Transpose", kind="view_or_copy", view_in=("torch",), strides="transpose")
@lowering_rule("Expand", kind="view_or_copy", view_in=("torch",), strides="expand")
@lowering_rule("Slice", kind="view_or_copy", view_in=("torch",), strides="slice")
@lowering_rule("Split", kind="view_or_copy", view_in=("torch",), strides="same")
def copy(op: Operator, options: LoweringOptions) -> Lowered:
    """A view in torch, a copy in onnxruntime."""
    if runtime_traits(options.runtime).operators_as in traits_of(op.key).view_in:
        return _view(op)
    writes = tensor_outputs(op)
    return Lowered(kernels=(copy_kernel(_COPIES[op.op_type], (input_at(op, 0),), writes),), host_calls=1)


@lowering_rule("Concat", kind="copy")
def concat(op: Operator, options: LoweringOptions) -> Lowered:
    """One copy of every operand."""
    operands = tensor_inputs(op)
    result = output_at(op)
    # An operand named twice is still written twice; it is read once.
    kernel = copy_kernel("concat", operands, (result,))
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule(
    "Tile", "DepthToSpace", "SpaceToDepth", "CenterCropPad", "ReverseSequence", "Trilu", kind="copy"
)
def rearrange(op: Operator, options: LoweringOptions) -> Lowered:
    """Every result element is one source element, or zero."""
    variant = {
        "Tile": "tile",
        "DepthToSpace": "depth_to_space",
        "SpaceToDepth": "space_to_depth",
        "CenterCropPad": "crop_pad",
        "ReverseSequence": "reverse",
        "Trilu": "trilu",
    }[op.op_type]
    return Lowered(kernels=(copy_kernel(variant, (input_at(op, 0),), (output_at(op),)),), host_calls=1)


@lowering_rule("Pad", kind="copy")
def pad(op: Operator, options: LoweringOptions) -> Lowered:
    """A copy into a larger frame; padding by nothing is the source itself in torch.

    torch pads with a constant in two kernels: it fills the frame and copies the source into it
    (aten/src/ATen/native/PadNd.cpp, ``constant_pad_nd``). Where no side grows it only copies. The other modes are one
    kernel each but for wrap, whose copies (the source and two for every padded dimension) are not told apart here.
    """
    source = input_at(op, 0)
    result = output_at(op)
    if options.runtime == "torch" and source.shape == result.shape:
        return Lowered(kernels=(), host_calls=0, aliases={0: 0})
    grows = any(after > before for before, after in zip(source.shape, result.shape, strict=True))
    if options.runtime != "torch" or op.attributes.get("mode", "constant") != "constant" or not grows:
        return Lowered(kernels=(copy_kernel("pad", (source,), (result,)),), host_calls=1)
    fill = memory_kernel(Family.ELEMENTWISE, "fill", (), (result,), flops=0, rows=result.elements)
    # What is copied is the source, less what a negative side crops: the part that both shapes have.
    kept = tuple(min(pair) for pair in zip(source.shape, result.shape, strict=True))
    inside = Tensor(name=result.name, dtype=result.dtype, shape=kept, storage=result.storage)
    copied = copy_kernel("pad", (source,), (inside,))
    return Lowered(kernels=(fill, copied), host_calls=2)


@lowering_rule("Cast", kind="cast", autocast="declared", keeps_layout=True)
@lowering_rule("CastLike", kind="cast", keeps_layout=True)
def cast(op: Operator, options: LoweringOptions) -> Lowered:
    """A conversion; to the type it already has it is the source itself."""
    source = input_at(op, 0)
    result = output_at(op)
    if source.dtype is result.dtype:
        return Lowered(kernels=(), host_calls=0, aliases={0: 0})
    return Lowered(kernels=(cast_kernel(source, result.dtype),), host_calls=1)
