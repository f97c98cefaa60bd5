"""A whole bound model as one fragment: what the runtimes are given to measure its latency and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx

from gkestimator.dtypes import DType
from gkestimator.fragments import MODEL_PREFIX, Fragment, FragmentTensor
from gkestimator.graph import Operator, OperatorGraph, Sequence, Tensor
from gkestimator.profiling.sweep.extraction import (
    NotAFragmentError,
    constant_of,
    entering,
    fragment_of,
    index_bound,
)

__all__ = ["index_bounds", "model_fragment", "model_patterns"]

_MOST_VALUES = 4096  # a fragment's own limit; tables of relative positions have 2,401
_LONGEST_PATTERN = 100
_MASK_BELOW = 2
"""Whole numbers that look nothing up are 0 or 1: they are attention masks, and their sums stay below the sequence."""
_BYTES_BELOW = 128  # integers of eight bits are quantised numbers, not masks
_ALL = (-1,)
_CARRIES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    dict.fromkeys(
        (
            "Cast", "CastLike", "Clip", "Compress", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather",
            "GatherElements", "GatherND", "Identity", "Pad", "ReduceMax", "ReduceMin", "Reshape", "ReverseSequence",
            "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze",
        ),
        (0,),
    )
    | {"Concat": _ALL, "Max": _ALL, "Min": _ALL, "Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}
)  # fmt: skip
"""Operators whose results hold no numbers but those of their inputs at these positions."""


def model_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """What the fragments of models of these names are called: as far as a pattern may hold the name, all different."""
    found: list[str] = []
    for name in names:
        clean = "".join(c if c.isascii() and (c.isalnum() or c in "_.:/-") else "_" for c in name)
        pattern, number = (MODEL_PREFIX + clean)[:_LONGEST_PATTERN], 1
        while pattern in found:
            number += 1
            end = f"-{number}"
            pattern = (MODEL_PREFIX + clean)[: _LONGEST_PATTERN - len(end)] + end
        found.append(pattern)
    return tuple(found)


def model_fragment(graph: OperatorGraph, pattern: str) -> Fragment:
    """All of ``graph`` as one fragment called ``pattern`` (``model:NAME``); its outputs are the graph's.

    Weights are filled at random, but whole numbers up to 4,096 of them keep their values. What looks something up
    stays below the smallest table that it reaches. Sequences that only split a tensor become Split. Raises
    NotAFragmentError (loops that repeat, other sequences, tensors as attributes) and ModelError (beyond the bounds of
    a fragment).
    """
    if any(op.repeat != 1 for op in graph.operators):
        raise NotAFragmentError("loops that repeat")
    operators, renamed = _without_sequences(graph.operators)
    operators = _one_opset(_sharing(operators, graph.weights))
    bounds = index_bounds(operators)
    inputs = {value.name for value in graph.inputs}

    def enters(op: Operator, position: int, tensor: Tensor, name: str) -> FragmentTensor:
        constant = constant_of(op, position, tensor, name, most=_MOST_VALUES)
        if constant is not None:
            return constant
        role = "input" if tensor.name in inputs else "weight"
        if not tensor.dtype.is_integer:
            return replace(entering(op, position, tensor, name), role=role)
        below = bounds.get(tensor.name) or (_BYTES_BELOW if tensor.dtype.bits <= 8 else _MASK_BELOW)
        return replace(
            entering(op, position, tensor, name), role=role, fill="index", below=below, values=None
        )

    results = []
    for value in graph.outputs:
        if not isinstance(value, Tensor):
            raise NotAFragmentError("sequences")
        results.append(renamed.get(value.name, value.name))
    made = fragment_of(operators, pattern, results=tuple(dict.fromkeys(results)), enters=enters)
    return Fragment.from_document(made.document(), where=graph.name)


def index_bounds(operators: Iterable[Operator]) -> dict[str, int]:
    """By name of a tensor of whole numbers: the length of the smallest table that its numbers look up, through
    operators that hand them on unchanged."""
    bounds: dict[str, int] = {}

    def lower(value: object, bound: int) -> None:
        if isinstance(value, Tensor):
            bounds[value.name] = min(bound, bounds.get(value.name, bound))

    for op in reversed(tuple(operators)):
        for position, value in enumerate(op.inputs):
            if isinstance(value, Tensor) and value.dtype.is_integer:
                below = index_bound(op, position)
                if below is not None:
                    lower(value, below)
        if op.domain:
            continue
        wanted = [bounds[v.name] for v in op.outputs if isinstance(v, Tensor) and v.name in bounds]
        carried = _CARRIES.get(op.op_type, ())
        if not wanted:
            continue
        for position, value in enumerate(op.inputs):
            if carried == _ALL or position in carried:
                lower(value, min(wanted))
    return bounds


def _without_sequences(operators: Iterable[Operator]) -> tuple[list[Operator], dict[str, str]]:
    """SplitToSequence whose pieces are taken out by SequenceAt as the Split that it is, and what the pieces are called
    now. Raises NotAFragmentError for every other sequence."""
    pieces: dict[str, tuple[Tensor, ...]] = {}
    renamed: dict[str, Tensor] = {}
    kept = []
    for op in operators:
        inputs = tuple(renamed.get(v.name, v) if v is not None else None for v in op.inputs)
        if op.key == ("", "SplitToSequence"):
            split = _split(op, inputs)
            pieces[op.outputs[0].name] = tuple(v for v in split.outputs if isinstance(v, Tensor))  # type: ignore[union-attr]
            kept.append(split)
        elif op.key == ("", "SequenceAt") and inputs[0] is not None and inputs[0].name in pieces:
            held, place, out = pieces[inputs[0].name], inputs[1], op.outputs[0]
            known = place.value if isinstance(place, Tensor) else None
            if known is None or out is None or not -len(held) <= int(known.reshape(-1)[0]) < len(held):
                raise NotAFragmentError("sequences")
            renamed[out.name] = held[int(known.reshape(-1)[0])]
        elif any(isinstance(v, Sequence) for v in (*inputs, *op.outputs)):
            raise NotAFragmentError("sequences")
        else:
            kept.append(replace(op, inputs=inputs, signature=None))
    return kept, {name: tensor.name for name, tensor in renamed.items()}


def _split(op: Operator, inputs: tuple[Tensor | Sequence | None, ...]) -> Operator:
    made, source = op.outputs[0], inputs[0]
    if not isinstance(made, Sequence) or not isinstance(source, Tensor) or made.bounded:
        raise NotAFragmentError("sequences")
    axis = op.attributes.get("axis", 0)
    if not isinstance(axis, int) or any(len(t.shape) != len(source.shape) for t in made.elements_):
        raise NotAFragmentError("sequences of pieces without the axis they were split along")
    sizes = np.array([t.shape[axis] for t in made.elements_], dtype=np.int64)
    lengths = Tensor(
        name=f"{made.name}#sizes", dtype=DType.INT64, shape=sizes.shape, storage=f"{made.name}#sizes",
        is_weight=True, value=sizes,
    )  # fmt: skip
    return replace(
        op,
        op_type="Split",
        attributes={"axis": axis},
        inputs=(source, lengths),
        outputs=made.elements_,
        signature=None,
    )


def _sharing(operators: Iterable[Operator], weights: Mapping[str, int]) -> list[Operator]:
    """Views of a whole weight in one shape are one tensor, as they are one allocation: which of them it is matters to
    nothing but the values, and those are drawn at random. A view of a part stays apart."""
    first: dict[tuple[str, DType, tuple[int, ...]], Tensor] = {}

    def canonical(value: Tensor | Sequence | None) -> Tensor | Sequence | None:
        if not isinstance(value, Tensor) or not value.is_weight or value.nbytes != weights.get(value.storage):
            return value
        if value.value is not None and value.elements <= _MOST_VALUES and not value.dtype.is_floating:
            return value
        return first.setdefault((value.storage, value.dtype, value.shape), value)

    return [replace(op, inputs=tuple(canonical(v) for v in op.inputs)) for op in operators]


def _one_opset(operators: list[Operator]) -> list[Operator]:
    """Operators of inlined functions may be of an older opset: one that did not change since is of the newest, too."""
    newest: dict[str, int] = {}
    for op in operators:
        newest[op.domain] = max(op.version, newest.get(op.domain, 0))

    def raised(op: Operator) -> Operator:
        wanted = newest[op.domain]
        if op.version == wanted:
            return op
        try:
            since = [
                onnx.defs.get_schema(op.op_type, v, op.domain).since_version for v in (op.version, wanted)
            ]
        except (onnx.defs.SchemaError, RuntimeError):
            since = [op.version, wanted]
        if since[0] != since[1]:
            raise NotAFragmentError(
                f"{op.op_type} of opset {op.version} beside operators of opset {wanted}, which changed it"
            )
        return replace(op, version=wanted)

    return [raised(op) for op in operators]
