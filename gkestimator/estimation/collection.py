"""Run Python's cyclic garbage collector less often while many small, acyclic objects are made.

Reading and lowering make tens of thousands of objects that live for the whole request and form no cycles.
With the default thresholds the collector visits them again and again: a good part of a large request.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS = 50_000  # instead of 700: at most some 10 MB of garbage in cycles waits for a collection


class _Outermost:
    """Remember who is inside, over all threads, and the thresholds from before."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.before = (0, 0, 0)


_OUTERMOST = _Outermost()


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect less often inside the block; the thresholds are what they were after the last of nested blocks.

    A process that has set larger thresholds, or turned the collector off, is left alone.
    """
    state = _OUTERMOST
    # Threads of one service may estimate at once, and the thresholds are those of the whole process.
    with state.lock:
        if state.inside == 0:
            state.before = gc.get_threshold()
            if 0 < state.before[0] < _YOUNG_OBJECTS:
                gc.set_threshold(_YOUNG_OBJECTS, *state.before[1:])
        state.inside += 1
    try:
        yield
    finally:
        with state.lock:
            state.inside -= 1
            if state.inside == 0:
                gc.set_threshold(*state.before)
