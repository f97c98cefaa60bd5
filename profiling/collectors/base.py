"""What a collector is: it wraps the child's command, sees to it that something was recorded, and reads it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gkestimator.errors import GkestimatorError
from gkestimator.profiling.captures import Capture

__all__ = ["PASSES", "Collector", "CollectorError"]

PASSES = ("latency", "timeline", "counters")
"""``latency``: whole models without a profiler, each call alone; ``timeline``: launches, by a profiler that slows the
host; ``counters``: hardware counters, under ncu."""


class CollectorError(GkestimatorError):
    """The profiler could not be run, or recorded nothing: one line that says which and why."""


class Collector(Protocol):
    """One profiler. ``name``: ``nsys``, ``ncu``, ``kineto`` or ``none``; ``pass_name``: which pass it serves."""

    name: str
    pass_name: str

    def unavailable(self) -> str | None:
        """Why it cannot be used on this machine, in one line; None if it can."""
        ...

    def version(self) -> str | None:
        """Its version as the tool says it; None where nothing runs."""
        ...

    def clock_control(self) -> str | None:
        """What it does to the clocks: ``none`` always (they are never changed); None where it cannot."""
        ...

    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        """The command that runs ``child`` (an argument vector; options may be appended) with captures into
        ``folder``."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Variables to set for the command."""
        ...

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> tuple[str, ...]:
        """After the command ended (status 0 or not): export what must be, check that the capture is whole and holds a
        range for every one of ``entries`` (those that the child recorded as ok). ``log`` is the command's output.
        Returns the names of the files made. Raises CollectorError where nothing, or not all, was recorded."""
        ...

    def capture(self, folder: Path) -> Capture | None:
        """What ``finish`` left in ``folder``, parsed; None where the collector records nothing."""
        ...
