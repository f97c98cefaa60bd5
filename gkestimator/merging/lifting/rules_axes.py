"""Rule on operators that work along an axis, and for those that rearrange: see :mod:`.rules_pointwise`.

All say yes only where axis 0 is none of the axes that are mixed, moved, cut or joined.
"""

from __future__ import annotations

import itertools

from gkestimator.merging.editing import Dims, Numbers
from gkestimator.merging.lifting.operands import Operand, Question, Rewrite, Rule, proves
from gkestimator.merging.lifting.terms import Entries, Sizes, integers, product, scaled


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


def _axes(question: Question, index: int) -> Numbers | None:
    """Return ``axes``, of the attribute or of input ``index``; () where there are none, None where they are
    not known.
    """
    axes = question.attributes.get("axes")
    if isinstance(axes, tuple):
        return integers(axes)
    if axes is not None:
        return None
    if question.absent(index):
        return ()
    return question.operand(index).ints()


def _none_is_first(axes: Numbers | None, rank: int | None) -> bool:
    """Return True where there are axes, all are valid and none is axis 0."""
    if not axes or rank is None:
        return False
    return all(-rank <= axis < rank and axis % rank for axis in axes)


@proves
def reduce(question: Question) -> bool:
    """Say yes over constant ``axes`` without axis 0. No axes: over all, unless that is said to do nothing."""
    rank = question.batch(0)
    axes = _axes(question, 1)
    if rank is None or not question.steady_from(1):
        return False
    if axes == ():
        return question.integer("noop_with_empty_axes", 0) == 1
    return _none_is_first(axes, rank)


@proves
def cumsum(question: Question) -> bool:
    """Say yes along a constant axis other than 0."""
    rank = question.batch(0, 2)
    axes = question.operand(1).ints()
    return _none_is_first(axes, rank) and axes is not None and len(axes) == 1


@proves
def transpose(question: Question) -> bool:
    """Say yes where ``perm`` leaves axis 0 where it is (the default turns all axes round)."""
    rank = question.batch(0)
    perm = question.attributes.get("perm")
    if rank is None:
        return False
    return rank == 1 or (isinstance(perm, tuple) and perm[:1] == (0,))


def flatten(question: Question) -> Rewrite | None:
    """Allow [d0, d1 * d2 ...] for ``axis`` 1: row i holds sample i.

    A later axis makes known numbers of rows of each.
    """
    rank = question.batch(0)
    data = question.operand(0).dims
    axis = question.integer("axis", 1)
    if rank is None:
        return None
    if data is None:
        return None
    if axis is None:
        return None
    if not -rank <= axis <= rank:
        return None
    if axis < 0:
        axis += rank
    rows = product(data[1:axis])
    if axis == 0 or not rows:
        return None
    sizes = _scaled_sizes(question, rows, 1)
    if sizes is None:
        return None
    return Rewrite(sizes=sizes)


def _scaled_sizes(question: Question, times: int, over: int) -> Sizes | None:
    sizes = []
    for size in question.sizes:
        term = scaled(size, times, over)
        if term is None:
            return None
        sizes.append(term)
    return tuple(sizes)


@proves
def squeeze(question: Question) -> bool:
    """Say yes to constant ``axes`` without 0.

    Without axes all of size 1 go, which may be axis 0 of a batch of one: refused.
    """
    rank = question.batch(0, 2)
    return _none_is_first(_axes(question, 1), rank)


@proves
def unsqueeze(question: Question) -> bool:
    """Say yes to constant ``axes``, counted in the result, none of them 0: the old axis 0 stays in front."""
    rank = question.batch(0)
    axes = _axes(question, 1)
    return rank is not None and _none_is_first(axes, rank + len(axes or ()))


def _known(dims: Dims | None) -> int | None:
    """Return the elements of one sample where they are known and not none at all."""
    if not dims:
        return None
    return product(dims[1:]) or None


def reshape(question: Question) -> Rewrite | None:
    """Allow reshaping: it keeps the order of the values, so the branches' values stay one behind the other in
    the whole.

    The result of the whole is the branches' results one behind the other where each ends with a whole row.
    Where axis 0 keeps its length, row i is sample i: as many elements stand behind axis 0 before and after
    (then it follows), or the shape says so itself by a first entry of 0, or the branch's size. Where k times
    as many stand behind it, each branch's length must be known to be a multiple of k (rows = batch x
    positions, and back). The whole gets 0 ("as the input's") or -1 in front, and behind it sizes that are the
    same in every branch; at most one of them is left to be found (-1).
    """
    data = question.operand(0)
    shape = question.operand(1)
    if question.batch(0) is None:
        return None
    if data.dims is None:
        return None
    if shape.role == "batch":
        return None
    result = question.results[0]
    before = _known(data.dims)
    after = _known(result)
    if result is None or before is None or after is None:
        return _reshape_by_entries(question, shape, result or ())
    behind = tuple(size for size in result[1:] if size is not None)
    if before == after:
        return Rewrite(attributes={"allowzero": None}, integers={1: (0, *behind)})
    sizes = _scaled_sizes(question, before, after)
    if sizes is None:
        return None
    return Rewrite(attributes={"allowzero": None}, integers={1: (-1, *behind)}, sizes=sizes)


def _reshape_by_entries(question: Question, shape: Operand, result: Dims) -> Rewrite | None:
    """Let the shape vectors of the branches decide where a sample's elements depend on other symbolic sizes."""
    literal_zeros = question.integer("allowzero", 0) == 1
    if len(shape.entries) != len(question.sizes):
        return None
    rows: list[Entries] = []
    for entries, size in zip(shape.entries, question.sizes, strict=True):
        if not entries:
            return None
        keeps_length = entries[0] == size or (entries[0] == 0 and not literal_zeros)
        if not keeps_length:
            return None
        if len(entries) != len(shape.entries[0] or ()):
            return None
        rows.append(entries[1:])
    behind: list[int] = []
    for column, known in itertools.zip_longest(zip(*rows, strict=True), result[1 : len(rows[0]) + 1]):
        if known == 0:
            return None
        if known is None:
            known = _behind(column, literal_zeros)
        behind.append(known)
    if behind.count(-1) > 1:
        return None
    return Rewrite(attributes={"allowzero": None}, integers={1: (0, *behind)})


def _behind(column: Entries, literal_zeros: bool) -> int:
    """Return what stands behind axis 0 in the whole's shape, from what stands there in the branches'."""
    first = column[0]
    if isinstance(first, int) and len(set(column)) == 1:
        if first > 0:
            return first
        if first == 0 and not literal_zeros:
            return 0  # as the input's, in every branch and in the whole
    return -1  # what is left over; the rest fixes it


def expand(question: Question) -> Rewrite | None:
    """Allow broadcasting to a shape of at most the input's rank whose first entry leaves axis 0 as it is.

    A constant that is 1 (or has no axis) there may be repeated along the branch's axis 0, then along the
    whole's.
    """
    data = question.operand(0)
    shape = question.operand(1)
    if data.rank is None:
        return None
    if shape.role == "batch":
        return None
    if len(shape.entries) != len(question.sizes):
        return None
    lengths: set[int] = set()
    firsts: set[object] = set()
    for entries, size in zip(shape.entries, question.sizes, strict=True):
        if not entries:
            return None
        lengths.add(len(entries))
        firsts.add("size" if entries[0] == size else entries[0])
    behind = _settled(question.results[0], lengths)
    if behind is None:
        return None
    if data.role == "batch":
        if len(behind) < data.rank:
            return Rewrite(integers={1: behind})
        if len(behind) == data.rank and firsts <= {"size", 1}:
            return Rewrite(integers={1: (1, *behind[1:])})
    elif data.role == "constant" and firsts == {"size"} and _repeatable(data, len(behind)):
        return Rewrite(integers={1: (None, *behind[1:])})
    return None


def _repeatable(constant: Operand, length: int) -> bool:
    """Return True where a constant has no axis 0 in a shape of ``length`` entries, or is 1 there."""
    if constant.rank == length and constant.dims:
        return constant.dims[0] == 1
    return constant.rank is not None and constant.rank < length


def _settled(result: Dims | None, lengths: set[int]) -> Numbers | None:
    """Return sizes that are the same in all branches, for the axes behind axis 0 of the result, and 1 for
    that.
    """
    if result is None or len(lengths) != 1:
        return None
    (length,) = lengths
    behind: list[int] = []
    for axis in range(len(result) - length, len(result)):
        size: int | None = None
        if axis == 0:
            size = 1
        elif axis > 0:
            size = result[axis]
        if size is None:
            return None
        behind.append(size)
    return tuple(behind)


@proves
def tile(question: Question) -> bool:
    """Say yes to constant repeats, 1 along axis 0."""
    repeats = question.operand(1).ints()
    return bool(question.batch(0) and repeats and repeats[0] == 1)


@proves
def pad(question: Question) -> bool:
    """Say yes to constant pads that are 0 at both ends of axis 0, by a constant value, the edge or the
    reflection.
    """
    rank = question.batch(0)
    pads = question.operand(1).ints()
    if rank is None:
        return False
    if pads is None:
        return False
    if not question.steady_from(1):
        return False
    if question.absent(3):
        return len(pads) == 2 * rank and pads[0] == 0 == pads[rank]
    axes = question.operand(3).ints()
    return _none_is_first(axes, rank) and len(pads) == 2 * len(axes or ())


@proves
def slices(question: Question) -> bool:
    """Say yes to constant starts, ends and steps along constant axes without 0."""
    rank = question.batch(0, 2)
    return question.steady_from(1) and _none_is_first(question.operand(3).ints(), rank)


@proves
def concat(question: Question) -> bool:
    """Say yes to batch operands of one rank, joined along an axis other than 0."""
    rank = question.batch(0, 2)
    if rank is None:
        return False
    if any(operand.role != "batch" or operand.rank != rank for operand in question.operands):
        return False
    return bool(question.axis(rank, 0))


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
        return question.steady_from(1) and _none_is_first(integers(axes), rank)
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
    "Transpose": transpose,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Reshape": reshape,
    "Expand": expand,
    "Tile": tile,
    "Pad": pad,
    "Slice": slices,
    "Concat": concat,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Resize": resize,
    "OneHot": one_hot,
    "Trilu": trilu,
    "Einsum": einsum,
    "Attention": attention,
}
