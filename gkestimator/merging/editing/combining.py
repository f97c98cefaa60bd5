"""Put models side by side in one, order their nodes, and take out what nobody needs."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import ModelError
from gkestimator.merging.editing.form import EditableModel, EditNode, Models, Weight
from gkestimator.merging.editing.values import Mapped

NameOfName: TypeAlias = "dict[str, str]"

_SAMPLES = 8
_SAMPLE_BYTES = 64
_STEP = 1 << 22
_SHOWN = 6


def combine(models: Models, name: str) -> EditableModel:
    """Return all ``models`` in one, one after another, under the names that they have.

    Raises ModelError: no model, two models define one name, or their opsets differ (see
    :func:`~gkestimator.merging.editing.align_opsets`).
    """
    if not models:
        raise ModelError(f"{name}: found no model, expected at least one")
    both = EditableModel(
        name=name,
        nodes=[],
        weights={},
        inputs=[],
        outputs=[],
        opsets={},
        ir_version=max(model.ir_version for model in models),
        producer=", ".join(dict.fromkeys(model.producer for model in models if model.producer)),
    )
    values: NameOfName = {}
    titles: NameOfName = {}
    prefixes: list[str] = []
    for model in models:
        for domain, version in model.opsets.items():
            expected = both.opsets.setdefault(domain, version)
            if expected != version:
                raise ModelError(
                    f"{model.name}: opset {version} of domain {domain or 'ai.onnx'}; {expected} was expected "
                    "as in the models before it"
                )
        _claim(values, model.defined(), model.name, "value")
        _claim(titles, (node.name for node in model.nodes), model.name, "node")
        both.nodes += model.nodes
        both.weights |= model.weights
        both.inputs += model.inputs
        both.outputs += model.outputs
        prefixes += model.prefixes
    return replace(both, prefixes=tuple(dict.fromkeys(prefixes)))


def _claim(owners: NameOfName, names: Iterable[str], model: str, what: str) -> None:
    for name in names:
        if name in owners:
            raise ModelError(f"{what} {name!r} is defined twice, by {owners[name]} and by {model}")
        owners[name] = model


def tidy(model: EditableModel) -> EditableModel:
    """Return ``model`` without nodes and weights that no output needs, and each weight once.

    Weights are one where type, shape and bytes are equal; the first keeps its name. A weight that is an
    output, or that a subgraph reads, keeps its own. Only weights of one type and shape that agree in a few
    places are compared. The statistics of a BatchNormalization that trains are shared with nobody: ONNX
    Runtime writes into them.
    """
    nodes = alive(model)
    ends = {value.name for value in model.outputs}
    needed = ends.union(*(node.reads for node in nodes))
    weights = {name: weight for name, weight in model.weights.items() if name in needed}
    fixed = ends.union(*(node.outer for node in nodes))
    written: set[str] = set()
    for node in nodes:
        if node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0):
            written.update(node.inputs[3:5])
    shareable = [weight for name, weight in weights.items() if name not in written]
    twins = _twins(shareable, fixed)
    for name in twins:
        del weights[name]
    return replace(model, nodes=[_reading(node, twins) for node in nodes], weights=weights)


def _reading(node: EditNode, twins: NameOfName) -> EditNode:
    """Return ``node`` reading the twins of its inputs."""
    if twins.keys().isdisjoint(node.inputs):
        return node
    return replace(node, inputs=tuple(twins.get(name, name) for name in node.inputs))


def alive(model: EditableModel) -> list[EditNode]:
    """Return the nodes that an output of ``model`` needs, in their order (one that can be executed)."""
    needed = {value.name for value in model.outputs}
    nodes = []
    # one pass from the end is enough, for the nodes are in an order of execution
    for node in reversed(model.nodes):
        if not needed.isdisjoint(node.writes):
            needed.update(node.reads)
            nodes.append(node)
    return nodes[::-1]


def _twins(weights: Iterable[Weight], fixed: set[str]) -> NameOfName:
    """Return by name of a weight that equals one before it the name of that one."""
    kinds: dict[Hashable, list[Weight]] = defaultdict(list)
    for weight in weights:
        kinds[weight.dtype, weight.shape].append(weight)
    twins: NameOfName = {}
    for same_kind in kinds.values():
        if len(same_kind) < 2:
            continue  # no reason to look into its file
        candidates: dict[bytes, list[Weight]] = defaultdict(list)
        for weight in same_kind:
            distinct = candidates[_print(weight)]
            twin = None
            if weight.name not in fixed:
                twin = next((other for other in distinct if _equal(other, weight)), None)
            if twin is None:
                distinct.append(weight)
            else:
                twins[weight.name] = twin.name
    return twins


def _print(weight: Weight) -> bytes:
    """Return bytes from a few places of ``weight``: equal for equal weights, and cheap."""
    array = weight.values.array()
    count = max(1, _SAMPLE_BYTES // max(1, array.itemsize))
    last = array.size - count
    if array.size <= _SAMPLES * count:
        return np.ascontiguousarray(array).tobytes()
    samples = []
    for start in sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
        # A flat iterator, for a reshape would copy what is not contiguous.
        samples.append(np.asarray(array.flat[start : start + count]).tobytes())
    return b"".join(samples)


def _equal(a: Weight, b: Weight) -> bool:
    if a.values is b.values:
        return True
    if isinstance(a.values, Mapped) and a.values == b.values:
        return True
    left = _bytes_of(a)
    right = _bytes_of(b)
    for start in range(0, len(left), _STEP):
        stop = start + _STEP
        if not np.array_equal(left[start:stop], right[start:stop]):
            return False
    return True


def _bytes_of(weight: Weight) -> np.ndarray:
    """Return the values' bytes: as numbers -0.0 would be 0.0, and one NaN no other."""
    array = np.ascontiguousarray(weight.values.array())
    return array.reshape(-1).view(np.uint8)


def operator_name(node: EditNode) -> str:
    """Return what the node is called in messages: its name and type."""
    if node.domain:
        return f"{node.name} ({node.domain}.{node.op_type})"
    return f"{node.name} ({node.op_type})"


def order_nodes(nodes: Sequence[EditNode], known: Iterable[str]) -> list[EditNode]:
    """Return ``nodes`` so that each follows what it reads: of those that may come next always the first in
    ``nodes``.

    A list that is in order comes back as it is. ``known`` are the names that exist before (inputs and
    weights). Raises ModelError: a name written twice or by nobody, nodes in a cycle.
    """
    names = set(known)
    writer = _writers(nodes, names)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for name in set(node.reads):
            if name in writer:
                readers[writer[name]].append(index)
                waiting[index] += 1
            elif name not in names:
                raise ModelError(f"node {operator_name(node)} reads {name!r}, which nothing defines")
    # a heap: of the nodes that may come next the first in the list comes next
    ready = [index for index, count in enumerate(waiting) if not count]
    order: list[EditNode] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [operator_name(node) for node, count in zip(nodes, waiting, strict=True) if count]
        raise ModelError(
            f"{len(stuck)} nodes read each other's results in a cycle or follow one: {', '.join(stuck[:_SHOWN])}"
        )
    return order


def _writers(nodes: Sequence[EditNode], known: set[str]) -> dict[str, int]:
    """Return the number of the node that writes a name. Raises ModelError where it is defined twice."""
    writer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.writes:
            if name in known or name in writer:
                raise ModelError(
                    f"value {name!r} is defined twice, the second time by node {operator_name(node)}"
                )
            writer[name] = index
    return writer
