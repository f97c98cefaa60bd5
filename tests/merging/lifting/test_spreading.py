"""Which sizes are known to be the same before anything is lifted."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import EditableModel, EditNode, Held, ValueInfo, ValueShape, Weight
from gkestimator.merging.lifting.bundles import BranchBinder
from gkestimator.merging.lifting.graph import Graph
from gkestimator.merging.lifting.spreading import spread_sizes
from gkestimator.merging.lifting.terms import Terms

BATCH, OTHER = ("x", 0, 1), ("z", 0, 1)


def size_after(rank: int, *nodes: EditNode) -> object:
    """Size of axis 0 of ``y``, of that rank, whose sizes are not known; ``x`` is [batch, 3, 4], ``z`` [other, 3, 4]."""
    held = {
        "nothing": np.float32(0),
        "unit": np.float32(1),
        "zero": np.array(0),
        "one": np.ones((1, 4), np.float32),
        "rows": np.array([-1, 4]),
        "back": np.array([-1, 3, 4]),
    }
    weights = {
        n: Weight(
            name=n,
            dtype=DType.INT64 if a.dtype == np.int64 else DType.FLOAT,
            shape=a.shape,
            values=Held(held=a),
        )
        for n, a in ((n, np.asarray(a)) for n, a in held.items())
    }
    inputs = [
        ValueInfo(name=n, dtype=DType.FLOAT, shape=(d, 3, 4)) for n, d in (("x", "batch"), ("z", "other"))
    ]
    model = EditableModel(
        name="m", nodes=list(nodes), weights=weights, inputs=inputs, outputs=[], opsets={"": 17}, ir_version=8
    )
    shapes = {n: ValueShape(dtype=DType.FLOAT, dims=(None, 3, 4)) for n in ("x", "z")}
    shapes["shape"] = ValueShape(dtype=DType.INT64, dims=(3,))
    shapes["flat"] = ValueShape(dtype=DType.FLOAT, dims=(None, 4))
    shapes["y"] = ValueShape(dtype=DType.FLOAT, dims=(None, 3, 4)[:1] + (None, 3, 4)[4 - rank :])
    terms = Terms(inputs, weights, shapes)
    binder = BranchBinder(Graph(model), terms, 0.0)
    for node in nodes:
        terms.work_out(node)
        spread_sizes(node, binder, terms)
    return terms.size("y", 0)


def node(op_type: str, inputs: str, output: str = "y", **attributes: int) -> EditNode:
    return EditNode(
        name=output, op_type=op_type, inputs=tuple(inputs.split()), outputs=(output,), attributes=attributes
    )


OWN = ("y", 0, 1)
COUNT = [
    node("Shape", "z", "shape"),
    node("Gather", "shape zero", "limit"),
    node("CastLike", "nothing limit", "nought"),
    node("CastLike", "unit limit", "step"),
]


@pytest.mark.parametrize(
    ("nodes", "rank", "wanted"),
    [
        ([node("Relu", "x")], 3, BATCH),
        ([node("Add", "x one")], 3, BATCH),
        ([node("Add", "x x")], 3, BATCH),
        ([node("Add", "x z")], 3, OWN),
        ([node("Concat", "x x", axis=0)], 3, OWN),
        ([node("Softmax", "x", axis=0)], 3, OWN),
        ([node("Unknown", "x")], 3, OWN),
        ([node("Reshape", "x rows")], 2, ("x", 0, 3)),
        ([node("Reshape", "x rows", "flat"), node("Reshape", "flat back")], 3, BATCH),
        ([node("Shape", "z", "shape"), node("Reshape", "x shape")], 3, BATCH),
        ([node("Shape", "z", "shape"), node("Expand", "one shape")], 3, OTHER),
        ([node("Shape", "z", "shape"), node("Expand", "x shape")], 3, OWN),
        ([node("Shape", "x", "shape"), node("Expand", "x shape")], 3, BATCH),
        ([node("GatherND", "x z")], 3, OTHER),
        ([node("GatherND", "x z", batch_dims=1)], 3, OWN),
        ([*COUNT, node("Range", "nought limit step")], 1, OTHER),
        ([*COUNT, node("Range", "step limit step")], 1, OWN),
        ([*COUNT, node("Range", "nought limit limit")], 1, OWN),
    ],
)
def test_sizes_follow_the_rules(nodes: list[EditNode], rank: int, wanted: object) -> None:
    """``x`` expanded to the shape of ``z`` is as long as z only where neither is 1: that is not known."""
    assert size_after(rank, *nodes) == wanted
