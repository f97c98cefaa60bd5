"""Operators of bound models to fragments: which inputs are indices, masks, parameters, or values that decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor, JsonAttribute
from gkestimator.core.graph import Attribute, Operator, Tensor, Value
from gkestimator.profiling.type_names import Ints

Entering: TypeAlias = "Callable[[Operator, int, Tensor, str], FragmentTensor]"
"""What goes in for a tensor that no operator of a fragment makes: the first operator that reads it, at which position,
the tensor, its name in the fragment."""

_MOST_VALUES = 64
"""Elements of a constant that goes into the plan with its values; axes, shapes, pads and scales are shorter."""
_LARGEST_RANK = 8
_MOST_ELEMENTS = 2**33
_LARGEST_FLOAT = 3e38
_FINITE = 65504.0  # the largest float16: an infinite fill value becomes this
_INDICES_BELOW = 128  # whole numbers that index nothing


class NotAFragmentError(GkestimatorError):
    """An operator that cannot stand alone; the text says why, in words to count by."""


def tensor_of(value: Value | None) -> Tensor:
    """Return ``value``, which has to be a tensor. Raises NotAFragmentError."""
    if not isinstance(value, Tensor):
        raise NotAFragmentError("sequences")
    return value


def _looked_up(op: Operator, position: int) -> Ints:
    """Return the shape of what indices look up, of one dimension at least."""
    data = op.inputs[position]
    if not isinstance(data, Tensor) or not data.shape:
        raise NotAFragmentError("indices into nothing known")
    return data.shape


def _along_axis(op: Operator) -> int:
    """Return the length of axis ``axis`` of the data that indices look up."""
    shape = _looked_up(op, 0)
    axis = op.attributes.get("axis", 0)
    if not isinstance(axis, int):
        raise NotAFragmentError("indices into nothing known")
    return shape[axis % len(shape)]


def _along_every_axis(op: Operator) -> int:
    """Return a bound that suits every axis that GatherND and ScatterND look up."""
    places = _looked_up(op, 1)
    data = op.inputs[0]
    if not isinstance(data, Tensor):
        raise NotAFragmentError("indices into nothing known")
    skipped = op.attributes.get("batch_dims", 0)
    first = skipped if isinstance(skipped, int) else 0
    return min(data.shape[first : first + places[-1]], default=1)


def _depth(op: Operator) -> int:
    """Return the number of classes of a OneHot, as far as the file says it."""
    depth = op.inputs[1]
    if not isinstance(depth, Tensor) or depth.value is None or depth.value.size != 1:
        return _INDICES_BELOW
    return int(depth.value.reshape(-1)[0])


def _table(position: int) -> Callable[[Operator], int]:
    """Return what tells the rows of the table at input ``position``."""

    def below(op: Operator) -> int:
        table = op.inputs[position]
        if isinstance(table, Tensor) and table.shape:
            return table.shape[0]
        return 1

    return below


_INDICES: Mapping[str, Callable[[Operator], int]] = MappingProxyType(
    {
        "Gather 1": _along_axis,
        "GatherElements 1": _along_axis,
        "ScatterElements 1": _along_axis,
        "Scatter 1": _along_axis,
        "TensorScatter 2": lambda _: 1,
        "GatherND 1": _along_every_axis,
        "ScatterND 1": _along_every_axis,
        "OneHot 0": _depth,
        "RoiAlign 2": _table(0),
        "com.microsoft EmbedLayerNormalization 0": _table(2),
        "com.microsoft EmbedLayerNormalization 1": _table(4),
    }
)
"""Inputs (operator, position) whose whole numbers look something up: what they must stay below."""
_POSITIVE = frozenset(
    {
        "Sqrt 0",
        "Log 0",
        "Reciprocal 0",
        "Pow 0",
        "Div 1",
        "Mod 1",
        "BatchNormalization 4",
        "gkestimator Rsqrt 0",
    }
)
_DECIDING = frozenset({"Resize 1", "Resize 2", "Upsample 1", "RoiAlign 1"})
"""Float inputs whose values decide what is calculated, besides those of one element."""


def _input_of(op: Operator, position: int) -> str:
    """Return the input as the tables above name it."""
    return f"{op.domain} {op.op_type} {position}".lstrip()


def index_bound(op: Operator, position: int) -> int | None:
    """Return what whole numbers at input ``position`` of ``op`` must stay below, for they look something up; None where
    they look nothing up. Raises NotAFragmentError."""
    below = _INDICES.get(_input_of(op, position))
    if below is None:
        return None
    return max(1, below(op))


class _Parts:
    """Name the values of a fragment in the making, and collect the tensors that go in."""

    def __init__(self, enters: Entering) -> None:
        self._enters = enters
        self.names: dict[
            str, str
        ] = {}  # values made inside, and tensors that enter, by their name in the model
        self.tensors: list[FragmentTensor] = []
        self.opsets: dict[str, int] = {}

    def node(self, number: int, op: Operator) -> FragmentNode:
        """Return the node of ``op``, the fragment's ``number``-th."""
        # One version a domain: a fragment is a small ONNX file.
        if self.opsets.setdefault(op.domain, op.version) != op.version:
            raise NotAFragmentError("operators of several opset versions")
        reads = [self._read(op, position) for position in range(len(op.inputs))]
        # Omitted inputs at the end are not written in ONNX.
        while reads and not reads[-1]:
            reads.pop()
        writes = []
        for place, value in enumerate(op.outputs):
            if value is None:
                writes.append("")
                continue
            name = f"y{number}" if len(op.outputs) == 1 else f"y{number}_{place}"
            self.names[tensor_of(value).name] = name
            writes.append(name)
        return FragmentNode(
            op_type=op.op_type,
            domain=op.domain,
            attributes=_attributes(op.attributes),
            inputs=tuple(reads),
            outputs=tuple(writes),
        )

    def _read(self, op: Operator, position: int) -> str:
        value = op.inputs[position]
        if value is None:
            return ""
        tensor = tensor_of(value)
        if tensor.name not in self.names:
            name = f"x{len(self.tensors)}"
            self.names[tensor.name] = name
            self.tensors.append(self._enters(op, position, tensor, name))
        return self.names[tensor.name]


def fragment_of(
    operators: Iterable[Operator],
    pattern: str = "",
    *,
    results: Iterable[str] | None = None,
    enters: Entering | None = None,
) -> Fragment:
    """Return ``operators``, in order, as a fragment. ``results`` names the tensors that leave it (None: those of the
    last operator); ``enters`` describes what goes in (None: :func:`entering`). Raises NotAFragmentError."""
    parts = _Parts(enters or entering)
    nodes = [parts.node(number, op) for number, op in enumerate(operators)]
    # Runtimes want the standard domain named; any opset says the same of another domain's nodes.
    parts.opsets.setdefault("", 17)
    if not any(tensor.role == "input" for tensor in parts.tensors):
        raise NotAFragmentError("no input but constants")
    if results is None:
        leaving = nodes[-1].outputs
    else:
        leaving = tuple(parts.names.get(name, "") for name in results)
    return Fragment(
        opsets=parts.opsets,
        nodes=tuple(nodes),
        tensors=tuple(parts.tensors),
        outputs=tuple(name for name in leaving if name),
        pattern=pattern,
    )


def entering(op: Operator, position: int, tensor: Tensor, name: str) -> FragmentTensor:
    """Return ``tensor`` as what goes into ``op`` alone at input ``position``. Raises NotAFragmentError."""
    if len(tensor.shape) > _LARGEST_RANK or tensor.elements > _MOST_ELEMENTS:
        raise NotAFragmentError("tensors of more than eight dimensions or of absurd size")
    dtype = tensor.dtype
    plain = FragmentTensor(
        name=name, dtype=dtype, shape=tensor.shape, role="weight" if tensor.is_weight else "input"
    )
    below = index_bound(op, position) if dtype.is_integer else None
    if below is None:
        constant = constant_of(op, position, tensor, name)
        if constant is not None:
            return constant
    if dtype is DType.BOOL:
        return replace(plain, fill="mask")
    if dtype.is_integer:
        return replace(plain, fill="index", below=_INDICES_BELOW if below is None else below)
    if not dtype.is_floating:
        raise NotAFragmentError(f"tensors of type {dtype}")
    if _input_of(op, position) in _POSITIVE:
        return replace(plain, fill="positive")
    return plain


def constant_of(
    op: Operator, position: int, tensor: Tensor, name: str, *, most: int = _MOST_VALUES, floats: int = 1
) -> FragmentTensor | None:
    """Return ``tensor`` with its values, where they are known, at most ``most``, and have to be kept: whole numbers and
    truth values, scales, and up to ``floats`` other floats."""
    if _input_of(op, position) in _DECIDING:
        floats = most
    value = tensor.value
    if value is None or value.dtype == object or value.size != tensor.elements or value.size > most:
        return None
    if tensor.dtype.is_floating and value.size > floats:
        return None
    values = _values(tensor.dtype, np.asarray(value).reshape(-1))
    if values is None:
        return None
    return FragmentTensor(
        name=name, dtype=tensor.dtype, shape=tensor.shape, role="constant", fill="value", values=values
    )


def _values(dtype: DType, flat: np.ndarray) -> tuple[float | int | bool, ...] | None:
    """Return the elements as Python's numbers, finite ones; None for what is no number."""
    if dtype is DType.BOOL:
        return tuple(bool(v) for v in flat)
    if dtype.is_integer:
        return tuple(int(v) for v in flat)
    if not dtype.is_floating:
        return None
    return tuple(_finite(float(v)) for v in flat)


def _finite(number: float) -> float:
    if math.isnan(number):
        return 0.0
    if abs(number) < _LARGEST_FLOAT:
        return number
    return math.copysign(_FINITE, number)


def _attributes(attributes: Mapping[str, Attribute]) -> dict[str, JsonAttribute]:
    said: dict[str, JsonAttribute] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, np.ndarray):
            raise NotAFragmentError("tensors as attributes")
        numbers = value if isinstance(value, tuple) else (value,)
        for number in numbers:
            if isinstance(number, float) and not math.isfinite(number):
                raise NotAFragmentError("attributes that are not finite")
        if len(numbers) > 4096 or any(isinstance(v, str) and len(v) > 200 for v in numbers):
            raise NotAFragmentError("attributes of absurd length")
        said[name] = value
    return said
