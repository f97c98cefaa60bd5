"""Rules for operators that work along an axis, and for those that rearrange: see :mod:`.rules_pointwise`.

All say yes only where axis 0 is none of the axes that are mixed, moved, cut or joined.
"""

from __future__ import annotations

from gkestimator.merging.editing import Dims, Numbers
from gkestimator.merging.lifting.operands import YES, Operand, Question, Rewrite, Rule
from gkestimator.merging.lifting.terms import Sizes, product, scaled


def softmax(question: Question) -> Rewrite | None:
    """Along ``axis`` (opset 13), or over all axes from it on (before, default 1): both leave axes before it alone."""
    rank = question.batch(0, 2)
    if rank is None or len(question.operands) != 1:
        return None
    if question.axis(rank, -1 if question.opset >= 13 else 1):
        return YES
    return None


def along(default: int, *, others: bool = True) -> Rule:
    """One attribute ``axis`` that is not 0; further inputs are constants."""

    def rule(question: Question) -> Rewrite | None:
        rank = question.batch(0, 2)
        if rank is None or not question.axis(rank, default):
            return None
        if len(question.operands) == 1 or (others and question.steady_from(1)):
            return YES
        return None

    return rule


def _axes(question: Question, index: int) -> Numbers | None:
    """``axes``, of the attribute or of input ``index``; () where there are none, None where they are not known."""
    given = question.attributes.get("axes")
    if isinstance(given, tuple):
        axes = tuple(a for a in given if isinstance(a, int))
        if len(axes) == len(given):
            return axes
        return None
    if given is not None:
        return None
    if question.absent(index):
        return ()
    return question.operand(index).ints()


def _none_is_first(axes: Numbers, rank: int) -> bool:
    """Whether all are valid and none is axis 0."""
    return all(-rank <= axis < rank and axis % rank for axis in axes)


def reduce(question: Question) -> Rewrite | None:
    """Over constant ``axes`` without axis 0. No axes: over all, unless that is said to do nothing."""
    rank = question.batch(0)
    axes = _axes(question, 1)
    if rank is None:
        return None
    if axes is None:
        return None
    if not question.steady_from(1):
        return None
    if not axes:
        if question.integer("noop_with_empty_axes", 0) == 1:
            return YES
        return None
    if _none_is_first(axes, rank):
        return YES
    return None


def cumsum(question: Question) -> Rewrite | None:
    """Along a constant axis other than 0."""
    rank = question.batch(0, 2)
    axes = question.operand(1).ints()
    if rank and axes and len(axes) == 1 and _none_is_first(axes, rank):
        return YES
    return None


def transpose(question: Question) -> Rewrite | None:
    """``perm`` leaves axis 0 where it is (the default turns all axes round)."""
    rank = question.batch(0)
    perm = question.attributes.get("perm")
    if rank is None:
        return None
    if rank == 1 or (isinstance(perm, tuple) and perm[:1] == (0,)):
        return YES
    return None


def flatten(question: Question) -> Rewrite | None:
    """[d0, d1 * d2 ...] for ``axis`` 1: row i holds sample i. A later axis makes known numbers of rows of each."""
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
    rows = product(data[1 : axis if axis >= 0 else axis + rank])
    if axis in (0, -rank) or not rows:
        return None
    sizes = _scaled_sizes(question, rows, 1)
    if sizes is None:
        return None
    return Rewrite(sizes=sizes)


def _scaled_sizes(question: Question, times: int, over: int) -> Sizes | None:
    found = [scaled(size, times, over) for size in question.sizes]
    if None not in found:
        return tuple(f for f in found if f is not None)
    return None


def squeeze(question: Question) -> Rewrite | None:
    """Constant ``axes`` without 0. Without axes all of size 1 go, which may be axis 0 of a batch of one: refused."""
    rank = question.batch(0, 2)
    axes = _axes(question, 1)
    if rank and axes and _none_is_first(axes, rank):
        return YES
    return None


def unsqueeze(question: Question) -> Rewrite | None:
    """Constant ``axes``, counted in the result, none of them 0: the old axis 0 stays in front."""
    rank = question.batch(0)
    axes = _axes(question, 1)
    if rank and axes and _none_is_first(axes, rank + len(axes)):
        return YES
    return None


def _known(dims: Dims | None) -> int | None:
    """Elements of one sample where they are known and not none at all."""
    if dims is None or not dims:
        found = None
    else:
        found = product(dims[1:])
    return found or None


def reshape(question: Question) -> Rewrite | None:
    """Reshaping keeps the order of the values, so the branches' values stay one behind the other in the whole.

    The result of the whole is the branches' results one behind the other where each ends with a whole row. Where
    axis 0 keeps its length, row i is sample i: as many elements stand behind axis 0 before and after (then it
    follows), or the shape says so itself by a first entry of 0, or the branch's size. Where k times as many stand
    behind it, each branch's length must be known to be a multiple of k (rows = batch x positions, and back). The
    whole gets 0 ("as the input's") or -1 in front, and behind it sizes that are the same in every branch; at most
    one of them is left to be found (-1).
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
    if result is not None and before is not None and after is not None:
        if before == after:
            return Rewrite(attributes={"allowzero": None}, integers={1: (0, *_numbers(result))})
        sizes = _scaled_sizes(question, before, after)
        if sizes is None:
            return None
        return Rewrite(attributes={"allowzero": None}, integers={1: (-1, *_numbers(result))}, sizes=sizes)
    return _reshape_by_entries(question, shape, result)


def _numbers(dims: Dims) -> Numbers:
    return tuple(size for size in dims[1:] if size is not None)


def _reshape_by_entries(question: Question, shape: Operand, result: Dims | None) -> Rewrite | None:
    """Where the elements of a sample depend on other symbolic sizes: the shape vectors of the branches decide."""
    if len(shape.entries) != len(question.sizes):
        return None
    whole = question.integer("allowzero", 0) == 1
    rows: list[tuple[object, ...]] = []
    for entries, size in zip(shape.entries, question.sizes, strict=True):
        if entries is None:
            return None
        if not entries:
            return None
        if not (entries[0] == size or (entries[0] == 0 and not whole)):
            return None
        rows.append(tuple(entries[1:]))
    if len({len(row) for row in rows}) != 1:
        return None
    behind: list[int] = []
    for axis, column in enumerate(zip(*rows, strict=True), start=1):
        if result is None or axis >= len(result):
            fixed = None
        else:
            fixed = result[axis]
        first = column[0]
        if fixed == 0:
            return None
        if fixed is not None:
            behind.append(fixed)
        elif isinstance(first, int) and first > 0 and all(c == first for c in column):
            behind.append(first)
        elif first == 0 and not whole and all(c == 0 for c in column):
            behind.append(0)  # as the input's, in every branch and in the whole
        else:
            behind.append(-1)  # what is left over; the rest fixes it
    if behind.count(-1) <= 1:
        return Rewrite(attributes={"allowzero": None}, integers={1: (0, *behind)})
    return None


def expand(question: Question) -> Rewrite | None:
    """Broadcasting to a shape of at most the input's rank whose first entry leaves axis 0 as it is.

    A constant that is 1 (or has no axis) there may be repeated along the branch's axis 0, then along the whole's.
    """
    data = question.operand(0)
    shape = question.operand(1)
    if data.rank is None:
        return None
    if shape.role == "batch":
        return None
    if len(shape.entries) != len(question.sizes):
        return None
    rows: list[tuple[object, ...]] = []
    for entries, size in zip(shape.entries, question.sizes, strict=True):
        if not entries:
            return None
        rows.append(tuple("size" if i == 0 and e == size else e for i, e in enumerate(entries)))
    length = len(rows[0])
    behind = _settled(rows, question.results[0], length)
    if behind is None:
        return None
    if data.role == "batch":
        if length > data.rank:
            return None
        if length < data.rank:
            return Rewrite(integers={1: behind})
        if all(row[0] in ("size", 1) for row in rows):
            return Rewrite(integers={1: (1, *behind[1:])})
        return None
    if data.role != "constant":
        return None
    if length < max(data.rank, 1):
        return None
    if any(row[0] != "size" for row in rows):
        return None
    if data.rank == length and (data.dims is None or data.dims[0] != 1):
        return None
    return Rewrite(integers={1: (None, *behind[1:])})


def _settled(rows: list[tuple[object, ...]], result: Dims | None, length: int) -> Numbers | None:
    """Sizes that are the same in all branches, for the axes behind axis 0 of the result."""
    if any(len(row) != length for row in rows) or result is None:
        return None
    behind: list[int] = []
    for place in range(length):
        axis = len(result) - length + place
        if axis == 0:
            behind.append(1)
            continue
        if axis > 0:
            fixed = result[axis]
        else:
            fixed = None
        if fixed is None:
            return None
        behind.append(fixed)
    return tuple(behind)


def tile(question: Question) -> Rewrite | None:
    """Constant repeats, 1 along axis 0."""
    repeats = question.operand(1).ints()
    if question.batch(0) and repeats and repeats[0] == 1:
        return YES
    return None


def pad(question: Question) -> Rewrite | None:
    """Constant pads that are 0 at both ends of axis 0, by a constant value, the edge or the reflection."""
    rank = question.batch(0)
    pads = question.operand(1).ints()
    if rank is None:
        return None
    if pads is None:
        return None
    if not question.steady_from(1):
        return None
    if question.absent(3):
        if len(pads) == 2 * rank and pads[0] == 0 == pads[rank]:
            return YES
        return None
    axes = question.operand(3).ints()
    if axes and len(pads) == 2 * len(axes) and _none_is_first(axes, rank):
        return YES
    return None


def slices(question: Question) -> Rewrite | None:
    """Constant starts, ends and steps along constant axes without 0."""
    rank = question.batch(0, 2)
    axes = question.operand(3).ints()
    if rank is None:
        return None
    if not axes:
        return None
    if not question.steady_from(1):
        return None
    if _none_is_first(axes, rank):
        return YES
    return None


def concat(question: Question) -> Rewrite | None:
    """Batch operands of one rank, joined along an axis other than 0."""
    rank = question.batch(0, 2)
    if rank is None:
        return None
    if any(operand.role != "batch" or operand.rank != rank for operand in question.operands):
        return None
    if question.axis(rank, 0):
        return YES
    return None


def gather(question: Question) -> Rewrite | None:
    """Rows of a constant by ids (axis 0 of the ids stays in front), or by constant ids along an axis other than 0."""
    data = question.operand(0)
    ids = question.operand(1)
    if data.rank is None or ids.rank is None:
        return None
    if data.rank:
        axis = question.axis(data.rank, 0)
    else:
        axis = None
    if data.role == "constant" and ids.role == "batch":
        if axis == 0 and ids.rank >= 1:
            return YES
        return None
    if data.role == "batch" and ids.role == "constant" and axis:
        return YES
    return None


def gather_elements(question: Question) -> Rewrite | None:
    """Both batch operands of one rank; index i of axis 0 picks among data of index i where the axis is another."""
    rank = question.batch(0, 2)
    if rank and question.batch(1, 2) == rank and question.axis(rank, 0):
        return YES
    return None


def gather_nd(question: Question) -> Rewrite | None:
    """``batch_dims`` of 1 or more with both batch operands, or 0 with constant data and ids of at least rank 2."""
    data = question.operand(0)
    ids = question.operand(1)
    dims = question.integer("batch_dims", 0)
    if dims is None:
        return None
    if (ids.rank or 0) < 2:
        return None
    if ids.role != "batch":
        return None
    if data.role == "batch" and (data.rank or 0) >= 2:
        if dims >= 1:
            return YES
        return None
    if data.role == "constant" and dims == 0:
        return YES
    return None


def resize(question: Question) -> Rewrite | None:
    """Constant scales of 1 along axis 0 (position i there is position i, whatever the mode), or axes without 0."""
    rank = question.batch(0, 3)
    scales = question.operand(2)
    if rank is None:
        return None
    if question.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    region = question.operand(1)
    if region.role != "absent" and not (region.role == "constant" and region.dims == (0,)):
        return None
    axes = question.attributes.get("axes")
    if isinstance(axes, tuple):
        numbers = tuple(axis for axis in axes if isinstance(axis, int))
        free = len(numbers) == len(axes) > 0 and _none_is_first(numbers, rank)
        if free and question.steady_from(1):
            return YES
        return None
    if not question.absent(3):
        return None
    if scales.role != "constant":
        return None
    if scales.dims != (rank,):
        return None
    if scales.value is not None and scales.value.ravel()[0] == 1:
        return YES
    return None


def one_hot(question: Question) -> Rewrite | None:
    """A new axis, not in front, by constant depth and values."""
    rank = question.batch(0)
    if rank is None or not question.steady(1, 2):
        return None
    if question.axis(rank + 1, -1):
        return YES
    return None


def trilu(question: Question) -> Rewrite | None:
    """Over the last two axes, axis 0 not among them; a constant diagonal."""
    if question.batch(0, 3) and question.steady(1):
        return YES
    return None


def einsum(question: Question) -> Rewrite | None:
    """Axis 0 has one letter in all batch operands and in the result, which no constant has and none has twice."""
    equation = question.attributes.get("equation")
    if not isinstance(equation, str):
        return None
    if "." in equation:
        return None
    if "->" not in equation:
        return None
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(question.operands) or not right:
        return None
    letter = right[0]
    for term, operand in zip(terms, question.operands, strict=True):
        if operand.role == "batch":
            if not term.startswith(letter) or term.count(letter) != 1:
                return None
        elif operand.role != "constant" or letter in term:
            return None
    return YES


def attention(question: Question) -> Rewrite | None:
    """Attention of opset 23: queries, keys and values [batch, ...]; a mask of the batch or the same for all of it."""
    if any(question.batch(i, 3) is None for i in range(3)):
        return None
    if not question.absent(*range(4, 7)):
        return None
    mask = question.operand(3)
    if mask.role == "absent":
        return YES
    if mask.role == "batch":
        if mask.rank == 4:
            return YES
        return None
    if mask.role != "constant" or mask.dims is None:
        return None
    if len(mask.dims) < 4 or (len(mask.dims) == 4 and mask.dims[0] == 1):
        return YES
    return None


_REDUCE = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

ALONG_AXES: dict[tuple[str, str], Rule] = {
    **{("", op): softmax for op in ("Softmax", "LogSoftmax", "Hardmax")},
    **{("", op): along(0, others=False) for op in ("ArgMax", "ArgMin")},
    **{("", f"Reduce{op}"): reduce for op in _REDUCE},
    ("", "LpNormalization"): along(-1, others=False),
    ("", "TopK"): along(-1),
    ("", "Split"): along(0),
    ("", "CumSum"): cumsum,
    ("", "Transpose"): transpose,
    ("", "Flatten"): flatten,
    ("", "Squeeze"): squeeze,
    ("", "Unsqueeze"): unsqueeze,
    ("", "Reshape"): reshape,
    ("", "Expand"): expand,
    ("", "Tile"): tile,
    ("", "Pad"): pad,
    ("", "Slice"): slices,
    ("", "Concat"): concat,
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "GatherND"): gather_nd,
    ("", "Resize"): resize,
    ("", "OneHot"): one_hot,
    ("", "Trilu"): trilu,
    ("", "Einsum"): einsum,
    ("", "Attention"): attention,
}
