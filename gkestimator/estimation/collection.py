"""Fewer passes of Python's cyclic garbage collector while many small, acyclic objects are made.

Reading and lowering make tens of thousands of objects that live for the whole request and form no cycles. With the
default thresholds the collector visits them again and again: a fifth of the time of a large request.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["rare_collection"]

_YOUNG_OBJECTS = 50_000  # instead of 700: at most some 10 MB of garbage in cycles waits for a collection
_lock = threading.Lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect less often inside the block; the thresholds are what they were after the last of nested blocks.

    A process that has set larger thresholds, or turned the collector off, is left alone.
    """
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < _YOUNG_OBJECTS:
                gc.set_threshold(_YOUNG_OBJECTS, *_before[1:])
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                gc.set_threshold(*_before)
