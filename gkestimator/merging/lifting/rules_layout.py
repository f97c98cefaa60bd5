"""Rule on operators that rearrange, cut and join values; see :mod:`.rules_pointwise` for what a rule is.

All say yes only where axis 0 is none of the axes that are moved, cut or joined. Those that change how many elements
stand behind axis 0 (Reshape, Flatten, Expand) are rewritten for the whole.
"""

from __future__ import annotations

import itertools

from gkestimator.merging.editing import Dims, Numbers
from gkestimator.merging.lifting.operands import Operand, Question, Rewrite, Rule, proves
from gkestimator.merging.lifting.rules_axes import axes_of, none_is_first
from gkestimator.merging.lifting.terms import Entries, Sizes, product, scaled


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
    return none_is_first(axes_of(question, 1), rank)


@proves
def unsqueeze(question: Question) -> bool:
    """Say yes to constant ``axes``, counted in the result, none of them 0: the old axis 0 stays in front."""
    rank = question.batch(0)
    axes = axes_of(question, 1)
    return rank is not None and none_is_first(axes, rank + len(axes or ()))


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
    # all of them are numbers, or the elements of a sample would not be known
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
        # "size": the branch's own length, whatever it is
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
    return none_is_first(axes, rank) and len(pads) == 2 * len(axes or ())


@proves
def slices(question: Question) -> bool:
    """Say yes to constant starts, ends and steps along constant axes without 0."""
    rank = question.batch(0, 2)
    return question.steady_from(1) and none_is_first(question.operand(3).ints(), rank)


@proves
def concat(question: Question) -> bool:
    """Say yes to batch operands of one rank, joined along an axis other than 0."""
    rank = question.batch(0, 2)
    if rank is None:
        return False
    if any(operand.role != "batch" or operand.rank != rank for operand in question.operands):
        return False
    return bool(question.axis(rank, 0))


LAYOUT: dict[str, Rule] = {
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
}
