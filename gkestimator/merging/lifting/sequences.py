"""Sequences that exporters cut a value into, only to take each part out again: the same by one Split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gkestimator.merging.constants import whole_numbers
from gkestimator.merging.editing import EditableModel, EditNode, ValueShape, Weight
from gkestimator.merging.lifting.terms import FEW, Terms
from gkestimator.merging.naming import OWN_PREFIX


def without_sequences(
    model: EditableModel, shapes: Mapping[str, ValueShape], replaces: dict[str, tuple[str, ...]]
) -> EditableModel:
    """``model`` with SplitToSequence and its SequenceAt as one Split each, where nobody else reads the sequence.

    PyTorch's exporter writes ``split`` and ``chunk`` so. The Split keeps the name of the SplitToSequence, and its
    outputs those of the SequenceAt; ``replaces`` learns what it stands for. Needs: an axis of known size, constant
    sizes and positions.
    """
    if not any(n.op_type == "SplitToSequence" for n in model.nodes):
        return model
    terms = Terms(model.inputs, model.weights, shapes)
    readers: dict[str, list[EditNode]] = {}
    kept = {v.name for v in model.outputs}
    for node in model.nodes:
        kept.update(node.outer)
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    weights = dict(model.weights)
    nodes: list[EditNode] = []
    gone: dict[str, str] = {}
    for node in model.nodes:
        if node.op_type == "SequenceAt" and node.name in gone:
            continue
        found = None
        if node.op_type == "SplitToSequence" and not node.domain and node.outputs[0] not in kept:
            found = _split(node, readers.get(node.outputs[0], []), terms, weights)
        if found is None:
            nodes.append(node)
            continue
        nodes.append(found)
        taken = tuple(r.name for r in readers[node.outputs[0]])
        gone.update(dict.fromkeys(taken, node.name))
        replaces[node.name] = (node.name, *taken)
    return replace(model, nodes=nodes, weights=weights)


def _split(
    node: EditNode, readers: list[EditNode], terms: Terms, weights: dict[str, Weight]
) -> EditNode | None:
    """The Split in place of ``node`` and all that read its sequence; None where that is not the same."""
    sizes = _sizes(node, terms)
    if sizes is None or not readers:
        return None
    outputs: dict[int, str] = {}
    for reader in readers:
        if reader.op_type == "SequenceAt":
            position = terms.vector(reader.inputs[1])
        else:
            position = None
        if position is not None and len(position[0]) == 1:
            entry = position[0][0]
        else:
            entry = None
        if reader.domain or not isinstance(entry, int) or not -len(sizes) <= entry < len(sizes):
            return None
        if outputs.setdefault(entry % len(sizes), reader.outputs[0]) != reader.outputs[0]:
            return None
    name = whole_numbers(sizes, weights)
    names = tuple(outputs.get(i, f"{OWN_PREFIX}{node.outputs[0]}[{i}]") for i in range(len(sizes)))
    attributes = {"axis": node.attributes.get("axis", 0)}
    return EditNode(
        name=node.name, op_type="Split", inputs=(node.inputs[0], name), outputs=names, attributes=attributes
    )


def _sizes(node: EditNode, terms: Terms) -> tuple[int, ...] | None:
    """How long each part is along an axis other than 0."""
    dims = terms.dims(node.inputs[0])
    axis = node.attributes.get("axis", 0)
    if (
        dims is None
        or not isinstance(axis, int)
        or not -len(dims) <= axis < len(dims)
        or axis % len(dims) == 0
    ):
        return None
    length = dims[axis]
    if len(node.inputs) > 1 and node.inputs[1]:
        given = terms.vector(node.inputs[1])
    else:
        given = None
    if length is None or given is None:
        return None
    numbers = tuple(e for e in given[0] if isinstance(e, int))
    if len(numbers) != len(given[0]) or any(n < 0 for n in numbers):
        return None
    if not given[1]:
        if sum(numbers) == length:
            return numbers
        return None
    step = numbers[0]
    if step < 1 or -(-length // step) > FEW or length < 1:
        return None
    return tuple(min(step, length - start) for start in range(0, length, step))
