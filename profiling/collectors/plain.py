"""No profiler: the child's own records are all there is (its host times, the latency of whole models, and on
the CPU the runtime's profile)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gkestimator.profiling.collectors.base import Collector
from gkestimator.profiling.type_names import Names


class PlainCollector(Collector):
    """Run the child as it is; serve the pass ``latency`` as well, for a profiler slows the host that makes
    launches."""

    name = "none"
    summary = "no profiler: latency of whole models alone"
    passes = ("timeline", "latency")
    automatic = (("timeline", "cpu"), ("latency", "cpu"), ("latency", "gpu"))

    def unavailable(self) -> str | None:
        """Return None: it is always to be had."""
        return None

    def version(self) -> str | None:
        """Return None, for nothing runs."""
        return None

    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        """Return ``child`` itself."""
        del folder
        return list(child)

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> Names:
        """Return no name, for no file is made."""
        del folder, entries, log
        return ()
