"""NVIDIA's command-line tools as subprocesses: found, asked for their version, run under a time limit, ended for good.

``nsys`` puts the program it profiles, and an agent of its own, into new sessions: killing its process group reaches
neither. Every process started here carries a mark in its environment, which its descendants inherit, and ending a tool
ends all that carry it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.core.records import frozen
from gkestimator.profiling.type_names import Names, TextByName

MARK = "GKEST_TOOL_MARK"
"""The environment variable by which the processes of one tool are told from all others."""
_VERSION = re.compile(r"[Vv]ersion\s+(\d{4}(?:\.\d+)+)")
_MOST_OUTPUT = 2**20
_GRACE_S = 5.0
_VERSION_S = 30.0
# Tools repaint their progress bars with carriage returns; what people are to read are the lines that complain.
_COMPLAINT = re.compile(r"(ERROR|SKIPPED|Error|error|FATAL|Fatal|Illegal|unrecogni[sz]ed)\b.*")


class ToolError(GkestimatorError):
    """A tool is missing, cannot be started or does not answer."""


@frozen
class Tool:
    """Say where the executable of a profiler may lie. ``variable``: the environment variable that names it;
    ``product``: what people install; ``folders``: patterns of the paths to which its packages install."""

    name: str
    product: str
    variable: str
    folders: Names = ()


# Nsight Compute stands here, not with its collector, because the parser asks it to print reports as well.
NSYS = Tool(
    name="nsys",
    product="NVIDIA Nsight Systems",
    variable="GKEST_NSYS",
    folders=(
        "/opt/nvidia/nsight-systems*/*/bin/nsys",
        "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
        "/usr/local/cuda*/bin/nsys",
    ),
)
NCU = Tool(
    name="ncu",
    product="NVIDIA Nsight Compute",
    variable="GKEST_NCU",
    folders=("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu"),
)


@frozen
class ToolResult:
    """Say how a tool ended. ``status``: its exit status, negative for a signal; None where the time limit ended it.
    ``output``: stdout and stderr together; of much output the beginning and the end."""

    status: int | None
    output: str
    seconds: float

    @property
    def timed_out(self) -> bool:
        """Return True where the time limit ended it."""
        return self.status is None


def find_tool(tool: Tool) -> Path | None:
    """Return the executable of ``tool``, the first of: what its variable names, ``bin/`` of the folders in
    ``$GKEST_NSIGHT`` (separated by colons), PATH, this user's cache (``.ci/install-nsight.sh``), the folders of its
    packages (the newest version first). None where there is none; a variable that names no executable is a
    ToolError, since something else would be taken silently."""
    named = os.environ.get(tool.variable)
    if named:
        path = Path(named).expanduser()
        if not _is_executable(path):
            raise ToolError(
                f"{tool.variable}: found {named!r}, expected the path of an executable {tool.name}"
            )
        return path
    for path in _candidates(tool):
        if _is_executable(path):
            return path
    return None


def missing_tool(tool: Tool) -> str:
    """Say in one line what to do where ``tool`` was not found."""
    return f"{tool.name} was not found: install {tool.product}, put it on PATH, or name it in {tool.variable}"


def _candidates(tool: Tool) -> Iterator[Path]:
    for prefix in os.environ.get("GKEST_NSIGHT", "").split(":"):
        if prefix:
            yield Path(prefix).expanduser() / "bin" / tool.name
    on_path = shutil.which(tool.name)
    if on_path:
        yield Path(on_path)
    yield from _newest_first(nsight_cache().glob(f"nsight-*/bin/{tool.name}"))
    yield from _installed(tool)


def _installed(tool: Tool) -> Iterator[Path]:
    for pattern in tool.folders:
        yield from _newest_first(Path("/").glob(pattern.lstrip("/")))


def nsight_cache() -> Path:
    """Return the folder into which ``.ci/install-nsight.sh`` unpacks by default."""
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache) / "gkestimator"
    return Path(os.path.expanduser("~"), ".cache", "gkestimator")


def _newest_first(paths: Iterator[Path]) -> list[Path]:
    def version(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", str(path))]

    return sorted(paths, key=version, reverse=True)


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


@lru_cache(maxsize=16)
def _version_of(path: Path, changed_ns: int) -> str | None:
    del changed_ns  # part of the key: a replaced tool is asked again
    try:
        result = run_tool([str(path), "--version"], timeout_s=_VERSION_S)
    except ToolError:
        return None
    version = _VERSION.search(result.output)
    if version and result.status == 0:
        return version[1]
    return None


def tool_version(path: Path) -> str | None:
    """Return the version that the tool at ``path`` says (``2023.4.4.54``); None where it does not answer."""
    try:
        return _version_of(path, path.stat().st_mtime_ns)
    except OSError:
        return None


def run_tool(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: TextByName | None = None,
    cwd: Path | None = None,
) -> ToolResult:
    """Run ``command`` to its end, or end it and all it started after ``timeout_s`` seconds. ``env`` is added to the
    environment. Raises ToolError where it cannot be started; how it ended is for the caller to judge."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        tool = start_tool(command, env=env, cwd=cwd, output=output)
        with tool:
            status = tool.wait(timeout_s)
            if status is None:
                tool.stop()
        # The tool is gone; what it started may still hold the file open, not a pipe, so nobody waits for that.
        text = _bounded(output)
    return ToolResult(status=status, output=text, seconds=time.monotonic() - started)


def _bounded(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= _MOST_OUTPUT:
        return file.read().decode(errors="replace")
    head = file.read(_MOST_OUTPUT // 2)
    file.seek(size - _MOST_OUTPUT // 2)
    return (head + b"\n[...]\n" + file.read()).decode(errors="replace")


class RunningTool:
    """Hold a tool at work. As a context manager it is ended, with all it started, when the block is left."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self._process = process
        self._mark = f"{MARK}={mark}".encode()

    @property
    def pid(self) -> int:
        """Return the id of the process that was started; others carry the same mark."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status, or None where it still runs after ``timeout_s`` seconds."""
        try:
            return self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Send SIGTERM to the tool, then, after ``grace_s`` seconds, SIGKILL to everything that carries its mark."""
        if self._process.poll() is None and grace_s > 0:
            self._signal_group(signal.SIGTERM)
            self.wait(grace_s)
        self._signal_group(signal.SIGKILL)
        self._kill_marked()
        self.wait(_GRACE_S)

    def __enter__(self) -> RunningTool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Interrupted (Ctrl-C) or done: either way nothing of it may live on.
        self.stop(grace_s=0 if self._process.poll() is not None else _GRACE_S)

    def _signal_group(self, number: int) -> None:
        # While unreaped, the leader keeps its group's number from being given to anyone else.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _kill_marked(self) -> None:
        # Twice: a process may have forked between the listing and the signal.
        for _ in range(2):
            for pid in _marked(self._mark):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _marked(mark: bytes) -> list[int]:
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:  # gone, or somebody else's
            continue
    return [pid for pid in pids if pid != os.getpid()]


def start_tool(
    command: Sequence[str],
    *,
    output: IO[bytes] | Path,
    env: TextByName | None = None,
    cwd: Path | None = None,
) -> RunningTool:
    """Start ``command`` in a process group of its own, stdout and stderr into ``output``, stdin empty. Messages and
    numbers are asked for in English (``LC_ALL=C.UTF-8``). Raises ToolError."""
    mark = f"{os.getpid()}.{secrets.token_hex(16)}"  # whose it is, and which
    variables = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {}), MARK: mark}
    stream: IO[bytes] | None = None
    try:
        stream = output.open("wb") if isinstance(output, Path) else output
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as e:
        raise ToolError(f"{command[0]}: cannot be started: {e.strerror or e}") from e
    finally:
        if isinstance(output, Path) and stream is not None:
            stream.close()
    return RunningTool(process, mark)


def complaint(output: str, *, or_last: bool = True) -> str | None:
    """Return the first line of a tool's output that complains (``ERROR``, ``SKIPPED``, ...), without progress
    bars; failing that, with ``or_last``, its last line; None where it said nothing."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip()]
    lines = [line for line in lines if not re.match(r"\[\d+/\d+\]", line)]
    for line in lines:
        wrong = _COMPLAINT.search(line)
        if wrong:
            return one_line(line, limit=300)
    if lines and or_last:
        return one_line(lines[-1], limit=300)
    return None
