"""Give shape rules checked access to inputs, attributes and folded values.

Every accessor raises ShapeError in one line that says what was found and what was expected (whoever asks the rule
names the node); a rule that goes through them cannot fail with an IndexError or a KeyError on a malformed node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.options import spelled
from gkestimator.operators.registry import (
    Outputs,
    SequenceType,
    Shape,
    ShapeContext,
    TensorType,
)

ELEMENT_TYPES = tuple(DType)
"""Every element type in the order of ONNX's TensorProto.DataType, which starts at 1."""
_BY_NUMPY_NAME = {
    "float32": DType.FLOAT,
    "float64": DType.DOUBLE,
    "float8_e4m3fn": DType.FLOAT8E4M3FN,
    "float8_e4m3fnuz": DType.FLOAT8E4M3FNUZ,
    "float8_e5m2": DType.FLOAT8E5M2,
    "float8_e5m2fnuz": DType.FLOAT8E5M2FNUZ,
    "float4_e2m1fn": DType.FLOAT4E2M1,
    "float8_e8m0fnu": DType.FLOAT8E8M0,
}


def has_input(ctx: ShapeContext, index: int) -> bool:
    """Return True if input ``index`` is present and not omitted."""
    return index < len(ctx.types) and ctx.types[index] is not None


def tensor(ctx: ShapeContext, index: int, *, rank: int | None = None, min_rank: int = 0) -> TensorType:
    """Return the type of input ``index``, a tensor of ``rank`` (or at least ``min_rank``) dimensions.

    Raises ShapeError when it is omitted, is a sequence or has another rank.
    """
    if index < len(ctx.types):
        value = ctx.types[index]
    else:
        value = None
    if type(value) is not TensorType:
        if value is None:
            kind = "missing"
        else:
            kind = "a sequence"
        raise ShapeError(f"input {index} is {kind}; a tensor was expected")
    dimensions = len(value.shape)
    if rank is not None and dimensions != rank:
        raise ShapeError(f"input {index} has shape {list(value.shape)}, expected {rank} dimensions")
    if dimensions < min_rank:
        raise ShapeError(
            f"input {index} has shape {list(value.shape)}, expected at least {min_rank} dimensions"
        )
    return value


def optional_tensor(ctx: ShapeContext, index: int, *, rank: int | None = None) -> TensorType | None:
    """Return the type of input ``index``, None when it is omitted; else as :func:`tensor` does."""
    if has_input(ctx, index):
        return tensor(ctx, index, rank=rank)
    return None


def all_tensors(ctx: ShapeContext) -> list[TensorType]:
    """Return the types of all inputs, at least one, which have to be tensors."""
    operands = [tensor(ctx, index) for index in range(len(ctx.types))]
    if not operands:
        raise ShapeError("has no inputs")
    return operands


def sequence(ctx: ShapeContext, index: int) -> SequenceType:
    """Return the type of input ``index``, which has to be a sequence."""
    if index < len(ctx.types):
        value = ctx.types[index]
    else:
        value = None
    if type(value) is SequenceType:
        return value
    if value is None:
        kind = "missing"
    else:
        kind = "a tensor"
    raise ShapeError(f"input {index} is {kind}, expected a sequence")


def same_as_input(ctx: ShapeContext) -> Outputs:
    """Return the type of input 0 for every output."""
    return [tensor(ctx, 0)] * ctx.outputs


def int_attribute(ctx: ShapeContext, name: str, default: int | None = None) -> int:
    """Return an integer attribute; without ``default`` it is required."""
    value = ctx.attributes.get(name)
    if value is None:
        if default is None:
            raise ShapeError(f"attribute {name} is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ShapeError(f"attribute {name} is {value!r}, expected an integer")
    return value


def text_attribute(ctx: ShapeContext, name: str, default: str, *, choices: Sequence[str] = ()) -> str:
    """Return a text attribute, which has to be one of ``choices`` where there are any."""
    value = ctx.attributes.get(name, default)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise ShapeError(f"attribute {name} is {value!r}, expected text")
    if choices and value not in choices:
        raise ShapeError(f"{name} is {value!r}, expected one of {', '.join(filter(None, choices))}")
    return value


def ints_attribute(
    ctx: ShapeContext, name: str, *, length: int | None = None, low: int | None = None
) -> Shape | None:
    """Return ``length`` integers of at least ``low``; None when the attribute is absent or empty."""
    value = ctx.attributes.get(name)
    if value is None or len(value) == 0:
        return None
    if not all(isinstance(v, int) for v in value):
        raise ShapeError(f"attribute {name} is {list(value)}, expected integers")
    if length is not None and len(value) != length:
        raise ShapeError(f"attribute {name} has {len(value)} items, expected {length}")
    if low is not None and min(value) < low:
        raise ShapeError(f"attribute {name} is {list(value)}, expected items of at least {low}")
    return tuple(value)


def dtype_attribute(ctx: ShapeContext, name: str, default: DType | None = None) -> DType:
    """Return the element type that attribute ``name`` names by ONNX's number (0 and absent mean ``default``)."""
    code = int_attribute(ctx, name, 0)
    if code == 0 and default is not None:
        return default
    if not 1 <= code <= len(ELEMENT_TYPES):
        raise ShapeError(
            f"attribute {name} is {code}, expected an element type from 1 to {len(ELEMENT_TYPES)}"
        )
    return ELEMENT_TYPES[code - 1]


def dtype_of_array(array: object) -> DType:
    """Return the element type of a tensor attribute's array (strings come as objects or unicode)."""
    if not isinstance(array, np.ndarray):
        raise ShapeError(f"found {type(array).__name__}, expected a tensor attribute")
    if array.dtype.kind in "OUS":
        return DType.STRING
    name = array.dtype.name
    known = _BY_NUMPY_NAME.get(name)
    if known is not None:
        return known
    try:
        return DType(name)
    except ValueError as e:
        raise ShapeError(f"unknown element type {name} of a tensor attribute") from e


def constant(ctx: ShapeContext, index: int) -> np.ndarray | None:
    """Return the folded value of input ``index``; None when it is omitted or not constant."""
    if index < len(ctx.values):
        return ctx.values[index]
    return None


def constant_ints(ctx: ShapeContext, index: int, attribute: str = "") -> Shape | None:
    """Return the integers of input ``index``, flattened, or of ``attribute`` in older opsets; None when unknown.

    Use :func:`has_input` to tell an absent input from one whose value is not known.
    """
    if has_input(ctx, index):
        value = constant(ctx, index)
        if value is None:
            return None
        return tuple([int(v) for v in np.ravel(value).tolist()])
    if not attribute:
        return None
    named = ctx.attributes.get(attribute)
    if named is None:
        return None
    if isinstance(named, tuple):
        return named
    return (int(named),)


def constant_int(ctx: ShapeContext, index: int) -> int | None:
    """Return the folded value of input ``index`` as one integer; None when it is omitted or not constant."""
    values = constant_ints(ctx, index)
    if values is None:
        return None
    if len(values) != 1:
        raise ShapeError(f"input {index} has {len(values)} elements, expected one")
    return values[0]


def constant_floats(ctx: ShapeContext, index: int) -> tuple[float, ...] | None:
    """Return the folded value of input ``index`` as numbers, flattened; None when it is omitted or not constant."""
    value = constant(ctx, index)
    if value is None:
        return None
    return tuple([float(v) for v in np.ravel(value).tolist()])


def declared_tensor(
    ctx: ShapeContext, output: int, dtype: DType, *, rank: int | None, most: Shape | None = None
) -> TensorType | None:
    """Return what the file declares of ``output`` when every dimension is a number, else None.

    None too where it cannot be: with another number of dimensions than ``rank``, or with one beyond ``most``.
    """
    if output >= len(ctx.declared):
        return None
    declared = ctx.declared[output]
    if declared is None or declared.shape is None:
        return None
    if rank is not None and len(declared.shape) != rank:
        return None
    sizes = []
    for size in declared.shape:
        # A name, or nothing at all, leaves the size open.
        if not isinstance(size, int) or size < 0:
            return None
        sizes.append(size)
    if most is not None and any(size > bound for size, bound in zip(sizes, most, strict=True)):
        return None
    return TensorType(dtype, tuple(sizes))


def unknown_value(
    ctx: ShapeContext, index: int, what: str, dtype: DType, *, output: int = 0, rank: int | None
) -> TensorType:
    """Return the declared type of ``output``, whose shape hangs on the unknown value ``what`` of input ``index``.

    Raises ShapeError where the file does not declare it with ``rank`` dimensions (None: any number).
    """
    declared = declared_tensor(ctx, output, dtype, rank=rank)
    if declared is not None:
        return declared
    raise ShapeError(
        f"the output's shape depends on input {index} ({what}), which is not a constant "
        "and not known before the model runs (where inputs decide it, an estimate takes their values: "
        + spelled("inputs={'NAME': value})", "--input NAME=VALUE)")
    )


def regrouped(ctx: ShapeContext, what: str, rank: int | None) -> TensorType:
    """Return the declared type of a result with the elements of the data, whose shape hangs on the unknown ``what``."""
    data = tensor(ctx, 0)
    declared = unknown_value(ctx, 1, what, data.dtype, rank=rank)
    had, has = math.prod(data.shape), math.prod(declared.shape)
    if has > had or (has < had and not data.bounded):
        raise ShapeError(f"{data} ({had} elements) cannot become {declared}, as declared")
    return declared


def length_of(ctx: ShapeContext, index: int) -> int:
    """Return the number of values in input ``index``, a list of sizes or axes whose values need not be known."""
    return math.prod(tensor(ctx, index).shape)


def axis_of(axis: int, rank: int, *, what: str = "axis") -> int:
    """Return ``axis`` counted from the front. Raises ShapeError outside ``rank`` dimensions."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} {axis} is outside {rank} dimensions")
    if axis < 0:
        return axis + rank
    return axis


def axes_of(axes: Iterable[int], rank: int) -> Shape:
    """Return ``axes`` counted from the front. Raises ShapeError when one is outside ``rank`` dimensions."""
    return tuple([axis_of(axis, rank) for axis in axes])


def axis_attribute(ctx: ShapeContext, default: int, rank: int, name: str = "axis") -> int:
    """Return the attribute ``name`` as an axis counted from the front."""
    return axis_of(int_attribute(ctx, name, default), rank, what=name)


def broadcast(*shapes: Sequence[int]) -> Shape:
    """Return the shape that ``shapes`` broadcast to by NumPy's rules; ShapeError when they do not."""
    first = shapes[0]
    if all(shape == first for shape in shapes[1:]):
        return tuple(first)
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if size == 1 or size == result[place]:
                continue
            if result[place] != 1:
                listed = " and ".join([str(list(s)) for s in shapes])
                raise ShapeError(f"shapes {listed} do not broadcast")
            result[place] = size
    return tuple(result)


def without_axes(shape: Shape, axes: Iterable[int], keep: bool) -> Shape:
    """Return ``shape`` with ``axes`` reduced: they become 1 where dimensions are kept, else they vanish."""
    sizes = list(shape)
    for axis in sorted(axes, reverse=True):
        if keep:
            sizes[axis] = 1
        else:
            del sizes[axis]
    return tuple(sizes)


def with_sizes(shape: Shape, axis: int, *sizes: int) -> Shape:
    """Return ``shape`` with ``sizes`` in place of its dimension ``axis``."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def channels_first(shape: Shape) -> Shape:
    """Return (N, C, spatial) of (N, spatial, C)."""
    return (shape[0], shape[-1], *shape[1:-1])


def joined(shapes: Sequence[Shape], axis: int) -> Shape:
    """Return the shape of tensors of ``shapes`` joined along ``axis``; all other sizes have to agree."""
    first = shapes[0]
    before = first[:axis]
    behind = first[axis + 1 :]
    total = 0
    for shape in shapes:
        alike = len(shape) == len(first) and shape[:axis] == before
        if not alike or shape[axis + 1 :] != behind:
            raise ShapeError(f"{list(first)} and {list(shape)} cannot be joined along axis {axis}")
        total += shape[axis]
    return (*before, total, *behind)
