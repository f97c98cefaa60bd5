"""See that nothing of a local Ray outlives the service, even where that is killed.

Ray ends its own processes when their owner dies, but for two agents of a node that look for their dead cluster for a
minute more. A watcher with a pipe to the service ends them: the pipe closes with the service, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from gkestimator.jobs.guard import descendants

# It runs without our modules: of a service that was killed its files may be gone too.
_WATCH = """
import os, signal, sys, time
watched = [line.split() for line in sys.stdin]
time.sleep(1)
for pid, begun in watched:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            if stream.read().rpartition(")")[2].split()[19] == begun:
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""


@contextlib.contextmanager
def watched_children() -> Iterator[None]:
    """End every process that is below this one now, once this one has ended (or the context has)."""
    children = [(pid, begun) for pid in descendants(os.getpid()) if (begun := _begun(pid)) is not None]
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _WATCH],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal is not for it
        text=True,
    )
    assert watcher.stdin is not None
    try:
        watcher.stdin.write("".join(f"{pid} {begun}\n" for pid, begun in children))
        watcher.stdin.flush()
        yield
    finally:
        watcher.stdin.close()


def _begun(pid: int) -> str | None:
    """Return when a process began, as the system counts: another under its number begins at another time."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[19]
    except OSError:
        return None
