"""A worker as the command sees it: started, asked under a deadline, ended for good."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.jobs.children import bound_log, close_input, last_words, log_end
from gkestimator.profiling.colocating.protocol import MOST_LINE, ProtocolError, decode, encode
from gkestimator.profiling.type_names import Fields, Members, TextByName

_TICK_S = 0.1
_KILL_S = 5.0
_MOST_LOG_BYTES = 8 * 2**20
_LOG_END_BYTES = 4096


class WorkerError(GkestimatorError):
    """Say that a worker could not do what was asked. ``broke``: it died, gave no answer in time, lost its device or
    says what is no message, and is of no more use; else it can go on. ``memory``: memory ran out."""

    def __init__(self, message: object, *, broke: bool = True, memory: bool = False) -> None:
        super().__init__(message)
        self.broke = broke
        self.memory = memory


class WorkerProcess:
    """Run a worker. Raises WorkerError where it cannot be started. ``environment``: all of it. ``log``: takes
    what it prints."""

    def __init__(self, command: Sequence[str], environment: TextByName, log: Path) -> None:
        self._log = log
        self._number = 0
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        try:
            with open(log, "ab") as output:
                self._process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    env={**environment, "GKEST_PAIRS_PARENT": str(os.getpid())},
                    start_new_session=True,  # Ctrl-C at the terminal is the command's to judge
                )
        except OSError as e:
            raise WorkerError(f"{command[0]}: cannot be started: {e.strerror or e}") from e
        assert self._process.stdout is not None
        # A thread reads, so that waiting for an answer can end at a deadline.
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := stream.readline(MOST_LINE + 1):
                self._lines.put(line)
        self._lines.put(None)

    def send(self, request: Members) -> int:
        """Ask, and return the number by which the answer is known. Raises WorkerError."""
        self._number += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode({"n": self._number, **request}))
            self._process.stdin.flush()
        except (OSError, ValueError) as e:
            raise WorkerError(self._end_words()) from e
        return self._number

    def answer(self, number: int, *, within_s: float, tick: Callable[[], None]) -> Fields:
        """Return the answer to request ``number`` (0: its hello). ``tick`` is called while waiting, and may raise.
        Raises WorkerError."""
        end = time.monotonic() + within_s
        while True:
            tick()
            bound_log(self._log, _MOST_LOG_BYTES)
            try:
                line = self._lines.get(timeout=_TICK_S)
            except queue.Empty:
                if time.monotonic() > end:
                    raise WorkerError(f"no answer within {within_s:.0f} s") from None
                continue
            if line is None:
                raise WorkerError(self._end_words())
            try:
                answer = decode(line)
            except ProtocolError as e:
                raise WorkerError(f"says what is no message: {e}") from e
            # A library's print, or an answer that nobody waits for any more.
            if answer is None or answer["n"] < number:
                continue
            if answer["n"] > number:
                raise WorkerError(f"found the answer to request {answer['n']}, expected that to {number}")
            if answer.get("ok") is True:
                return answer
            reason = one_line(answer.get("reason", "no reason given"), limit=300)
            kind = answer.get("kind")
            if kind == "lost":
                raise WorkerError(f"lost its device: {reason}")
            raise WorkerError(reason, broke=False, memory=kind == "memory")

    def close(self) -> None:
        """Close its input, by which it ends."""
        close_input(self._process)

    def stop(self, grace_s: float) -> None:
        """Close its input, and kill it where it has not ended after ``grace_s`` seconds."""
        self.close()
        try:
            self._process.wait(timeout=max(0.0, grace_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            # One that hangs in the driver cannot even be killed: nobody waits for it without end.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_KILL_S)

    def _end_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2.0)
        status = self._process.returncode
        words = last_words(log_end(self._log, _LOG_END_BYTES))
        if status is None:
            return f"closed its output: {words}"
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return f"died ({how}): {words}"
