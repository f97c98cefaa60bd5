"""How the event loop is compiled: one piece of machine code, made of parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from gkestimator.simulation.compiled import COMPILED

__all__ = ["entry", "part"]

F = TypeVar("F", bound=Callable[..., Any])
# Nothing is allocated in the loop, so no references are counted: with dozens of arrays in the state, counting them is
# most of what there would be to compile. The option is not among numba's public ones; a numba without it compiles longer.
NO_COUNTS = {"_nrt": False}
WITHIN = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def part(function: F) -> F:
    """A function that compiled code alone calls. (From Python: ``function.py_func``.)"""
    if not COMPILED:
        return function
    return _njit(function, **WITHIN)


def entry(function: F) -> F:
    """A function that Python calls, machine code kept for the next process."""
    if not COMPILED:
        return function
    stamp = _sources()

    def within(*arguments: Any) -> Any:
        stamp  # noqa: B018  # numba keeps code by what its closure holds: new sources, new code
        return inner(*arguments)

    inner = part(function)
    try:
        return _njit(within, cache=True)  # type: ignore[return-value]
    except RuntimeError:  # neither beside the sources nor in the user's cache can be written
        return _njit(within)  # type: ignore[return-value]


def _njit(function: F, **options: Any) -> F:
    from numba import njit

    try:
        found: F = njit(error_model="numpy", **NO_COUNTS, **options)(function)
    except (KeyError, TypeError):
        found = njit(error_model="numpy", **options)(function)
    return found


@cache
def _sources() -> str:
    """Of all files whose code is compiled into the loop."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("*.py")), here.parent / "interference" / "laws.py", here.parent / "compiled.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
