"""Write operators plainly in NumPy where ONNX's own evaluator cannot be counted.

The evaluator loops over Python numbers, calls a library, or takes a longer way than any kernel would (masks instead
of a selection, a sigmoid for each sign). Each function here takes the operator's inputs in their order (None where
omitted) and its attributes, and returns the first output. Its values are compared with the outputs that ONNX stores
before its operations are believed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["CASES_LEFT_OUT", "REFERENCES", "layer_norm", "sigmoid", "windows"]


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def windows(x: Any, size: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Any:
    """Return (batch, channels, results, window) of unpadded windows over the dimensions after the first two."""
    axes = tuple(range(2, x.ndim))
    view = np.lib.stride_tricks.sliding_window_view(x, size, axes, subok=True)
    steps = strides or (1,) * len(size)
    return view[(slice(None), slice(None), *(slice(None, None, step) for step in steps))]


def _window_axes(x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim, 2 * x.ndim - 2))


def _max_pool(x: Any, *, kernel_shape: Any, strides: Any = None) -> Any:
    return np.max(windows(x, tuple(kernel_shape), strides), axis=_window_axes(x))


def _average_pool(x: Any, *, kernel_shape: Any, strides: Any = None) -> Any:
    total = np.sum(windows(x, tuple(kernel_shape), strides), axis=_window_axes(x))
    return total / int(np.prod(kernel_shape))


def _lp_pool(x: Any, *, kernel_shape: Any, strides: Any = None, p: int = 2) -> Any:
    chosen = windows(x, tuple(kernel_shape), strides)
    return np.sum(np.abs(chosen) ** float(p), axis=_window_axes(x)) ** (1 / p)


def _batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, *, epsilon: float = 1e-5, **_: Any
) -> Any:
    factor = scale / np.sqrt(var + epsilon)
    shape = (-1,) + (1,) * (x.ndim - 2)
    return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)


def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5) -> Any:
    """Return (x - mean) / sqrt(variance + epsilon) over all dimensions from ``axis`` on, scaled and shifted."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - np.mean(x, axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + epsilon)
    result = centred * inverse
    result = result if scale is None else result * scale
    return result if bias is None else result + bias


def _mean_variance_norm(x: Any, *, axes: Any = (0, 2, 3)) -> Any:
    centred = x - np.mean(x, axis=tuple(axes), keepdims=True)
    deviation = np.sqrt(np.mean(centred * centred, axis=tuple(axes), keepdims=True))
    return centred * (1 / (deviation + 1e-9))


def _lp_norm(x: Any, *, axis: int = -1, p: int = 2) -> Any:
    if p == 1:
        return x / np.sum(np.abs(x), axis=axis, keepdims=True)
    return x / np.sqrt(np.sum(x * x, axis=axis, keepdims=True))


def _lrn(x: Any, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    before, after = (size - 1) // 2, size // 2
    padded = np.pad(np.asarray(x), [(0, 0), (before, after), (0, 0), (0, 0)]).view(type(x))
    near = np.lib.stride_tricks.sliding_window_view(padded, size, 1, subok=True)
    squares = np.sum(near * near, axis=-1)
    return x / (bias + alpha / size * squares) ** beta


def _determinant(x: Any) -> Any:
    if x.ndim > 2:
        return np.stack([_determinant(matrix) for matrix in x])
    rows = [[x[i, j] for j in range(x.shape[1])] for i in range(x.shape[0])]
    product = None
    for k, pivots in enumerate(rows):
        product = pivots[k] if product is None else product * pivots[k]
        for row in rows[k + 1 :]:
            factor = row[k] / pivots[k]
            for j in range(k + 1, len(row)):
                row[j] = row[j] - factor * pivots[j]
    return product


def _nll_loss(x: Any, target: Any, weight: Any = None, *, reduction: bytes = b"mean") -> Any:
    target = np.asarray(target)
    loss = -np.take_along_axis(x, target[:, None], axis=1)[:, 0]
    if weight is not None:
        chosen = weight[target]
        loss = loss * chosen
    if reduction == b"none":
        return loss
    if reduction == b"sum":
        return np.sum(loss)
    return np.sum(loss) / (target.size if weight is None else np.sum(chosen))


def _one_hot(indices: Any, depth: Any, values: Any, *, axis: int = -1) -> Any:
    count = int(np.reshape(np.asarray(depth), ()))
    place = axis % (indices.ndim + 1)
    shape = [1] * (indices.ndim + 1)
    shape[place] = count
    return np.where(np.expand_dims(indices, place) == np.arange(count).reshape(shape), values[1], values[0])


def _eye_like(x: Any, *, k: int = 0, **_: Any) -> Any:
    rows, columns = x.shape
    numbers = np.arange(max(rows, columns) + abs(k)).view(type(x))
    return numbers[:rows, None] == np.arange(-k, columns - k)


def _range(start: Any, limit: Any, delta: Any) -> Any:
    count = int(np.ceil((np.asarray(limit) - np.asarray(start)) / np.asarray(delta)))
    return start + np.arange(count).view(type(start)) * delta


def _shrink(x: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


def _is_inf(x: Any, *, detect_positive: int = 1, detect_negative: int = 1) -> Any:
    if detect_positive and detect_negative:
        return np.isinf(x)
    return x == (np.inf if detect_positive else -np.inf)


def _shift(x: Any, y: Any, *, direction: bytes) -> Any:
    return np.left_shift(x, y) if direction == b"LEFT" else np.right_shift(x, y)


def _instance_norm(x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> Any:
    shape = (-1,) + (1,) * (x.ndim - 2)
    return layer_norm(x, scale.reshape(shape), bias.reshape(shape), axis=2, epsilon=epsilon)


REFERENCES: dict[str, Callable[..., Any]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "BitShift": _shift,
    "Det": _determinant,
    "EyeLike": _eye_like,
    "Hardmax": lambda x, *, axis=-1: x == np.max(x, axis=axis, keepdims=True),
    "InstanceNormalization": _instance_norm,
    "IsInf": _is_inf,
    "LRN": _lrn,
    "LeakyRelu": lambda x, *, alpha=0.01: np.where(x > 0, x, alpha * x),
    "LpNormalization": _lp_norm,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MeanVarianceNormalization": _mean_variance_norm,
    "NegativeLogLikelihoodLoss": _nll_loss,
    "OneHot": _one_hot,
    "Range": _range,
    "Shrink": _shrink,
    "Sigmoid": sigmoid,
    "Sum": lambda *operands: functools.reduce(np.add, operands),
    "Where": lambda condition, a, b: np.where(condition != 0, a, b),
}

# op_type: (part of the names of ONNX's cases that are not counted, reason)
CASES_LEFT_OUT: dict[str, tuple[tuple[str, ...], str]] = {
    "ArgMax": (("select_last",), "the evaluator flips the axis and subtracts; the kernel compares with >="),
    "ArgMin": (("select_last",), "the evaluator flips the axis and subtracts; the kernel compares with >="),
    "AveragePool": (("pad", "same", "ceil", "dilations"), "padding and dilation are counted as full windows"),
    "BatchNormalization": (("training_mode",), "the evaluator is counted for these"),
    "Clip": (("default",), "with one bound the kernel compares with the type's extreme as the other"),
    "DequantizeLinear": (("e4m3", "e5m2", "int4", "int2", "float4"), "NumPy has no such element type"),
    "Det": (("2d",), "its first pivot is zero; the reference does not exchange rows"),
    "Div": (("int",), "whole numbers: the instruction truncates, NumPy needs a correction"),
    "Hardmax": (("one_hot",), "equal maxima: the reference marks them all"),
    "InstanceNormalization": (("example",), "rows of three elements: the row's own part outweighs"),
    "LpNormalization": (("l2normalization_axis_0",), "a row of zeros, which the reference divides by zero"),
    "LpPool": (("pads", "same", "dilations"), "padding and dilation are counted as full windows"),
    "MaxPool": (("pad", "same", "ceil", "dilations", "argmax", "uint8"), "windows cut at the border"),
    "Mean": (("one_input",), "the mean of one operand is a copy"),
    "NegativeLogLikelihoodLoss": (("ii",), "ignored targets depend on values"),
    "OneHot": (
        ("negative_indices", "out_of_range"),
        "indices are wrapped in the comparison, not in the table",
    ),
    "Pow": (("bcast_scalar",), "a run-time exponent that happens to be 2"),
    "QuantizeLinear": (
        ("blocked_symmetric", "e4m3", "e5m2", "int4", "int2", "float4"),
        "NumPy has no such element type",
    ),
    "Range": (("bfloat16",), "NumPy has no such element type"),
    "ReduceLogSum": (("empty",), "a sum of nothing"),
    "ReduceLogSumExp": (("empty",), "a sum of nothing"),
    "Sum": (("one_input",), "the sum of one operand is a copy"),
}
