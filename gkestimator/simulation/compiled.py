"""numba where it is installed (extra ``simulate``), else plain Python: the same code, the same results."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["COMPILED", "compiled"]

F = TypeVar("F", bound=Callable[..., Any])
COMPILED = importlib.util.find_spec("numba") is not None


def compiled(function: F) -> F:
    """``function`` compiled at its first call; the machine code is kept beside the source (or in
    ``NUMBA_CACHE_DIR``). No fast math: results equal plain Python's."""
    if not COMPILED:
        return function
    from numba import njit

    try:
        found: F = njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither beside the source nor in the user's cache can anything be written
        found = njit(error_model="numpy")(function)
    return found
