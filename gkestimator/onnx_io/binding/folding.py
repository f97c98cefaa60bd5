"""Evaluation of small known values: shape arithmetic, and little constants that exporters leave unevaluated.

An evaluator gets ``(attributes, input values, opset version, output types)`` and returns the output values,
or None where it does not know. The output types are inferred before, so an evaluator is only called when
every output is small (``facts.foldable``); inputs are small because only small values are known. Exact keys
``(domain, op_type)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gkestimator.onnx_io.binding.folding_layout import LAYOUT
from gkestimator.onnx_io.binding.folding_types import numpy_of
from gkestimator.operators.registry import SequenceType, TensorType, ValueType
from gkestimator.operators.sequences import slice_of_shape

Attributes: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Sequence[Any]
Folder: TypeAlias = Callable[[Attributes, Values, int, Sequence[ValueType | None]], "Sequence[Any] | None"]
TypeFolder: TypeAlias = Callable[[Attributes, Sequence[ValueType | None]], "Sequence[Any] | None"]


def _shape(attributes: Attributes, types: Sequence[ValueType | None]) -> Sequence[Any] | None:
    data = types[0]
    if not isinstance(data, TensorType):
        return None
    return [np.array(data.shape[slice_of_shape(attributes, len(data.shape))], dtype=np.int64)]


def _size(attributes: Attributes, types: Sequence[ValueType | None]) -> Sequence[Any] | None:
    data = types[0]
    if isinstance(data, TensorType):
        return [np.array(math.prod(data.shape), dtype=np.int64)]
    return None


def _sequence_length(attributes: Attributes, types: Sequence[ValueType | None]) -> Sequence[Any] | None:
    data = types[0]
    if isinstance(data, SequenceType):
        return [np.array(len(data.elements), dtype=np.int64)]
    return None


def _optional_has(attributes: Attributes, types: Sequence[ValueType | None]) -> Sequence[Any] | None:
    held = types[0] if types else None
    return [
        np.array(
            held is not None and not (isinstance(held, SequenceType) and held.optional and not held.elements)
        )
    ]


TYPE_FOLDERS: dict[tuple[str, str], TypeFolder] = {
    ("", "Shape"): _shape,
    ("", "Size"): _size,
    ("", "SequenceLength"): _sequence_length,
    ("", "OptionalHasElement"): _optional_has,
}
"""Operators whose output value depends on input types alone."""


def _unary(function: Callable[[Any], Any]) -> Folder:
    def fold(
        attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]
    ) -> Sequence[Any]:
        result = np.asarray(function(values[0]))
        if values[0].dtype.kind in "fiu" and result.dtype.kind == "f" and result.dtype != values[0].dtype:
            result = result.astype(values[0].dtype)
        return [result]

    return fold


def _binary(function: Callable[[Any, Any], Any]) -> Folder:
    def fold(
        attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]
    ) -> Sequence[Any]:
        return [np.asarray(function(values[0], values[1]))]

    return fold


def _variadic(function: Callable[[Any, Any], Any]) -> Folder:
    def fold(
        attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]
    ) -> Sequence[Any]:
        result = values[0]
        for value in values[1:]:
            result = function(result, value)
        return [np.asarray(result)]

    return fold


def _div(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    a = values[0]
    b = values[1]
    if a.dtype.kind in "iu":  # ONNX divides integers like C: towards zero
        if not np.all(b):
            return None
        quotient = np.abs(a) // np.abs(b)
        return [(np.sign(a) * np.sign(b) * quotient).astype(a.dtype)]
    return [np.asarray(a / b)]


def _mod(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    a = values[0]
    b = values[1]
    if a.dtype.kind in "iu" and not np.all(b):
        return None
    return [np.asarray(np.fmod(a, b) if attributes.get("fmod") else np.mod(a, b))]


def _pow(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    a = values[0]
    b = values[1]
    if a.dtype.kind in "iu" and b.dtype.kind in "iu" and np.any(b < 0):
        return None
    return [np.asarray(np.power(a, b)).astype(a.dtype)]


def _cast(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    target = types[0]
    dtype = numpy_of(target.dtype) if isinstance(target, TensorType) else None
    if dtype is None or values[0].dtype.kind not in "fiub" or values[0].dtype.names:
        return None
    return [values[0].astype(dtype)]


def _clip(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    if len(values) > 1:
        low = values[1]
    else:
        low = attributes.get("min")
    if len(values) > 2:
        high = values[2]
    else:
        high = attributes.get("max")
    result = values[0]
    if low is not None:
        result = np.maximum(result, np.asarray(low, dtype=result.dtype))
    if high is not None:
        result = np.minimum(result, np.asarray(high, dtype=result.dtype))
    return [np.asarray(result)]


def _where(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    return [np.where(values[0].astype(bool), values[1], values[2])]


def _matmul(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    if max(values[0].size, values[1].size) > 4_096:
        return None
    return [np.asarray(np.matmul(values[0], values[1]))]


def _reduce(function: Callable[..., Any]) -> Folder:
    def fold(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
        if len(values) > 1 and values[1] is not None:
            axes = values[1]
        else:
            axes = attributes.get("axes")
        if axes is None:
            axes = None
        else:
            axes = tuple(int(a) for a in np.ravel(axes))
        if not axes:
            if attributes.get("noop_with_empty_axes"):
                return None
            axes = None
        result = function(values[0], axis=axes, keepdims=bool(attributes.get("keepdims", 1)))
        return [np.asarray(result).astype(values[0].dtype)]

    return fold


def _cumsum(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    axis = int(values[1].reshape(()))
    if attributes.get("reverse"):
        data = np.flip(values[0], axis)
    else:
        data = values[0]
    result = np.cumsum(data, axis=axis, dtype=data.dtype)
    if attributes.get("exclusive"):
        result = result - data
    return [np.flip(result, axis) if attributes.get("reverse") else result]


def _arg(function: Callable[..., Any]) -> Folder:
    def fold(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
        if attributes.get("select_last_index"):
            return None
        axis = int(attributes.get("axis", 0))
        return [
            np.asarray(
                function(values[0], axis=axis, keepdims=bool(attributes.get("keepdims", 1))), dtype=np.int64
            )
        ]

    return fold


def _softmax(attributes: Attributes, values: Values, version: int, types: Sequence[ValueType | None]) -> Any:
    if version < 13:
        return None
    axis = int(attributes.get("axis", -1))
    e = np.exp(values[0] - values[0].max(axis=axis, keepdims=True))
    return [np.asarray(e / e.sum(axis=axis, keepdims=True))]


_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs, "Neg": np.negative, "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log, "Floor": np.floor,
    "Ceil": np.ceil, "Round": np.rint, "Sign": np.sign, "Not": np.logical_not, "Sin": np.sin, "Cos": np.cos,
    "Tan": np.tan, "Tanh": np.tanh, "BitwiseNot": np.bitwise_not, "IsNaN": np.isnan, "Identity": np.asarray,
    "Relu": lambda v: np.maximum(v, v.dtype.type(0)), "Reciprocal": lambda v: v.dtype.type(1) / v,
    "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "Erf": lambda v: np.vectorize(math.erf, otypes=[v.dtype])(v) if v.size else v,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
}

FOLDERS: dict[tuple[str, str], Folder] = {
    **{("", op): _unary(function) for op, function in _UNARY.items()},
    **{
        ("", op): _binary(function)
        for op, function in {
            "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Equal": np.equal, "Less": np.less,
            "Greater": np.greater, "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal,
            "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "BitwiseAnd": np.bitwise_and,
            "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
        }.items()
    },
    **{
        ("", op): _variadic(function)
        for op, function in {"Max": np.maximum, "Min": np.minimum, "Sum": np.add}.items()
    },
    **{("", op): _reduce(function) for op, function in _REDUCTIONS.items()},
    ("", "Div"): _div,
    ("", "Mod"): _mod,
    ("", "Pow"): _pow,
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast,
    ("", "Clip"): _clip,
    ("", "Where"): _where,
    ("", "MatMul"): _matmul,
    ("", "CumSum"): _cumsum,
    ("", "ArgMax"): _arg(np.argmax),
    ("", "ArgMin"): _arg(np.argmin),
    ("", "Softmax"): _softmax,
    **LAYOUT,
}  # fmt: skip
"""Evaluators by ``(domain, op_type)``."""
