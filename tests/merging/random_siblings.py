"""Random small graphs with products between operators of many kinds, the same for each of several models.

``BATCH`` stands for the batch in a value's sizes, wherever operators have moved it; ``(BATCH, 3)`` is 3 rows a sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["sibling_of"]

BATCH = "batch"
Sizes = tuple[Any, ...]
#: Adds nodes that read a value; the result's name and sizes, or None where it does not go with these sizes.
Step = Callable[["Siblings", str, Sizes], "tuple[str, Sizes] | None"]


@dataclass
class Siblings:
    """One model while it is built: ``place`` is its number; ``draw`` gives all models the same numbers."""

    place: int
    draw: random.Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: dict[str, Sizes] = field(default_factory=dict)
    values: list[tuple[str, Sizes]] = field(default_factory=list)

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def const(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, *sizes: int, equal: float = 0.94) -> str:
        """A random constant; one in a few is another one in each model."""
        seed, apart = self.draw.randrange(10**6), self.draw.random() > equal
        drawn = np.random.default_rng([seed, self.place if apart else 0]).standard_normal(sizes)
        return self.const((drawn * 0.6).astype(np.float32))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"{op_type}{len(self.nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=name, **attributes))
        return name

    def axis(self, sizes: Sizes, *, known: bool = False) -> tuple[int, int]:
        """A random axis (with a size that never changes), from the front and as it is written down."""
        places = [i for i, s in enumerate(sizes) if not known or isinstance(s, int)] or [0]
        axis = self.draw.choice(places)
        return axis, axis if self.draw.random() < 0.5 else axis - len(sizes)

    def other(self, sizes: Sizes) -> str:
        """Any of the values of these sizes."""
        return self.draw.choice([name for name, s in self.values[-6:] if s == sizes])


def _with(sizes: Sizes, axis: int, *new: Any) -> Sizes:
    return (*sizes[:axis], *new, *sizes[axis + 1 :])


def _product(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes] | None:
    if len(d) < 2 or not isinstance(d[-1], int):
        return None
    columns = b.draw.choice([d[-1], 3, 6])
    return b.op("MatMul", x, b.floats(d[-1], columns, equal=1)), (*d[:-1], columns)


def _constant(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes]:
    """A constant of any rank up to the value's, of any size that broadcasts to it."""
    sizes = [s if isinstance(s, int) and b.draw.random() < 0.6 else 1 for s in d]
    names = [x, b.floats(*sizes[b.draw.randrange(len(d) + 1) :])]
    b.draw.shuffle(names)
    return b.op(b.draw.choice(["Add", "Mul", "Sub", "Max"]), *names), d


def _reduce(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes]:
    (axis, given), keep = b.axis(d), b.draw.random() < 0.6
    if b.draw.random() < 0.3:
        kept = b.op(b.draw.choice(["ArgMax", "ArgMin"]), x, axis=given, keepdims=int(keep))
        return b.op("Cast", kept, to=TensorProto.FLOAT), _with(d, axis, *[1] * keep)
    op_type = b.draw.choice(["ReduceMean", "ReduceMax", "ReduceL2"])
    return b.op(op_type, x, axes=[given], keepdims=int(keep)), _with(d, axis, *[1] * keep)


def _reshape(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes] | None:
    if isinstance(d[0], tuple):  # rows back to samples
        return b.op("Reshape", x, b.ints(-1, d[0][1], d[1])), (BATCH, d[0][1], d[1])
    if d[0] != BATCH or BATCH in d[1:] or len(d) < 2:
        return None
    elements = int(np.prod(d[1:]))
    ways: list[tuple[Sequence[int], Sizes]] = [
        ((0, -1), (BATCH, elements)),
        ((-1, d[-1]), ((BATCH, elements // d[-1]) if elements > d[-1] else BATCH, d[-1])),
        ((d[1], -1), (d[1], None)),
        ((-1, *d[1:], 1), (*d, 1)),
    ]
    shape, sizes = b.draw.choice(ways)
    if None in sizes:  # mixes samples; and back
        mixed = b.op("Tanh", b.op("Reshape", x, b.ints(*shape)))
        return b.op("Reshape", mixed, b.ints(-1, *d[1:])), d
    return b.op("Reshape", x, b.ints(*shape)), sizes


def _gather(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes]:
    axis, given = b.axis(d)
    highest, count = d[axis] if isinstance(d[axis], int) else 1, b.draw.choice([0, 1, 2])
    ids = [b.draw.randrange(highest) for _ in range(count)] if count else b.draw.randrange(highest)
    found = b.op("Gather", x, b.const(np.array(ids, np.int64)), axis=given)
    return found, _with(d, axis, *[count] * bool(count))


def _slice(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes]:
    axis, given = b.axis(d)
    if b.draw.random() < 0.4:  # turned round
        return b.op("Slice", x, b.ints(-1), b.ints(-(2**40)), b.ints(given), b.ints(-1)), d
    return b.op("Slice", x, b.ints(0), b.ints(1), b.ints(given)), _with(d, axis, 1)


def _transpose(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes]:
    order = list(range(1, len(d)))
    b.draw.shuffle(order)
    order.insert(0 if b.draw.random() < 0.7 else b.draw.randrange(len(d)), 0)
    return b.op("Transpose", x, perm=order), tuple(d[i] for i in order)


def _squeeze(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes] | None:
    ones = [i for i, s in enumerate(d) if s == 1]
    if not ones or len(d) < 3:
        return (b.op("Unsqueeze", x, b.ints(-1)), (*d, 1)) if len(d) < 4 else None
    axis = b.draw.choice(ones)
    if b.draw.random() < 0.5:
        return b.op("Squeeze", x, b.ints(axis - len(d))), _with(d, axis)
    return b.op("Expand", x, b.ints(*(2 if i == axis else 1 for i in range(len(d))))), _with(d, axis, 2)


def _pad(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes] | None:
    axis, _ = b.axis(d, known=True)
    if not isinstance(d[axis], int) or d[axis] > 6:
        return None
    if b.draw.random() < 0.5:
        return b.op("Tile", x, b.ints(*(2 if i == axis else 1 for i in range(len(d))))), _with(
            d, axis, d[axis] * 2
        )
    ends = [int(i == axis) for i in range(2 * len(d))]
    return b.op("Pad", x, b.ints(*ends), mode=b.draw.choice(["constant", "edge"])), _with(
        d, axis, d[axis] + 1
    )


def _along(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes]:
    axis, given = b.axis(d)
    op_type = b.draw.choice(["Softmax", "LogSoftmax", "Hardmax", "CumSum", "TopK", "Concat"])
    if op_type == "CumSum":
        return b.op("CumSum", x, b.const(np.int64(given)), exclusive=b.draw.randrange(2)), d
    if op_type == "TopK":
        return b.op("TopK", x, b.ints(1), outputs=2, axis=given), _with(d, axis, 1)
    if op_type == "Concat":  # and what lay first back again
        whole = b.op("Concat", x, b.other(d), axis=given)
        return b.op("Sub", x, b.op("ReduceMean", whole, axes=[given], keepdims=1)), d
    return b.op(op_type, x, axis=given), d


def _pairs(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes] | None:
    y = b.other(d)
    if len(d) == 3:
        equation, sizes = b.draw.choice(
            [("bij,bkj->bik", (d[0], d[1], d[1])), ("bij,bij->ib", (d[1], d[0])), ("bij,cij->bij", d)]
        )
        return b.op("Einsum", x, y, equation=equation), sizes
    if len(d) == 2 and b.draw.random() < 0.4:  # each sample against each
        scores = b.op("Softmax", b.op("MatMul", x, b.op("Transpose", y, perm=[1, 0])), axis=-1)
        return b.op("MatMul", scores, x), d
    return b.op("Where", b.op("Greater", x, b.const(np.float32(0.1))), y, b.const(np.float32(0.5))), d


def _ids(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes] | None:
    if len(d) < 2 or not isinstance(d[-1], int):
        return None
    ids = b.op("ArgMax", x, axis=-1, keepdims=0)
    if b.draw.random() < 0.5:
        return b.op("Gather", b.floats(d[-1], 4), ids), (*d[:-1], 4)
    axis = b.draw.randrange(len(d))
    hot = b.op("OneHot", ids, b.const(np.int64(3)), b.const(np.array([0, 1], np.float32)), axis=axis)
    return hot, (*d[:-1][:axis], 3, *d[:-1][axis:])


def _sized(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes]:
    """What depends on how many samples there are, or on which they are."""
    shape = b.op("Shape", x)
    if d[0] == BATCH and b.draw.random() < 0.5:
        first = b.op("Gather", shape, b.const(np.int64(0)))
        count = b.op("Range", b.const(np.int64(0)), first, b.const(np.int64(1)))
        rows = b.op("Unsqueeze", b.op("Cast", count, to=TensorProto.FLOAT), b.ints(*range(1, len(d))))
        return b.op("Add", x, rows if len(d) > 1 else b.op("Cast", count, to=TensorProto.FLOAT)), d
    return b.op("Mul", x, b.op("ReduceMax", b.op("Cast", shape, to=TensorProto.FLOAT), keepdims=0)), d


def _fed(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes] | None:
    if d[0] != BATCH or not all(isinstance(s, int) for s in d[1:]) or len(b.inputs) > 3:
        return None
    name, first = f"mask{len(b.inputs)}", b.draw.choice([BATCH, 1])
    b.inputs[name] = (first, *(s if b.draw.random() < 0.6 else 1 for s in d[1:]))
    return b.op(b.draw.choice(["Add", "Mul"]), x, name), d


def _branch(b: Siblings, x: str, d: Sizes) -> tuple[str, Sizes]:
    """An If whose branches read a value of the graph around them."""
    sides = []
    for op_type in ("Neg", "Identity"):
        end = f"{op_type}_{len(b.nodes)}"
        node = helper.make_node(op_type, [x], [end])
        sides.append(helper.make_graph([node], end, [], [helper.make_empty_tensor_value_info(end)]))
    test = b.op("Greater", b.op("ReduceMax", x, keepdims=0), b.const(np.float32(0.7)))
    return b.op("If", test, then_branch=sides[0], else_branch=sides[1]), d


STEPS: tuple[Step, ...] = (
    lambda b, x, d: (b.op(b.draw.choice(["Relu", "Tanh", "Neg", "Erf"]), x), d),
    lambda b, x, d: (b.op(b.draw.choice(["Add", "Mul", "Min"]), x, b.other(d)), d),
    _constant, _reduce, _reshape, _reshape, _gather, _slice, _transpose, _squeeze, _pad, _along, _pairs, _ids, _sized,
    _fed, _branch,
)  # fmt: skip


def sibling_of(seed: int, place: int, batch: int | str) -> tuple[onnx.ModelProto, dict[str, Sizes]]:
    """Model number ``place`` of the family ``seed``, and its inputs' sizes. ``batch``: a number, or a name."""
    b = Siblings(place, random.Random(seed))
    b.inputs["x"] = b.draw.choice([(BATCH, 4), (BATCH, 3, 4), (BATCH, 2, 3, 4)])
    b.values.append(("x", b.inputs["x"]))
    for count in range(b.draw.randint(5, 15)):
        name, sizes = b.draw.choice(b.values[-4:])
        step = _product if count == 0 or b.draw.random() < 0.25 else b.draw.choice(STEPS)
        made = step(b, name, sizes) if sizes else None
        if made is not None and (count == 0 or len(made[1]) < 6):
            b.values.append(made)
    ends = dict.fromkeys([b.values[-1][0], b.draw.choice(b.values[1:])[0]])
    sizes_of = dict(b.values)
    inputs = [_value(name, [batch if s == BATCH else s for s in sizes]) for name, sizes in b.inputs.items()]
    outputs = [_value(name, [f"{name}_{i}" for i in range(len(sizes_of[name]))]) for name in ends]
    graph = helper.make_graph(b.nodes, "random", inputs, outputs, b.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), b.inputs


def _value(name: str, sizes: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
