"""Hold bounds on model files that nobody has to raise, and what follows from those of ``gkestimator.core.limits``.

Each one turns into a one-line LimitError, never into hours or gigabytes.
"""

from __future__ import annotations

from gkestimator.core.errors import LimitError
from gkestimator.core.limits import allowed, exceeded

MAX_FUNCTION_DEPTH = 64
MAX_SUBGRAPH_DEPTH = 24
MAX_RANK = 32
MAX_ELEMENTS = 1 << 63
MAX_REPEAT = 1 << 50
MAX_NAME = 1_000  # characters of a name inside: what is longer is cut, as unrolled loops repeat names

MAX_FOLD_ELEMENTS = 65_536  # a larger value is never evaluated; its shape still is
MAX_FOLD_BYTES = 1 << 20
# Floats in larger initializers are weights, not shape arithmetic: never decoded.
MAX_FLOAT_INITIALIZER = 1_024
MAX_SMALL = 512  # bytes of a known value that is always kept
MAX_KNOWN_BYTES = 128 << 20  # of all known values of a model together; beyond it only small ones are kept
MAX_EXPANSION = 8  # nodes that each written one may become, where that is more than the least


def expanded(written: int, most: str, least: str) -> tuple[str, int]:
    """Return how much ``written`` nodes may become, in proportion, from limit ``least`` to limit ``most``; and which
    of the two limits has to be raised for more."""
    proportion = max(allowed(least), MAX_EXPANSION * written)
    if proportion < allowed(most):
        return least, proportion
    return most, allowed(most)


def check(name: str, amount: int, what: str = "") -> None:
    """Raise LimitError where ``amount`` is over the limit ``name``; ``what`` begins the message."""
    if amount > allowed(name):
        message = exceeded(name, amount)
        if what:
            message = f"{what}: {message}"
        raise LimitError(message)


class BoundedCount:
    """Count what the limit ``name`` bounds."""

    __slots__ = ("_count", "_most", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._most = allowed(name)
        self._count = 0

    def add(self, amount: int) -> None:
        """Count ``amount`` more. Raises LimitError where it is too much."""
        self._count += amount
        if self._count > self._most:
            raise LimitError(exceeded(self._name, self._count))
