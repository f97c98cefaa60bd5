"""Evaluators of operators that move, view or pick elements, and of sequences of small tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gkestimator.operators.registry import SequenceType, TensorType, ValueType

Attributes = Mapping[str, Any]
Types = Sequence["ValueType | None"]


def _at(values: Sequence[Any], index: int) -> Any:
    if index < len(values):
        return values[index]
    return None


def _to_inferred_shape(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    """Reshape, Flatten, Squeeze, Unsqueeze: the shape rule has said what comes out."""
    target = types[0]
    if isinstance(target, TensorType):
        return [values[0].reshape(target.shape)]
    return None


def _transpose(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    return [np.transpose(values[0], attributes.get("perm") or None)]


def _concat(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    return [np.concatenate(values, axis=int(attributes.get("axis", 1)))]


def _gather(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    return [np.asarray(np.take(values[0], values[1], axis=int(attributes.get("axis", 0))))]


def _gather_elements(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    return [np.take_along_axis(values[0], values[1].astype(np.int64), axis=int(attributes.get("axis", 0)))]


def _gather_nd(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    if attributes.get("batch_dims"):
        return None
    return [np.asarray(values[0][tuple(np.moveaxis(values[1].astype(np.int64), -1, 0))])]


def _slice(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    def read(index: int, name: str) -> list[int] | None:
        found = _at(values, index)
        found = attributes.get(name) if found is None else found
        if found is None:
            return None
        return [int(v) for v in np.ravel(found)]

    starts = read(1, "starts")
    ends = read(2, "ends")
    axes = read(3, "axes")
    steps = read(4, "steps")
    if starts is None or ends is None:
        return None
    where = [slice(None)] * values[0].ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        step = steps[i] if steps else 1
        axis = axes[i] if axes else i
        stop: int | None = end
        if step < 0 and end < -values[0].shape[axis]:
            stop = None  # Python has no other way to say "down to the first element"
        where[axis] = slice(start, stop, step)
    return [np.asarray(values[0][tuple(where)])]


def _expand(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    target = types[0]
    if isinstance(target, TensorType):
        return [np.broadcast_to(values[0], target.shape).copy()]
    return None


def _tile(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    if version >= 6:
        return [np.tile(values[0], tuple(int(v) for v in values[1]))]
    return None


def _constant_of_shape(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    value = attributes.get("value")
    target = types[0]
    if not isinstance(target, TensorType):
        return None
    if value is None:
        return [np.zeros(target.shape, dtype=np.float32)]
    return [np.full(target.shape, value.reshape(-1)[0], dtype=value.dtype)]


def _range(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    target = types[0]
    if not isinstance(target, TensorType):
        return None
    start, _, delta = (v.reshape(()) for v in values[:3])
    return [(start + np.arange(target.shape[0], dtype=start.dtype) * delta).astype(start.dtype)]


def _pad(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    if attributes.get("mode", "constant") != "constant" or _at(values, 3) is not None:
        return None
    given = _at(values, 1)
    pads = [int(v) for v in np.ravel(attributes["pads"] if given is None else given)]
    if min(pads, default=0) < 0:
        return None
    rank = values[0].ndim
    fill = _at(values, 2)
    if fill is None:
        fill = attributes.get("value", 0)
    else:
        fill = fill.reshape(-1)[0]
    return [np.pad(values[0], [(pads[i], pads[i + rank]) for i in range(rank)], constant_values=fill)]


def _split(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    axis = int(attributes.get("axis", 0))
    sizes = [t.shape[axis] if isinstance(t, TensorType) else 0 for t in types]
    return np.split(values[0], np.cumsum(sizes)[:-1], axis=axis)


def _split_to_sequence(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    target = types[0]
    if not isinstance(target, SequenceType) or not target.elements:
        return None
    axis = int(attributes.get("axis", 0))
    given = _at(values, 1) is not None
    sizes = [t.shape[axis] if given else 1 for t in target.elements]
    pieces = np.split(values[0], np.cumsum(sizes)[:-1], axis=axis)
    return [tuple(p.reshape(t.shape).copy() for p, t in zip(pieces, target.elements, strict=True))]


def _sequence_construct(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    return [tuple(v.copy() for v in values)]


def _sequence_at(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    return [values[0][int(values[1].reshape(()))]]


def _concat_from_sequence(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    join = np.stack if attributes.get("new_axis") else np.concatenate
    return [join(values[0], axis=int(attributes["axis"]))]


def _optional_get(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    held = values[0]
    return [held[0] if isinstance(held, tuple) and isinstance(types[0], TensorType) else held]


def _trilu(attributes: Attributes, values: Sequence[Any], version: int, types: Types) -> Any:
    k = _at(values, 1)
    shift = 0 if k is None else int(k.reshape(()))
    return [np.triu(values[0], shift) if attributes.get("upper", 1) else np.tril(values[0], shift)]


LAYOUT: dict[tuple[str, str], Callable[[Attributes, Sequence[Any], int, Types], Any]] = {
    ("", op): folder
    for op, folder in {
        "Reshape": _to_inferred_shape, "Flatten": _to_inferred_shape, "Squeeze": _to_inferred_shape,
        "Unsqueeze": _to_inferred_shape, "Transpose": _transpose, "Concat": _concat, "Gather": _gather,
        "GatherElements": _gather_elements, "GatherND": _gather_nd, "Slice": _slice, "Expand": _expand,
        "Tile": _tile,
        "ConstantOfShape": _constant_of_shape, "Range": _range, "Pad": _pad, "Split": _split,
        "SplitToSequence": _split_to_sequence, "SequenceConstruct": _sequence_construct,
        "SequenceAt": _sequence_at,
        "ConcatFromSequence": _concat_from_sequence, "OptionalGetElement": _optional_get, "Trilu": _trilu,
    }.items()
}  # fmt: skip
"""Evaluators of this family by ``(domain, op_type)``."""
