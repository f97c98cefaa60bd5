"""When to end: somebody asks (Ctrl-C, SIGTERM), or the time that was given is over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "interrupted"
OUT_OF_TIME = "the time that was given is over"
Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


class Stop:
    """Hold why and how to stop, as every worker asks it. ``deadline``: on the monotonic clock; None: there is none."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._wish: str | None = None

    def ask(self) -> None:
        """Ask once to let running jobs end with what they have; twice to end at once."""
        self._wish = "soft" if self._wish is None else "hard"

    @property
    def asked(self) -> bool:
        """Return whether somebody asked."""
        return self._wish is not None

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline; None: there is none."""
        if self._deadline is None:
            return None
        return self._deadline - time.monotonic()

    def __call__(self) -> str | None:
        """Return ``soft``, ``hard``, or None while work may go on."""
        left = self.seconds_left()
        return self._wish or ("soft" if left is not None and left <= 0 else None)


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM ask ``stop`` while the context is open; the second time at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_: int, __: FrameType | None) -> None:
        stop.ask()

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
