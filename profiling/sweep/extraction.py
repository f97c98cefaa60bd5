"""Operators of bound models to fragments: which inputs are indices, masks, parameters, or values that decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor, JsonAttribute
from gkestimator.core.graph import Attribute, Operator, Tensor

Entering: TypeAlias = "Callable[[Operator, int, Tensor, str], FragmentTensor]"
"""What goes in for a tensor that no operator of a fragment makes: the first operator that reads it, at which position,
the tensor, its name in the fragment."""

_MOST_VALUES = 64
"""Elements of a constant that goes into the plan with its values; axes, shapes, pads and scales are shorter."""
_LARGEST_RANK = 8
_MOST_ELEMENTS = 2**33
_FINITE = 65504.0  # the largest float16: an infinite fill value becomes this
_INDICES_BELOW = 128  # whole numbers that index nothing


class NotAFragmentError(GkestimatorError):
    """An operator that cannot stand alone; the text says why, in words to count by."""


def _rows(op: Operator) -> int:
    """The length of axis ``axis`` of the data that indices look up."""
    data = op.inputs[0]
    axis = op.attributes.get("axis", 0)
    if not isinstance(data, Tensor) or not data.shape or not isinstance(axis, int):
        raise NotAFragmentError("indices into nothing known")
    return data.shape[axis % len(data.shape)]


def _nd(op: Operator) -> int:
    """A bound that suits every axis that GatherND and ScatterND look up."""
    data = op.inputs[0]
    places = op.inputs[1]
    if not (isinstance(data, Tensor) and isinstance(places, Tensor) and places.shape):
        raise NotAFragmentError("indices into nothing known")
    skipped = op.attributes.get("batch_dims", 0)
    first = skipped if isinstance(skipped, int) else 0
    return min(data.shape[first : first + places.shape[-1]], default=1)


def _images(op: Operator) -> int:
    data = op.inputs[0]
    if isinstance(data, Tensor) and data.shape:
        return data.shape[0]
    return 1


def _depth(op: Operator) -> int:
    depth = op.inputs[1]
    known = isinstance(depth, Tensor) and depth.value is not None and depth.value.size == 1
    return int(depth.value.reshape(-1)[0]) if known else _INDICES_BELOW  # type: ignore[union-attr]


def _table(position: int) -> Callable[[Operator], int]:
    def below(op: Operator) -> int:
        table = op.inputs[position]
        if isinstance(table, Tensor) and table.shape:
            return table.shape[0]
        return 1

    return below


_INDICES: Mapping[tuple[str, str, int], Callable[[Operator], int]] = MappingProxyType(
    {
        ("", "Gather", 1): _rows,
        ("", "GatherElements", 1): _rows,
        ("", "ScatterElements", 1): _rows,
        ("", "Scatter", 1): _rows,
        ("", "TensorScatter", 2): lambda _: 1,
        ("", "GatherND", 1): _nd,
        ("", "ScatterND", 1): _nd,
        ("", "OneHot", 0): _depth,
        ("", "RoiAlign", 2): _images,
        ("com.microsoft", "EmbedLayerNormalization", 0): _table(2),
        ("com.microsoft", "EmbedLayerNormalization", 1): _table(4),
    }
)
_POSITIVE = frozenset(
    {
        ("", "Sqrt", 0),
        ("", "Log", 0),
        ("", "Reciprocal", 0),
        ("", "Pow", 0),
        ("", "Div", 1),
        ("", "Mod", 1),
        ("", "BatchNormalization", 4),
        ("gkestimator", "Rsqrt", 0),
    }
)
_DECIDING = frozenset({("", "Resize", 1), ("", "Resize", 2), ("", "Upsample", 1), ("", "RoiAlign", 1)})
"""Float inputs whose values decide what is calculated, besides those of one element."""


def index_bound(op: Operator, position: int) -> int | None:
    """What whole numbers at input ``position`` of ``op`` must stay below, for they look something up; None where they
    look nothing up. Raises NotAFragmentError."""
    below = _INDICES.get((op.domain, op.op_type, position))
    if below is None:
        return None
    return max(1, below(op))


def fragment_of(
    operators: Sequence[Operator],
    pattern: str = "",
    *,
    results: Sequence[str] | None = None,
    enters: Entering | None = None,
) -> Fragment:
    """``operators``, in order, as a fragment. ``results`` names the tensors that leave it (None: those of the last
    operator); ``enters`` describes what goes in (None: :func:`entering`). Raises NotAFragmentError."""
    enters = enters or entering
    made: dict[str, str] = {}  # values made inside, and tensors that enter, by their name in the model
    tensors: list[FragmentTensor] = []
    nodes = []
    opsets: dict[str, int] = {}
    for number, op in enumerate(operators):
        if opsets.setdefault(op.domain, op.version) != op.version:
            raise NotAFragmentError("operators of several opset versions")
        reads = []
        for position, value in enumerate(op.inputs):
            if value is None:
                reads.append("")
                continue
            if not isinstance(value, Tensor):
                raise NotAFragmentError("sequences")
            if value.name not in made:
                made[value.name] = f"x{len(tensors)}"
                tensors.append(enters(op, position, value, made[value.name]))
            reads.append(made[value.name])
        while reads and not reads[-1]:
            reads.pop()
        writes = []
        for place, value in enumerate(op.outputs):
            if value is None:
                writes.append("")
                continue
            if not isinstance(value, Tensor):
                raise NotAFragmentError("sequences")
            made[value.name] = f"y{number}" if len(op.outputs) == 1 else f"y{number}_{place}"
            writes.append(made[value.name])
        nodes.append(
            FragmentNode(
                op_type=op.op_type,
                domain=op.domain,
                attributes=_attributes(op.attributes),
                inputs=tuple(reads),
                outputs=tuple(writes),
            )
        )
    if "" not in opsets:
        opsets[""] = (
            17  # runtimes want the standard domain named; any opset says the same of another domain's nodes
        )
    if not any(t.role == "input" for t in tensors):
        raise NotAFragmentError("no input but constants")
    if results is None:
        leaving = nodes[-1].outputs
    else:
        leaving = tuple(made.get(name, "") for name in results)
    return Fragment(
        opsets=opsets,
        nodes=tuple(nodes),
        tensors=tuple(tensors),
        outputs=tuple(name for name in leaving if name),
        pattern=pattern,
    )


def entering(op: Operator, position: int, tensor: Tensor, name: str) -> FragmentTensor:
    """``tensor`` as what goes into ``op`` alone at input ``position``. Raises NotAFragmentError."""
    if len(tensor.shape) > _LARGEST_RANK or tensor.elements > _MOST_ELEMENTS:
        raise NotAFragmentError("tensors of more than eight dimensions or of absurd size")
    role = "weight" if tensor.is_weight else "input"
    place = (op.domain, op.op_type, position)
    dtype = tensor.dtype
    shape = tensor.shape
    below = index_bound(op, position) if dtype.is_integer else None
    if below is not None:
        return FragmentTensor(name=name, dtype=dtype, shape=shape, role=role, fill="index", below=below)
    constant = constant_of(op, position, tensor, name)
    if constant is not None:
        return constant
    if dtype is DType.BOOL:
        return FragmentTensor(name=name, dtype=dtype, shape=shape, role=role, fill="mask")
    if dtype.is_integer:
        return FragmentTensor(
            name=name, dtype=dtype, shape=shape, role=role, fill="index", below=_INDICES_BELOW
        )
    if not dtype.is_floating:
        raise NotAFragmentError(f"tensors of type {dtype}")
    fill = "positive" if place in _POSITIVE else "normal"
    return FragmentTensor(name=name, dtype=dtype, shape=shape, role=role, fill=fill)


def constant_of(
    op: Operator, position: int, tensor: Tensor, name: str, *, most: int = _MOST_VALUES, floats: int = 1
) -> FragmentTensor | None:
    """``tensor`` with its values, where they are known, at most ``most``, and have to be kept: whole numbers and truth
    values, scales, and up to ``floats`` other floats."""
    decides = (op.domain, op.op_type, position) in _DECIDING
    values = _values(tensor, most=most, floats=most if decides else floats)
    if values is None:
        return None
    return FragmentTensor(
        name=name, dtype=tensor.dtype, shape=tensor.shape, role="constant", fill="value", values=values
    )


def _values(tensor: Tensor, *, most: int, floats: int) -> tuple[float | int | bool, ...] | None:
    value = tensor.value
    if value is None or value.dtype == object or value.size != tensor.elements or value.size > most:
        return None
    flat = np.asarray(value).reshape(-1)
    if tensor.dtype is DType.BOOL:
        return tuple(bool(v) for v in flat)
    if tensor.dtype.is_integer:
        return tuple(int(v) for v in flat)
    if not tensor.dtype.is_floating or flat.size > floats:
        return None
    numbers = [float(v) for v in flat]
    return tuple(
        0.0 if math.isnan(v) else v if math.isfinite(v) and abs(v) < 3e38 else math.copysign(_FINITE, v)
        for v in numbers
    )


def _attributes(attributes: Mapping[str, Attribute]) -> dict[str, JsonAttribute]:
    kept: dict[str, JsonAttribute] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, np.ndarray):
            raise NotAFragmentError("tensors as attributes")
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(v, float) and not math.isfinite(v) for v in numbers):
            raise NotAFragmentError("attributes that are not finite")
        if len(numbers) > 4096 or any(isinstance(v, str) and len(v) > 200 for v in numbers):
            raise NotAFragmentError("attributes of absurd length")
        kept[name] = value
    return kept
