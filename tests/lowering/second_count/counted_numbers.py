"""Count the arithmetic of NumPy code: the second, independent source of an operator's FLOPs.

Convention: every arithmetic operation, comparison and function value on one element counts one; moves, selections,
casts and views count nothing; a reduction or running sum of n elements counts n. NumPy functions that stand for a
short formula count as that formula does (:data:`FORMULAS`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["CountedArray", "Counter", "counting", "each_element", "erf"]

# ufunc: operations of the formula that it abbreviates
FORMULAS = {
    "power": 3,  # exp(b log a)
    "float_power": 3,
    "expm1": 2,  # exp(x) - 1
    "log1p": 2,  # log(1 + x)
    "logaddexp": 3,  # log(exp(a) + exp(b)), where one of the two is a constant exponential
    "remainder": 4,  # a - b floor(a / b)
    "fmod": 4,
    "sign": 2,  # (x > 0) - (x < 0)
    "clip": 2,  # min(max(x, low), high)
    "positive": 0,
}
# NumPy functions that are no ufuncs and calculate: operations for each element of the largest operand.
FUNCTIONS: dict[Callable[..., Any], int] = {np.argmax: 1, np.argmin: 1}


class Counter:
    """Hold the operations counted so far."""

    def __init__(self) -> None:
        self.operations = 0


_ACTIVE: list[Counter] = []


@contextmanager
def counting() -> Iterator[Counter]:
    """Count what counted arrays calculate inside the block."""
    counter = Counter()
    _ACTIVE.append(counter)
    try:
        yield counter
    finally:
        _ACTIVE.pop()


def _add(operations: int) -> None:
    if _ACTIVE:
        _ACTIVE[-1].operations += operations


def _plain(value: Any) -> Any:
    if isinstance(value, CountedArray):
        return value.view(np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return value


def _counted(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_counted(item) for item in value)
    return np.asarray(value).view(CountedArray)


def _operations(ufunc: np.ufunc, method: str, operands: list[Any], result: Any, axis: Any) -> int:
    largest = max(np.size(operand) for operand in operands)
    if method in ("reduce", "accumulate"):
        return 0 if axis == () else largest  # a sum over no axis adds nothing
    first = result[0] if isinstance(result, tuple) else result
    if ufunc is np.matmul:
        return int(2 * np.size(first) * operands[0].shape[-1])
    if ufunc is np.power and np.size(operands[1]) == 1 and float(np.reshape(operands[1], ())) == 2.0:
        return int(np.size(first))  # a square is one multiplication
    return FORMULAS.get(ufunc.__name__, 1) * int(np.size(first))


class CountedArray(np.ndarray):
    """Calculate as NumPy does and report every operation to the innermost :func:`counting` block."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        operands = [_plain(value) for value in inputs]
        options = {name: _plain(value) for name, value in options.items()}
        with np.errstate(all="ignore"):  # ONNX's tests hold zeros and infinities on purpose
            result = getattr(ufunc, method)(*operands, **options)
        _add(_operations(ufunc, method, operands, result, options.get("axis")))
        return _counted(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in FUNCTIONS:
            _add(FUNCTIONS[function] * max(int(np.size(_plain(value))) for value in args))
            return _counted(function(*_plain(args), **_plain(kwargs)))
        return super().__array_function__(function, types, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        # A single element stays an array: as a NumPy scalar it would be lost to the count.
        return _counted(super().__getitem__(key))


def each_element(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """Return ``function`` of one number as a NumPy function that counts one for each element."""
    ufunc = np.frompyfunc(function, 1, 1)
    return lambda x: ufunc(x).astype(np.float64)


erf = each_element(math.erf)
