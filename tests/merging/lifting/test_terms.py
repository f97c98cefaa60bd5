"""Sizes as terms, and the small integer vectors that shapes are made of."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import EditNode, Held, ValueInfo, ValueShape, Weight
from gkestimator.merging.lifting.operands import Operand, Question
from gkestimator.merging.lifting.rules import RULES
from gkestimator.merging.lifting.terms import Terms, scaled


def weight(name: str, values: object, dtype: DType = DType.INT64) -> Weight:
    array = np.array(values, np.int64)
    return Weight(name=name, dtype=dtype, shape=array.shape, values=Held(held=array))


def terms(**vectors: object) -> Terms:
    """``x`` is [batch, 3, sequence]; keywords are int64 constants."""
    inputs = [ValueInfo(name="x", dtype=DType.FLOAT, shape=("batch", 3, "sequence"))]
    shapes = {"x": ValueShape(dtype=DType.FLOAT, dims=(None, 3, None))}
    return Terms(inputs, {n: weight(n, v) for n, v in vectors.items()}, shapes)


def made(found: Terms, op_type: str, *inputs: str, **attributes: int) -> object:
    name = f"y{next(NUMBERS)}"
    found.work_out(
        EditNode(name=name, op_type=op_type, inputs=inputs, outputs=(name,), attributes=attributes)
    )
    return found.vector(name)


NUMBERS = itertools.count()
BATCH, SEQUENCE = ("x", 0, 1), ("x", 2, 1)


def test_a_shape_says_which_sizes_it_holds() -> None:
    assert made(terms(), "Shape", "x") == ((BATCH, 3, SEQUENCE), False)
    assert made(terms(), "Shape", "x", start=-2) == ((3, SEQUENCE), False)
    assert made(terms(), "Shape", "unknown") is None


def test_inputs_share_a_named_dimension() -> None:
    inputs = [ValueInfo(name=n, dtype=DType.INT64, shape=("batch", 4)) for n in ("ids", "mask")]
    found = Terms(inputs, {}, {})
    assert found.size("mask", 0) == found.size("ids", 0) == ("ids", 0, 1)
    assert found.size("mask", 1) == 4


def test_sizes_are_picked_joined_and_multiplied() -> None:
    found = terms(one=[0], scalar=2, eight=8, zero=0, ends=[2, 9], starts=[1])
    found.work_out(EditNode(name="s", op_type="Shape", inputs=("x",), outputs=("s",)))
    assert made(found, "Gather", "s", "scalar") == ((SEQUENCE,), True)
    assert made(found, "Gather", "s", "one") == ((BATCH,), False)
    assert made(found, "Gather", "s", "eight") is None
    assert made(found, "Slice", "s", "starts", "ends") is None  # two ends for one axis
    found.work_out(EditNode(name="g", op_type="Gather", inputs=("s", "scalar"), outputs=("g",)))
    assert made(found, "Mul", "g", "eight") == ((("x", 2, 8),), True)
    assert made(found, "Mul", "g", "zero") == ((None,), True)
    assert made(found, "Mul", "g", "g") == ((None,), True)
    assert made(found, "Add", "g", "eight") == ((None,), True)
    assert made(found, "Concat", "one", "g", axis=0) is None  # a scalar cannot be joined


def test_integers_divide_towards_zero_and_not_by_zero() -> None:
    found = terms(a=[-7, 7], b=[2, 2], none=[0, 1])
    assert made(found, "Div", "a", "b") == ((-3, 3), False)
    assert made(found, "Div", "a", "none") == ((None, 7), False)


def test_what_is_equal_is_said_only_where_it_is_known() -> None:
    found = terms(minus=[-1, -1, 3], s=[0, 0, 0], least=[1, 2, 3])
    found.work_out(EditNode(name="s", op_type="Shape", inputs=("x",), outputs=("shape",)))
    assert made(found, "Equal", "shape", "minus") == ((0, 0, None), False)
    assert made(found, "Equal", "shape", "shape") == ((1, 1, 1), False)
    assert made(found, "Equal", "shape", "least") == ((None, 0, None), False)


@pytest.mark.parametrize(
    ("term", "times", "over", "wanted"),
    [(6, 2, 3, 4), (5, 2, 3, None), (BATCH, 12, 4, ("x", 0, 3)), (BATCH, 4, 12, None), (("x", 0, 3), 4, 12, BATCH),
     (4, 1, 0, None), (2**30, 4, 1, None)],
)  # fmt: skip
def test_sizes_are_scaled_only_to_whole_numbers(term: object, times: int, over: int, wanted: object) -> None:
    assert scaled(term, times, over) == wanted  # type: ignore[arg-type]


def test_large_vectors_and_other_types_are_not_read() -> None:
    found = terms(many=list(range(65)), pair=[[1, 2]])
    assert found.vector("many") is None
    assert found.vector("pair") is None
    assert found.value("many") is None


def test_a_flatten_of_more_rows_than_can_be_counted_is_refused() -> None:
    """The sizes would not be those of the parts."""
    operand = Operand(role="batch", dims=(None, 2**20, 4))

    def asked(size: int) -> Question:
        return Question(
            op_type="Flatten", attributes={"axis": 2}, operands=(operand,), results=(None,), used=(True,),
            sizes=(1, size), opset=17,
        )  # fmt: skip

    rule = RULES["", "Flatten"]
    assert rule(asked(2**20)) is None
    found = rule(asked(3))
    assert found is not None and found.sizes == (2**20, 3 * 2**20)


@pytest.mark.parametrize(
    "op", ["Reshape", "Gather", "Slice", "Where", "Equal", "Add", "CastLike", "Concat", "Shape"]
)
def test_operators_that_lack_inputs_say_nothing(op: str) -> None:
    found = terms(one=[1])
    assert made(found, op, "one") in (None, ((1,), False))
    assert made(found, op, "") is None
