"""Nsight Systems: the timeline. Every launch with its geometry, and the NVTX ranges that say whose it is.

``nsys`` ends with status 0 when things went wrong (2022.4 and 2023.4, tried): no importer leaves a
``.qdstrm`` alone, a client of NVTX that it does not understand leaves a report without ranges. What it made
is looked at, not its status.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from gkestimator.core.errors import TableError
from gkestimator.profiling.captures import NVTX_DOMAIN, Capture
from gkestimator.profiling.collectors.base import CollectorError, ToolCollector
from gkestimator.profiling.tools import NSYS, ToolError, complaint, run_tool
from gkestimator.profiling.type_names import Names, TextByName

_STEM = "capture"
_HELP_S = 30.0
_EXPORT_S = 120.0
_EXPORT_BYTES_PER_S = 2e6
# Options that not every version has; those that the help does not name are left out.
_IF_KNOWN = (
    ("--stats", "false"),
    ("--export", "none"),
    ("--resolve-symbols", "false"),
    ("--gpuctxsw", "false"),
    ("--cuda-memory-usage", "false"),
)
_IF_KNOWN_GPU = (("--cuda-graph-trace", "node"),)
_LOCK = re.compile(r"NSys-[0-9.]+")
_SESSION_FILE = re.compile(r"(?:sem\.nsys_sem_|sem\.NSys-process_waiter-|quadd-agent-instance-)(\d+)(?:-|\Z)")
_STALE_S = 600.0


class NsysCollector(ToolCollector):
    """Run ``nsys profile`` around the child, then ``nsys export`` to sqlite, then look whether every entry has a
    range."""

    name = "nsys"
    summary = "Nsight Systems: every launch with its geometry"
    passes = ("timeline",)
    automatic = (("timeline", "cpu"), ("timeline", "gpu"))
    file = f"{_STEM}.sqlite"
    suffixes = (".sqlite",)
    measures = ("grid", "block", "registers_per_thread", "static_smem_bytes", "dynamic_smem_bytes", "stream")
    tool = NSYS

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        """Return ``nsys profile`` around ``child``; the report becomes ``capture.nsys-rep`` in ``folder``."""
        tool = self._executable()
        sweep_semaphores()
        gpu = self._device != "cpu"
        known = _help(tool)
        wanted = (*_IF_KNOWN, *(_IF_KNOWN_GPU if gpu else ()))
        return [
            str(tool),
            "profile",
            f"--trace={'nvtx,cuda' if gpu else 'nvtx'}",
            "--sample=none",
            "--cpuctxsw=none",
            "--force-overwrite=true",
            *(f"{option}={value}" for option, value in wanted if f"{option}=" in known),
            f"--output={folder / _STEM}",
            *child,
        ]

    def environment(self) -> TextByName:
        """Return the annotator and a temporary folder of its own: captures that run side by side (a GPU each) and
        share one lose each other's ranges now and then (2022.4: 3 of 14, with folders of their own 0 of 14;
        2023.4 seldom)."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="gkest-nsys-", ignore_cleanup_errors=True)
        return {**super().environment(), "TMPDIR": self._scratch.name}

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> Names:
        """Export the report and see that every one of ``entries`` has a range. Raises CollectorError."""
        report = folder / f"{_STEM}.nsys-rep"
        if not report.is_file() or report.stat().st_size == 0:
            raise CollectorError(
                f"{self._label()} made no report{_stream_left(folder)}{_said(log, last=True)}{_left_locked(log)}"
            )
        database = folder / self.file
        self._export(report, database)
        ranged = nsys_ranges(database)
        if entries and not ranged:
            raise CollectorError(
                f"{self._label()}: the capture holds no NVTX range of {NVTX_DOMAIN}: the child died before nsys took "
                "them over, or this nsys does not understand its NVTX (name another in GKEST_NSYS, or take --collector "
                f"kineto){_said(log)}"
            )
        missing = [entry for entry in entries if entry not in ranged]
        if missing:
            raise CollectorError(
                f"{self._label()}: the capture lacks the ranges of {len(missing)} of {len(entries)} entries "
                f"({', '.join(missing[:3])}, ...){_said(log)}"
            )
        if self._device != "cpu" and entries:
            _check_cuda(database, self._label())
        return (database.name, report.name)

    @staticmethod
    def parse(path: Path) -> Capture:
        """Read an exported database."""
        from gkestimator.profiling.parsers import parse_nsys

        return parse_nsys(path)

    def _export(self, report: Path, database: Path) -> None:
        database.unlink(missing_ok=True)
        limit = _EXPORT_S + report.stat().st_size / _EXPORT_BYTES_PER_S
        command = [
            str(self._executable()),
            "export",
            "--type=sqlite",
            "--lazy=false",
            "--quiet=true",
            "--force-overwrite=true",
            f"--output={database}",
            str(report),
        ]
        try:
            result = run_tool(command, timeout_s=limit)
        except ToolError as e:
            raise CollectorError(str(e)) from e
        if result.timed_out:
            raise CollectorError(f"{self._label()} export did not end within {limit:.0f} s and was killed")
        if not database.is_file() or database.stat().st_size == 0:
            raise CollectorError(f"{self._label()} export made no database{_said(result.output, last=True)}")


def sweep_semaphores(folder: Path = Path("/dev/shm")) -> None:
    """Remove what killed sessions of ours left.

    Their semaphores are named by process ids, and a new session whose process gets such an id fails in sem_open. Names
    are needed in a session's first seconds only, so what is older than ten minutes and whose process is gone is
    nobody's. A version's lock (2022.4) that no process has mapped is nobody's either, and keeps every later agent from
    starting.
    """
    before = time.time() - _STALE_S
    for path in folder.glob("*"):
        session = _SESSION_FILE.match(path.name)
        if session is None and not _LOCK.fullmatch(path.name):
            continue
        try:
            if path.stat().st_uid != os.getuid() or path.stat().st_mtime >= before:
                continue
            if session is None:
                in_use = _mapped(path)
            else:
                in_use = Path(f"/proc/{session[1]}").exists()
            if not in_use:
                path.unlink()
        except OSError:
            continue


def _mapped(path: Path) -> bool:
    """Return whether a process, of those that this user may look into, has mapped the file."""
    word = os.fsencode(path)
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if word in maps.read_bytes():
                return True
        except OSError:
            continue
    return False


def _left_locked(log: str) -> str:
    """Say what to do where nsys cannot start its agent: seen after a SIGKILL that met nsys holding its lock
    in shared memory, for which every later agent waits."""
    if "Agent launcher failed" not in log:
        return ""
    return (
        "; a killed nsys may have left its lock: end processes `nsys --start-agent`, remove /dev/shm/NSys-*"
    )


def nsys_ranges(database: Path) -> frozenset[str]:
    """Return the entry ids of our ranges that ended, in an exported database. Raises CollectorError."""
    from gkestimator.profiling.parsers.nsys import recorded_entries

    try:
        return recorded_entries(database)
    except TableError as e:
        reason = str(e).removeprefix(f"{database}: ")
        raise CollectorError(f"{database}: not a whole export of nsys: {reason}") from e


def _check_cuda(database: Path, label: str) -> None:
    """Raise CollectorError where no call of CUDA was recorded: a child on a GPU makes some for every entry, if only to
    wait, so that CUPTI did not start."""
    from gkestimator.profiling.parsers.nsys import first_complaint, has_cuda_calls

    if has_cuda_calls(database):
        return
    complained = first_complaint(database)
    why = f": {complained}" if complained else ""
    raise CollectorError(
        f"{label} recorded no CUDA call{why}; is this nsys older than the driver, or another profiler at work?"
    )


def _stream_left(folder: Path) -> str:
    """The silent failure: a stream that nothing made a report of."""
    if any(folder.glob("*.qdstrm")):
        return ": only a .qdstrm is left, so its importer (QdstrmImporter, in host-linux-x64) is missing"
    return ""


def _said(log: str, *, last: bool = False) -> str:
    said = complaint(log, or_last=last)
    return f"; it said: {said}" if said else ""


@lru_cache(maxsize=8)
def _help(tool: Path) -> str:
    try:
        return run_tool([str(tool), "profile", "--help"], timeout_s=_HELP_S).output
    except ToolError:
        return ""
