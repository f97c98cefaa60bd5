"""numba where it is installed (extra ``simulate``), else plain Python: the same code, the same results.

A process that sets ``GKEST_COMPILE=0`` before this module is imported does without: numba takes 120 MB and most of a
second, which a process that calls little pays for nothing.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
COMPILED = os.environ.get("GKEST_COMPILE") != "0" and importlib.util.find_spec("numba") is not None
_told: list[Callable[[], None]] = []


@contextmanager
def when_compiling(say: Callable[[], None]) -> Iterator[None]:
    """Within, ``say`` is called when the simulator is about to be compiled, which takes from seconds to a minute: not
    where machine code of a run before was found, nor without numba."""
    _told.append(say)
    try:
        yield
    finally:
        _told.remove(say)


def tell_compiling() -> None:
    """The simulator is about to be compiled."""
    for say in _told:
        say()


def compiled(function: F) -> F:
    """``function`` compiled at its first call; the machine code is kept beside the source (or in
    ``NUMBA_CACHE_DIR``). No fast math: results equal plain Python's."""
    if not COMPILED:
        return function
    from numba import njit

    try:
        return cast(F, njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # neither beside the source nor in the user's cache can anything be written
        return cast(F, njit(error_model="numpy")(function))
