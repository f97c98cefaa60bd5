"""Random graphs of two branches that share operators, part ways, and are joined again at random places."""

from __future__ import annotations

import numpy as np
import onnx
from branches import BRANCHES, Branch
from onnx import TensorProto, helper, numpy_helper

__all__ = ["random_graph"]

WIDTH, LENGTH = 4, 3


def random_graph(
    seed: int, fixed: tuple[int, int] | None = None
) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """A graph whose inputs p and q are [p_batch, 3, 4] and [q_batch, 3, 4], and two sets of inputs.

    ``fixed``: the batches are these numbers, for which there is one set.

    Steps are drawn for both branches: the same operator on the same earlier values (with equal constants, or not),
    operators of one branch alone, and "joins": the two branches' newest values through one product, as emission
    writes it, in the order that keeps the graph free of cycles.
    """
    draw = np.random.default_rng(seed)
    made = [Branch(place, 2 + place) for place in range(2)]
    sizes = [
        helper.make_node("Shape", [n], [f"{n}.size"], name=f"helper/{n}", start=0, end=1) for n in BRANCHES
    ]
    nodes = [*sizes, helper.make_node("Concat", ["p.size", "q.size"], ["sizes"], name="helper/sizes", axis=0)]
    constants: list[onnx.TensorProto] = []
    values = [[b.name] for b in made]
    for step in range(int(draw.integers(6, 16))):
        kind = draw.random()
        if kind < 0.3:
            picks = [v[int(draw.integers(max(0, len(v) - 3), len(v)))] for v in values]
            _join(step, picks, made, nodes, constants)
            for place, branch in enumerate(made):
                values[place].append(f"{branch.name}/joined{step}")
            continue
        alone = int(draw.integers(2)) if kind > 0.85 else None
        recipe, distance, apart = int(draw.integers(len(STEPS))), draw.integers(1, 4, 2), draw.random() < 0.1
        for place, branch in enumerate(made):
            if alone is None or alone == place:
                x, y = (values[place][-min(int(d), len(values[place]))] for d in distance)
                values[place].append(STEPS[recipe](branch, x, y, step + 100 * (apart and place)))
    for branch in made:
        nodes += branch.nodes
        constants += branch.constants
    first = fixed or [f"{b.name}_batch" for b in made]
    inputs = [
        helper.make_tensor_value_info(b.name, TensorProto.FLOAT, [f, LENGTH, WIDTH])
        for b, f in zip(made, first, strict=True)
    ]
    ends = [
        helper.make_empty_tensor_value_info(name) for v in values for name in {v[-1], v[len(v) // 2]} - {v[0]}
    ]
    proto = helper.make_graph(_ordered(nodes), "random", inputs, ends, constants)
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = [
        {
            name: np.random.default_rng([seed, batch]).standard_normal((batch, LENGTH, WIDTH), np.float32)
            for name, batch in zip(BRANCHES, batches, strict=True)
        }
        for batches in ([fixed] if fixed else [(2, 3), (4, 1)])
    ]
    return model, feeds


def _join(step: int, picks: list[str], made: list[Branch], nodes: list, constants: list) -> None:
    weight = np.random.default_rng(step).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 2
    constants.append(numpy_helper.from_array(weight, f"w{step}"))
    outputs = [f"{b.name}/joined{step}" for b in made]
    nodes += [
        helper.make_node("Concat", picks, [f"whole{step}"], name=f"helper/Concat{step}", axis=0),
        helper.make_node("MatMul", [f"whole{step}", f"w{step}"], [f"product{step}"], name=f"super{step}"),
        helper.make_node("Split", [f"product{step}", "sizes"], outputs, name=f"helper/Split{step}", axis=0),
    ]


def _ordered(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """In an order that can be executed."""
    made = {o for n in nodes for o in n.output}
    found: list[onnx.NodeProto] = []
    there: set[str] = set()
    while len(found) < len(nodes):
        ready = [n for n in nodes if n.name not in {f.name for f in found}]
        ready = [n for n in ready if all(i not in made or i in there for i in n.input)]
        assert ready
        found += ready
        there |= {o for n in ready for o in n.output}
    return found


def _mask(b: Branch, x: str, y: str, seed: int) -> str:
    first = b.op("Slice", x, b.ints(0), b.ints(1), b.ints(1))
    return b.op("Where", b.op("Greater", first, b.const(0.1)), x, y)


def _heads(b: Branch, x: str, y: str, seed: int) -> str:
    parts = [b.op("Transpose", b.op("Reshape", v, b.ints(0, 3, 2, 2)), perm=[0, 2, 1, 3]) for v in (x, y)]
    scores = b.op("MatMul", parts[0], b.op("Transpose", parts[1], perm=[0, 1, 3, 2]))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), parts[1])
    return b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(-1, 3, 4))


def _rows(b: Branch, x: str, y: str, seed: int) -> str:
    flat = b.op("Gemm", b.op("Reshape", x, b.ints(-1, 4)), b.random(4, 4, seed=seed), b.random(4, seed=seed))
    return b.op("Reshape", flat, b.ints(-1, 3, 4))


STEPS = [
    lambda b, x, y, seed: b.op("Relu", x),
    lambda b, x, y, seed: b.op("Tanh", x),
    lambda b, x, y, seed: b.op("Add", x, y),
    lambda b, x, y, seed: b.op("Mul", x, b.random(4, seed=seed)),
    lambda b, x, y, seed: b.op("MatMul", x, b.random(4, 4, seed=seed)),
    lambda b, x, y, seed: b.op("LayerNormalization", x, b.random(4, seed=seed)),
    lambda b, x, y, seed: b.op("Softmax", x, axis=-1),
    lambda b, x, y, seed: b.op("Softmax", x, axis=0),
    lambda b, x, y, seed: b.op("Sub", x, b.op("ReduceMean", y, axes=[0], keepdims=1)),
    lambda b, x, y, seed: b.op("Sub", x, b.op("ReduceMax", y, axes=[-1], keepdims=1)),
    lambda b, x, y, seed: b.op("Add", x, b.op("Slice", y, b.ints(0), b.ints(1), b.ints(0))),
    lambda b, x, y, seed: b.op("Mul", x, b.op("Gather", y, b.ints(1), axis=2)),
    lambda b, x, y, seed: b.op("CumSum", x, b.const(seed % 3, np.int64)),
    lambda b, x, y, seed: b.op("Expand", b.op("Slice", x, b.ints(0), b.ints(1), b.ints(1)), b.ints(1, 3, 4)),
    _mask,
    _heads,
    _rows,
]
