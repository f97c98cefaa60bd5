"""Ask a server for inferences at given times, whether it keeps up or not (an open loop), and measure at the client.

Requests are those of the V2 inference protocol over HTTP, with binary tensors. They are written once and sent as they
are, and an answer is read as little as possible: what the client itself takes must not be measured. How late it sent,
it says. ``python benchmarks/_serving_load.py URL ARRIVALS.csv OUT.csv`` (columns ``time_s,model``) is one process of
:func:`drive`, which starts several.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gc
import json
import math
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_START_S = 1.0  # from the start of the processes to the first arrival, at least
_CONNECTIONS = 2_000
_STATUS = {200: "ok", 504: "timeout", 408: "timeout", 429: "refused", 503: "refused"}
_ITEM_BYTES = {"FP64": 8, "INT64": 8, "UINT64": 8, "FP32": 4, "INT32": 4, "UINT32": 4, "FP16": 2, "INT16": 2}
_LENGTH_HEADER = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Sent:
    """One request: when it was due and was sent (seconds from the start), its time to the answer in ms, its status."""

    model: str
    due_s: float
    sent_s: float
    total_ms: float
    status: str


def drive(
    url: str,
    arrivals: Sequence[tuple[float, str]],
    *,
    processes: int = 2,
    timeout_s: float = 60.0,
    axis: int = 128,
    zero_s: float | None = None,
) -> list[Sent]:
    """Send the requests of ``arrivals`` (seconds, model) and return what became of them, in the order they were sent.

    ``axis``: the length of an input's axis that may have any. ``zero_s``: when time 0 is, on the monotonic clock.
    """
    with tempfile.TemporaryDirectory(prefix="gkest-load-") as folder:
        begin = time.monotonic() + _START_S + 0.5 * processes if zero_s is None else zero_s
        children = []
        outputs = []
        for part in range(processes):
            mine = Path(folder, f"arrivals-{part}.csv")
            with mine.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream)
                writer.writerow(("time_s", "model"))
                writer.writerows(arrivals[part::processes])
            outputs.append(Path(folder, f"sent-{part}.csv"))
            options = ["--zero", repr(begin), "--timeout-s", str(timeout_s), "--axis", str(axis)]
            command = [sys.executable, __file__, url, str(mine), str(outputs[-1]), *options]
            children.append(subprocess.Popen(command))
        codes = [child.wait() for child in children]
        if any(codes):
            raise SystemExit(f"a process of the load generator ended with {codes}")
        sent: list[Sent] = []
        for output in outputs:
            sent += read_sent(output)
    return sorted(sent, key=lambda s: s.sent_s)


def read_sent(path: Path) -> list[Sent]:
    """Return the requests that one process wrote to ``path``."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [
            Sent(r["model"], float(r["due_s"]), float(r["sent_s"]), float(r["total_ms"]), r["status"])
            for r in csv.DictReader(stream)
        ]


def lag_ms(sent: Sequence[Sent]) -> tuple[float, float]:
    """Return how late requests were sent: median and 99th percentile, ms."""
    lags = [1e3 * (s.sent_s - s.due_s) for s in sent]
    median, high = np.quantile(lags, (0.5, 0.99)).tolist()
    return median, high


def poisson(rates_rps: dict[str, float], seconds: float, seed: int) -> list[tuple[float, str]]:
    """Return arrivals of independent Poisson streams, ascending."""
    rng = np.random.default_rng(seed)
    arrivals = []
    for model, rate in rates_rps.items():
        count = rng.poisson(rate * seconds)
        arrivals += [(t, model) for t in (rng.random(count) * seconds).tolist()]
    return sorted(arrivals)


def request_bytes(url: str, model: str, axis: int) -> bytes:
    """Return a whole HTTP request for one sample of ``model``, as the server says that its inputs look."""
    with urllib.request.urlopen(f"{url}/v2/models/{model}", timeout=30) as answer:
        metadata = json.load(answer)
    rng = np.random.default_rng(0)
    inputs = []
    tensors = []
    for tensor in metadata["inputs"]:
        # The first axis is the batch's; what may be of any length is as long as asked.
        shape = [1, *(axis if size < 0 else size for size in tensor["shape"][1:])]
        count = math.prod(shape)
        kind = tensor["datatype"]
        if kind in ("FP32", "FP16", "FP64"):
            dtype = {"FP32": "<f4", "FP16": "<f2", "FP64": "<f8"}[kind]
            raw = rng.random(count).astype(dtype).tobytes()
        else:  # token numbers, masks: a one is in every vocabulary and masks nothing
            raw = np.ones(count, dtype=f"<i{_ITEM_BYTES.get(kind, 1)}").tobytes()
        inputs.append(
            {
                "name": tensor["name"],
                "datatype": kind,
                "shape": shape,
                "parameters": {"binary_data_size": len(raw)},
            }
        )
        tensors.append(raw)
    document = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join((document, *tensors))
    parts = urllib.parse.urlsplit(url)
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/octet-stream\r\n{_LENGTH_HEADER}: {len(document)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One connection, kept open: sends a request, and says when its answer is whole, and its status."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[int] | None = None
        self._read = bytearray()
        self._left = -1  # bytes of the body that are still to come; -1: the head is not whole
        self._status = 0
        self._closes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, request: bytes) -> asyncio.Future[int]:
        self.answer = asyncio.get_running_loop().create_future()
        self._read.clear()
        self._left = -1
        assert self.transport is not None
        self.transport.write(request)
        return self.answer

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing() and not self._closes

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._read += data
            end = self._read.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._read[:end]).lower()
            if head.startswith(b"http/1.1 100"):
                del self._read[: end + 4]
                self.data_received(b"")
                return
            self._status = int(head[9:12])
            length = 0
            for line in head.split(b"\r\n")[1:]:
                if line.startswith(b"content-length:"):
                    length = int(line[15:])
                elif line == b"connection: close":
                    self._closes = True
            self._left = length - (len(self._read) - end - 4)
        else:
            self._left -= len(data)
        if self._left <= 0:
            self._end(self._status)

    def connection_lost(self, error: Exception | None) -> None:
        self._closes = True
        self._end(0)

    def _end(self, status: int) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(status)


class Client:
    """Send requests over idle connections, or new ones."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        self._where = parts.hostname or "127.0.0.1", parts.port or 80
        self._timeout_s = timeout_s
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(_CONNECTIONS)

    async def connect(self, count: int) -> None:
        """Open connections beforehand: opening one takes a millisecond of somebody's time."""
        self._idle += [await self._new() for _ in range(count)]

    async def _new(self) -> Connection:
        _, made = await asyncio.get_running_loop().create_connection(Connection, *self._where)
        return made

    async def ask(self, request: bytes) -> tuple[float, float, str]:
        """Return when it was sent, how long the answer took in ms, and the status."""
        async with self._room:
            sent = time.monotonic()
            try:
                connection = None
                while self._idle and (connection is None or not connection.usable):
                    connection = self._idle.pop()
                if connection is None or not connection.usable:
                    connection = await self._new()
                status = await asyncio.wait_for(connection.send(request), self._timeout_s)
            except TimeoutError:
                return sent, 1e3 * (time.monotonic() - sent), "timeout"
            except OSError:
                return sent, 1e3 * (time.monotonic() - sent), "failed"
            took = 1e3 * (time.monotonic() - sent)
            if connection.usable:
                self._idle.append(connection)
            return sent, took, _STATUS.get(status, "failed")


async def send_all(
    url: str, arrivals: Sequence[tuple[float, str]], *, zero: float, timeout_s: float, axis: int
) -> list[Sent]:
    """Send every request when it is due (monotonic time ``zero`` is 0 s), and wait for all answers."""
    requests = {model: request_bytes(url, model, axis) for model in dict.fromkeys(m for _, m in arrivals)}
    client = Client(url, timeout_s)
    await client.connect(8)
    sent: list[Sent] = []

    async def one(due_s: float, model: str) -> None:
        at, took, status = await client.ask(requests[model])
        sent.append(Sent(model, due_s, at - zero, took, status))

    tasks = set()
    for due_s, model in arrivals:
        left = zero + due_s - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)
        task = asyncio.create_task(one(due_s, model))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    while tasks:
        await asyncio.wait(tasks)
    return sent


def main() -> None:
    """Send one file of arrivals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("arrivals", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--zero", type=float, help="monotonic time of 0 s; default: in a second")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--axis", type=int, default=128)
    asked = parser.parse_args()
    with asked.arrivals.open(newline="", encoding="utf-8") as stream:
        arrivals = sorted((float(r["time_s"]), r["model"]) for r in csv.DictReader(stream))
    zero = asked.zero if asked.zero is not None else time.monotonic() + _START_S
    gc.disable()  # a collection would stand in somebody's latency
    sent = asyncio.run(send_all(asked.url, arrivals, zero=zero, timeout_s=asked.timeout_s, axis=asked.axis))
    with asked.output.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("model", "due_s", "sent_s", "total_ms", "status"))
        writer.writerows((s.model, s.due_s, s.sent_s, s.total_ms, s.status) for s in sent)


if __name__ == "__main__":
    main()
