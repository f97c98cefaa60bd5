"""Children of a run: started such that nothing of them outlives it, ended for good, their logs kept short."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from gkestimator.core.errors import one_line
from gkestimator.jobs.guard import guarded

_END_S = 30.0


def start_guarded(
    command: Sequence[str],
    output: IO[bytes] | int,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` under the guard, both its outputs going to ``output``. Raises OSError."""
    return subprocess.Popen(
        guarded(command),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=dict(environment),
        # Ctrl-C at the terminal reaches the owner alone, which then says how its children end.
        start_new_session=True,
    )


def close_input(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe to a child: a guard then kills all below it, a worker ends by itself."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def end_guarded(process: subprocess.Popen[bytes]) -> int:
    """Kill a guarded child with everything below it, wait for it, and return its status."""
    # The guard watches its standard input: a closed pipe is its order to kill.
    close_input(process)
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:  # the guard itself waits for a process that is stuck in the driver
        process.kill()
        return process.wait()


def bound_log(path: Path, most_bytes: int) -> None:
    """Empty a log that has grown beyond ``most_bytes``: a child that prints without end must not fill the disk."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > most_bytes:
            os.truncate(path, 0)  # safe, for writers append


def log_end(path: Path, most_bytes: int) -> str:
    """Return the last ``most_bytes`` of a log as text; nothing where there is none."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - most_bytes))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def last_words(log: str) -> str:
    """Return the last line that a child printed."""
    lines = log.strip().splitlines()
    return one_line(lines[-1], limit=200) if lines else "no word"
