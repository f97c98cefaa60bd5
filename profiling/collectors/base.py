"""What a collector is: it wraps the child's command, sees to it that something was recorded, and reads it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.captures import Capture
from gkestimator.profiling.executors.nvtx_package import ANNOTATOR_VARIABLE, CLIENT
from gkestimator.profiling.tools import Tool, ToolError, find_tool, missing_tool, tool_version
from gkestimator.profiling.type_names import Names, TextByName

# ``latency``: whole models without a profiler, each call alone; ``timeline``: launches, by a profiler that
# slows the host; ``counters``: hardware counters, under ncu.
PASSES = ("latency", "timeline", "counters")


class CollectorError(GkestimatorError):
    """The profiler could not be run, or recorded nothing: one line that says which and why."""


class Collector(ABC):
    """One profiler, and all that ``run``, ``build``, ``table``, ``doctor`` and the command line know of it.

    ``passes``: those of :data:`PASSES` that it serves, the main one first. ``automatic``: the passes for
    which ``auto`` takes it, each with a kind of device (``cpu``, ``gpu``); of several, the first in the
    registry that works. ``file``: what a chunk keeps of it; ``suffixes``: those by which :meth:`parse` finds
    a file among a chunk's, the best first; both are empty for one that records nothing. ``measures``: fields
    of :class:`~gkestimator.profiling.captures.CapturedLaunch` that it tells of every kernel, beside name,
    start and duration. ``tool``: what must be installed, for ``doctor``. ``probed``: a small child that only
    pushes NVTX ranges shows whether it records; False where it reads what only an executor's child writes.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    passes: ClassVar[Names]
    automatic: ClassVar[tuple[tuple[str, str], ...]] = ()
    file: ClassVar[str] = ""
    suffixes: ClassVar[Names] = ()
    measures: ClassVar[Names] = ()
    tool: ClassVar[Tool | None] = None
    probed: ClassVar[bool] = True

    def __init__(self, device: str) -> None:
        self._device = device
        self.annotator = (
            CLIENT  # what makes the child's NVTX ranges; a probe may find the nvtx package to work
        )

    @abstractmethod
    def unavailable(self) -> str | None:
        """Say why it cannot be used on this machine, in one line; None if it can."""

    @abstractmethod
    def version(self) -> str | None:
        """Return its version as the tool says it; None where nothing runs."""

    def clock_control(self) -> str | None:
        """Return what it does to the clocks: ``none`` always (they are never changed); None where it cannot."""
        return "none"

    @abstractmethod
    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        """Return the command that runs ``child`` (an argument vector; options may be appended) with captures into
        ``folder``."""

    def environment(self) -> TextByName:
        """Return variables to set for the command."""
        return {}

    @abstractmethod
    def finish(self, folder: Path, entries: Sequence[str], log: str) -> Names:
        """Export what must be after the command ended (status 0 or not), and check that the capture is whole
        and holds a range for every one of ``entries`` (those that the child recorded as ok). ``log`` is the
        command's output. Returns the names of the files made. Raises CollectorError where nothing, or not
        all, was recorded."""

    @staticmethod
    def parse(path: Path) -> Capture:
        """Read one of its files. Raises TableError. A collector without ``suffixes`` is never asked."""
        raise NotImplementedError

    def capture(self, folder: Path) -> Capture | None:
        """Return what ``finish`` left in ``folder``, parsed; None where the collector records nothing."""
        if self.file:
            return self.parse(folder / self.file)
        return None


class ToolCollector(Collector):
    """A collector that is a tool of its own, looked for when it is made. Derived classes set ``tool``."""

    tool: ClassVar[Tool]

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._found: Path | None = None
        self._reason: str | None = None
        try:
            self._found = find_tool(self.tool)
        except ToolError as e:
            self._reason = str(e)

    def environment(self) -> TextByName:
        """Return the variable that tells the child its annotator."""
        return {ANNOTATOR_VARIABLE: self.annotator}

    def unavailable(self) -> str | None:
        """Say why there is no such tool that answers, in one line; None if there is."""
        if self._found is None:
            return self._reason or missing_tool(self.tool)
        if self.version() is None:
            product = self.tool.product.removeprefix("NVIDIA ")
            return (
                f"{self._found}: does not answer `--version`; reinstall {product}, or name another in "
                f"{self.tool.variable}"
            )
        return None

    def version(self) -> str | None:
        """Return the version that the tool says (``2023.4.4.54``)."""
        if self._found is None:
            return None
        return tool_version(self._found)

    def _executable(self) -> Path:
        reason = self.unavailable()
        if self._found is None or reason is not None:
            raise CollectorError(reason or missing_tool(self.tool))
        return self._found

    def _label(self) -> str:
        return f"{self.name} {self.version() or 'of unknown version'}"
