"""Store the weights of linear layers in few bits, in a graph that is in half precision already.

A weight stays as it is where something else reads it as well (an embedding that is the last layer's weight too), where
its product is an output of the graph, and where kernels for few bits refuse its sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from gkestimator.core.errors import UsageError
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.operators.narrow import NARROW_FORMATS, narrow_shape

MatrixShape: TypeAlias = "tuple[int, int]"
"""k and n of a weight."""


def narrowed(graph: OperatorGraph, word: str) -> OperatorGraph:
    """Return ``graph`` with the weights of its linear layers in the format of ``word``, a key of ``NARROW_FORMATS``.

    Raises UsageError where it has no such layer.
    """
    chosen = _narrow_weights(graph)
    if not chosen:
        raise UsageError(
            f"{graph.name}: dtype {word} needs linear layers (MatMul or Gemm by a weight whose sizes 16 divides, and "
            f"that is not the model's last layer), found none; use fp16 or bf16"
        )
    narrow = NARROW_FORMATS[word]
    weights = dict(graph.weights)
    operators = []
    for op in graph.operators:
        weight = _right_side(op)
        if weight is not None and weight.storage in chosen:
            stored = replace(weight, dtype=narrow.weights)
            scales = narrow.scale_tensor(stored, *chosen[weight.storage])
            weights[weight.storage] = stored.nbytes + scales.nbytes
            inputs = (op.inputs[0], stored, *op.inputs[2:])
            # Equal operators differ now by whether their weight was narrowed.
            op = replace(op, inputs=inputs, signature=None)
        operators.append(op)
    return replace(graph, operators=tuple(operators), weights=weights)


def _narrow_weights(graph: OperatorGraph) -> Mapping[str, MatrixShape]:
    """Return the storages that every reader may read narrowed, with their sizes."""
    shapes: dict[str, MatrixShape] = {}
    refused: set[str] = set()
    for op, place, weight in _reads_of_weights(graph):
        shape = None
        if place == 1 and not _gives_output(graph, op) and weight.nbytes == graph.weights.get(weight.storage):
            shape = narrow_shape(op, weight)
        if shape is None or shapes.setdefault(weight.storage, shape) != shape:
            refused.add(weight.storage)
    return {storage: shape for storage, shape in shapes.items() if storage not in refused}


def _reads_of_weights(graph: OperatorGraph) -> Iterator[tuple[Operator, int, Tensor]]:
    for op in graph.operators:
        for place, value in enumerate(op.inputs):
            if isinstance(value, Tensor) and value.is_weight:
                yield op, place, value


def _right_side(op: Operator) -> Tensor | None:
    if len(op.inputs) > 1 and isinstance(op.inputs[1], Tensor) and op.inputs[1].is_weight:
        return op.inputs[1]
    return None


def _gives_output(graph: OperatorGraph, op: Operator) -> bool:
    last = {value.name for value in graph.outputs}
    return any(value is not None and value.name in last for value in op.outputs)
