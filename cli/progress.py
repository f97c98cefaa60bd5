"""A progress bar on stderr, for terminals alone and only when the work takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from gkestimator.core.escaping import printable

PATIENCE_S = 2.0
_WIDTH = 24


class Progress:
    """Call it with (stage, done, total); leave the ``with`` block to clear the line."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._start = clock()
        self._active = self._stream.isatty()
        self._shown = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show ``done`` of ``total`` and what is being worked on."""
        # A command that is quick, or whose stderr is a file, shows nothing.
        if not self._active or self._clock() - self._start < PATIENCE_S:
            return
        filled = _WIDTH * done // total if total > 0 else 0
        bar = "#" * filled + "." * (_WIDTH - filled)
        line = f"[{bar}] {done}/{total} {printable(stage)[:40]}"
        self._stream.write("\r" + line.ljust(self._shown))
        self._stream.flush()
        self._shown = max(self._shown, len(line))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._stream.flush()
