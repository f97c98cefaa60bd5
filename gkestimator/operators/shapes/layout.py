"""Shape rules of operators that move, view or pick elements."""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, ValueType, shape_rule
from gkestimator.operators.shapes.support import (
    axes_of,
    axis_of,
    broadcast,
    declared_tensor,
    has,
    integers,
    tensor,
)


def reshape_dims(dims: tuple[int, ...], data: tuple[int, ...], allow_zero: bool) -> tuple[int, ...]:
    """The shape that target ``dims`` (0.

    Copied, -1: inferred) give to ``data``; ShapeError where they cannot.
    """
    if not allow_zero:
        if any(d == 0 and i >= len(data) for i, d in enumerate(dims)):
            raise ShapeError(f"target {list(dims)} copies a dimension that {list(data)} does not have")
        dims = tuple(data[i] if d == 0 else d for i, d in enumerate(dims))
    total = math.prod(data)
    unknown = dims.count(-1)
    if unknown > 1 or min(dims, default=0) < -1:
        raise ShapeError(f"target {list(dims)} is not a shape")
    if unknown:
        rest = -math.prod(dims)
        if rest == 0 or total % rest:
            if not (rest == 0 and total == 0):
                raise ShapeError(f"{list(data)} cannot be reshaped to {list(dims)}")
            rest = 1
        dims = tuple(total // rest if d == -1 else d for d in dims)
    if math.prod(dims) != total:
        raise ShapeError(f"{list(data)} ({total} elements) cannot be reshaped to {list(dims)}")
    return dims


@shape_rule("Reshape", host_inputs=(1,), weight_view=True)
def reshape(ctx: ShapeContext) -> list[ValueType | None]:
    """The target shape, from input 1 or, before opset 5, an attribute."""
    data = tensor(ctx, 0)
    dims = integers(ctx, 1, "shape")
    if dims is None:
        return [declared_tensor(ctx, 0, data.dtype, "the value of its second input")]
    return [TensorType(data.dtype, reshape_dims(dims, data.shape, bool(ctx.attributes.get("allowzero"))))]


@shape_rule("Flatten", weight_view=True)
def flatten(ctx: ShapeContext) -> list[ValueType | None]:
    """Two dimensions, split at ``axis``."""
    data = tensor(ctx, 0)
    axis = int(ctx.attributes.get("axis", 1))
    rank = len(data.shape)
    if not -rank <= axis <= rank:
        raise ShapeError(f"axis {axis} is outside {rank} dimensions")
    axis = axis + rank if axis < 0 else axis
    return [TensorType(data.dtype, (math.prod(data.shape[:axis]), math.prod(data.shape[axis:])))]


@shape_rule("Transpose", weight_view=True)
def transpose(ctx: ShapeContext) -> list[ValueType | None]:
    """Dimensions permuted; reversed by default."""
    data = tensor(ctx, 0)
    rank = len(data.shape)
    order = ctx.attributes.get("perm") or tuple(range(rank - 1, -1, -1))
    if sorted(axes_of(order, rank)) != list(range(rank)):
        raise ShapeError(f"perm {list(order)} does not permute {rank} dimensions")
    return [TensorType(data.dtype, tuple(data.shape[a] for a in order))]


@shape_rule("Squeeze", host_inputs=(1,), weight_view=True)
def squeeze(ctx: ShapeContext) -> list[ValueType | None]:
    """Dimensions of size 1 dropped: all, or those in ``axes``."""
    data = tensor(ctx, 0)
    axes = integers(ctx, 1, "axes")
    if axes is None:
        if has(ctx, 1):
            return [declared_tensor(ctx, 0, data.dtype, "the value of its axes")]
        return [TensorType(data.dtype, tuple(d for d in data.shape if d != 1))]
    drop = set(axes_of(axes, len(data.shape)))
    for axis in drop:
        if data.shape[axis] != 1:
            raise ShapeError(f"axis {axis} of {list(data.shape)} has size {data.shape[axis]}; 1 was expected")
    return [TensorType(data.dtype, tuple(d for i, d in enumerate(data.shape) if i not in drop))]


@shape_rule("Unsqueeze", host_inputs=(1,), weight_view=True)
def unsqueeze(ctx: ShapeContext) -> list[ValueType | None]:
    """Dimensions of size 1 inserted at ``axes`` of the output."""
    data = tensor(ctx, 0)
    axes = integers(ctx, 1, "axes")
    if axes is None:
        return [declared_tensor(ctx, 0, data.dtype, "the value of its axes")]
    rank = len(data.shape) + len(axes)
    places = set(axes_of(axes, rank))
    if len(places) < len(axes):
        raise ShapeError(f"axes {list(axes)} repeat")
    rest = iter(data.shape)
    return [TensorType(data.dtype, tuple(1 if i in places else next(rest) for i in range(rank)))]


@shape_rule("Concat")
def concat(ctx: ShapeContext) -> list[ValueType | None]:
    """Sizes add up along ``axis``; all others agree."""
    parts = [tensor(ctx, i) for i in range(len(ctx.types))]
    if not parts:
        raise ShapeError("has no inputs")
    first = parts[0]
    axis = axis_of(int(ctx.attributes.get("axis", 1)), len(first.shape))
    total = 0
    before = first.shape[:axis]
    behind = first.shape[axis + 1 :]
    for part in parts:
        shape = part.shape
        if len(shape) != len(first.shape) or shape[:axis] != before or shape[axis + 1 :] != behind:
            raise ShapeError(f"{list(first.shape)} and {list(shape)} cannot be joined along axis {axis}")
        total += shape[axis]
    return [TensorType(first.dtype, (*before, total, *behind))]


@shape_rule("Shape")
def shape(ctx: ShapeContext) -> list[ValueType | None]:
    """The number of dims in ``start``..``end`` (clamped)."""
    rank = len(tensor(ctx, 0).shape)
    return [TensorType(DType.INT64, (len(range(rank)[slice_of_shape(ctx.attributes, rank)]),))]


def slice_of_shape(attributes: object, rank: int) -> slice:
    """Which dims operator Shape returns."""
    get = attributes.get  # type: ignore[attr-defined]
    start = get("start", 0)
    end = get("end", rank)

    def clamp(at: int) -> int:
        return max(0, min(rank, at + rank if at < 0 else at))

    return slice(clamp(start), clamp(end if end is not None else rank))


@shape_rule("Size")
def size(ctx: ShapeContext) -> list[ValueType | None]:
    """A scalar."""
    tensor(ctx, 0)
    return [TensorType(DType.INT64, ())]


@shape_rule("Gather")
def gather(ctx: ShapeContext) -> list[ValueType | None]:
    """``axis`` of the data is replaced by the shape of the indices."""
    data = tensor(ctx, 0)
    indices = tensor(ctx, 1)
    axis = axis_of(int(ctx.attributes.get("axis", 0)), len(data.shape))
    return [TensorType(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))]


@shape_rule("GatherElements")
def gather_elements(ctx: ShapeContext) -> list[ValueType | None]:
    """The shape of the indices."""
    data = tensor(ctx, 0)
    indices = tensor(ctx, 1)
    if len(data.shape) != len(indices.shape):
        raise ShapeError(f"data {list(data.shape)} and indices {list(indices.shape)} differ in rank")
    return [TensorType(data.dtype, indices.shape)]


@shape_rule("GatherND")
def gather_nd(ctx: ShapeContext) -> list[ValueType | None]:
    """Indices' leading dims, then what their last dim leaves of the data."""
    data = tensor(ctx, 0)
    indices = tensor(ctx, 1)
    batch = int(ctx.attributes.get("batch_dims", 0))
    if not indices.shape or batch + indices.shape[-1] > len(data.shape):
        raise ShapeError(f"indices {list(indices.shape)} do not fit data {list(data.shape)}")
    return [TensorType(data.dtype, indices.shape[:-1] + data.shape[batch + indices.shape[-1] :])]


@shape_rule("Slice", host_inputs=(1, 2, 3, 4), weight_view=True)
def slice_(ctx: ShapeContext) -> list[ValueType | None]:
    """Starts, ends, axes and steps from inputs (from opset 10 on) or attributes."""
    data = tensor(ctx, 0)
    rank = len(data.shape)
    starts = integers(ctx, 1, "starts")
    ends = integers(ctx, 2, "ends")
    axes = integers(ctx, 3, "axes")
    steps = integers(ctx, 4)
    unknown_axes = axes is None and has(ctx, 3)
    unknown_steps = steps is None and has(ctx, 4)
    if starts is None or ends is None or unknown_axes or unknown_steps:
        # a slice is never larger than what it is taken from, if it is not known whereof
        said = ctx.declared[0]
        if said is not None and said.shape is not None and all(isinstance(d, int) for d in said.shape):
            return [declared_tensor(ctx, 0, data.dtype, "the values of its bounds")]
        return [TensorType(data.dtype, data.shape, True)]
    if axes is not None:
        axes = axes_of(axes, rank)
    else:
        axes = tuple(range(len(starts)))
    steps = steps if steps is not None else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or len(axes) > rank:
        raise ShapeError("starts, ends, axes and steps differ in length")
    dims = list(data.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise ShapeError("a step is 0")
        dims[axis] = len(range(*slice(start, end, step).indices(data.shape[axis])))
    return [TensorType(data.dtype, tuple(dims))]


@shape_rule("Expand", host_inputs=(1,))
def expand(ctx: ShapeContext) -> list[ValueType | None]:
    """The input broadcast with the shape that is the second input's value."""
    data = tensor(ctx, 0)
    dims = integers(ctx, 1)
    if dims is None:
        return [declared_tensor(ctx, 0, data.dtype, "the value of its second input")]
    if min(dims, default=0) < 0:
        raise ShapeError(f"target {list(dims)} is not a shape")
    return [TensorType(data.dtype, broadcast(data.shape, dims))]


@shape_rule("Tile", host_inputs=(1,))
def tile(ctx: ShapeContext) -> list[ValueType | None]:
    """Each dim times its repeats."""
    data = tensor(ctx, 0)
    repeats = integers(ctx, 1)
    if ctx.version < 6 and has(ctx, 2):
        axis = integers(ctx, 2)
        if repeats is not None and axis is not None:
            full = [1] * len(data.shape)
            full[axis_of(axis[0], len(full))] = repeats[0]
            repeats = tuple(full)
    if repeats is None:
        return [declared_tensor(ctx, 0, data.dtype, "the value of its repeats")]
    if len(repeats) != len(data.shape):
        raise ShapeError(f"{len(repeats)} repeats for {len(data.shape)} dimensions")
    return [TensorType(data.dtype, tuple(d * r for d, r in zip(data.shape, repeats, strict=True)))]


@shape_rule("ConstantOfShape", host_inputs=(0,))
def constant_of_shape(ctx: ShapeContext) -> list[ValueType | None]:
    """The shape that is the input's value, in the element type of attribute ``value``."""
    value = ctx.attributes.get("value")
    dtype = DType.FLOAT if value is None else numpy_dtype(value)
    dims = integers(ctx, 0)
    if dims is None:
        return [declared_tensor(ctx, 0, dtype, "the value of its input")]
    return [TensorType(dtype, dims)]


_FROM_NUMPY = {
    "float32": DType.FLOAT,
    "float64": DType.DOUBLE,
    "bool": DType.BOOL,
    "object": DType.STRING,
    "float8_e4m3fn": DType.FLOAT8E4M3FN,
    "float8_e4m3fnuz": DType.FLOAT8E4M3FNUZ,
    "float8_e5m2": DType.FLOAT8E5M2,
    "float8_e5m2fnuz": DType.FLOAT8E5M2FNUZ,
    "float4_e2m1fn": DType.FLOAT4E2M1,
    "float8_e8m0fnu": DType.FLOAT8E8M0,
}


def numpy_dtype(value: object) -> DType:
    """The element type of an attribute's NumPy array."""
    name = str(value.dtype)  # type: ignore[attr-defined]
    return _FROM_NUMPY.get(name) or DType(name)


@shape_rule("Range", host_inputs=(0, 1, 2))
def range_(ctx: ShapeContext) -> list[ValueType | None]:
    """max(0, ceil((limit - start) / delta)) elements; nothing is allocated to find out."""
    start, limit, delta = (ctx.values[i] for i in range(3))
    dtype = tensor(ctx, 0).dtype
    if start is None or limit is None or delta is None:
        return [declared_tensor(ctx, 0, dtype, "the values of its inputs")]
    first, last, step = (v.reshape(()).item() for v in (start, limit, delta))
    if step == 0:
        raise ShapeError("delta is 0")
    if isinstance(step, int):
        count = -((first - last) // step)
    else:
        count = math.ceil((last - first) / step)
    return [TensorType(dtype, (max(0, int(count)),))]


@shape_rule("Pad", host_inputs=(1, 3))
def pad(ctx: ShapeContext) -> list[ValueType | None]:
    """Each dim grows by what is padded before and behind it."""
    data = tensor(ctx, 0)
    pads = integers(ctx, 1, "pads" if "pads" in ctx.attributes else "paddings")
    if pads is None:
        return [declared_tensor(ctx, 0, data.dtype, "the value of its pads")]
    rank = len(data.shape)
    axes = integers(ctx, 3)
    if axes is None and has(ctx, 3):
        return [declared_tensor(ctx, 0, data.dtype, "the value of its axes")]
    if axes is not None:
        axes = axes_of(axes, rank)
    else:
        axes = tuple(range(rank))
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{len(pads)} pads for {len(axes)} dimensions")
    dims = list(data.shape)
    for i, axis in enumerate(axes):
        dims[axis] += pads[i] + pads[i + len(axes)]
    return [TensorType(data.dtype, tuple(dims))]


def split_sizes(ctx: ShapeContext, length: int, parts: int) -> tuple[int, ...] | None:
    """Sizes along the axis: given, or ``length`` over ``parts`` (the last is smaller); None if not known."""
    sizes = integers(ctx, 1, "split")
    if sizes is None:
        if has(ctx, 1):
            return None
        step = -(-length // parts) if parts else 0
        sizes = tuple(max(0, min(step, length - i * step)) for i in range(parts))
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise ShapeError(f"a dimension of {length} cannot be split into {list(sizes)[:8]}")
    return sizes


@shape_rule("Split", host_inputs=(1,), weight_view=True)
def split(ctx: ShapeContext) -> list[ValueType | None]:
    """One output per part."""
    data = tensor(ctx, 0)
    axis = axis_of(int(ctx.attributes.get("axis", 0)), len(data.shape))
    parts = int(ctx.attributes.get("num_outputs", ctx.outputs))
    sizes = split_sizes(ctx, data.shape[axis], parts)
    if sizes is None:
        return [declared_tensor(ctx, i, data.dtype, "the value of its split") for i in range(ctx.outputs)]
    return [TensorType(data.dtype, (*data.shape[:axis], s, *data.shape[axis + 1 :])) for s in sizes]
