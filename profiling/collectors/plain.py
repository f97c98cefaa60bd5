"""No profiler: the child's own records are all there is (its host times, the latency of whole models, and on the CPU
the runtime's profile)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gkestimator.profiling.captures import Capture

__all__ = ["PlainCollector"]


class PlainCollector:
    """Runs the child as it is; serves the pass ``latency`` as well."""

    name = "none"
    pass_name = "timeline"

    def __init__(self, device: str) -> None:
        self._device = device

    def unavailable(self) -> str | None:
        """Always to be had."""
        return None

    def version(self) -> str | None:
        """Nothing runs, so None."""
        return None

    def clock_control(self) -> str | None:
        """``none``: nothing touches the clocks."""
        return "none"

    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        """``child`` itself."""
        del folder
        return list(child)

    def environment(self) -> Mapping[str, str]:
        """Nothing to set."""
        return {}

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> tuple[str, ...]:
        """Nothing is made."""
        del folder, entries, log
        return ()

    def capture(self, folder: Path) -> Capture | None:
        """Nothing was recorded."""
        del folder
        return None
