"""Data movement: views that cost nothing, and copies.

Which operators are views depends on the runtime (trait ``view_in``); whether a torch view can stay one depends on its
strides, which the assembly tracks.
"""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.operators.builders import (
    copy_kernel,
    fill_kernel,
    input_at,
    memory_kernel,
    output_at,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.operators.checks import (
    all_tensors,
    axes_of,
    axis_attribute,
    axis_of,
    broadcast,
    constant_int,
    constant_ints,
    declared_tensor,
    dtype_attribute,
    has_input,
    int_attribute,
    joined,
    length_of,
    regrouped,
    tensor,
    unknown_value,
    without_axes,
)
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import (
    MS,
    SAME_STORAGE,
    Lowered,
    LoweringOptions,
    Outputs,
    Shape,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    same_storage,
    shape_rule,
)

_COPIES = {"Transpose": "transpose", "Expand": "expand", "Slice": "slice", "Split": "split"}


def reshape_dims(target: Shape, shape: Shape, *, copies: bool) -> Shape:
    """Return the shape that ``target`` gives to a tensor of ``shape``: -1 is inferred, 0 ``copies`` a dimension.

    Raises ShapeError where the number of elements differs.
    """
    dims = list(target)
    if copies:
        if 0 in target[len(shape) :]:
            raise ShapeError(f"target {list(target)} copies a dimension that {list(shape)} does not have")
        dims = [shape[place] if size == 0 else size for place, size in enumerate(target)]
    total = math.prod(shape)
    unknown = dims.count(-1)
    if unknown > 1 or min(dims, default=0) < -1:
        raise ShapeError(f"target {list(target)} is not a shape")
    if unknown:
        rest = -math.prod(dims)
        if rest:
            inferred = total // rest
        else:
            inferred = total
        dims[dims.index(-1)] = inferred
    if math.prod(dims) != total:
        raise ShapeError(f"{list(shape)} ({total} elements) cannot be reshaped to {list(target)}")
    return tuple(dims)


@shape_rule("Reshape", host_inputs=(1,), weight_view=True)
def reshape_types(ctx: ShapeContext) -> Outputs:
    """Return the target shape, from input 1 or, before opset 5, an attribute."""
    data = tensor(ctx, 0)
    target = constant_ints(ctx, 1, "shape")
    if target is None:
        return [regrouped(ctx, "shape", length_of(ctx, 1))]
    copies = not ctx.attributes.get("allowzero")
    return [TensorType(data.dtype, reshape_dims(target, data.shape, copies=copies))]


@shape_rule("Flatten", weight_view=True)
def flatten_types(ctx: ShapeContext) -> Outputs:
    """Return two dimensions, split at ``axis``."""
    data = tensor(ctx, 0)
    rank = len(data.shape)
    axis = int_attribute(ctx, "axis", 1)
    if axis != rank:
        axis = axis_of(axis, rank)
    rows = math.prod(data.shape[:axis])
    columns = math.prod(data.shape[axis:])
    return [TensorType(data.dtype, (rows, columns))]


@shape_rule("Squeeze", host_inputs=(1,), weight_view=True)
def squeeze_types(ctx: ShapeContext) -> Outputs:
    """Return the shape without dimensions of size 1: all, or those in ``axes``."""
    data = tensor(ctx, 0)
    shape = data.shape
    axes = constant_ints(ctx, 1, "axes")
    if axes is None:
        if has_input(ctx, 1):
            return [regrouped(ctx, "axes", len(shape) - length_of(ctx, 1))]
        return [TensorType(data.dtype, tuple([size for size in shape if size != 1]))]
    drop = set(axes_of(axes, len(shape)))
    for axis in drop:
        if shape[axis] != 1:
            raise ShapeError(f"axis {axis} of {list(shape)} has size {shape[axis]}; 1 was expected")
    return [TensorType(data.dtype, without_axes(shape, drop, keep=False))]


@shape_rule("Unsqueeze", host_inputs=(1,), weight_view=True)
@shape_rule("ExpandDims", domain=MS)
def unsqueeze_types(ctx: ShapeContext) -> Outputs:
    """Return the shape with dimensions of size 1 inserted at ``axes`` of the output."""
    data = tensor(ctx, 0)
    axes = constant_ints(ctx, 1, "axes")
    if axes is None:
        return [regrouped(ctx, "axes", len(data.shape) + length_of(ctx, 1))]
    rank = len(data.shape) + len(axes)
    places = sorted(set(axes_of(axes, rank)))
    if len(places) < len(axes):
        raise ShapeError(f"axes {list(axes)} repeat")
    sizes = list(data.shape)
    for place in places:
        sizes.insert(place, 1)
    return [TensorType(data.dtype, tuple(sizes))]


@shape_rule("BitCast")
def bit_cast_types(ctx: ShapeContext) -> Outputs:
    """Return the shape of the input in an element type of as many bits."""
    x = tensor(ctx, 0)
    target = dtype_attribute(ctx, "to")
    if target.bits != x.dtype.bits or DType.STRING in (target, x.dtype):
        raise ShapeError(f"cannot reinterpret {x.dtype} as {target}, expected a type of {x.dtype.bits} bits")
    return [TensorType(target, x.shape)]


@lowering_rule("ExpandDims", domain=MS, kind="view")
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
    """Return the same elements under another shape: no kernel."""
    return same_storage(op)


@shape_rule("Dropout", host_inputs=(1, 2))
def dropout_types(ctx: ShapeContext) -> Outputs:
    """Return the data as it comes in, and a mask (bool from opset 10 on)."""
    data = tensor(ctx, 0)
    if ctx.version >= 10:
        mask = TensorType(DType.BOOL, data.shape)
    else:
        mask = data
    return [data, mask][: ctx.outputs]


@lowering_rule("Dropout", kind="view", view_in=("torch", "onnxruntime"), strides="same", keeps_layout=True)
def dropout(op: Operator, options: LoweringOptions) -> Lowered:
    """Return no kernel at inference; a requested mask is a fill with ones. Training draws random numbers."""
    if len(op.inputs) > 2:
        mode = op.inputs[2]
    else:
        mode = None
    value = getattr(mode, "value", None)
    training = value is not None and value.size == 1 and bool(value.item())
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
        return launched(kernel)
    if len(outputs) > 1:
        fill = fill_kernel(outputs[1])
        return Lowered(kernels=(fill,), host_calls=1, aliases={0: 0})
    return SAME_STORAGE


@shape_rule("Transpose", weight_view=True)
def transpose_types(ctx: ShapeContext) -> Outputs:
    """Return the dimensions permuted; reversed by default."""
    data = tensor(ctx, 0)
    rank = len(data.shape)
    order = ctx.attributes.get("perm") or tuple(range(rank - 1, -1, -1))
    if sorted(axes_of(order, rank)) != list(range(rank)):
        raise ShapeError(f"perm {list(order)} does not permute {rank} dimensions")
    shape = tuple([data.shape[axis] for axis in order])
    return [TensorType(data.dtype, shape)]


@shape_rule("Slice", host_inputs=(1, 2, 3, 4), weight_view=True)
def slice_types(ctx: ShapeContext) -> Outputs:
    """Return the sizes between starts and ends, which are inputs (from opset 10 on) or attributes."""
    data = tensor(ctx, 0)
    starts = constant_ints(ctx, 1, "starts")
    ends = constant_ints(ctx, 2, "ends")
    axes = constant_ints(ctx, 3, "axes")
    steps = constant_ints(ctx, 4)
    unknown = (axes is None and has_input(ctx, 3)) or (steps is None and has_input(ctx, 4))
    if starts is None or ends is None or unknown:
        # A slice is never larger than what it is taken from, if it is not known whereof.
        declared = declared_tensor(ctx, 0, data.dtype, rank=len(data.shape), most=data.shape)
        return [declared or TensorType(data.dtype, data.shape, True)]
    if axes is None:
        axes = tuple(range(len(starts)))
    if steps is None:
        steps = (1,) * len(starts)
    places = axes_of(axes, len(data.shape))
    if not len(starts) == len(ends) == len(places) == len(steps):
        raise ShapeError("starts, ends, axes and steps differ in length")
    sizes = list(data.shape)
    for start, end, axis, step in zip(starts, ends, places, steps, strict=True):
        if step == 0:
            raise ShapeError("a step is 0")
        bounds = slice(start, end, step).indices(data.shape[axis])
        sizes[axis] = len(range(*bounds))
    return [TensorType(data.dtype, tuple(sizes))]


@shape_rule("Expand", host_inputs=(1,))
def expand_types(ctx: ShapeContext) -> Outputs:
    """Return the input broadcast with the shape that is the second input's value."""
    data = tensor(ctx, 0)
    target = constant_ints(ctx, 1)
    if target is None:
        declared = unknown_value(ctx, 1, "shape", data.dtype, rank=None)
        if broadcast(data.shape, declared.shape) != declared.shape:
            raise ShapeError(f"{list(data.shape)} cannot be expanded to {list(declared.shape)}, as declared")
        return [declared]
    if min(target, default=0) < 0:
        raise ShapeError(f"target {list(target)} is not a shape")
    return [TensorType(data.dtype, broadcast(data.shape, target))]


def split_sizes(ctx: ShapeContext, length: int, parts: int) -> Shape | None:
    """Return the sizes of the parts of ``length``; None when they are not known.

    Without named sizes there are ``parts`` equal ones, of which the last are smaller.
    """
    sizes = constant_ints(ctx, 1, "split")
    if sizes is None:
        if has_input(ctx, 1):
            return None
        if parts < 1:
            raise ShapeError(f"a dimension cannot be split into {parts} parts")
        step = -(-length // parts)
        return tuple([max(0, min(step, length - part * step)) for part in range(parts)])
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise ShapeError(f"a dimension of {length} cannot be split into {list(sizes)[:8]}")
    return sizes


@shape_rule("Split", host_inputs=(1,), weight_view=True)
def split_types(ctx: ShapeContext) -> Outputs:
    """Return one output per part along ``axis``."""
    data = tensor(ctx, 0)
    axis = axis_attribute(ctx, 0, len(data.shape))
    parts = int_attribute(ctx, "num_outputs", ctx.outputs)
    if parts != ctx.outputs:
        raise ShapeError(f"num_outputs is {parts}, but the node has {ctx.outputs} outputs")
    sizes = split_sizes(ctx, data.shape[axis], parts)
    if sizes is None:
        rank = len(data.shape)
        return [
            unknown_value(ctx, 1, "split", data.dtype, output=place, rank=rank)
            for place in range(ctx.outputs)
        ]
    before = data.shape[:axis]
    behind = data.shape[axis + 1 :]
    return [TensorType(data.dtype, (*before, size, *behind)) for size in sizes]


@lowering_rule("Transpose", kind="view_or_copy", view_in=("torch",), strides="transpose")
@lowering_rule("Expand", kind="view_or_copy", view_in=("torch",), strides="expand")
@lowering_rule("Slice", kind="view_or_copy", view_in=("torch",), strides="slice")
@lowering_rule("Split", kind="view_or_copy", view_in=("torch",), strides="same")
def copy(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a view in torch, a copy in onnxruntime."""
    if runtime_traits(options.runtime).operators_as in traits_of(op.key).view_in:
        return same_storage(op)
    writes = tensor_outputs(op)
    kernel = copy_kernel(_COPIES[op.op_type], (input_at(op, 0),), writes)
    return launched(kernel)


@shape_rule("Concat")
def concat_types(ctx: ShapeContext) -> Outputs:
    """Return the operands joined along ``axis``."""
    parts = all_tensors(ctx)
    first = parts[0]
    axis = axis_attribute(ctx, 1, len(first.shape))
    shape = joined([part.shape for part in parts], axis)
    return [TensorType(first.dtype, shape)]


@lowering_rule("Concat", kind="copy")
def concat(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one copy of every operand."""
    operands = tensor_inputs(op)
    result = output_at(op)
    # An operand named twice is still written twice; it is read once.
    kernel = copy_kernel("concat", operands, (result,))
    return launched(kernel)


@shape_rule("Tile", host_inputs=(1,))
def tile_types(ctx: ShapeContext) -> Outputs:
    """Return each dim times its repeats; before opset 6 the repeats of one axis."""
    data = tensor(ctx, 0)
    repeats = constant_ints(ctx, 1)
    axis = constant_int(ctx, 2)
    if repeats is None:
        return [unknown_value(ctx, 1, "repeats", data.dtype, rank=len(data.shape))]
    if ctx.version < 6 and axis is not None:
        every = [1] * len(data.shape)
        every[axis_of(axis, len(every))] = repeats[0]
        repeats = tuple(every)
    if len(repeats) != len(data.shape):
        raise ShapeError(f"{len(repeats)} repeats for {len(data.shape)} dimensions")
    sizes = [size * times for size, times in zip(data.shape, repeats, strict=True)]
    return [TensorType(data.dtype, tuple(sizes))]


@shape_rule("Trilu", host_inputs=(1,))
@shape_rule("Trilu", domain=MS)
def triangle_types(ctx: ShapeContext) -> Outputs:
    """Return the type of the matrices."""
    return [tensor(ctx, 0, min_rank=2)]


@shape_rule("DepthToSpace", "SpaceToDepth")
def blocks_types(ctx: ShapeContext) -> Outputs:
    """Return (N, C, H, W) with blocks of pixels moved from the channels into the image, or back."""
    x = tensor(ctx, 0, rank=4)
    batch, channels, height, width = x.shape
    side = int_attribute(ctx, "blocksize")
    if side < 1:
        raise ShapeError(f"blocksize is {side}, expected at least 1")
    if ctx.op_type == "DepthToSpace":
        if channels % side**2:
            raise ShapeError(f"{channels} channels do not split into blocks of {side} x {side}")
        shape = (batch, channels // side**2, height * side, width * side)
        return [TensorType(x.dtype, shape)]
    if height % side or width % side:
        raise ShapeError(f"{height} x {width} does not split into blocks of {side} x {side}")
    shape = (batch, channels * side**2, height // side, width // side)
    return [TensorType(x.dtype, shape)]


@lowering_rule("CenterCropPad", kind="copy", host_inputs=(1,))
@lowering_rule("Trilu", domain=MS, kind="copy")
@lowering_rule("Tile", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu", kind="copy")
def rearrange(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a copy: every result element is one source element, or zero."""
    kernel = copy_kernel(_REARRANGED[op.op_type], (input_at(op, 0),), (output_at(op),))
    return launched(kernel)


_REARRANGED = {
    "Tile": "tile",
    "DepthToSpace": "depth_to_space",
    "SpaceToDepth": "space_to_depth",
    "CenterCropPad": "crop_pad",
    "ReverseSequence": "reverse",
    "Trilu": "trilu",
}


@shape_rule("Pad", host_inputs=(1, 3))
def pad_types(ctx: ShapeContext) -> Outputs:
    """Return each dim with what is padded before and behind it."""
    data = tensor(ctx, 0)
    if "pads" in ctx.attributes:
        name = "pads"
    else:
        name = "paddings"
    pads = constant_ints(ctx, 1, name)
    if pads is None:
        return [unknown_value(ctx, 1, "pads", data.dtype, rank=len(data.shape))]
    axes = constant_ints(ctx, 3)
    if axes is None:
        if has_input(ctx, 3):
            return [unknown_value(ctx, 3, "axes", data.dtype, rank=len(data.shape))]
        axes = tuple(range(len(data.shape)))
    places = axes_of(axes, len(data.shape))
    if len(pads) != 2 * len(places):
        raise ShapeError(f"{len(pads)} pads for {len(places)} dimensions")
    sizes = list(data.shape)
    for index, axis in enumerate(places):
        sizes[axis] += pads[index] + pads[index + len(places)]
    return [TensorType(data.dtype, tuple(sizes))]


@lowering_rule("Pad", kind="copy")
def pad(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a copy into a larger frame; padding by nothing is the source itself in torch.

    torch pads with a constant in two kernels: it fills the frame and copies the source into it
    (aten/src/ATen/native/PadNd.cpp, ``constant_pad_nd``). Where no side grows it only copies. The other modes are
    one kernel each but for wrap, whose copies (the source and two for every padded dimension) are not told apart
    here.
    """
    source = input_at(op, 0)
    result = output_at(op)
    if options.runtime == "torch" and source.shape == result.shape:
        return SAME_STORAGE
    pairs = list(zip(source.shape, result.shape, strict=True))
    grows = any(after > before for before, after in pairs)
    constant_mode = op.attributes.get("mode", "constant") == "constant"
    if options.runtime != "torch" or not constant_mode or not grows:
        return launched(copy_kernel("pad", (source,), (result,)))
    fill = fill_kernel(result)
    # What is copied is the source, less what a negative side crops: the part that both shapes have.
    both = tuple([min(pair) for pair in pairs])
    inside = Tensor(name=result.name, dtype=result.dtype, shape=both, storage=result.storage)
    copied = copy_kernel("pad", (source,), (inside,))
    return launched(fill, copied, calls=2)
