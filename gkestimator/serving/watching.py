"""See that nothing of a local Ray outlives the service, even where that is killed.

Ray ends its own processes when their owner dies, but for some that look for their dead cluster for a minute more. A
watcher with a pipe to the service ends them: the pipe closes with the service, however it ends. It knows them by a
variable of their environment, which Ray's processes inherit and those that these start later. Ray gives its processes
names, written over the environment that others see, unless a variable forbids it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

from gkestimator.jobs.children import inherited

_MARK = "GKEST_SERVICE"
_KEEP_ENVIRONMENT = (
    "SPT_NOENV"  # of setproctitle, which Ray brings: a name takes the room of the arguments alone
)
# It runs without our modules: of a service that was killed its files may be gone too.
_WATCH = """
import os, signal, sys, time
mark = sys.argv[1].encode()
sys.stdin.read()
time.sleep(1)
for _ in range(20):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                if mark in stream.read().split(b"\\0") and int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.1)
"""


@contextlib.contextmanager
def watched_children(start: Callable[[], object]) -> Iterator[None]:
    """Call ``start``, and end every process that it began once this one has ended (or the context has)."""
    mark = uuid.uuid4().hex
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _WATCH, f"{_MARK}={mark}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # a reader of the service's end must not wait for the watcher's
        start_new_session=True,  # Ctrl-C at the terminal is not for it
    )
    try:
        with inherited({_MARK: mark, _KEEP_ENVIRONMENT: "1"}):
            start()
        yield
    finally:
        if watcher.stdin is not None:
            watcher.stdin.close()
