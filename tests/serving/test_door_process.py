"""A door in a process of its own, beside which strangers do their worst together: memory, files, and a good client's answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from doors import GOOD, asked, doubling_network, head, read_answer

from gkestimator.serving.access import allowed_files

pytest.importorskip("aiohttp", reason="needs ray[serve] (extra ray)")
pytest.importorskip("onnxruntime")


@contextlib.contextmanager
def door_process(tmp_path: Path, **limits: float) -> Iterator[tuple[tuple[str, int], int]]:
    """A door in a process of its own: where it is, and the process' number."""
    script = Path(__file__).with_name("doors.py")
    model = doubling_network(tmp_path / "double.onnx")
    with subprocess.Popen(
        [sys.executable, str(script), str(model), json.dumps(limits)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None and process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()[-2000:]
            host, _, port = url.removeprefix("http://").rpartition(":")
            yield (host, int(port)), process.pid
            process.stdin.close()
            assert process.wait(10) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_ten_thousand_idle_connections_disturb_nobody_and_are_closed(tmp_path: Path) -> None:
    count = 10_000
    if allowed_files() < count + 500:
        pytest.skip(f"needs {count + 500} open files (ulimit -Hn)")
    with door_process(tmp_path, idle_s=12) as (place, pid), contextlib.ExitStack() as stack:
        before = resident_bytes(pid)
        good = stack.enter_context(socket.create_connection(place, timeout=20))
        asked(good)
        idle = [stack.enter_context(socket.create_connection(place, timeout=20)) for _ in range(count)]
        times = []
        for _ in range(50):
            begun = time.monotonic()
            asked(good)
            times.append(time.monotonic() - begun)
        with socket.create_connection(place, timeout=20) as late:
            asked(late)
        assert np.median(times) < 0.05
        assert (resident_bytes(pid) - before) / count < 40_000  # some 20 kB a connection
        time.sleep(max(0.0, 13 - (time.monotonic() - begun)))
        closed = 0
        for client in idle:
            client.settimeout(5)
            closed += client.recv(1) == b""
        assert closed == count
        with socket.create_connection(place, timeout=20) as late:
            asked(late)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_refused_gigabytes_leave_no_memory_behind(tmp_path: Path) -> None:
    with door_process(tmp_path) as (place, pid):
        before = resident_bytes(pid)
        for _ in range(20):
            with socket.create_connection(place, timeout=20) as client, contextlib.suppress(ConnectionError):
                client.sendall(head(Content_Length=10**9))
                for _ in range(400):
                    client.sendall(b"x" * 2**16)
        assert resident_bytes(pid) - before < 30 * 2**20


@pytest.mark.slow
def test_a_good_client_is_served_beside_all_of_them_at_once(tmp_path: Path) -> None:
    """Eight strangers, each doing its worst over and over, beside a client whose answers must all be right and in time."""
    body = json.dumps(GOOD).encode()
    worst = [
        [head(Content_Length=10**9), *[b"x" * 2**16] * 8],
        [head(Transfer_Encoding="chunked"), *[b"1000\r\n" + b" " * 4096 + b"\r\n"] * 60],
        [head(Content_Length=len(body)), body[:40]],
        [b"\x16\x03\x01\x02\x00" + b"\0" * 300 + b"\r\n\r\n"],
        [head("/v2/models/any/infer", Content_Length=3) + b"{]}"] * 40,
        [head("/v2/models/%0a%1b/infer", Content_Length=2) + b"{}"] * 40,
        [head(Content_Length=7 * 10**6, Content_Type="application/json"), b"[" + b"1," * 3_000_000],
        [b"GET /v2 HTTP/1.1\r\nHost: d\r\nA: "],
    ]
    with door_process(tmp_path, head_s=2, body_s=2) as (place, _):
        ended = threading.Event()

        def bother(parts: list[bytes]) -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError), socket.create_connection(place, timeout=0.5) as client:
                    for part in parts:
                        client.sendall(part)
                    client.recv(2**16)

        strangers = [threading.Thread(target=bother, args=(parts,)) for parts in worst]
        for stranger in strangers:
            stranger.start()
        times = []
        with socket.create_connection(place, timeout=20) as good:
            for _ in range(200):
                begun = time.monotonic()
                good.sendall(head(Content_Length=len(body)) + body)
                status, _, answer = read_answer(good)
                times.append(time.monotonic() - begun)
                assert status == 200 and json.loads(answer)["outputs"][0]["data"] == [2, 4, 6, 8]
        ended.set()
        for stranger in strangers:
            stranger.join(10)
    assert np.median(times) < 0.1 and max(times) < 2


def test_a_door_may_hold_as_many_files_as_the_system_lets_it() -> None:
    resource = pytest.importorskip("resource")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource; from gkestimator.serving.access import allowed_files\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "print(allowed_files(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    allowed, soft = map(int, done.stdout.split())
    assert soft == hard and allowed in (hard, 2**20)
