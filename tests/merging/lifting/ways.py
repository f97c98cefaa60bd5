"""Operators on a branch: which may run once for all branches (True), and which must not (False)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from branches import Branch, Way
from onnx import numpy_helper

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """``op`` is run on a value [batch, *dims]; ``once``: one node stays of the two. ``batches``: of the branches.

    ``again``: other batches, for the same file where they are symbolic. ``fixed``: ``once`` where they are not.
    """

    op: str
    dims: tuple[int, ...]
    way: Way
    once: bool
    opset: int = 17
    batches: tuple[int, int] = (2, 3)
    symbolic: bool = True
    again: tuple[int, int] = (4, 1)
    fixed: bool | None = None

    def expected(self, symbolic: bool) -> int:
        """How many nodes there are of the operator's type in the end."""
        once = self.fixed if self.fixed is not None and not symbolic else self.once
        return 1 if once else 2


CASES: dict[str, Case] = {}


def case(op: str, *dims: int, once: bool, name: str, **options):
    """Add the function as a case."""

    def add(way: Way) -> Way:
        key = f"{op}-{name}"
        assert key not in CASES, key
        CASES[key] = Case(op, dims, way, once, **options)
        return way

    return add


def simple(op: str, *dims: int, once: bool, name: str, opset: int = 17, **attributes) -> None:
    """An operator of one input."""
    case(op, *dims, once=once, name=name, opset=opset)(lambda b, x: b.op(op, x, **attributes))


for op in (
    "Relu",
    "Erf",
    "Exp",
    "Sigmoid",
    "Neg",
    "Abs",
    "Softplus",
    "Elu",
    "HardSwish",
    "Identity",
    "Floor",
):
    simple(op, 4, once=True, name="plain")
simple("LeakyRelu", 4, once=True, name="attribute", alpha=0.3)
simple("Cast", 4, once=True, name="half", to=10)
simple("Gelu", 4, once=True, name="tanh", opset=20, approximate="tanh")

# Softmax
simple("Softmax", 3, 4, once=True, name="last")
simple("Softmax", 3, 4, once=True, name="middle", axis=1)
simple("Softmax", 3, 4, once=False, name="first", axis=0)
simple("Softmax", 3, 4, once=False, name="first counted from behind", axis=-3)
simple("LogSoftmax", 3, 4, once=True, name="last", axis=-1)

# reductions
simple("ReduceMean", 3, 4, once=True, name="last", axes=[-1])
simple("ReduceMean", 3, 4, once=True, name="no dims kept", axes=[1, 2], keepdims=0)
simple("ReduceMean", 3, 4, once=False, name="first", axes=[0])
simple("ReduceMean", 3, 4, once=False, name="first of two", axes=[-3, 1])
simple("ReduceMean", 3, 4, once=False, name="all")
simple("ReduceMax", 3, 4, once=True, name="last", axes=[2])
simple("ArgMax", 3, 4, once=True, name="last", axis=-1)
simple("ArgMax", 3, 4, once=False, name="first")
simple("ArgMin", 3, 4, once=True, name="middle", axis=-2, keepdims=0)


@case("ReduceSum", 3, 4, once=True, name="axes as input")
def _(b: Branch, x: str) -> str:
    return b.op("ReduceSum", x, b.ints(-2), keepdims=0)


@case("ReduceSum", 3, 4, once=False, name="first as input")
def _(b: Branch, x: str) -> str:
    return b.op("ReduceSum", x, b.ints(0))


@case("ReduceSum", 3, 4, once=False, name="other axes each")
def _(b: Branch, x: str) -> str:
    return b.op("ReduceSum", x, b.ints(1 + b.place))


@case("ReduceSum", 3, 4, once=True, name="no axes that do nothing")
def _(b: Branch, x: str) -> str:
    return b.op("ReduceSum", x, b.ints(), noop_with_empty_axes=1)


@case("CumSum", 3, 4, once=True, name="last")
def _(b: Branch, x: str) -> str:
    return b.op("CumSum", x, b.const(2, np.int64))


@case("CumSum", 3, 4, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("CumSum", x, b.const(0, np.int64))


@case("TopK", 3, 4, once=True, name="last")
def _(b: Branch, x: str) -> str:
    return b.op("TopK", x, b.ints(2), outputs=2)


@case("TopK", 3, 4, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("TopK", x, b.ints(1), outputs=2, axis=0)


# layout
simple("Transpose", 3, 4, once=True, name="behind", perm=[0, 2, 1])
simple("Transpose", 3, 4, once=False, name="first moved", perm=[1, 0, 2])
simple("Transpose", 3, 4, once=False, name="default")
simple("Flatten", 3, 4, once=True, name="plain")
simple("Flatten", 3, 4, once=True, name="counted from behind", axis=-2)
simple("Flatten", 3, 4, once=True, name="rows", axis=2)
simple("Flatten", 3, 4, once=False, name="first", axis=0)
simple("DepthToSpace", 4, 2, 2, once=True, name="plain", blocksize=2)


def reshape(name: str, *shape: int, once: bool, **options) -> None:
    """Reshape by one constant for both branches."""
    case("Reshape", 3, 4, once=once, name=name, **options)(lambda b, x: b.op("Reshape", x, b.ints(*shape)))


reshape("zero", 0, 12, once=True)
reshape("zero and rest", 0, -1, 2, once=True)
reshape("first open", -1, 4, 3, once=True)
reshape("first open by dims", -1, 12, once=True)
reshape("rows", -1, 4, once=True)
reshape("more rows", -1, 2, 2, once=True)
reshape("two samples in one", -1, 24, once=False, fixed=True, batches=(2, 4), again=(4, 6))
reshape("one and a third in one", -1, 8, 2, once=False, fixed=True, batches=(4, 8), again=(8, 12))
reshape("all in one", 1, -1, once=False)
reshape("first behind", 4, -1, 3, once=False)


@case("Reshape", 3, 4, once=True, name="literal batch of each", symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Reshape", x, b.ints(b.batch, 2, 6))


@case("Reshape", 3, 4, once=True, name="batch at run time")
def _(b: Branch, x: str) -> str:
    size = b.op("Unsqueeze", b.op("Gather", b.op("Shape", x), b.const(0, np.int64)), b.ints(0))
    return b.op("Reshape", x, b.op("Concat", size, b.ints(6, 2), axis=0))


@case("Reshape", 3, 4, once=True, name="and the rest at run time")
def _(b: Branch, x: str) -> str:
    shape = b.op("Shape", x)
    rows = b.op("Mul", b.op("Gather", shape, b.ints(0)), b.ints(3))
    return b.op("Reshape", x, b.op("Concat", rows, b.op("Slice", shape, b.ints(2), b.ints(3)), axis=0))


@case("Reshape", 3, 4, once=False, name="batch behind at run time")
def _(b: Branch, x: str) -> str:
    size = b.op("Gather", b.op("Shape", x), b.ints(0))
    return b.op("Reshape", x, b.op("Concat", b.ints(3, 4), size, axis=0))


@case("Unsqueeze", 3, 4, once=True, name="behind")
def _(b: Branch, x: str) -> str:
    return b.op("Unsqueeze", x, b.ints(1, -1))


@case("Unsqueeze", 3, 4, once=False, name="front")
def _(b: Branch, x: str) -> str:
    return b.op("Unsqueeze", x, b.ints(0))


@case("Squeeze", 1, 4, once=True, name="axis")
def _(b: Branch, x: str) -> str:
    return b.op("Squeeze", x, b.ints(1))


@case("Squeeze", 1, 4, once=False, name="all of one", batches=(1, 1), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Squeeze", x)


@case("Expand", 1, 4, once=True, name="ones in front")
def _(b: Branch, x: str) -> str:
    return b.op("Expand", x, b.ints(1, 3, 4))


@case("Expand", 1, 4, once=True, name="fewer dims")
def _(b: Branch, x: str) -> str:
    return b.op("Expand", x, b.ints(3, 1))


@case("Expand", 1, 4, once=False, name="a new axis in front")
def _(b: Branch, x: str) -> str:
    return b.op("Expand", x, b.ints(2, 1, 3, 4))


@case("Expand", 4, once=False, name="the batch repeated", batches=(1, 1), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Expand", x, b.ints(3, 4))


@case("Expand", 1, 4, once=True, name="batch at run time")
def _(b: Branch, x: str) -> str:
    return b.op(
        "Expand", x, b.op("Concat", b.op("Gather", b.op("Shape", x), b.ints(0)), b.ints(5, 4), axis=0)
    )


@case("Expand", 1, 4, once=True, name="as torch writes it")
def _(b: Branch, x: str) -> str:
    """A constant repeated for each sample: -1 in the shape would mean "as it is", so it is looked for."""
    size = b.op("Gather", b.op("Shape", x), b.ints(0))
    shape = b.op("Reshape", b.op("Concat", size, b.ints(5, 4), axis=0), b.ints(-1))
    one = numpy_helper.from_array(np.array([1], np.int64))
    ones = b.op("ConstantOfShape", b.op("Shape", shape), value=one)
    wanted = b.op("Where", b.op("Equal", shape, b.op("Mul", ones, b.const(-1, np.int64))), ones, shape)
    return b.op("Mul", x, b.op("Expand", b.random(1, 4), wanted))


@case("Tile", 3, 4, once=True, name="behind")
def _(b: Branch, x: str) -> str:
    return b.op("Tile", x, b.ints(1, 2, 1))


@case("Tile", 3, 4, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("Tile", x, b.ints(2, 1, 1))


@case("Pad", 3, 4, once=True, name="behind")
def _(b: Branch, x: str) -> str:
    return b.op("Pad", x, b.ints(0, 1, 0, 0, 0, 2), b.const(0.5))


@case("Pad", 3, 4, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("Pad", x, b.ints(0, 1, 0, 1, 0, 2))


@case("Slice", 3, 4, once=True, name="behind")
def _(b: Branch, x: str) -> str:
    return b.op("Slice", x, b.ints(1, 0), b.ints(3, 2**40), b.ints(-1, 1))


@case("Slice", 3, 4, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("Slice", x, b.ints(1), b.ints(2**40), b.ints(0))


@case("Slice", 3, 4, once=False, name="no axes")
def _(b: Branch, x: str) -> str:
    return b.op("Slice", x, b.ints(0), b.ints(1))


@case("Slice", 3, 4, once=False, name="other columns each")
def _(b: Branch, x: str) -> str:
    return b.op("Slice", x, b.ints(b.place), b.ints(2 + b.place), b.ints(2))


@case("Split", 3, 4, once=True, name="behind")
def _(b: Branch, x: str) -> str:
    first = b.op("Split", x, b.ints(1, 3), outputs=2, axis=2)
    return b.op("Add", first, f"{first}.1")


@case("Concat", 3, 4, once=True, name="behind")
def _(b: Branch, x: str) -> str:
    return b.op("Concat", x, b.op("Relu", x), axis=-1)


@case("Concat", 3, 4, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("Concat", x, b.op("Relu", x), axis=0)


@case("Concat", 3, 4, once=False, name="with a constant", symbolic=False, batches=(2, 2))
def _(b: Branch, x: str) -> str:
    return b.op("Concat", x, b.random(2, 3, 1), axis=2)


@case("Gather", 3, 4, once=True, name="behind")
def _(b: Branch, x: str) -> str:
    return b.op("Gather", x, b.ints(0, 2), axis=1)


@case("Gather", 3, 4, once=True, name="one behind")
def _(b: Branch, x: str) -> str:
    return b.op("Gather", x, b.const(1, np.int64), axis=-1)


@case("Gather", 3, 4, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("Gather", x, b.ints(0, 0))


@case("Gather", 3, once=True, name="of a table")
def _(b: Branch, x: str) -> str:
    return b.op("Gather", b.random(5, 4), b.op("Cast", b.op("Abs", b.op("Mul", x, b.const(4))), to=7))


@case("Gather", 3, once=False, name="of a table's columns")
def _(b: Branch, x: str) -> str:
    return b.op("Gather", b.random(4, 5), b.op("Cast", b.op("Abs", b.op("Mul", x, b.const(4))), to=7), axis=1)


@case("Gather", 3, once=False, name="of another table each")
def _(b: Branch, x: str) -> str:
    ids = b.op("Cast", b.op("Abs", b.op("Mul", x, b.const(4))), to=7)
    return b.op("Gather", b.random(5, 4, apart=1.0), ids)


@case("GatherElements", 3, once=True, name="behind")
def _(b: Branch, x: str) -> str:
    return b.op("GatherElements", x, b.op("Cast", b.op("Abs", b.op("Mul", x, b.const(2))), to=7), axis=1)


@case("GatherElements", 3, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("GatherElements", x, b.op("Cast", b.op("Abs", x), to=7), axis=0)


@case("GatherND", 3, 4, once=True, name="within each sample")
def _(b: Branch, x: str) -> str:
    ids = b.op("Cast", b.op("Abs", b.op("Slice", x, b.ints(0), b.ints(1), b.ints(2))), to=7)
    return b.op("GatherND", x, ids, batch_dims=1)


@case("GatherND", 3, 1, once=False, name="among all samples")
def _(b: Branch, x: str) -> str:
    return b.op("GatherND", x, b.op("Cast", b.op("Abs", x), to=7))


@case("OneHot", 3, once=True, name="last")
def _(b: Branch, x: str) -> str:
    return b.op("OneHot", b.op("Cast", b.op("Abs", x), to=7), b.ints(3), b.const([0, 1]))


@case("OneHot", 3, once=False, name="first")
def _(b: Branch, x: str) -> str:
    return b.op("OneHot", b.op("Cast", b.op("Abs", x), to=7), b.ints(3), b.const([0, 1]), axis=0)


@case("Trilu", 4, 4, once=True, name="stack")
def _(b: Branch, x: str) -> str:
    return b.op("Trilu", x, b.const(1, np.int64), upper=0)


@case("Trilu", 4, once=False, name="no stack")
def _(b: Branch, x: str) -> str:
    return b.op("Trilu", x)


for once, equation in (
    (True, "bij,jk->bik"),
    (True, "bij,bkj->bik"),
    (False, "bij,jk->ibk"),
    (False, "bij,bjk->ik"),
):

    @case("Einsum", 3, 3, once=once, name=equation)
    def _(b: Branch, x: str, equation: str = equation) -> str:
        second = x if "," in equation and equation.split(",")[1].startswith("b") else b.random(3, 4)
        return b.op("Einsum", x, second, equation=equation)
