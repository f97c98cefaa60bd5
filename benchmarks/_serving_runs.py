"""Run ``gkest serve`` for a benchmark: start it, ask it, join what client and server saw, and end it again."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _serving_load import Sent, drive

from gkestimator.tables.request_log import LoggedRequest, log_heading, log_line

GKEST = Path(sys.executable).with_name("gkest")
START_S = 180.0
END_S = 90.0
_SETTLE_S = 1.5  # the server writes its log every half second
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def gkest(*arguments: str | Path, cwd: Path | None = None) -> str:
    """Run ``gkest`` of this interpreter; return what it wrote to stdout. Ends the benchmark where it fails."""
    command = [str(GKEST), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != 0:
        raise SystemExit(
            f"gkest {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return done.stdout


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as test:
        test.bind(("127.0.0.1", 0))
        port: int = test.getsockname()[1]
    return port


class Server:
    """Hold one ``gkest serve``, from ready to ended; a context."""

    def __init__(self, plan: Path, table: Path, folder: Path, *options: str | Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "served.csv"
        self.words = folder / "serve.txt"
        self._read = 0
        command: list[str | Path] = [GKEST, "serve", plan, "--table", table]
        command += ["--port", str(self.port), "--requests", self.log, *options]
        with self.words.open("w", encoding="utf-8") as stream:
            # A group of its own: nothing that it started outlives the benchmark.
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_THREADS},
                start_new_session=True,
            )

    def __enter__(self) -> Server:
        begun = time.monotonic()
        while time.monotonic() - begun < START_S:
            if self._process.poll() is not None:
                raise SystemExit(f"gkest serve ended with {self._process.returncode}:\n{self.said()[-2000:]}")
            if (self.ready() and "is emulated at" in self.said()) or "is served at" in self.said():
                return self
            time.sleep(0.2)
        self.__exit__()
        raise SystemExit(f"gkest serve was not ready within {START_S:g} s:\n{self.said()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Return the number of the process that was started."""
        return self._process.pid

    def said(self) -> str:
        """Return what the server said so far."""
        return self.words.read_text(encoding="utf-8", errors="replace")

    def ready(self) -> bool:
        """Return whether it answers requests of every model."""
        try:
            with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def descendants(self) -> dict[int, str]:
        """Return the processes that it started, by number: what they are called."""
        parents: dict[int, list[int]] = defaultdict(list)
        names: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                number = int(entry.name)
                parents[int(stat.rpartition(")")[2].split()[1])].append(number)
                names[number] = words.strip()
        found: dict[int, str] = {}
        todo = [self.pid]
        while todo:
            for child in parents[todo.pop()]:
                found[child] = names[child]
                todo.append(child)
        return found

    def new_rows(self, expected: int, wait_s: float = 10.0) -> list[dict[str, str]]:
        """Return the rows of the log since the last call, once there are ``expected`` (or after ``wait_s``)."""
        until = time.monotonic() + wait_s
        rows: list[dict[str, str]] = []
        while True:
            if self.log.exists():
                with self.log.open(newline="", encoding="utf-8") as stream:
                    rows = list(csv.DictReader(stream))[self._read :]
            if len(rows) >= expected or time.monotonic() > until:
                self._read += len(rows)
                return rows
            time.sleep(0.5)

    def warm(self, models: Sequence[str], count: int = 20, axis: int = 128) -> None:
        """Ask every model a few times, before anything is measured; their rows are read away."""
        arrivals = [(0.05 * n, model) for n in range(count) for model in models]
        drive(self.url, arrivals, processes=1, axis=axis)
        time.sleep(_SETTLE_S)
        self.new_rows(len(arrivals))


def joined(sent: Sequence[Sent], rows: Sequence[Mapping[str, str]]) -> tuple[list[LoggedRequest], float]:
    """Return the requests as the client saw them, with what the server says of each, and the share that was joined.

    The k-th request that was sent to a model is the k-th that the server got for it: both count all of them. Where
    they do not, or disagree on what became of one, nothing of the server's is taken.
    """
    by_model: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: float(r["arrived_ms"])):
        by_model[row["model"]].append(row)
    counts: dict[str, int] = defaultdict(int)
    for s in sent:
        counts[s.model] += 1
    zero = min((s.sent_s for s in sent), default=0.0)
    numbers: dict[str, int] = defaultdict(int)
    log = []
    matched = 0
    for s in sorted(sent, key=lambda s: s.sent_s):
        request = LoggedRequest(
            model=s.model, arrived_ms=1e3 * (s.sent_s - zero), total_ms=s.total_ms, status=s.status
        )
        number = numbers[s.model]
        numbers[s.model] += 1
        if len(by_model[s.model]) == counts[s.model]:
            row = by_model[s.model][number]
            if row["status"] == s.status:
                matched += 1
                request = _with_parts(request, row)
        log.append(request)
    return log, matched / max(len(log), 1)


def _with_parts(request: LoggedRequest, row: Mapping[str, str]) -> LoggedRequest:
    parts: dict[str, Any] = {}
    for name in ("queue_ms", "gpu_ms"):
        parts[name] = float(row[name]) if row.get(name) else None
    known = [value for value in parts.values() if value is not None]
    # A neighbour's parts, where two changed places on the way, cannot be more than the whole.
    if len(known) == 2 and request.total_ms is not None and sum(known) > request.total_ms:
        return request
    batch = int(row["batch"]) if row.get("batch") else None
    version = int(row["plan_version"]) if row.get("plan_version") else None
    return replace(request, batch=batch, replica=row.get("replica") or None, plan_version=version, **parts)


def write_log(log: Sequence[LoggedRequest], path: Path) -> None:
    """Write ``log`` as ``gkest compare --against`` reads it."""
    path.write_text(log_heading() + "".join(map(log_line, log)), encoding="utf-8")


def said_times(words: str) -> list[str]:
    """Return the lines of a server's words that tell of plans, without times of day."""
    return [line for line in words.splitlines() if re.search(r"plan \d+", line)]


def load_json(path: Path) -> dict[str, Any]:
    """Return a document, empty where the file is not there."""
    if not path.exists():
        return {}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
