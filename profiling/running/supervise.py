"""One child under its collector, watched: limits per entry, on starting and on finishing; stopped on request."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.jobs.children import bound_log, end_guarded, start_guarded
from gkestimator.jobs.guard import descendants
from gkestimator.profiling.collectors.base import CollectorError
from gkestimator.profiling.type_names import TextByName

StopReason: TypeAlias = "Callable[[], str | None]"

_POLL_S = 0.05
_MOST_LOG_BYTES = 32 * 2**20


@frozen
class Limits:
    """Hold the seconds allowed. ``entry_s``: from the moment the child names an entry until it names the
    next; ``start_s``: until it names the first (imports, under a profiler); ``finish_s``: from its end until
    the profiler has written."""

    entry_s: float = 60.0
    start_s: float = 180.0
    finish_s: float = 120.0


@frozen
class Ending:
    """Say how a child ended. ``status``: that of the command (128 + n: signal n); ``why``: ``ended`` by
    itself, ``entry-limit``, ``start-limit`` or ``stopped``; ``entry``: the id that the child last named, None
    for none; ``tool_hung``: the profiler did not end after its child had and was killed. ``working_s``: from
    the first entry that the child named to the last sign of life, without starting and finishing; None where
    it named none."""

    status: int
    why: str
    entry: str | None
    tool_hung: bool = False
    working_s: float | None = None


class _Watch:
    """Watch a child through the files that it writes, without trusting it to be alive. ``entry``: the one that it
    named last, ``since``: when it gave the last sign of life, ``first``: when it named its first entry."""

    def __init__(self, records: Path, child: Sequence[str], limits: Limits) -> None:
        self._records = records
        self._child = list(child)
        self._limits = limits
        self._current = records.with_name(records.name + ".current")
        self._bytes = 0
        self.entry: str | None = None
        self.since = time.monotonic()
        self.first: float | None = None

    def look(self, now: float) -> None:
        """Take in what the child has written by ``now``."""
        entry = self.entry
        size = 0
        # A child that is done removes its word of what it is at; the last one it gave still counts.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            entry = self._current.read_text(encoding="utf-8")[:200].strip() or entry
        with contextlib.suppress(OSError):
            size = self._records.stat().st_size
        # A new entry or a longer file of records is a sign of life; CPU time is not, for a hung driver spins.
        if (entry, size) != (self.entry, self._bytes):
            self.entry = entry
            self._bytes = size
            self.since = now
            if self.first is None and entry is not None:
                self.first = now

    def limit(self) -> float:
        """Return how many seconds may pass without a sign of life."""
        if self.entry is None:
            return self._limits.start_s
        if self._recorded(self.entry):
            return max(self._limits.finish_s, self._limits.entry_s)
        return self._limits.entry_s

    def _recorded(self, entry: str) -> bool:
        """Return whether the entry that the child named is written already: then it is at its closing work."""
        try:
            with open(self._records, "rb") as stream:
                stream.seek(max(0, self._bytes - 2**20))
                return entry.encode() in stream.read()
        except OSError:
            return False

    def signal(self, guard: int, which: signal.Signals) -> bool:
        """Send a signal to the executor's process below the guard: the one whose arguments begin with the
        child's (a profiler's own arguments end with them). Return whether there is one."""
        reached = False
        for pid in descendants(guard):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if [os.fsdecode(w) for w in words[: len(self._child)]] == self._child:
                    reached = True
                    os.kill(pid, which)
        return reached


def supervise(
    command: Sequence[str],
    *,
    child: Sequence[str],
    records: Path,
    log: Path,
    folder: Path,
    environment: TextByName,
    limits: Limits,
    stop: StopReason,
) -> Ending:
    """Run ``command`` (which runs ``child``) in ``folder`` until it ends or must end.

    ``stop`` is asked all the time: ``soft`` ends the child (SIGTERM) and lets the profiler write what it has,
    ``hard`` kills everything. Nothing of it runs any more when this returns. Raises CollectorError if it
    cannot be started.
    """
    watch = _Watch(records, child, limits)
    with open(log, "ab") as output:
        try:
            process = start_guarded(command, output, environment, folder)
        except OSError as e:
            raise CollectorError(f"{command[0]}: cannot be started: {e.strerror or e}") from e
        try:
            return _loop(process, watch, log, limits, stop)
        finally:
            end_guarded(process)


def _loop(
    process: subprocess.Popen[bytes], watch: _Watch, log: Path, limits: Limits, stop: StopReason
) -> Ending:
    why = "ended"
    closing: float | None = None  # since when the profiler alone has been at work
    while process.poll() is None:
        time.sleep(_POLL_S)
        now = time.monotonic()
        wish = stop()
        watch.look(now)
        bound_log(log, _MOST_LOG_BYTES)
        if wish == "hard":
            return Ending(status=end_guarded(process), why="stopped", entry=watch.entry)
        if closing is not None:
            if now - closing > limits.finish_s:
                return Ending(status=end_guarded(process), why=why, entry=watch.entry, tool_hung=True)
        # From here on the child is gone and the profiler writes what it has.
        elif wish == "soft" or now - watch.since > watch.limit():
            closing = now
            begun = watch.entry is not None
            sent = signal.SIGKILL
            if wish:
                sent = signal.SIGTERM
            alive = watch.signal(process.pid, sent)
            if wish:
                why = "stopped"
            elif not begun:
                why = "start-limit"
            elif alive:  # else it has ended, and the profiler is still writing
                why = "entry-limit"
            if not alive and not begun:  # nothing has begun: nothing to write
                return Ending(status=end_guarded(process), why=why, entry=None, tool_hung=not wish)
    working_s = None if watch.first is None else watch.since - watch.first
    watch.look(time.monotonic())
    return Ending(status=process.returncode, why=why, entry=watch.entry, working_s=working_s)
