"""Small editable models written by hand, and slow answers to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import EditableModel, EditNode, Held, ValueInfo, ValueShape, Weight
from gkestimator.merging.matching import candidates
from gkestimator.merging.operators import WeightOperator

DTYPES = {"float32": DType.FLOAT, "float16": DType.FLOAT16, "uint16": DType.BFLOAT16, "int64": DType.INT64}


def weight(name: str, array: np.ndarray) -> Weight:
    """An initializer that is held in memory."""
    return Weight(name=name, dtype=DTYPES[array.dtype.name], shape=array.shape, values=Held(held=array))


def model(
    name: str, nodes: Sequence[EditNode], weights: Mapping[str, np.ndarray], inputs: Sequence[str] = ("x",)
) -> EditableModel:
    """A model of these nodes; what nobody reads comes out of it."""
    read = {n for node in nodes for n in node.reads}
    outputs = [n for node in nodes for n in node.writes if n not in read]
    return EditableModel(
        name=name,
        nodes=list(nodes),
        weights={n: weight(n, a) for n, a in weights.items()},
        inputs=[ValueInfo(name=n, dtype=DType.FLOAT, shape=None) for n in inputs],
        outputs=[ValueInfo(name=n, dtype=DType.FLOAT, shape=None) for n in outputs],
        opsets={"": 17},
        ir_version=8,
    )


def products(
    name: str, weights: Sequence[np.ndarray], reads: Sequence[int | None] | None = None
) -> EditableModel:
    """MatMul nodes ``name/op<k>`` by ``weights[k]``; ``reads[k]``: whose result (None: the model's input)."""
    reads = [None] * len(weights) if reads is None else reads
    nodes = [
        EditNode(
            name=f"{name}/op{k}",
            op_type="MatMul",
            inputs=(f"{name}/x" if source is None else f"{name}/y{source}", f"{name}/w{k}"),
            outputs=(f"{name}/y{k}",),
        )
        for k, source in enumerate(reads)
    ]
    return model(name, nodes, {f"{name}/w{k}": w for k, w in enumerate(weights)}, [f"{name}/x"])


def operators(
    models: Sequence[EditableModel], starts: Mapping[str, float] | None = None, *, rank: int = 3
) -> list[list[WeightOperator]]:
    """The candidates of each, every value of ``rank`` dimensions, node k starting at k ms unless said."""
    found = []
    for index, m in enumerate(models):
        values = {n for node in m.nodes for n in (*node.reads, *node.writes)}
        shapes = {n: ValueShape(dtype=DType.FLOAT, dims=(None,) * rank) for n in values - set(m.weights)}
        times = {node.name: float(k) for k, node in enumerate(m.nodes)}
        found.append(candidates(m, index, shapes, {**times, **(starts or {})}))
    return found


def largest_common_area(a: np.ndarray, b: np.ndarray, tolerance: float) -> int:
    """Cells of the largest common rectangle of two matrices, by trying each."""
    best = 0
    for rows in range(1, min(a.shape[0], b.shape[0]) + 1):
        for columns in range(1, min(a.shape[1], b.shape[1]) + 1):
            if rows * columns > best and _anywhere(a, b, rows, columns, tolerance):
                best = rows * columns
    return best


def _anywhere(a: np.ndarray, b: np.ndarray, rows: int, columns: int, tolerance: float) -> bool:
    size = (rows, columns)
    for i, j in itertools.product(range(a.shape[0] - rows + 1), range(a.shape[1] - columns + 1)):
        one = a[i : i + rows, j : j + columns]
        for k, n in itertools.product(range(b.shape[0] - rows + 1), range(b.shape[1] - columns + 1)):
            other = b[k : k + rows, n : n + columns]
            assert one.shape == other.shape == size
            if (np.abs(one.astype(float) - other.astype(float)) <= tolerance).all():
                return True
    return False
