"""Run the operators between super-operators once where the models' branches do the same."""

from __future__ import annotations

from collections import defaultdict
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
from gkestimator.merging.lifting.terms import FEW, Terms, integers
from gkestimator.merging.naming import OWN_PREFIX, whole_numbers


@frozen
class Lifted:
    """Hold the model after lifting. ``replaces``: names of merged nodes -> the original nodes they stand for."""

    model: EditableModel
    replaces: Replaces


def lift(model: EditableModel, *, shapes: Shapes, replaces: Replaces, tolerance: float) -> Lifted:
    """Run once, on the whole, what follows ``Split`` along axis 0 on all branches alike (our reading of USHER
    3.4).

    ``model`` holds the super-operators; ``replaces`` names their nodes, with ``()`` for the Concat, Split and
    Slice around them, which are where lifting begins. ``shapes`` are those of the originals' values (of
    values that emission added they are worked out). Nodes of n branches become one where they are alike,
    their inputs are parts of one value or constants that are equal within ``tolerance``, and a rule proves
    that index i of axis 0 of the result depends on index i of the inputs alone (or, for Reshape and Flatten,
    that each branch's rows stay together). The results keep their names by a Split, which goes where nobody
    reads it. Concat of all parts in order becomes the value itself; what stands above a Concat is lifted too
    where no more elements have to be joined then. ``model`` is not changed; outputs are the same up to the
    rounding of kernels for other batch sizes, and the constants' tolerance. Standard opsets below 13 are
    returned as they came.
    """
    replaced = dict(replaces)
    if model.opsets.get("", 1) < LEAST_OPSET:
        return Lifted(model=model, replaces=replaced)
    helpers = {name for name, originals in replaces.items() if not originals}
    model = without_sequences(model, shapes, replaced)
    graph = Graph(model)
    terms = Terms(model.inputs, graph.weights, shapes)
    binder = BranchBinder(graph, terms, tolerance)
    binder.replaces.update(replaced)
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
        if node.inputs not in binder.bundles:
            _register(binder, terms, node.inputs, node.outputs[0], joined=True)
    elif node.key == ("", "Split") and node.attributes.get("axis", 0) == 0:
        parts = node.outputs
        if len(parts) < 2 or not all(parts):
            return
        if len(node.inputs) > 1:
            cuts = terms.vector(node.inputs[1])
            if cuts is not None and len(cuts.entries) == len(parts):
                for part, size in zip(parts, cuts.entries, strict=True):
                    if size is not None:
                        terms.set_size(part, 0, size)
        _register(binder, terms, parts, node.inputs[0], joined=False)


def _register(binder: BranchBinder, terms: Terms, parts: Names, whole: str, *, joined: bool) -> None:
    sizes = tuple(terms.size(part, 0) for part in parts)
    binder.register(BranchBundle(parts=parts, whole=whole, sizes=sizes, joined=joined))


def _finished(model: EditableModel, graph: Graph, binder: BranchBinder, lifter: Lifter) -> Lifted:
    """Return the model without what nobody needs any more; originals that went with a lifted node are counted
    to it.
    """
    known = [*graph.weights, *(value.name for value in model.inputs)]
    ordered = order_nodes(list(graph.nodes.values()), known)
    alive = {graph.nodes[number].name for number in graph.alive()}
    nodes = [node for node in ordered if node.name in alive]
    replaces = {name: originals for name, originals in binder.replaces.items() if name in alive}
    extra = _gone_with(ordered, alive, binder, lifter)
    for name, originals in extra.items():
        replaces[name] = (*replaces.get(name, (name,)), *reversed(originals))
    needed = set(graph.outputs).union(*(node.reads for node in nodes), model.weights)
    weights = {name: weight for name, weight in graph.weights.items() if name in needed}
    return Lifted(model=replace(model, nodes=nodes, weights=weights), replaces=replaces)


def _gone_with(
    ordered: list[EditNode], alive: set[str], binder: BranchBinder, lifter: Lifter
) -> dict[str, list[str]]:
    """Return by lifted node the originals, the last first, that only made what it does not read any more."""
    owners = dict(lifter.dropped)
    extra: dict[str, list[str]] = defaultdict(list)
    # from the end: who made what a dropped node reads was dropped with it
    for node in reversed(ordered):
        if node.name in alive:
            continue
        owner = next((owners[name] for name in node.writes if name in owners), None)
        if owner in alive and owner is not None:
            extra[owner] += binder.replaces.get(node.name, (node.name,))
            owners.update(dict.fromkeys(node.reads, owner))
    return extra


def without_sequences(model: EditableModel, shapes: Shapes, replaces: dict[str, Names]) -> EditableModel:
    """Return ``model`` with SplitToSequence and its SequenceAt as one Split each, where nobody else reads the
    sequence.

    PyTorch's exporter writes ``split`` and ``chunk`` so. The Split keeps the name of the SplitToSequence, and
    its outputs those of the SequenceAt; ``replaces`` learns what it stands for. Needs: an axis of known size,
    constant sizes and positions.
    """
    if not any(node.op_type == "SplitToSequence" for node in model.nodes):
        return model
    terms = Terms(model.inputs, model.weights, shapes)
    readers: dict[str, list[EditNode]] = defaultdict(list)
    fixed = {value.name for value in model.outputs}
    for node in model.nodes:
        fixed.update(node.outer)
        for name in node.reads:
            readers[name].append(node)
    weights = dict(model.weights)
    nodes: list[EditNode] = []
    gone: set[str] = set()
    for node in model.nodes:
        if node.op_type == "SequenceAt" and node.name in gone:
            continue
        split = None
        followers: list[EditNode] = []
        if node.key == ("", "SplitToSequence") and node.outputs[0] not in fixed:
            followers = readers[node.outputs[0]]
            split = _split(node, followers, terms, weights)
        # anything unusual stays a sequence, which is right and merely not lifted
        if split is None:
            nodes.append(node)
            continue
        nodes.append(split)
        taken = [reader.name for reader in followers]
        gone.update(taken)
        replaces[node.name] = (node.name, *taken)
    return replace(model, nodes=nodes, weights=weights)


def _split(node: EditNode, readers: list[EditNode], terms: Terms, weights: Weights) -> EditNode | None:
    """Return the Split in place of ``node`` and all that read its sequence; None where that is not the same."""
    axis = node.attributes.get("axis", 0)
    dims = terms.dims(node.inputs[0])
    if dims is None:
        return None
    if not isinstance(axis, int):
        return None
    rank = len(dims)
    if not -rank <= axis < rank:
        return None
    length = dims[axis]
    if length is None or axis % rank == 0:
        return None
    sizes = _sizes(node, terms, length)
    if sizes is None or not readers:
        return None
    outputs: dict[int, str] = {}
    count = len(sizes)
    for reader in readers:
        if reader.key != ("", "SequenceAt"):
            return None
        position = terms.number(reader.inputs[1])
        if position is None or not -count <= position < count:
            return None
        output = reader.outputs[0]
        if outputs.setdefault(position % count, output) != output:
            return None
    cuts = whole_numbers(sizes, weights)
    names = [outputs.get(i, f"{OWN_PREFIX}{node.outputs[0]}[{i}]") for i in range(count)]
    return EditNode(
        name=node.name,
        op_type="Split",
        inputs=(node.inputs[0], cuts),
        outputs=tuple(names),
        attributes={"axis": axis},
    )


def _sizes(node: EditNode, terms: Terms, length: int) -> Numbers | None:
    """Return how long each part is of an axis of ``length``: as they are listed, or one after the other of
    one step.
    """
    if len(node.inputs) < 2:
        return None
    split = terms.vector(node.inputs[1])
    if split is None:
        return None
    numbers = integers(split.entries)
    if numbers is None or min(numbers, default=0) < 0:
        return None
    if not split.scalar:
        if sum(numbers) == length:
            return numbers
        return None
    step = numbers[0]
    if step < 1:
        return None
    if length < 1:
        return None
    if -(-length // step) > FEW:
        return None
    return tuple(min(step, length - start) for start in range(0, length, step))
