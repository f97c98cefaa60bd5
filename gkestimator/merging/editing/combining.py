"""Models side by side in one, and what nobody needs taken out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import ModelError
from gkestimator.merging.editing.form import EditableModel, EditNode, Weight, Weights
from gkestimator.merging.editing.values import Mapped

_SAMPLES = 8
_SAMPLE_BYTES = 64
_STEP = 1 << 22


def combine(models: Sequence[EditableModel], name: str) -> EditableModel:
    """All ``models`` in one, one after another, under the names that they have.

    Raises ModelError: no model, two models define one name, or their opsets differ (see
    :func:`~gkestimator.merging.editing.align_opsets`).
    """
    if not models:
        raise ModelError(f"{name}: found no model, expected at least one")
    opsets: dict[str, int] = {}
    owners: dict[str, str] = {}
    titles: dict[str, str] = {}
    weights: Weights = {}
    for model in models:
        for domain, version in model.opsets.items():
            if opsets.setdefault(domain, version) != version:
                raise ModelError(
                    f"{model.name}: opset {version} of domain {domain or 'ai.onnx'}; {opsets[domain]} was expected "
                    "as in the models before it"
                )
        _claim(owners, _defined(model), model.name, "value")
        _claim(titles, (n.name for n in model.nodes), model.name, "node")
        weights.update(model.weights)
    producers = dict.fromkeys(m.producer for m in models if m.producer)
    return EditableModel(
        name=name,
        nodes=[n for m in models for n in m.nodes],
        weights=weights,
        inputs=[i for m in models for i in m.inputs],
        outputs=[o for m in models for o in m.outputs],
        opsets=opsets,
        ir_version=max(m.ir_version for m in models),
        producer=", ".join(producers),
        prefixes=tuple(dict.fromkeys(p for m in models for p in m.prefixes)),
    )


def _defined(model: EditableModel) -> Iterable[str]:
    yield from model.weights
    for value in model.inputs:
        yield value.name
    for node in model.nodes:
        yield from node.writes


def _claim(owners: dict[str, str], names: Iterable[str], model: str, what: str) -> None:
    for name in names:
        if name in owners:
            raise ModelError(f"{what} {name!r} is defined twice, by {owners[name]} and by {model}")
        owners[name] = model


def tidy(model: EditableModel) -> EditableModel:
    """``model`` without nodes and weights that no output needs, and each weight once.

    Weights are one where type, shape and bytes are equal; the first keeps its name. A weight that is an output, or
    that a subgraph reads, keeps its own. Only weights of one type and shape that agree in a few places are compared.
    The statistics of a BatchNormalization that trains are shared with nobody: ONNX Runtime writes into them.
    """
    nodes = alive(model)
    ends = {o.name for o in model.outputs}
    read = ends.union(*(n.reads for n in nodes))
    weights = {k: w for k, w in model.weights.items() if k in read}
    fixed = ends.union(*(n.outer for n in nodes))
    written = {i for n in nodes if _trains(n) for i in n.inputs[3:5]}
    twins = _twins({k: w for k, w in weights.items() if k not in written}, fixed)
    if twins:
        nodes = [
            replace(n, inputs=tuple(twins.get(i, i) for i in n.inputs))
            if any(i in twins for i in n.inputs)
            else n
            for n in nodes
        ]
        weights = {k: w for k, w in weights.items() if k not in twins}
    return replace(model, nodes=nodes, weights=weights)


def alive(model: EditableModel) -> list[EditNode]:
    """The nodes that an output of ``model`` needs, in their order (one that can be executed)."""
    needed = {o.name for o in model.outputs}
    kept = []
    for node in reversed(model.nodes):
        if any(name in needed for name in node.writes):
            needed.update(node.reads)
            kept.append(node)
    kept.reverse()
    return kept


def _trains(node: EditNode) -> bool:
    return node.op_type == "BatchNormalization" and bool(node.attributes.get("training_mode", 0))


def _twins(weights: Weights, fixed: set[str]) -> dict[str, str]:
    """Weights that equal one before them -> that one."""
    groups: dict[tuple[object, ...], list[Weight]] = {}
    for weight in weights.values():
        groups.setdefault((weight.dtype, weight.shape), []).append(weight)
    twins: dict[str, str] = {}
    for same in groups.values():
        if len(same) < 2:
            continue
        alike: dict[bytes, list[Weight]] = {}
        for weight in same:
            alike.setdefault(_print(weight), []).append(weight)
        for candidates in alike.values():
            kept: list[Weight] = []
            for weight in candidates:
                if weight.name in fixed:
                    twin = None
                else:
                    twin = next((k for k in kept if _equal(k, weight)), None)
                if twin is None:
                    kept.append(weight)
                else:
                    twins[weight.name] = twin.name
    return twins


def _print(weight: Weight) -> bytes:
    """Bytes from a few places of ``weight``: equal for equal weights, and cheap."""
    array = weight.values.array()
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
    else:
        flat = array.flat
    size = array.size
    count = max(1, _SAMPLE_BYTES // max(1, array.itemsize))
    if size <= _SAMPLES * count:
        return np.ascontiguousarray(array).tobytes()
    starts = sorted({(size - count) * i // (_SAMPLES - 1) for i in range(_SAMPLES)})
    return b"".join(np.ascontiguousarray(flat[s : s + count]).tobytes() for s in starts)


def _equal(a: Weight, b: Weight) -> bool:
    if a.values is b.values:
        return True
    if isinstance(a.values, Mapped) and a.values == b.values:
        return True
    x = a.values.array()
    y = b.values.array()
    if not (x.flags.c_contiguous and y.flags.c_contiguous):
        x = np.ascontiguousarray(x)
        y = np.ascontiguousarray(y)
    # bytes, not numbers: -0.0 is not 0.0, and one NaN is like another
    left = x.reshape(-1).view(np.uint8)
    right = y.reshape(-1).view(np.uint8)
    return all(np.array_equal(left[i : i + _STEP], right[i : i + _STEP]) for i in range(0, len(left), _STEP))


_SHOWN = 6


def operator_name(node: EditNode) -> str:
    """What the node is called in messages: its name and type."""
    return f"{node.name} ({node.domain + '.' if node.domain else ''}{node.op_type})"


def order_nodes(nodes: Sequence[EditNode], known: Iterable[str]) -> list[EditNode]:
    """``nodes`` so that each follows what it reads: of those that may come next always the first in ``nodes``.

    A list that is in order comes back as it is. ``known`` are the names that exist before (inputs and weights).
    Raises ModelError: a name written twice or by nobody, nodes in a cycle.
    """
    writer: dict[str, int] = {}
    names = set(known)
    for index, node in enumerate(nodes):
        for name in node.writes:
            if name in names or writer.setdefault(name, index) != index or node.writes.count(name) > 1:
                raise ModelError(
                    f"value {name!r} is defined twice, the second time by node {operator_name(node)}"
                )
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for name in set(node.reads):
            if name in writer:
                readers[writer[name]].append(index)
                waiting[index] += 1
            elif name not in names:
                raise ModelError(f"node {operator_name(node)} reads {name!r}, which nothing defines")
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[EditNode] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [operator_name(nodes[i]) for i, count in enumerate(waiting) if count]
        raise ModelError(
            f"{len(stuck)} nodes read each other's results in a cycle or follow one: {', '.join(stuck[:_SHOWN])}"
        )
    return order
