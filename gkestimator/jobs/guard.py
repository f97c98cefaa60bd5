"""Starts a command such that nothing of it outlives its owner.

Run as a script: ``python guard.py -- COMMAND...``, with a pipe as standard input. The guard ends with the command's
status (128 + n where signal n ended it). When the pipe's other end is closed, because its owner closed it or was
killed, every process below is killed. Killing a process group would not do: Nsight Systems starts its agent and its
target in sessions of their own, and both go on when it is killed (seen with 2023.4). So the guard declares itself
the reaper of orphans: whatever loses its parent below it becomes its child.

It imports the standard library alone, so that it is up in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
KILLED = 137
# What is left below when the command has ended (a profiler's agent) may take this long to leave by itself.
_GRACE_S = 1.0
_REAP_S = 10.0
_EMPTY_LOOKS = 3


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` under the guard. Whoever starts it keeps its standard input
    open as long as it may run."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "--", *command]


def descendants(root: int) -> list[int]:
    """Return the ids of the processes below ``root``, as far as /proc tells; none where there is no /proc."""
    below: dict[int, list[int]] = {}
    dead = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stream:
                    fields = stream.read().rpartition(")")[2].split()
                below.setdefault(int(fields[1]), []).append(int(name))
                if fields[0] in "ZX":
                    dead.add(int(name))  # what it started may still be listed under it
    living = []
    parents = [root]
    while parents:
        children = below.get(parents.pop(), [])
        living += [c for c in children if c not in dead]
        parents += children
    return living


def _kill_all() -> None:
    """Kill everything below, again and again: a process may start another while it is being killed, and one whose
    parent dies during a look at /proc may be missed by that look. So it takes several empty looks in a row."""
    end = time.monotonic() + _REAP_S
    empty = 0
    while empty < _EMPTY_LOOKS and time.monotonic() < end:
        living = descendants(os.getpid())
        empty = 0 if living else empty + 1
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _start(command: Sequence[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execvp(command[0], list(command))
    except OSError as e:
        text = f"{ascii(command[0])[1:-1]}: cannot be started: {e.strerror}\n"
        os.write(2, text.encode("ascii", "backslashreplace"))
    os._exit(127)


def _status(raw: int) -> int:
    if os.WIFSIGNALED(raw):
        return 128 + os.WTERMSIG(raw)
    return os.WEXITSTATUS(raw)


def _guard(command: Sequence[str]) -> int:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, waken = os.pipe()
    os.set_blocking(waken, False)
    signal.set_wakeup_fd(waken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # Ctrl-C at the terminal is the owner's to judge
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_end()))
    # Whoever started the owner may have blocked them, and a mask is inherited: a dead child would never be seen.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, signal.SIGTERM))
    main = _start(command)
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if 0 in ready and not os.read(0, 4096):
            return _end()
        if wake in ready:
            os.read(wake, 4096)
            status = _reap(main)
            if status is not None:
                return _leave(status)


def _reap(main: int) -> int | None:
    """Take the dead away, adopted ones too; return the status of the command if it was among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, raw = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == main:
                status = _status(raw)
    return status


def _leave(status: int) -> int:
    end = time.monotonic() + _GRACE_S
    while descendants(os.getpid()) and time.monotonic() < end:
        time.sleep(0.02)
    _kill_all()
    return status


def _end() -> int:
    _kill_all()
    return KILLED


if __name__ == "__main__":
    sys.exit(_guard(sys.argv[sys.argv.index("--") + 1 :]))
