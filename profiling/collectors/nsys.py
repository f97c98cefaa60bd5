"""Nsight Systems: the timeline. Every launch with its geometry, and the NVTX ranges that say whose it is.

``nsys`` ends with status 0 when things went wrong (2022.4 and 2023.4, tried): no importer leaves a
``.qdstrm`` alone, a client of NVTX that it does not understand leaves a report without ranges. What it made
is looked at, not its status.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from gkestimator.core.errors import one_line
from gkestimator.profiling.captures import NVTX_DOMAIN, Capture
from gkestimator.profiling.collectors.base import CollectorError, ToolCollector
from gkestimator.profiling.tools import NSYS, ToolError, complaint, run_tool

_STEM = "capture"
_HELP_S = 30.0
_EXPORT_S = 120.0
_EXPORT_BYTES_PER_S = 2e6
_PUSH_POP = 59
_DOMAIN_CREATED = 75
# Options that not every version has; those that the help does not name are left out.
_IF_KNOWN = (
    ("--stats", "false"),
    ("--export", "none"),
    ("--resolve-symbols", "false"),
    ("--gpuctxsw", "false"),
    ("--cuda-memory-usage", "false"),
)
_IF_KNOWN_GPU = (("--cuda-graph-trace", "node"),)
_SESSION_FILE = re.compile(r"(?:sem\.nsys_sem_|sem\.NSys-process_waiter-|quadd-agent-instance-)(\d+)(?:-|\Z)")
_STALE_S = 600.0
_STATEMENT_STEPS = 2_000_000


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

    def environment(self) -> Mapping[str, str]:
        """Return a temporary folder of its own: captures that run side by side (a GPU each) and share one
        lose each other's ranges now and then (2022.4: 3 of 14, with folders of their own 0 of 14; 2023.4
        seldom)."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="gkest-nsys-", ignore_cleanup_errors=True)
        return {"TMPDIR": self._scratch.name}

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> tuple[str, ...]:
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
    """Remove what killed sessions of ours left: their semaphores are named by process ids, and a new session whose
    process gets such an id fails in sem_open. Names are needed in a session's first seconds only, so what is older
    than ten minutes and whose process is gone is nobody's."""
    before = time.time() - _STALE_S
    for path in folder.glob("*"):
        session = _SESSION_FILE.match(path.name)
        try:
            if (
                session is not None
                and path.stat().st_uid == os.getuid()
                and path.stat().st_mtime < before
                and not Path(f"/proc/{session[1]}").exists()
            ):
                path.unlink()
        except OSError:
            continue


def _left_locked(log: str) -> str:
    """Say what to do where nsys cannot start its agent: seen after a SIGKILL that met nsys holding its lock
    in shared memory, for which every later agent waits."""
    if "Agent launcher failed" not in log:
        return ""
    return (
        "; a killed nsys may have left its lock: end processes `nsys --start-agent`, remove /dev/shm/NSys-*"
    )


def nsys_ranges(database: Path) -> frozenset[str]:
    """Entry ids of the push/pop ranges of our domain in an exported database. Raises CollectorError."""
    with closing(_opened(database)) as connection:
        try:
            tables = {
                name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if "NVTX_EVENTS" not in tables:
                return frozenset()
            columns = {row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)")}
            text = "e.text"
            join = ""
            if "textId" in columns and "StringIds" in tables:
                text = "COALESCE(e.text, s.value)"
                join = "LEFT JOIN StringIds s ON s.id = e.textId"
            rows = connection.execute(
                f"SELECT e.eventType, {text}, e.domainId, e.end FROM NVTX_EVENTS e {join} "
                f"WHERE e.eventType IN ({_PUSH_POP}, {_DOMAIN_CREATED})"
            ).fetchall()
        except sqlite3.Error as e:
            raise CollectorError(f"{database}: not a whole export of nsys: {one_line(e)}") from e
    ours = {domain for kind, name, domain, _ in rows if kind == _DOMAIN_CREATED and name == NVTX_DOMAIN}
    return frozenset(
        str(name).rpartition("#")[0]
        for kind, name, domain, end in rows
        if kind == _PUSH_POP and domain in ours and end is not None and "#" in str(name)
    )


def _check_cuda(database: Path, label: str) -> None:
    """A child on a GPU calls CUDA for every entry, if only to wait: none recorded means that CUPTI did not
    start."""
    with closing(_opened(database)) as connection:
        try:
            calls = connection.execute(
                "SELECT EXISTS (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
            ).fetchone()[0]
        except sqlite3.Error:
            calls = 0
        if calls:
            return
        try:
            told = connection.execute(
                "SELECT text FROM DIAGNOSTIC_EVENT ORDER BY severity DESC LIMIT 1"
            ).fetchone()
        except sqlite3.Error:  # before 2024
            told = None
    why = f": {one_line(told[0], limit=200)}" if told else ""
    raise CollectorError(
        f"{label} recorded no CUDA call{why}; is this nsys older than the driver, or another profiler at work?"
    )


def _opened(database: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as e:
        raise CollectorError(f"{database}: cannot be opened: {one_line(e)}") from e
    steps = 0

    def ended() -> int:
        nonlocal steps
        steps += 1
        return int(steps > _STATEMENT_STEPS)

    connection.set_progress_handler(ended, 1000)
    return connection


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
