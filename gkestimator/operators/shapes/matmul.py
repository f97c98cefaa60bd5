"""Shape rules of matrix products."""

from __future__ import annotations

import string

from gkestimator.core.errors import ShapeError
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, ValueType, shape_rule
from gkestimator.operators.shapes.support import broadcast, has, tensor


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """numpy.matmul's result shape; ShapeError when the inner dimensions differ."""
    if not a or not b:
        raise ShapeError("a scalar cannot be multiplied as a matrix")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    if left[-1] != right[-2]:
        raise ShapeError(f"{list(a)} x {list(b)}: inner dimensions {left[-1]} and {right[-2]} differ")
    out = broadcast(left[:-2], right[:-2])
    return out + (() if len(a) == 1 else (left[-2],)) + (() if len(b) == 1 else (right[-1],))


@shape_rule("MatMul")
def matmul(ctx: ShapeContext) -> list[ValueType | None]:
    """Batches broadcast, (m, k) x (k, n) gives (m, n)."""
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    return [TensorType(a.dtype, matmul_shape(a.shape, b.shape))]


@shape_rule("Gemm")
def gemm(ctx: ShapeContext) -> list[ValueType | None]:
    """A (m, k) or transposed times B (k, n) or transposed; C broadcasts to (m, n)."""
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ShapeError(f"{list(a.shape)} x {list(b.shape)}: two dimensions were expected")
    m, k = a.shape[::-1] if ctx.attributes.get("transA") else a.shape
    k2, n = b.shape[::-1] if ctx.attributes.get("transB") else b.shape
    if k != k2:
        raise ShapeError(f"inner dimensions {k} and {k2} differ")
    if has(ctx, 2) and broadcast(tensor(ctx, 2).shape, (m, n)) != (m, n) and ctx.version >= 7:
        raise ShapeError(f"C of shape {list(tensor(ctx, 2).shape)} does not broadcast to {[m, n]}")
    return [TensorType(a.dtype, (m, n))]


def einsum_terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Operand terms and output term, every ellipsis spelled out in letters that the equation does not use."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(f"equation {equation[:80]!r} has {len(terms)} operands; {len(ranks)} are given")
    letters = [c for c in string.ascii_letters if c not in equation]
    extra = max(
        (r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True) if "..." in t), default=0
    )
    if not 0 <= extra <= len(letters):
        raise ShapeError(f"equation {equation[:80]!r} does not fit operands of rank {ranks}")
    dots = "".join(letters[:extra])
    full = []
    for term, rank in zip(terms, ranks, strict=True):
        if "..." in term:
            own = rank - len(term.replace("...", ""))
            term = term.replace("...", dots[extra - own :] if own else "")
        if len(term) != rank:
            raise ShapeError(f"equation {equation[:80]!r} does not fit operands of rank {ranks}")
        full.append(term)
    if arrow:
        return full, right.replace("...", dots)
    every = "".join(full)
    return full, dots + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in dots))


@shape_rule("Einsum")
def einsum(ctx: ShapeContext) -> list[ValueType | None]:
    """The output's letters with the sizes that the operands give them (1 broadcasts under an ellipsis)."""
    operands = [tensor(ctx, i) for i in range(len(ctx.types))]
    terms, result = einsum_terms(str(ctx.attributes["equation"]), [len(o.shape) for o in operands])
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            if sizes.get(letter, 1) != 1 and size not in (1, sizes[letter]):
                raise ShapeError(f"index {letter} is {sizes[letter]} and {size}")
            sizes[letter] = max(size, sizes.get(letter, 1)) if size else 0
    return [TensorType(operands[0].dtype, tuple(sizes[c] for c in result))]
