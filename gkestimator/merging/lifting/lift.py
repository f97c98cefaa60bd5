"""``lift``: runs the operators between super-operators once where the models' branches do the same."""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.records import frozen
from gkestimator.merging.editing import (
    LEAST_OPSET,
    EditableModel,
    EditNode,
    Names,
    Numbers,
    Replaces,
    Shapes,
    Weights,
    order_nodes,
)
from gkestimator.merging.lifting.bundles import BranchBinder, BranchBundle
from gkestimator.merging.lifting.graph import Graph
from gkestimator.merging.lifting.lifter import Lifter
from gkestimator.merging.lifting.spreading import learn_shapes, spread_sizes
from gkestimator.merging.lifting.terms import FEW, Terms
from gkestimator.merging.naming import OWN_PREFIX, whole_numbers


@frozen
class Lifted:
    """The model after lifting. ``replaces``: names of merged nodes -> the original nodes they stand for."""

    model: EditableModel
    replaces: Replaces


def lift(
    model: EditableModel,
    *,
    shapes: Shapes,
    replaces: Replaces,
    tolerance: float,
) -> Lifted:
    """Run once, on the whole, what follows ``Split`` along axis 0 on all branches alike (our reading of USHER 3.4).

    ``model`` holds the super-operators; ``replaces`` names their nodes, with ``()`` for the Concat, Split and Slice
    around them, which are where lifting begins. ``shapes`` are those of the originals' values (of values that
    emission added they are worked out). Nodes of n branches become one where they are alike, their inputs are parts
    of one value or constants that are equal within ``tolerance``, and a rule proves that index i of axis 0 of the
    result depends on index i of the inputs alone (or, for Reshape and Flatten, that each branch's rows stay
    together). The results keep their names by a Split, which goes where nobody
    reads it. Concat of all parts in order becomes the value itself; what stands above a Concat is lifted too where
    no more elements have to be joined then. ``model`` is not changed; outputs are the same up to the rounding of
    kernels for other batch sizes, and the constants' tolerance. Standard opsets below 13 are returned as they came.
    """
    if model.opsets.get("", 1) < LEAST_OPSET:
        return Lifted(model=model, replaces=dict(replaces))
    replaces = dict(replaces)
    helpers = {name for name, originals in replaces.items() if not originals}
    model = without_sequences(model, shapes, replaces)
    graph = Graph(model)
    terms = Terms(model.inputs, graph.weights, shapes)
    binder = BranchBinder(graph, terms, tolerance)
    binder.replaces.update(replaces)
    for node in model.nodes:
        terms.work_out(node)
        learn_shapes(node, terms)
        binder.note_steady(node)
        if node.name in helpers:
            _begin(node, binder, terms)
        spread_sizes(node, binder, terms)
    lifter = Lifter(graph, terms, binder)
    lifter.run()
    return _finished(model, graph, binder, lifter)


def _begin(node: EditNode, binder: BranchBinder, terms: Terms) -> None:
    """Note what a helper Concat or Split along axis 0 says of its parts."""
    if binder.is_join(node) and len(node.inputs) > 1:
        sizes = tuple(terms.size(n, 0) for n in node.inputs)
        if node.inputs not in binder.bundles:
            binder.register(BranchBundle(parts=node.inputs, whole=node.outputs[0], sizes=sizes, joined=True))
    elif node.op_type == "Split" and not node.domain and node.attributes.get("axis", 0) == 0:
        parts = node.outputs
        if len(parts) < 2 or not all(parts):
            return
        if len(node.inputs) > 1:
            vector = terms.vector(node.inputs[1])
        else:
            vector = None
        if vector is not None and len(vector[0]) == len(parts):
            for part, size in zip(parts, vector[0], strict=True):
                if size is not None:
                    terms.set_size(part, 0, size)
        sizes = tuple(terms.size(n, 0) for n in parts)
        binder.register(BranchBundle(parts=parts, whole=node.inputs[0], sizes=sizes, joined=False))


def _finished(model: EditableModel, graph: Graph, binder: BranchBinder, lifter: Lifter) -> Lifted:
    """The model without what nobody needs any more; originals that went with a lifted node are counted to it."""
    known = [*graph.weights, *(v.name for v in model.inputs)]
    ordered = order_nodes(list(graph.nodes.values()), known)
    alive = {graph.nodes[n].name for n in graph.alive()}
    kept = [n for n in ordered if n.name in alive]
    replaces = {name: originals for name, originals in binder.replaces.items() if name in alive}
    owners = dict(lifter.dropped)
    extra: dict[str, list[str]] = {}
    for node in reversed(ordered):
        if node.name in alive:
            continue
        owner = next((owners[n] for n in node.writes if n in owners), None)
        if owner is not None and owner in alive:
            extra.setdefault(owner, []).extend(binder.replaces.get(node.name, (node.name,)))
            owners.update((n, owner) for n in node.reads)
    for name, originals in extra.items():
        replaces[name] = (*replaces.get(name, (name,)), *reversed(originals))
    read = {n for node in kept for n in node.reads} | graph.outputs
    weights = {n: w for n, w in graph.weights.items() if n in model.weights or n in read}
    return Lifted(model=replace(model, nodes=kept, weights=weights), replaces=replaces)


def without_sequences(model: EditableModel, shapes: Shapes, replaces: dict[str, Names]) -> EditableModel:
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


def _split(node: EditNode, readers: list[EditNode], terms: Terms, weights: Weights) -> EditNode | None:
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
        if reader.domain:
            return None
        if not isinstance(entry, int):
            return None
        if not -len(sizes) <= entry < len(sizes):
            return None
        if outputs.setdefault(entry % len(sizes), reader.outputs[0]) != reader.outputs[0]:
            return None
    name = whole_numbers(sizes, weights)
    names = tuple(outputs.get(i, f"{OWN_PREFIX}{node.outputs[0]}[{i}]") for i in range(len(sizes)))
    attributes = {"axis": node.attributes.get("axis", 0)}
    return EditNode(
        name=node.name, op_type="Split", inputs=(node.inputs[0], name), outputs=names, attributes=attributes
    )


def _sizes(node: EditNode, terms: Terms) -> Numbers | None:
    """How long each part is along an axis other than 0."""
    dims = terms.dims(node.inputs[0])
    axis = node.attributes.get("axis", 0)
    if dims is None:
        return None
    if not isinstance(axis, int):
        return None
    if not -len(dims) <= axis < len(dims):
        return None
    if axis % len(dims) == 0:
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
    if step < 1:
        return None
    if -(-length // step) > FEW:
        return None
    if length < 1:
        return None
    return tuple(min(step, length - start) for start in range(0, length, step))
