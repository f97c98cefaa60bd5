"""Evaluate small known values: shape arithmetic, and little constants that exporters leave unevaluated.

An evaluator gets a :class:`KnownInputs` and returns the value of the only output, a list of all outputs' values, or
None where it does not know. The output types are inferred before, so an evaluator is only called when every
output is small (``facts.foldable``); inputs are small because only small values are known. Exact keys
``(domain, op_type)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gkestimator.core.dtypes import NUMPY_NAMES
from gkestimator.onnx_io.binding.facts import Types
from gkestimator.operators.registry import SequenceType, TensorType
from gkestimator.operators.sequences import slice_of_shape


class KnownInputs(NamedTuple):
    """Hold a node whose input values are known: a tuple of arrays for a sequence, None for an input left out."""

    attributes: Mapping[str, Any]
    values: Sequence[Any]
    version: int
    types: Types

    @property
    def data(self) -> Any:
        """Return the first input."""
        return self.values[0]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Return the shape of the first output, None where it is a sequence."""
        target = self.types[0]
        if isinstance(target, TensorType):
            return target.shape
        return None

    def input(self, index: int, attribute: str = "", default: Any = None) -> Any:
        """Return an input; where it is left out, the attribute that older opsets have for it."""
        if index < len(self.values) and self.values[index] is not None:
            return self.values[index]
        return self.attributes.get(attribute, default)

    def numbers(self, index: int, attribute: str) -> list[int] | None:
        """Return an input of whole numbers, or the attribute that older opsets have for it."""
        numbers = self.input(index, attribute)
        if numbers is None:
            return None
        return [int(v) for v in np.ravel(numbers)]

    def axis(self, default: int = 0) -> int:
        """Return the attribute ``axis``."""
        return int(self.attributes.get("axis", default))

    def scalar(self, index: int) -> int:
        """Return the number in a one-element input."""
        return int(self.values[index].reshape(()))


Folder: TypeAlias = Callable[[KnownInputs], Any]
TypeFolder: TypeAlias = Callable[[Mapping[str, Any], Types], Any]


def _shape(attributes: Mapping[str, Any], types: Types) -> Any:
    data = types[0]
    if not isinstance(data, TensorType):
        return None
    return np.array(data.shape[slice_of_shape(attributes, len(data.shape))], dtype=np.int64)


def _size(attributes: Mapping[str, Any], types: Types) -> Any:
    data = types[0]
    if isinstance(data, TensorType):
        return np.array(math.prod(data.shape), dtype=np.int64)
    return None


def _sequence_length(attributes: Mapping[str, Any], types: Types) -> Any:
    data = types[0]
    if isinstance(data, SequenceType):
        return np.array(len(data.elements), dtype=np.int64)
    return None


def _optional_has(attributes: Mapping[str, Any], types: Types) -> Any:
    if types:
        held = types[0]
    else:
        held = None
    if isinstance(held, SequenceType) and held.optional:
        return np.array(bool(held.elements))
    return np.array(held is not None)


TYPE_FOLDERS: dict[tuple[str, str], TypeFolder] = {
    ("", "Shape"): _shape,
    ("", "Size"): _size,
    ("", "SequenceLength"): _sequence_length,
    ("", "OptionalHasElement"): _optional_has,
}
"""Operators whose output value depends on input types alone."""


def _unary(function: Callable[[Any], Any]) -> Folder:
    def fold(known: KnownInputs) -> Any:
        kind = known.data.dtype
        result = np.asarray(function(known.data))
        if kind.kind in "fiu" and result.dtype.kind == "f":
            return result.astype(kind)
        return result

    return fold


def _variadic(function: Callable[[Any, Any], Any]) -> Folder:
    def fold(known: KnownInputs) -> Any:
        result = known.data
        for value in known.values[1:]:
            result = function(result, value)
        return result

    return fold


def _are_integers(*values: Any) -> bool:
    return all(value.dtype.kind in "iu" for value in values)


def _div(known: KnownInputs) -> Any:
    a, b = known.values
    if not _are_integers(a):
        return a / b
    if not np.all(b):
        return None
    # ONNX divides integers like C: towards zero.
    quotient = np.abs(a) // np.abs(b)
    return (np.sign(a) * np.sign(b) * quotient).astype(a.dtype)


def _mod(known: KnownInputs) -> Any:
    a, b = known.values
    if _are_integers(a) and not np.all(b):
        return None
    if known.attributes.get("fmod"):
        return np.fmod(a, b)
    return np.mod(a, b)


def _pow(known: KnownInputs) -> Any:
    a, b = known.values
    if _are_integers(a, b) and np.any(b < 0):
        return None
    return np.power(a, b).astype(a.dtype)


def _cast(known: KnownInputs) -> Any:
    target = known.types[0]
    data = known.data
    if not isinstance(target, TensorType) or data.dtype.kind not in "fiub" or data.dtype.names:
        return None
    name = NUMPY_NAMES.get(target.dtype, "complex")
    if name.startswith("complex"):
        return None
    return data.astype(name)


def _clip(known: KnownInputs) -> Any:
    result = known.data
    low = known.input(1, "min")
    high = known.input(2, "max")
    if low is not None:
        result = np.maximum(result, np.asarray(low, dtype=result.dtype))
    if high is not None:
        result = np.minimum(result, np.asarray(high, dtype=result.dtype))
    return result


def _where(known: KnownInputs) -> Any:
    condition, chosen, other = known.values
    return np.where(condition.astype(bool), chosen, other)


def _matmul(known: KnownInputs) -> Any:
    a, b = known.values
    if max(a.size, b.size) > 4_096:
        return None
    return np.matmul(a, b)


def _reduce(function: Callable[..., Any]) -> Folder:
    def fold(known: KnownInputs) -> Any:
        attributes = known.attributes
        axes = known.numbers(1, "axes")
        if not axes and attributes.get("noop_with_empty_axes"):
            return None
        if axes:
            chosen = tuple(axes)
        else:
            chosen = None
        result = function(known.data, axis=chosen, keepdims=bool(attributes.get("keepdims", 1)))
        return result.astype(known.data.dtype)

    return fold


def _cumsum(known: KnownInputs) -> Any:
    axis = known.scalar(1)
    data = known.data
    reverse = known.attributes.get("reverse")
    if reverse:
        data = np.flip(data, axis)
    result = np.cumsum(data, axis=axis, dtype=data.dtype)
    if known.attributes.get("exclusive"):
        result = result - data
    if reverse:
        return np.flip(result, axis)
    return result


def _arg(function: Callable[..., Any]) -> Folder:
    def fold(known: KnownInputs) -> Any:
        attributes = known.attributes
        if attributes.get("select_last_index"):
            return None
        place = function(known.data, axis=known.axis(), keepdims=bool(attributes.get("keepdims", 1)))
        return place.astype(np.int64)

    return fold


def _softmax(known: KnownInputs) -> Any:
    if known.version < 13:
        return None
    axis = known.axis(-1)
    powers = np.exp(known.data - known.data.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _to_inferred_shape(known: KnownInputs) -> Any:
    """Reshape, flatten, squeeze or unsqueeze: the shape rule has said what comes out."""
    if known.shape is None:
        return None
    return known.data.reshape(known.shape)


def _transpose(known: KnownInputs) -> Any:
    return np.transpose(known.data, known.attributes.get("perm") or None)


def _gather(known: KnownInputs) -> Any:
    return np.take(known.data, known.values[1], axis=known.axis())


def _gather_elements(known: KnownInputs) -> Any:
    return np.take_along_axis(known.data, known.values[1].astype(np.int64), axis=known.axis())


def _gather_nd(known: KnownInputs) -> Any:
    if known.attributes.get("batch_dims"):
        return None
    places = np.moveaxis(known.values[1].astype(np.int64), -1, 0)
    return known.data[tuple(places)]


def _slice(known: KnownInputs) -> Any:
    starts = known.numbers(1, "starts")
    ends = known.numbers(2, "ends")
    axes = known.numbers(3, "axes")
    steps = known.numbers(4, "steps")
    if starts is None or ends is None:
        return None
    data = known.data
    where = [slice(None)] * data.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if steps:
            step = steps[i]
        else:
            step = 1
        if axes:
            axis = axes[i]
        else:
            axis = i
        stop: int | None = end
        if step < 0 and end < -data.shape[axis]:
            stop = None  # Python has no other way to say "down to the first element"
        where[axis] = slice(start, stop, step)
    return data[tuple(where)]


def _expand(known: KnownInputs) -> Any:
    if known.shape is None:
        return None
    return np.broadcast_to(known.data, known.shape).copy()


def _tile(known: KnownInputs) -> Any:
    if known.version < 6:
        return None
    return np.tile(known.data, tuple(map(int, known.values[1])))


def _constant_of_shape(known: KnownInputs) -> Any:
    value = known.attributes.get("value")
    if known.shape is None:
        return None
    if value is None:
        return np.zeros(known.shape, dtype=np.float32)
    return np.full(known.shape, value.reshape(-1)[0], dtype=value.dtype)


def _range(known: KnownInputs) -> Any:
    if known.shape is None:
        return None
    start, _, delta = (v.reshape(()) for v in known.values[:3])
    steps = np.arange(known.shape[0], dtype=start.dtype)
    return (start + steps * delta).astype(start.dtype)


def _pad(known: KnownInputs) -> Any:
    if known.attributes.get("mode", "constant") != "constant" or known.input(3) is not None:
        return None
    pads = known.numbers(1, "pads")
    if pads is None or min(pads, default=0) < 0:
        return None
    data = known.data
    fill = np.ravel(known.input(2, "value", 0))[0]
    widths = list(zip(pads[: data.ndim], pads[data.ndim :], strict=True))
    return np.pad(data, widths, constant_values=fill)


def _pieces(data: Any, sizes: list[int], axis: int) -> list[Any]:
    return np.split(data, np.cumsum(sizes)[:-1], axis=axis)


def _split(known: KnownInputs) -> Any:
    axis = known.axis()
    sizes = [t.shape[axis] if isinstance(t, TensorType) else 0 for t in known.types]
    return _pieces(known.data, sizes, axis)


def _split_to_sequence(known: KnownInputs) -> Any:
    target = known.types[0]
    if not isinstance(target, SequenceType) or not target.elements:
        return None
    axis = known.axis()
    sizes = [1] * len(target.elements)
    if known.input(1) is not None:
        sizes = [t.shape[axis] for t in target.elements]
    pieces = _pieces(known.data, sizes, axis)
    return tuple(p.reshape(t.shape).copy() for p, t in zip(pieces, target.elements, strict=True))


def _sequence_construct(known: KnownInputs) -> Any:
    return tuple(v.copy() for v in known.values)


def _sequence_at(known: KnownInputs) -> Any:
    return known.data[known.scalar(1)]


def _concat_from_sequence(known: KnownInputs) -> Any:
    join: Callable[..., Any] = np.concatenate
    if known.attributes.get("new_axis"):
        join = np.stack
    return join(known.data, axis=int(known.attributes["axis"]))


def _optional_get(known: KnownInputs) -> Any:
    if isinstance(known.data, tuple) and known.shape is not None:
        return known.data[0]
    return known.data


def _trilu(known: KnownInputs) -> Any:
    shift = 0
    if known.input(1) is not None:
        shift = known.scalar(1)
    if known.attributes.get("upper", 1):
        return np.triu(known.data, shift)
    return np.tril(known.data, shift)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs, "Neg": np.negative, "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log, "Floor": np.floor,
    "Ceil": np.ceil, "Round": np.rint, "Sign": np.sign, "Not": np.logical_not, "Sin": np.sin, "Cos": np.cos,
    "Tan": np.tan, "Tanh": np.tanh, "BitwiseNot": np.bitwise_not, "IsNaN": np.isnan, "Identity": np.asarray,
    "Relu": lambda v: np.maximum(v, v.dtype.type(0)), "Reciprocal": lambda v: v.dtype.type(1) / v,
    "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "Erf": lambda v: np.vectorize(math.erf, otypes=[v.dtype])(v) if v.size else v,
}  # fmt: skip
_VARIADIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Equal": np.equal, "Less": np.less,
    "Greater": np.greater, "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor, "Max": np.maximum, "Min": np.minimum, "Sum": np.add,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
}
_OTHERS: dict[str, Folder] = {
    "Div": _div,
    "Mod": _mod,
    "Pow": _pow,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "Where": _where,
    "MatMul": _matmul,
    "CumSum": _cumsum,
    "ArgMax": _arg(np.argmax),
    "ArgMin": _arg(np.argmin),
    "Softmax": _softmax,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _to_inferred_shape),
    "Transpose": _transpose,
    "Concat": lambda known: np.concatenate(known.values, axis=known.axis(1)),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Pad": _pad,
    "Split": _split,
    "SplitToSequence": _split_to_sequence,
    "SequenceConstruct": _sequence_construct,
    "SequenceAt": _sequence_at,
    "ConcatFromSequence": _concat_from_sequence,
    "OptionalGetElement": _optional_get,
    "Trilu": _trilu,
}
FOLDERS: dict[tuple[str, str], Folder] = {("", op): folder for op, folder in _OTHERS.items()}
"""Evaluators by ``(domain, op_type)``."""
for _table, _make in ((_UNARY, _unary), (_VARIADIC, _variadic), (_REDUCTIONS, _reduce)):
    for _op, _function in _table.items():
        FOLDERS["", _op] = _make(_function)
