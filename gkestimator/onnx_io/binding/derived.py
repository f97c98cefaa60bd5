"""Number dimensions that the file itself names as a sum, a product or the like of others.

Optimum calls the length of a decoder's mask ``past_sequence_length + sequence_length``, torch.export writes
``2*frames`` or ``(s0 - 1)//2 + 1``: whoever numbers the parts need not number these.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache

_LONGEST = 200  # characters of a name that is looked at: names come from strangers
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
}


class _NotDerivedError(Exception):
    """Say that a name is no expression of numbered dimensions."""


@lru_cache(maxsize=1024)
def _parsed(name: str) -> ast.expr | None:
    """Return the expression that ``name`` is, None where it is a plain name or nothing that can be read."""
    if len(name) > _LONGEST:
        return None
    try:
        body = ast.parse(name.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return body if isinstance(body, ast.BinOp) else None


def derived_size(name: str, sizes: Mapping[str, int]) -> int | None:
    """Return the number of the dimension ``name`` if it is an expression of ``sizes``; None otherwise."""
    expression = _parsed(name)
    if expression is None:
        return None
    try:
        return _value(expression, sizes)
    except (_NotDerivedError, ZeroDivisionError):
        return None


def _value(part: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(part, ast.Name) and part.id in sizes:
        return sizes[part.id]
    if isinstance(part, ast.Constant) and type(part.value) is int:
        return part.value
    if isinstance(part, ast.BinOp) and type(part.op) in _OPERATIONS:
        return _OPERATIONS[type(part.op)](_value(part.left, sizes), _value(part.right, sizes))
    raise _NotDerivedError
