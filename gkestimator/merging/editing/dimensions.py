"""Numbers to try symbolic dimensions with, to find out which sizes never change."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from gkestimator.merging.editing.form import DimSizes

Bounds: TypeAlias = "dict[str, int]"

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
_BATCH_SMALL, _BATCH_LARGE = (3, 0), (7, 3)  # the first, and how much more each further one is
_HUGE_BATCH, _HUGE = 1 << 12, 1 << 16  # and what the huge sizes are multiples of
_MOST_ALONE = 8  # so many dimensions are tried as 1 while the others are not
_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else -1,
}


def assignments(free: Sequence[str], batches: frozenset[str]) -> tuple[list[Bounds], list[Bounds]]:
    """Small and large numbers for the dimensions ``free``, to be tried in this order.

    No dimension has one number in a small assignment and in a large one, and in each all dimensions differ, except
    those of ``batches`` (one number), those whose name says how they follow from others (``past + sequence``), and a
    total length, which is tried as the sum of the past and the present one too.
    """
    if len(free) > _MOST_DIMENSIONS:
        return [], []
    trees = {n: tree for n in free if (tree := _tree(n, frozenset(free))) is not None}
    if _total_parts(free):
        ways = (False, True)
    else:
        ways = (False,)
    small, large = (
        [
            found
            for i, (step, sizes) in enumerate(choices)
            for totals in ways
            if (found := _numbers(free, trees, batches, first + i * more, sizes, step, totals)) is not None
        ]
        for (first, more), choices in ((_BATCH_SMALL, _SMALL), (_BATCH_LARGE, _LARGE))
    )
    return small, large


def edges(free: Sequence[str], batches: frozenset[str]) -> list[Bounds]:
    """Numbers that show changes which :func:`assignments` does not, for whoever tries those that a model takes.

    All 1 (a size cut off at 4 is 1 then), the batch or one other dimension 1, all even (the rest of a division by 2
    is 1 for every odd prime), all very large (a size of at least 4,096 grows, one divided by it is no longer 0).
    """
    if len(free) > _MOST_DIMENSIONS:
        return []
    trees = {n: tree for n in free if (tree := _tree(n, frozenset(free))) is not None}
    count = sum(n not in batches and n not in trees for n in free)
    primes = [_SMALL[0][1][i % len(_SMALL[0][1])] for i in range(count)]
    even, huge = ([step * (i + 2) for i in range(count)] for step in (_HALVED, _HUGE))
    rows = [(1, [1] * count), (1, primes), (1, even), (_HUGE_BATCH, huge)]
    rows += [(_BATCH_SMALL[0], [*primes[:i], 1, *primes[i + 1 :]]) for i in range(min(count, _MOST_ALONE))]
    found: list[Bounds] = []
    for batch, sizes in rows:
        for totals in (False, True) if _total_parts(free) else (False,):
            numbers = _numbers(free, trees, batches, batch, sizes, 1, totals)
            if numbers is not None and numbers not in found:
                found.append(numbers)
    return found


def _numbers(
    free: Sequence[str],
    trees: Mapping[str, ast.expr],
    batches: frozenset[str],
    batch: int,
    sizes: Sequence[int],
    step: int,
    totals: bool,
) -> Bounds | None:
    """One number a dimension; None where an expression gives none that can be a size."""
    found: Bounds = {}
    plain = [n for n in free if n not in batches and n not in trees]
    for position, name in enumerate(plain):
        rounds, index = divmod(position, len(sizes))
        # beyond the list: still different from all before
        found[name] = (sizes[index] + rounds * sizes[-1]) * step
    found.update((n, batch) for n in free if n in batches)
    for name, (past, present) in _total_parts(free).items() if totals else ():
        found[name] = found[past] + found[present]
    for name in free:
        if name not in found:
            value = _value(trees[name], found)
            if value is None or not 0 < value < _MOST:
                return None
            found[name] = value
    return found


def _total_parts(free: Sequence[str]) -> dict[str, tuple[str, str]]:
    """``total...`` -> the past and the present length that it is the sum of, where there is one of each."""
    words = {n: frozenset(re.split(r"[^a-z]+", n.lower())) for n in free if n.isidentifier()}
    lengths = {n: w for n, w in words.items() if w & {"seq", "sequence", "length", "len"}}
    pasts = [n for n, w in lengths.items() if "past" in w and "total" not in w]
    presents = [n for n, w in lengths.items() if not w & {"past", "total"}]
    if len(pasts) != 1 or len(presents) != 1:
        return {}
    return {n: (pasts[0], presents[0]) for n, w in lengths.items() if "total" in w}


def _tree(name: str, free: frozenset[str]) -> ast.expr | None:
    """``name`` as an expression of other dimensions; None where it is none."""
    if len(name) > _LONGEST or not re.search(r"[-+*/]", name):
        return None
    try:
        tree = ast.parse(name.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    allowed = (ast.BinOp, ast.Name, ast.Load, ast.Constant, *_OPERATIONS)
    fits = all(isinstance(n, allowed) for n in ast.walk(tree)) and names and names <= free
    if fits:
        return tree
    return None


def _value(tree: ast.expr, known: DimSizes) -> int | None:
    if isinstance(tree, ast.Constant):
        if type(tree.value) is int and abs(tree.value) < _MOST:
            return tree.value
        return None
    if isinstance(tree, ast.Name):
        return known.get(tree.id)
    if isinstance(tree, ast.BinOp):
        left = _value(tree.left, known)
        right = _value(tree.right, known)
        if left is None:
            return None
        if right is None:
            return None
        if max(abs(left), abs(right)) >= _MOST:
            return None
        return _OPERATIONS[type(tree.op)](left, right)
    return None
