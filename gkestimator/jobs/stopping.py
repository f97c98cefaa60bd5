"""The end of a run: who asks for it (Ctrl-C, SIGTERM, the time that was given), and what is said of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = "interrupted"
OUT_OF_TIME = "the time that was given is over"
_MOST_PROBLEMS = 200
# Called with (stage, done, total).
Progress = Callable[[str, int, int], None]


class Stop:
    """Hold why and how to stop, as every worker asks it. ``minutes``: until the end; None: there is no limit."""

    def __init__(self, minutes: float | None) -> None:
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
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


class RunLog:
    """Hold what a run tells people: ``problems`` (each once), ``messages``, and why it ended before its work
    was done (``stopped``; None: it did not) with the exit status that goes with it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.messages: list[str] = []
        self.stopped: str | None = None
        self.stop_status = 0

    def problem(self, line: str) -> None:
        """Keep one line for people, each once, not without end."""
        # A sweep of thousands of entries can fail the same way in each of them.
        if line not in self.problems and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(line)

    def stop(self, line: str, status: int = 1) -> None:
        """Begin nothing more; the first reason stays."""
        # What comes after the first reason is most often its consequence.
        if self.stopped is None:
            self.stopped = line
            self.stop_status = status

    def stop_for(self, stop: Stop) -> None:
        """Say that somebody asked for the end, else that the time is over."""
        if stop.asked:
            self.stop(INTERRUPTED, 130)
        else:
            self.stop(OUT_OF_TIME, 0)

    def outcome(self) -> dict[str, Any]:
        """Return all of it by the names that reports have for it."""
        return {
            "stopped": self.stopped,
            "stop_status": self.stop_status,
            "problems": tuple(self.problems),
            "messages": tuple(self.messages),
        }
