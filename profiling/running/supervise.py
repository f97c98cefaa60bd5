"""One child under its collector, watched: limits per entry, on starting and on finishing; stopped on request."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gkestimator.core.records import frozen
from gkestimator.jobs.guard import descendants, guarded
from gkestimator.profiling.collectors.base import CollectorError

_POLL_S = 0.05
_MOST_LOG_BYTES = 32 * 2**20


@frozen
class Limits:
    """Seconds allowed. ``entry_s``: from the moment the child names an entry until it names the next; ``start_s``:
    until it names the first (imports, under a profiler); ``finish_s``: from its end until the profiler has written."""

    entry_s: float = 60.0
    start_s: float = 180.0
    finish_s: float = 120.0


@frozen
class Ending:
    """How it ended. ``status``: that of the command (128 + n: signal n); ``why``: ``ended`` by itself,
    ``entry-limit``, ``start-limit`` or ``stopped``; ``entry``: the id that the child last named, None for none;
    ``tool_hung``: the profiler did not end after its child had and was killed. ``working_s``: from the first entry that
    the child named to the last sign of life, without starting and finishing; None where it named none."""

    status: int
    why: str
    entry: str | None
    tool_hung: bool
    working_s: float | None = None


class _Watch:
    """What the child says of itself through its files, read without trusting it to be alive."""

    def __init__(self, records: Path, child: Sequence[str]) -> None:
        self._records, self._child = records, list(child)
        self._current = records.with_name(records.name + ".current")

    def entry(self) -> str | None:
        try:
            return self._current.read_text(encoding="utf-8")[:200].strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def records_bytes(self) -> int:
        try:
            return self._records.stat().st_size
        except OSError:
            return 0

    def recorded(self, entry: str) -> bool:
        """Whether the entry that the child named is written already: then it is at its closing work."""
        try:
            with open(self._records, "rb") as stream:
                stream.seek(max(0, self.records_bytes() - 2**20))
                return entry.encode() in stream.read()
        except OSError:
            return False

    def pids(self, guard: int) -> list[int]:
        """The executor's process below the guard: the one whose arguments begin with the child's (a profiler's own
        arguments end with them)."""
        found = []
        for pid in descendants(guard):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if [os.fsdecode(w) for w in words[: len(self._child)]] == self._child:
                    found.append(pid)
        return found


def supervise(
    command: Sequence[str],
    *,
    child: Sequence[str],
    records: Path,
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
    limits: Limits,
    stop: Callable[[], str | None],
) -> Ending:
    """Run ``command`` (which runs ``child``) in ``folder`` until it ends or must end.

    ``stop`` is asked all the time: ``soft`` ends the child (SIGTERM) and lets the profiler write what it has, ``hard``
    kills everything. Nothing of it runs any more when this returns. Raises CollectorError if it cannot be started.
    """
    watch = _Watch(records, child)
    with open(log, "ab") as output:
        try:
            process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as e:
            raise CollectorError(f"{command[0]}: cannot be started: {e.strerror or e}") from e
        try:
            return _loop(process, watch, log, limits, stop)
        finally:
            _end(process)


def _loop(
    process: subprocess.Popen[bytes], watch: _Watch, log: Path, limits: Limits, stop: Callable[[], str | None]
) -> Ending:
    why = "ended"
    seen = (watch.entry(), watch.records_bytes())
    # A child that is done removes its word of what it is at; the last one it gave still counts.
    since = time.monotonic()
    first: float | None = None
    closing: float | None = None  # since when the profiler alone has been at work
    while process.poll() is None:
        time.sleep(_POLL_S)
        now = time.monotonic()
        wish = stop()
        found = (watch.entry() or seen[0], watch.records_bytes())
        if found != seen:
            seen = found
            since = now
            if first is None and found[0] is not None:
                first = now
        if wish == "hard":
            return Ending(status=_end(process), why="stopped", entry=seen[0], tool_hung=False)
        if closing is not None:
            if now - closing > limits.finish_s:
                return Ending(status=_end(process), why=why, entry=seen[0], tool_hung=True)
        elif wish == "soft":
            why = "stopped"
            closing = now
            alive = watch.pids(process.pid)
            _signal(alive, signal.SIGTERM)
            if not alive and seen[0] is None:  # nothing has begun: nothing to write
                return Ending(status=_end(process), why=why, entry=None, tool_hung=False)
        elif now - since > _limit(seen[0], watch, limits):
            closing = now
            alive = watch.pids(process.pid)
            if alive or seen[0] is None:
                why = "start-limit" if seen[0] is None else "entry-limit"
                _signal(alive, signal.SIGKILL)
                if not alive:  # the profiler never came to start it
                    return Ending(status=_end(process), why=why, entry=None, tool_hung=True)
        _bound(log)
    return Ending(
        status=process.returncode,
        why=why,
        entry=watch.entry() or seen[0],
        tool_hung=False,
        working_s=None if first is None else since - first,
    )


def _limit(entry: str | None, watch: _Watch, limits: Limits) -> float:
    if entry is None:
        return limits.start_s
    if watch.recorded(entry):
        return max(limits.finish_s, limits.entry_s)
    return limits.entry_s


def _signal(pids: Sequence[int], which: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, which)


def _bound(log: Path) -> None:
    """A child that prints without end must not fill the disk; writers append, so cutting is safe."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _MOST_LOG_BYTES:
            os.truncate(log, 0)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Close the guard's pipe, which kills all below it, and wait."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        return process.wait(timeout=30)
    except (
        subprocess.TimeoutExpired
    ):  # the guard itself is stuck (a process in uninterruptible sleep below it)
        process.kill()
        return process.wait()
