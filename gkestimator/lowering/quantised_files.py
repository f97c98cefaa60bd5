"""QuantizeLinear and DequantizeLinear of a file taken out of its graph, as TensorRT fuses them into their neighbours.

Developer guide, "Explicit Quantization" and "Q/DQ Layer-Placement Recommendations": a pair of them says that what reads
it may read 8 bits. DequantizeLinear goes forwards over operators that only move values, QuantizeLinear backwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, OperatorGraph, Tensor, Value
from gkestimator.core.records import frozen
from gkestimator.operators.builders import tensors_of
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import MS

Read: TypeAlias = "tuple[int, int]"
"""An operator's index and the place among its inputs."""

_QUANTIZE = frozenset({("", "QuantizeLinear"), (MS, "QuantizeLinear")})
_DEQUANTIZE = frozenset({("", "DequantizeLinear"), (MS, "DequantizeLinear")})


@frozen
class Quantised:
    """Hold a graph without QuantizeLinear and DequantizeLinear, and which inputs were read through them as what."""

    graph: OperatorGraph
    reads: Mapping[Read, DType]


def without_quantisation(graph: OperatorGraph) -> Quantised:
    """Return ``graph`` without the pairs of QuantizeLinear and DequantizeLinear; the very object where it has none."""
    taken = _removable(graph)
    if not taken:
        return Quantised(graph=graph, reads={})
    sources: dict[str, tuple[Tensor, DType]] = {}
    operators: list[Operator] = []
    reads: dict[Read, DType] = {}
    for index, op in enumerate(graph.operators):
        if index in taken:
            (source, *_), (result, *_) = tensors_of(op.inputs), tensors_of(op.outputs)
            dtype = source.dtype
            if op.key in _QUANTIZE:
                dtype = result.dtype
            sources[result.name] = sources.get(source.name, (source, dtype))
            if op.key in _QUANTIZE:
                sources[result.name] = (sources[result.name][0], _byte_type(dtype))
            continue
        inputs: list[Value | None] = list(op.inputs)
        for place, value in enumerate(inputs):
            if value is not None and value.name in sources:
                source, dtype = sources[value.name]
                inputs[place] = source
                reads[len(operators), place] = _byte_type(dtype)
        if inputs != list(op.inputs):
            op = replace(op, inputs=tuple(inputs), signature=None)
        operators.append(op)
    used = {tensor.storage for op in operators for tensor in tensors_of(op.inputs)}
    weights = {storage: size for storage, size in graph.weights.items() if storage in used}
    stripped = replace(graph, operators=tuple(operators), weights=weights, structure=None)
    _move_forwards(stripped, reads)
    return Quantised(graph=stripped, reads=reads)


def _move_forwards(graph: OperatorGraph, reads: dict[Read, DType]) -> None:
    """Add to ``reads`` what reads the result of an operator that only moves values which were dequantised before it:
    DequantizeLinear goes behind such an operator."""
    moved: dict[str, DType] = {}
    for index, op in enumerate(graph.operators):
        dtypes = []
        for place, value in enumerate(op.inputs):
            if not isinstance(value, Tensor) or value.is_weight or not value.dtype.is_floating:
                continue
            if value.name in moved:
                reads.setdefault((index, place), moved[value.name])
            dtypes.append(reads.get((index, place)))
        if not _moves(op) or not dtypes or dtypes[0] is None or None in dtypes:
            continue
        for value in tensors_of(op.outputs):
            moved[value.name] = dtypes[0]


def _byte_type(dtype: DType) -> DType:
    """Return the type that products of 8 bits are counted in: unsigned integers as signed ones."""
    if dtype is DType.UINT8:
        return DType.INT8
    return dtype


def _removable(graph: OperatorGraph) -> set[int]:
    """Return the indices of the operators that quantise to 8 bits, or back, for nobody but each other and operators
    that move what is quantised."""
    outputs = {value.name for value in graph.outputs}
    readers: dict[str, list[int]] = {}
    for index, op in enumerate(graph.operators):
        for value in op.inputs:
            if value is not None:
                readers.setdefault(value.name, []).append(index)
    taken: set[int] = set()
    # Backwards: a QuantizeLinear goes only where all that read it do, or take either type.
    for index in range(len(graph.operators) - 1, -1, -1):
        op = graph.operators[index]
        result = _converted(op)
        if result is None or result.name in outputs:
            continue
        following = readers.get(result.name, [])
        if op.key in _DEQUANTIZE or all(at in taken or _moves(graph.operators[at]) for at in following):
            taken.add(index)
    return taken


def _converted(op: Operator) -> Tensor | None:
    """Return the result of an operator that quantises to 8 bits, or back; None of any other."""
    if op.key not in _QUANTIZE | _DEQUANTIZE or not op.outputs or not op.inputs:
        return None
    source, result = op.inputs[0], op.outputs[0]
    if not isinstance(source, Tensor) or not isinstance(result, Tensor):
        return None
    narrow = result if op.key in _QUANTIZE else source
    if narrow.dtype.bits != 8:
        return None
    return result


def _moves(op: Operator) -> bool:
    return traits_of(op.key).few_bits == "moves"
