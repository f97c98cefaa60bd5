"""Rule on operators that work along an axis; see :mod:`.rules_pointwise` for what a rule is.

All say yes only where axis 0 is none of the axes that are mixed, moved, cut or joined.
"""

from __future__ import annotations

from gkestimator.merging.editing import Numbers
from gkestimator.merging.lifting.operands import Question, Rule, proves
from gkestimator.merging.lifting.terms import integers


@proves
def softmax(question: Question) -> bool:
    """Say yes along ``axis`` (opset 13), or over all axes from it on (before, default 1): both leave axes
    before it alone.
    """
    rank = question.batch(0, 2)
    if rank is None or len(question.operands) != 1:
        return False
    return bool(question.axis(rank, -1 if question.opset >= 13 else 1))


def along(default: int, *, others: bool = True) -> Rule:
    """Make the rule for one attribute ``axis`` that is not 0; further inputs are constants."""

    @proves
    def rule(question: Question) -> bool:
        rank = question.batch(0, 2)
        if rank is None or not question.axis(rank, default):
            return False
        return bool(len(question.operands) == 1 or (others and question.steady_from(1)))

    return rule


def axes_of(question: Question, index: int) -> Numbers | None:
    """Return ``axes``, of the attribute or of input ``index``; () where there are none, None where they are
    not known.
    """
    axes = question.attributes.get("axes")
    # an attribute in older opsets, an input in newer ones
    if isinstance(axes, tuple):
        return integers(axes)
    if axes is not None:
        return None
    if question.absent(index):
        return ()
    return question.operand(index).ints()


def none_is_first(axes: Numbers | None, rank: int | None) -> bool:
    """Return True where there are axes, all are valid and none is axis 0."""
    if not axes or rank is None:
        return False
    return all(-rank <= axis < rank and axis % rank for axis in axes)


@proves
def reduce(question: Question) -> bool:
    """Say yes over constant ``axes`` without axis 0. No axes: over all, unless that is said to do nothing."""
    rank = question.batch(0)
    axes = axes_of(question, 1)
    if rank is None or not question.steady_from(1):
        return False
    if axes == ():
        return question.integer("noop_with_empty_axes", 0) == 1
    return none_is_first(axes, rank)


@proves
def cumsum(question: Question) -> bool:
    """Say yes along a constant axis other than 0."""
    rank = question.batch(0, 2)
    axes = question.operand(1).ints()
    return none_is_first(axes, rank) and axes is not None and len(axes) == 1


@proves
def gather(question: Question) -> bool:
    """Say yes to rows of a constant by ids (axis 0 of the ids stays in front), or by constant ids along an
    axis other than 0.
    """
    data = question.operand(0)
    ids = question.operand(1)
    if data.rank is None or ids.rank is None:
        return False
    if data.rank:
        axis = question.axis(data.rank, 0)
    else:
        axis = None
    if data.role == "constant" and ids.role == "batch":
        return axis == 0 and ids.rank >= 1
    return bool(data.role == "batch" and ids.role == "constant" and axis)


@proves
def gather_elements(question: Question) -> bool:
    """Say yes to two batch operands of one rank; index i of axis 0 picks among data of index i where the axis
    is another.
    """
    rank = question.batch(0, 2)
    return bool(rank and question.batch(1, 2) == rank and question.axis(rank, 0))


@proves
def gather_nd(question: Question) -> bool:
    """Say yes to ``batch_dims`` of 1 or more with both batch operands, or 0 with constant data and ids of at
    least rank 2.
    """
    data = question.operand(0)
    ids = question.operand(1)
    dims = question.integer("batch_dims", 0)
    if dims is None:
        return False
    if (ids.rank or 0) < 2:
        return False
    if ids.role != "batch":
        return False
    if data.role == "batch" and (data.rank or 0) >= 2:
        return dims >= 1
    return data.role == "constant" and dims == 0


@proves
def resize(question: Question) -> bool:
    """Say yes to constant scales of 1 along axis 0 (position i there is position i, whatever the mode), or
    axes without 0.
    """
    rank = question.batch(0, 3)
    if rank is None:
        return False
    if question.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return False
    region = question.operand(1)
    if region.role != "absent" and (region.role != "constant" or region.dims != (0,)):
        return False
    axes = question.attributes.get("axes")
    if isinstance(axes, tuple):
        return question.steady_from(1) and none_is_first(integers(axes), rank)
    scales = question.operand(2)
    if not question.absent(3):
        return False
    if scales.role != "constant":
        return False
    if scales.dims != (rank,):
        return False
    return scales.value is not None and bool(scales.value.ravel()[0] == 1)


@proves
def one_hot(question: Question) -> bool:
    """Say yes to a new axis, not in front, by constant depth and values."""
    rank = question.batch(0)
    if rank is None or not question.steady(1, 2):
        return False
    return bool(question.axis(rank + 1, -1))


@proves
def trilu(question: Question) -> bool:
    """Say yes over the last two axes, axis 0 not among them; a constant diagonal."""
    return bool(question.batch(0, 3) and question.steady(1))


@proves
def einsum(question: Question) -> bool:
    """Say yes where axis 0 has one letter in all batch operands and in the result, which no constant has and
    none has twice.
    """
    equation = question.attributes.get("equation")
    if not isinstance(equation, str):
        return False
    if "." in equation:
        return False
    if "->" not in equation:
        return False
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(question.operands) or not right:
        return False
    letter = right[0]
    for term, operand in zip(terms, question.operands, strict=True):
        if operand.role == "batch":
            if not term.startswith(letter) or term.count(letter) != 1:
                return False
        elif operand.role != "constant" or letter in term:
            return False
    return True


@proves
def attention(question: Question) -> bool:
    """Say yes to Attention of opset 23: queries, keys and values [batch, ...]; a mask of the batch or the
    same for all of it.
    """
    if any(question.batch(i, 3) is None for i in range(3)):
        return False
    if not question.absent(*range(4, 7)):
        return False
    mask = question.operand(3)
    if mask.role == "absent":
        return True
    if mask.role == "batch":
        return mask.rank == 4
    if mask.role != "constant" or mask.dims is None:
        return False
    return len(mask.dims) < 4 or (len(mask.dims) == 4 and mask.dims[0] == 1)


_REDUCE = [
    f"Reduce{kind}"
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
]

ALONG_AXES: dict[str, Rule] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), softmax),
    **dict.fromkeys(("ArgMax", "ArgMin"), along(0, others=False)),
    **dict.fromkeys(_REDUCE, reduce),
    "LpNormalization": along(-1, others=False),
    "TopK": along(-1),
    "Split": along(0),
    "CumSum": cumsum,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Resize": resize,
    "OneHot": one_hot,
    "Trilu": trilu,
    "Einsum": einsum,
    "Attention": attention,
}
