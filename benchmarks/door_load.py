"""Measure how many requests a second the door of `gkest serve` can take, and whether its memory stays flat.

`python benchmarks/door_load.py [--minutes M] [--connections N] [--clients N]`

The backend answers at once, so that the door is the limit. Clients are processes of their own that send bytes made beforehand
over connections that stay open, each the next request once the last is answered. Printed for a small body (4 numbers), for
600 kB (one picture of 3 x 224 x 224), each as bytes, and for the small one as JSON: requests a second, the time of an
answer, the door's processor time for each request (one over it is what it could do with a core of its own), and its
resident memory from after the first quarter to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.serving.backend import Arrays, ServedSignature, ServedTensor

_BODIES = {"small, bytes": (4, True), "small, JSON": (4, False), "600 kB, bytes": (3 * 224 * 224, True)}
_SAMPLES_KEPT = 200_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class InstantBackend:
    """Answer every request at once with ten numbers for each sample."""

    def __init__(self, width: int) -> None:
        inputs = (ServedTensor(name="x", datatype="FP32", shape=(width,)),)
        outputs = (ServedTensor(name="y", datatype="FP32", shape=(10,)),)
        self._signatures = {"m": ServedSignature(inputs=inputs, outputs=outputs, max_batch=8)}
        self._answer = {"y": np.arange(10, dtype=np.float32)}

    def signatures(self) -> Mapping[str, ServedSignature]:
        """Return the one model's."""
        return self._signatures

    def ready(self) -> bool:
        """Return True."""
        return True

    async def infer(self, model: str, samples: Sequence[Arrays], timeout_ms: float | None) -> list[Arrays]:
        """Return the same answer for each sample."""
        return [self._answer] * len(samples)

    def metrics(self) -> bytes:
        """Return none."""
        return b""


@frozen
class ClientResult:
    """Hold what one client process saw: answers, and some of their times in seconds."""

    answers: int
    times: list[float]


def run_door(width: int, report: Connection) -> None:
    """Open a door and say where, until told to end."""
    from gkestimator.serving.door import open_door

    async def serve() -> None:
        door = await open_door(InstantBackend(width), port=0)
        report.send(door.url)
        await asyncio.to_thread(report.recv)
        await door.close(wait_s=1)

    asyncio.run(serve())


def request_bytes(width: int, binary: bool) -> bytes:
    """Return a whole request of one sample."""
    values = np.linspace(0, 1, width, dtype=np.float32)
    entry = {"name": "x", "shape": [1, width], "datatype": "FP32"}
    if not binary:
        body = json.dumps({"inputs": [entry | {"data": values.tolist()}]}).encode()
        return (
            f"POST /v2/models/m/infer HTTP/1.1\r\nHost: d\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
    entry["parameters"] = {"binary_data_size": values.nbytes}
    words = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    body = words + values.tobytes()
    head = f"Content-Length: {len(body)}\r\nInference-Header-Content-Length: {len(words)}\r\n"
    return f"POST /v2/models/m/infer HTTP/1.1\r\nHost: d\r\n{head}\r\n".encode() + body


def run_client(url: str, request: bytes, connections: int, seconds: float, report: Connection) -> None:
    """Send ``request`` over and over on ``connections`` for ``seconds``; report a ClientResult."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    end = time.perf_counter() + seconds
    times: list[float] = []
    answers = 0

    async def ask() -> None:
        nonlocal answers
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
        length = 0
        while (begun := time.perf_counter()) < end:
            writer.write(request)
            if length:
                answer = await reader.readexactly(length)
            else:  # every answer is as long as the first
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                )
                answer = head + await reader.readexactly(int(size.split(b":")[1]))
                length = len(answer)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer[:200])
            answers += 1
            if len(times) < _SAMPLES_KEPT:
                times.append(time.perf_counter() - begun)
        writer.close()

    async def ask_on_all() -> None:
        await asyncio.gather(*(ask() for _ in range(connections)))

    asyncio.run(ask_on_all())
    report.send(ClientResult(answers=answers, times=times))


def processor_s(pid: int) -> float:
    """Return the processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20


def measure(name: str, *, clients: int, connections: int, seconds: float) -> None:
    """Print one line: a body sent by so many clients, each with so many connections."""
    width, binary = _BODIES[name]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    door = context.Process(target=run_door, args=(width, theirs))
    door.start()
    url = ours.recv()
    assert door.pid is not None
    request = request_bytes(width, binary)
    pipes = []
    for _ in range(clients):
        near, far = context.Pipe()
        context.Process(
            target=run_client, args=(url, request, connections, seconds, far), daemon=True
        ).start()
        pipes.append(near)
    memory = []
    spent = processor_s(door.pid)
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        time.sleep(min(1.0, seconds / 20))
        memory.append(resident_mib(door.pid))
    results: list[ClientResult] = [pipe.recv() for pipe in pipes]
    spent = processor_s(door.pid) - spent
    ours.send("end")
    door.join(10)
    answers = sum(result.answers for result in results)
    times = np.concatenate([result.times for result in results]) * 1e3
    p50, p99 = np.percentile(times, [50, 99])
    later = memory[len(memory) // 4 :]
    print(
        f"{name:14} {answers / seconds:9,.0f} {p50:8.2f} {p99:8.2f} {spent / answers * 1e6:11.0f} {answers / spent:12,.0f} "
        f"{later[0]:8.1f} {later[-1]:8.1f} {answers:11,}",
        flush=True,
    )


def main() -> None:
    """Measure every body."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0.15, help="for each body (default %(default)s)")
    parser.add_argument("--connections", type=int, default=16, help="of each client (default %(default)s)")
    parser.add_argument("--clients", type=int, default=2, help="processes (default %(default)s)")
    given = parser.parse_args()
    print(f"{given.clients} clients of {given.connections} connections, {given.minutes:g} minutes each")
    print(
        f"{'body':14} {'requests/s':>9} {'p50 ms':>7} {'p99 ms':>8} {'door us/req':>11} {'req/core s':>12} "
        f"{'MiB 1/4':>8} {'MiB end':>8} {'answers':>11}"
    )
    for name in _BODIES:
        measure(name, clients=given.clients, connections=given.connections, seconds=60 * given.minutes)


if __name__ == "__main__":
    main()
