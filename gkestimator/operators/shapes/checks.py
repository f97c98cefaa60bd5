"""What the extended shape rules share: checked access to inputs, attributes and folded values.

Every accessor raises ShapeError in one line that names the operator type, what was found and what was
expected; a rule that goes through them cannot fail with an IndexError or a KeyError on a malformed node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NoReturn, TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.operators.shapes.registry import SequenceType, ShapeContext, TensorType, ValueType

Outputs: TypeAlias = "Sequence[ValueType | None]"

_DTYPES = tuple(DType)  # in the order of ONNX's TensorProto.DataType, which starts at 1
_NUMPY_NAMES = {"float32": DType.FLOAT, "float64": DType.DOUBLE, "object": DType.STRING}


def refuse(ctx: ShapeContext, text: str) -> NoReturn:
    """Raise ShapeError with the operator's name before ``text``."""
    if ctx.domain:
        name = f"{ctx.domain}.{ctx.op_type}"
    else:
        name = ctx.op_type
    raise ShapeError(f"{name}: {text}")


def has_input(ctx: ShapeContext, index: int) -> bool:
    """True if input ``index`` is present and not omitted."""
    return index < len(ctx.types) and ctx.types[index] is not None


def optional_tensor(ctx: ShapeContext, index: int) -> TensorType | None:
    """Input ``index`` as a tensor, or None when it is omitted. Raises ShapeError for a sequence."""
    if index < len(ctx.types):
        found = ctx.types[index]
    else:
        found = None
    if found is None or isinstance(found, TensorType):
        return found
    refuse(ctx, f"input {index} is a sequence, expected a tensor")


def tensor(ctx: ShapeContext, index: int, *, rank: int | None = None, min_rank: int = 0) -> TensorType:
    """Input ``index``, which has to be a tensor of ``rank`` (or at least ``min_rank``) dimensions."""
    found = optional_tensor(ctx, index)
    if found is None:
        refuse(ctx, f"input {index} is missing")
    if rank is not None and len(found.shape) != rank:
        refuse(ctx, f"input {index} has shape {list(found.shape)}, expected {rank} dimensions")
    if len(found.shape) < min_rank:
        refuse(ctx, f"input {index} has shape {list(found.shape)}, expected at least {min_rank} dimensions")
    return found


def sequence(ctx: ShapeContext, index: int) -> SequenceType:
    """Input ``index``, which has to be a sequence."""
    if index < len(ctx.types):
        found = ctx.types[index]
    else:
        found = None
    if isinstance(found, SequenceType):
        return found
    refuse(ctx, f"input {index} is {'missing' if found is None else 'a tensor'}, expected a sequence")


def same_as_input(ctx: ShapeContext) -> Outputs:
    """Every output has the dtype and shape of input 0."""
    return [tensor(ctx, 0)] * ctx.outputs


def int_attribute(ctx: ShapeContext, name: str, default: int | None = None) -> int:
    """An integer attribute; without ``default`` it is required."""
    found = ctx.attributes.get(name)
    if found is None:
        if default is None:
            refuse(ctx, f"attribute {name} is missing")
        return default
    if isinstance(found, bool) or not isinstance(found, int):
        refuse(ctx, f"attribute {name} is {found!r}, expected an integer")
    return found


def float_attribute(ctx: ShapeContext, name: str, default: float) -> float:
    """A number attribute."""
    found = ctx.attributes.get(name, default)
    if not isinstance(found, (int, float)) or not math.isfinite(found):
        refuse(ctx, f"attribute {name} is {found!r}, expected a finite number")
    return float(found)


def text_attribute(ctx: ShapeContext, name: str, default: str) -> str:
    """A text attribute."""
    found = ctx.attributes.get(name, default)
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    if not isinstance(found, str):
        refuse(ctx, f"attribute {name} is {found!r}, expected text")
    return found


def ints_attribute(
    ctx: ShapeContext,
    name: str,
    *,
    length: int | None = None,
    default: Iterable[int] | None = None,
    low: int | None = None,
) -> tuple[int, ...] | None:
    """``length`` integers of at least ``low``; ``default`` (or None) when absent or empty."""
    found = ctx.attributes.get(name)
    if found is None or len(found) == 0:
        if default is None:
            return None
        return tuple(default)
    if not all(isinstance(v, int) for v in found):
        refuse(ctx, f"attribute {name} is {list(found)}, expected integers")
    values = tuple(found)
    if length is not None and len(values) != length:
        refuse(ctx, f"attribute {name} has {len(values)} items, expected {length}")
    if low is not None and min(values) < low:
        refuse(ctx, f"attribute {name} is {list(values)}, expected items of at least {low}")
    return values


def dtype_attribute(ctx: ShapeContext, name: str, default: DType | None = None) -> DType:
    """The element type that attribute ``name`` names by ONNX's number (0 and absent mean ``default``)."""
    code = int_attribute(ctx, name, 0)
    if code == 0 and default is not None:
        return default
    if not 1 <= code <= len(_DTYPES):
        refuse(ctx, f"attribute {name} is {code}, expected an element type from 1 to {len(_DTYPES)}")
    return _DTYPES[code - 1]


def dtype_of_array(ctx: ShapeContext, array: object) -> DType:
    """The element type of a tensor attribute's array (strings come as objects or unicode)."""
    if not isinstance(array, np.ndarray):
        refuse(ctx, f"found {type(array).__name__}, expected a tensor attribute")
    if array.dtype.kind in "OUS":
        return DType.STRING
    name = array.dtype.name
    if name in _NUMPY_NAMES:
        return _NUMPY_NAMES[name]
    try:
        return DType(name)
    except ValueError as e:
        raise ShapeError(f"{ctx.op_type}: unknown element type {name} of a tensor attribute") from e


def constant_ints(ctx: ShapeContext, index: int) -> tuple[int, ...] | None:
    """The folded value of input ``index`` as integers, flattened; None when it is omitted or not constant."""
    if index < len(ctx.values):
        value = ctx.values[index]
    else:
        value = None
    if value is None:
        return None
    return tuple(int(v) for v in np.asarray(value).reshape(-1).tolist())


def constant_int(ctx: ShapeContext, index: int) -> int | None:
    """The folded value of input ``index`` as one integer; None when it is omitted or not constant."""
    values = constant_ints(ctx, index)
    if values is None:
        return None
    if len(values) != 1:
        refuse(ctx, f"input {index} has {len(values)} elements, expected one")
    return values[0]


def declared_tensor(
    ctx: ShapeContext, output: int, dtype: DType, *, rank: int | None = None
) -> TensorType | None:
    """What the file declares of ``output`` when every dimension is a number, else None."""
    if output < len(ctx.declared):
        found = ctx.declared[output]
    else:
        found = None
    if found is None or found.shape is None:
        return None
    shape = tuple(d for d in found.shape if isinstance(d, int) and d >= 0)
    if len(shape) != len(found.shape) or (rank is not None and len(shape) != rank):
        return None
    return TensorType(dtype, shape)


def unknown_value(
    ctx: ShapeContext, index: int, what: str, dtype: DType, *, output: int = 0, rank: int | None = None
) -> TensorType:
    """The declared type of ``output``, whose shape hangs on the unknown value ``what`` of input ``index``."""
    found = declared_tensor(ctx, output, dtype, rank=rank)
    if found is None:
        refuse(ctx, f"the output's shape depends on input {index} ({what}), which is not a constant")
    return found


def axis_of(ctx: ShapeContext, axis: int, rank: int, *, what: str = "axis") -> int:
    """``axis`` counted from the front. Raises ShapeError outside [-rank, rank - 1]."""
    if not -rank <= axis < rank:
        refuse(ctx, f"{what} is {axis}, expected {-rank} to {rank - 1}")
    return axis % rank


def broadcast(ctx: ShapeContext, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of ``shapes`` by NumPy's rules."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if size == 1 or size == result[place]:
                continue
            if result[place] != 1:
                refuse(ctx, f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
            result[place] = size
    return tuple(result)


def matmul_shape(ctx: ShapeContext, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the matrix product of ``a`` and ``b`` by NumPy's rules, one-dimensional operands included."""
    if not a or not b:
        refuse(ctx, "a scalar has no matrix product")
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    if left[-1] != right[-2]:
        refuse(ctx, f"inner dimensions of {list(a)} and {list(b)} differ")
    if len(left) > 2 or len(right) > 2:
        batch = broadcast(ctx, left[:-2], right[:-2])
    else:
        batch = ()
    if len(a) == 1:
        rows = ()
    else:
        rows = (left[-2],)
    if len(b) == 1:
        columns = ()
    else:
        columns = (right[-1],)
    return (*batch, *rows, *columns)
