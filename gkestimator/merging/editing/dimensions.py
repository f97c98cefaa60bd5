"""Choose numbers to try symbolic dimensions with, to find out which sizes never change."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Assignments: TypeAlias = "list[Assignment]"
#: A number for each dimension by its name.
Assignment: TypeAlias = "dict[str, int]"

_LONGEST = 200
_MOST_DIMENSIONS = 256  # more are no model's; for them no numbers are tried
_MOST = 1 << 31
_HALVED = 64  # sizes that are halved several times without a rest
# Primes, so that sizes differ by what they are made of. The small ones are far below the large ones: a size that is
# cut off at a limit, or divided and rounded, differs between the two.
_SMALL = (
    (1, (5, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)),
    (1, (53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103)),
    (_HALVED, (1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)),
)
_LARGE = (
    (1, (1289, 1291, 1297, 1301, 1303, 1307, 1319, 1321, 1327, 1361, 1367, 1373)),
    (1, (389, 397, 401, 409, 419, 421, 431, 433, 439, 443, 449, 457)),  # below the 512 places of many models
    (_HALVED, (37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)),
    (_HALVED, (4, 6, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21)),
    (1, (113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179)),
    (1, (49, 51, 52, 54, 55, 56, 57, 58, 60, 62, 63, 64)),
    (1, (8, 9, 10, 12, 14, 15, 16, 18, 20, 21, 22, 24)),
)
_BATCH_SMALL = 3
_BATCH_LARGE = (7, 3)  # the first, and how much more each further one is
_HUGE_BATCH = 1 << 12
_HUGE = 1 << 16  # what the huge sizes are multiples of
_MOST_ALONE = 8  # so many dimensions are tried as 1 while the others are not
_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b if b else -1,
}


def assignments(free: Sequence[str], batches: frozenset[str]) -> tuple[Assignments, Assignments]:
    """Return small and large numbers for the dimensions ``free``, to be tried in this order.

    No dimension has one number in a small assignment and in a large one, and in each all dimensions differ,
    except those of ``batches`` (one number), those whose name says how they follow from others (``past +
    sequence``), and a total length, which is tried as the sum of the past and the present one too.
    """
    if len(free) > _MOST_DIMENSIONS:
        return [], []
    dimensions = _Dimensions(free, batches)
    small: Assignments = []
    large: Assignments = []
    for step, sizes in _SMALL:
        small += dimensions.numbered(_BATCH_SMALL, [size * step for size in sizes])
    for place, (step, sizes) in enumerate(_LARGE):
        first, more = _BATCH_LARGE
        large += dimensions.numbered(first + place * more, [size * step for size in sizes])
    return small, large


def edges(free: Sequence[str], batches: frozenset[str]) -> Assignments:
    """Return numbers that show changes which :func:`assignments` does not, for whoever tries those that a
    model takes.

    All 1 (a size cut off at 4 is 1 then), the batch or one other dimension 1, all even (the rest of a
    division by 2 is 1 for every odd prime), all very large (a size of at least 4,096 grows, one divided by it
    is no longer 0).
    """
    if len(free) > _MOST_DIMENSIONS:
        return []
    dimensions = _Dimensions(free, batches)
    count = len(dimensions.plain)
    _, known_primes = _SMALL[0]
    primes = [known_primes[i % len(known_primes)] for i in range(count)]
    even = [_HALVED * (i + 2) for i in range(count)]
    huge = [_HUGE * (i + 2) for i in range(count)]
    rows = [(1, [1] * count), (1, primes), (1, even), (_HUGE_BATCH, huge)]
    for alone in range(min(count, _MOST_ALONE)):
        sizes = list(primes)
        sizes[alone] = 1
        rows.append((_BATCH_SMALL, sizes))
    distinct: Assignments = []
    for batch, sizes in rows:
        for assignment in dimensions.numbered(batch, sizes):
            if assignment not in distinct:
                distinct.append(assignment)
    return distinct


class _Dimensions:
    """Number the dimensions ``free``: first those that follow from nothing, then the rest from them."""

    def __init__(self, free: Sequence[str], batches: frozenset[str]) -> None:
        self._free = free
        self._batches = [name for name in free if name in batches]
        self._trees = _trees(free)
        self._totals = _total_parts(free)
        self.plain = [name for name in free if name not in batches and name not in self._trees]

    def numbered(self, batch: int, sizes: Sequence[int]) -> Assignments:
        """Return the assignment of ``sizes`` to the plain dimensions, and once more with totals as sums.

        None of them where an expression gives what cannot be a size.
        """
        plain = dict.fromkeys(self._batches, batch)
        for position, name in enumerate(self.plain):
            rounds, index = divmod(position, len(sizes))
            # beyond the list: still different from all before
            plain[name] = sizes[index] + rounds * sizes[-1]
        # the total as a size of its own first: more models take that
        tries = [plain]
        if self._totals:
            summed = dict(plain)
            for name, (past, present) in self._totals.items():
                summed[name] = summed[past] + summed[present]
            tries.append(summed)
        return [numbers for numbers in tries if self._completed(numbers)]

    def _completed(self, numbers: Assignment) -> bool:
        """Work out what follows from other dimensions; False where that cannot be a size."""
        for name in self._free:
            if name in numbers:
                continue
            value = _value(self._trees[name], numbers)
            if value is None or not 0 < value < _MOST:
                return False
            numbers[name] = value
        return True


def _total_parts(free: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return by ``total...`` the past and the present length that it is the sum of, where there is one of
    each.
    """
    totals: list[str] = []
    pasts: list[str] = []
    presents: list[str] = []
    for name in filter(str.isidentifier, free):
        words = set(re.split(r"[^a-z]+", name.lower()))
        if words.isdisjoint({"seq", "sequence", "length", "len"}):
            continue
        if "total" in words:
            totals.append(name)
        elif "past" in words:
            pasts.append(name)
        else:
            presents.append(name)
    if len(pasts) != 1 or len(presents) != 1:
        return {}
    return dict.fromkeys(totals, (pasts[0], presents[0]))


def _trees(free: Sequence[str]) -> dict[str, ast.expr]:
    """Return the dimensions whose name is an expression of others, parsed."""
    trees: dict[str, ast.expr] = {}
    for name in free:
        tree = _tree(name, frozenset(free))
        if tree is not None:
            trees[name] = tree
    return trees


def _tree(name: str, free: frozenset[str]) -> ast.expr | None:
    if len(name) > _LONGEST or not re.search(r"[-+*/]", name):
        return None
    try:
        tree = ast.parse(name.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif not isinstance(node, (ast.BinOp, ast.Load, ast.Constant, *_OPERATIONS)):
            return None
    if names and names <= free:
        return tree
    return None


def _value(tree: ast.expr, known: Mapping[str, int]) -> int | None:
    if isinstance(tree, ast.Constant):
        if type(tree.value) is int and abs(tree.value) < _MOST:
            return tree.value
        return None
    if isinstance(tree, ast.Name):
        return known.get(tree.id)
    if not isinstance(tree, ast.BinOp):
        return None
    left = _value(tree.left, known)
    right = _value(tree.right, known)
    if left is None:
        return None
    if right is None:
        return None
    if max(abs(left), abs(right)) >= _MOST:
        return None
    return _OPERATIONS[type(tree.op)](left, right)
