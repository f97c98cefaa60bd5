"""Find out from the graph whether an input's first axis is the batch.

The first axis of what a convolution or a pooling reads is the batch, by their definition. Followed back to an input
through operators that keep axes apart, it is the input's own first axis, or one that the graph put before it: then
the input is a single sample, as an image of channels, height and width is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from gkestimator.onnx_io.reading.program import OMITTED, Node, Program

Axes: TypeAlias = "tuple[int | None, ...]"
"""The input's axis behind each axis of a value; None for one that the graph made."""

_BATCH_FIRST = frozenset(
    {
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "FusedConv",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "InstanceNormalization",
        "MaxPool",
        "QLinearConv",
    }
)
_SEQUENCES = frozenset({"Attention", "GRU", "Gemm", "LSTM", "LayerNormalization", "MatMul", "RNN"})
_KEEPING = frozenset(
    {
        "Add",
        "Cast",
        "Clip",
        "Concat",
        "DequantizeLinear",
        "Div",
        "Identity",
        "Max",
        "Min",
        "Mul",
        "Pad",
        "Pow",
        "QuantizeLinear",
        "Relu",
        "Resize",
        "Slice",
        "Sub",
        "Upsample",
    }
)
_RANKS = (2, 3, 4)
_MOST_AXES = 8


def leading_batches(program: Program) -> dict[str, bool]:
    """Return whether the first axis is the batch, by input; inputs of which the graph does not tell are left out."""
    followed = _tensors(program)
    leads: dict[str, bool] = {}
    for node in program.main.nodes:
        at = next((slot for slot in node.inputs if slot in followed), None)
        if at is None:
            continue
        name, axes = followed[at]
        if node.op_type in _BATCH_FIRST and at == node.inputs[0]:
            if axes[:1] in ((0,), (None,)):  # a batch that lies at another axis is left to the names
                leads.setdefault(name, axes[0] == 0)
        elif node.op_type in _SEQUENCES and axes[:1] == (0,):
            leads.setdefault(name, True)  # a stack of matrices or a sequence, whatever its sizes look like
        elif node.outputs[:1] not in ((), (OMITTED,)):
            moved = _moved(node, axes, program)
            if moved is not None and len(moved) <= _MOST_AXES:
                followed[node.outputs[0]] = (name, moved)
    return leads


def _tensors(program: Program) -> dict[int, tuple[str, Axes]]:
    """Return name and axes, by slot, of the inputs that may be samples or batches of them."""
    tensors: dict[int, tuple[str, Axes]] = {}
    for spec in program.inputs:
        shape = spec.declared.shape
        if spec.kind == "tensor" and shape is not None and len(shape) in _RANKS:
            tensors[spec.slot] = (spec.name, tuple(range(len(shape))))
    return tensors


def _moved(node: Node, axes: Axes, program: Program) -> Axes | None:
    """Return the axes behind a node; None where they are lost."""
    if node.op_type in _KEEPING:
        ranks = [len(program.constants[slot].type.shape) for slot in node.inputs if slot in program.constants]
        return (None,) * (max(ranks, default=0) - len(axes)) + axes
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(node, axes, program)


def _transposed(node: Node, axes: Axes, program: Program) -> Axes | None:
    order = _integers(node.attributes.get("perm", range(len(axes) - 1, -1, -1)))
    if order is None or sorted(order) != list(range(len(axes))):
        return None
    return tuple(axes[i] for i in order)


def _integers(value: Any) -> tuple[int, ...] | None:
    """Return the whole numbers in an attribute or a constant of a stranger's file; None where it holds others."""
    numbers = np.atleast_1d(np.asarray(value))
    if numbers.ndim == 1 and numbers.dtype.kind == "i":
        return tuple(numbers.tolist())
    return None


def _whole_numbers(node: Node, program: Program) -> tuple[int, ...] | None:
    """Return the axes or the shape that a node is told, by attribute or constant input."""
    said = node.attributes.get("axes")
    if said is None and len(node.inputs) > 1 and node.inputs[1] in program.constants:
        said = program.constants[node.inputs[1]].value
    return _integers(said)


def _unsqueezed(node: Node, axes: Axes, program: Program) -> Axes | None:
    new = _whole_numbers(node, program)
    if new is None or len(new) > _MOST_AXES:
        return None
    rank = len(axes) + len(new)
    places = {axis % rank for axis in new}
    rest = iter(axes)
    return tuple(None if place in places else next(rest, None) for place in range(rank))


def _squeezed(node: Node, axes: Axes, program: Program) -> Axes | None:
    gone = _whole_numbers(node, program)
    if gone is None or not axes:
        return None
    places = {axis % len(axes) for axis in gone}
    return tuple(axis for place, axis in enumerate(axes) if place not in places)


def _reshaped(node: Node, axes: Axes, program: Program) -> Axes | None:
    """Return the axes behind a Reshape that puts ones before the input's own sizes."""
    spec = next((spec for spec in program.inputs if spec.slot == node.inputs[0]), None)
    shape = _whole_numbers(node, program)
    if spec is None or shape is None or spec.declared.shape is None:
        return None
    more = len(shape) - len(axes)
    same = all(size in (0, -1, own) for size, own in zip(shape[more:], spec.declared.shape, strict=False))
    if more < 1 or not same or set(shape[:more]) != {1}:
        return None
    return (None,) * more + axes


_RULES: Mapping[str, Callable[[Node, Axes, Program], Axes | None]] = {
    "Reshape": _reshaped,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}
