"""Children of a run: started such that nothing of them outlives it, ended for good, their logs kept short."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import IO

from gkestimator.core.errors import one_line
from gkestimator.jobs.guard import guarded

_END_S = 30.0
_PR_SET_PDEATHSIG = 1


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


@contextlib.contextmanager
def inherited(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for what is started within the context; the program's own are back after it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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


def die_with(owner: int | None, sentinel: int | None = None) -> None:
    """End this process as soon as its ``owner`` (the process that started it) is gone, however that ends.

    Linux kills it, even in the middle of a call that hangs. Elsewhere a thread watches ``sentinel``, a handle or the
    end of a pipe that becomes readable when the owner is gone.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if owner is not None and os.getppid() != owner:  # it was gone before that was said
        os._exit(0)
    if sentinel is not None:
        threading.Thread(target=_end_after, args=(sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(0)


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
