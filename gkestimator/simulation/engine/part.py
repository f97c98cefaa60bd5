"""Compile the event loop: one piece of machine code, made of parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from gkestimator.core.compiled import COMPILED, tell_compiling

F = TypeVar("F", bound=Callable[..., Any])
# Nothing is allocated in the loop, so no references are counted: with dozens of arrays in the state, that would be most
# of what there is to compile. The option is not among numba's public ones; a numba without it compiles longer.
NO_COUNTS = {"_nrt": False}
WITHIN = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def part(function: F) -> F:
    """Compile a function that compiled code alone calls. (From Python: ``function.py_func``.)"""
    if not COMPILED:
        return function
    return _njit(function, **WITHIN)


def inlined(function: F) -> F:
    """Compile a function into each place that calls it: for steps of every event, cheaper than a call."""
    if not COMPILED:
        return function
    return _njit(function, forceinline=True, **WITHIN)


def entry(make: Callable[[str], F]) -> F:
    """Compile the function that ``make`` makes, which Python calls; its machine code is kept for the next
    process. numba keeps code by the file of the function and by what its closure holds: ``make`` is given a
    digest of all the sources, which the function must mention, so that new sources are compiled anew.
    """
    if not COMPILED:
        return make("")
    function = make(_sources())
    try:
        made = _njit(function, cache=True)
    except RuntimeError:  # neither beside the sources nor in the user's cache can anything be written
        made = _njit(function)
    _tell_of(made)
    return made


def _tell_of(made: object) -> None:
    """Call ``tell_compiling`` when numba begins to compile ``made`` (not when it finds machine code of it)."""
    from numba.core import event

    class Teller(event.Listener):
        def on_start(self, event: Any) -> None:
            if event.data["dispatcher"] is made:
                tell_compiling()

        def on_end(self, event: Any) -> None:
            """Say nothing."""

    register: Any = event.register
    register("numba:compile", Teller())


def _njit(function: F, **options: Any) -> F:
    from numba import njit

    compiling: Any = njit
    try:
        return cast(F, compiling(error_model="numpy", **NO_COUNTS, **options)(function))
    except (KeyError, TypeError):
        return cast(F, compiling(error_model="numpy", **options)(function))


@cache
def _sources() -> str:
    """Return a digest of all files whose code is compiled into the loop."""
    here = Path(__file__).parent
    files = [
        *sorted(here.glob("*.py")),
        here.parent.parent / "interference" / "laws.py",
        here.parent.parent / "core" / "compiled.py",
    ]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
