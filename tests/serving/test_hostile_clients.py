"""What strangers may send to the door: each gets a clear answer of one line, and a well-behaved client is served as before."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doors import (
    GOOD,
    INFER,
    ModelBackend,
    OpenDoor,
    asked,
    doubling_network,
    error,
    head,
    open_in_thread,
    read_answer,
)

from gkestimator.serving.access import DoorLimits

pytest.importorskip("aiohttp", reason="needs ray[serve] (extra ray)")
pytest.importorskip("onnxruntime")
HASTE = DoorLimits(head_s=0.4, body_s=0.4, idle_s=0.8, write_s=0.4)


@pytest.fixture
def backend(tmp_path: Path) -> ModelBackend:
    return ModelBackend(
        {
            "double": doubling_network(tmp_path / "double.onnx"),
            "any": doubling_network(tmp_path / "any.onnx", width="W"),
        }
    )


@pytest.fixture
def door(backend: ModelBackend, caplog: pytest.LogCaptureFixture) -> Iterator[OpenDoor]:
    """A door beside whose stranger a well-behaved client is served, before and after; nothing of the stranger's is logged."""
    caplog.set_level(logging.INFO)
    with open_in_thread(backend, limits=HASTE) as opened:
        with opened.connect() as early:
            asked(early)
            yield opened
            asked(early)
        assert opened.infer([[1, 2, 3, 4]]) == [[2, 4, 6, 8]]
        for record in caplog.records:
            assert record.getMessage().isprintable() and record.getMessage().isascii()
            assert record.levelno < logging.ERROR, record.getMessage()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"inputs": [GOOD["inputs"][0] | {"shape": [1, 5], "data": [0] * 5}]}, "expected [n, 4]"),
        ({"inputs": [GOOD["inputs"][0] | {"shape": [9, 4], "data": [0] * 36}]}, "expected at most 8"),
        ({"inputs": [GOOD["inputs"][0] | {"datatype": "INT8"}]}, "expected FP32"),
        ({"inputs": [GOOD["inputs"][0] | {"name": "\x1b[31mroot\n"}]}, r"found '\x1b[31mroot\n'"),
        ({"inputs": [GOOD["inputs"][0] | {"data": [1]}]}, "found 1 values, expected 4"),
        ({"inputs": GOOD}, "inputs: expected a list of objects"),
        ([], "expected a JSON object"),
    ],
)
def test_a_wrong_input_is_a_400(door: OpenDoor, document: Any, said: str) -> None:
    status, words = error(door.post(INFER, json.dumps(document).encode()))
    assert status == 400 and said in words


@pytest.mark.parametrize("version", ["0.9", "2.0"])
def test_another_version_of_http_is_a_505(door: OpenDoor, version: str) -> None:
    status, words = error(door.exchange(f"GET /v2 HTTP/{version}\r\nHost: a\r\n\r\n".encode()))
    assert status == 505 and "expected 1.1" in words


@pytest.mark.parametrize("body", [b"", b"{", b"\xff" * 50, b"[" * 60_000, b'{"a":' * 9_000])
def test_bad_json_is_a_400(door: OpenDoor, body: bytes) -> None:
    status, words = error(door.post(INFER, body))
    assert status == 400 and "the request is no JSON" in words


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "/v2/models/nothing/infer", 404, "found no model 'nothing'"),
        ("POST", "/v2/models/%1b%5b2J%0ax/infer", 404, r"found no model '\x1b[2J\nx'"),
        ("POST", "/v2/models/double/versions/2/infer", 404, "found no model 'double/versions/2'"),
        ("POST", "/v2/models/" + "a" * 4000 + "/infer", 404, "found no model"),
        ("POST", "/v2/models//infer", 404, "found no model ''"),
        ("POST", "/v2/models/../../etc/passwd/infer", 404, "found no"),
        ("GET", INFER, 405, "found the method 'GET', expected POST"),
        ("DELETE", "/v2/models/double", 405, "found the method 'DELETE', expected GET"),
        ("POST", "/v2/health/live", 405, "found the method 'POST', expected GET"),
        ("GET", "/", 404, "found no '/', expected /v2"),
        ("GET", "/v2/repository/index", 404, "found no '/v2/repository/index'"),
    ],
)
def test_what_there_is_not_is_a_404_or_a_405(
    door: OpenDoor, method: str, path: str, status: int, said: str
) -> None:
    found, words = error(door.exchange(head(path, method, Content_Length=0)))
    assert found == status and said in words


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50 + b"\r\n\r\n",  # TLS to a plain port
        b"hello\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost door\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_http_is_a_400(door: OpenDoor, data: bytes) -> None:
    assert error(door.exchange(data)) == (400, "the request is no HTTP that is understood here")


def test_a_body_of_a_gigabyte_is_refused_by_what_it_says_of_itself(door: OpenDoor) -> None:
    begun = time.monotonic()
    status, words = error(door.exchange(head(Content_Length=10**9)))
    assert status == 413 and "expected at most" in words and "for this model" in words
    assert time.monotonic() - begun < 0.3


def test_a_body_of_a_gigabyte_is_refused_while_it_is_sent(door: OpenDoor) -> None:
    """The client sends on, and reads the answer all the same."""
    with door.connect() as client, contextlib.suppress(ConnectionError):
        client.sendall(head(Content_Length=10**9))
        for _ in range(16):
            client.sendall(b"x" * 2**16)
        assert error(read_answer(client))[0] == 413


def test_a_body_in_chunks_is_refused_once_it_is_too_large(door: OpenDoor) -> None:
    """A request of this model has at most 8 rows of 4 numbers: some 66 kB with all words around them."""
    sent = 0
    with door.connect() as client:
        client.sendall(head(Transfer_Encoding="chunked"))
        client.settimeout(0.001)
        while sent < 2**30:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
                sent += 4096
            with contextlib.suppress(TimeoutError):
                if client.recv(1, socket.MSG_PEEK):
                    break
        client.settimeout(5)
        assert error(read_answer(client))[0] == 413
    assert sent < 2**20


def test_a_body_of_an_open_length_has_a_limit_too(backend: ModelBackend) -> None:
    with open_in_thread(backend, limits=DoorLimits(body_bytes=10_000)) as door:
        path = "/v2/models/any/infer"
        assert error(door.exchange(head(path, Content_Length=10_001)))[0] == 413
        values = np.zeros((1, 500), np.float32)
        assert door.infer(values.tolist(), model="any") == values.tolist()


def test_bodies_that_are_read_together_have_a_limit(backend: ModelBackend) -> None:
    with open_in_thread(backend, limits=DoorLimits(waiting_bytes=100_000)) as door:
        half = head(Content_Length=60_001) + b" " * 60_000
        with door.connect() as first, door.connect() as second:
            first.sendall(half)
            time.sleep(0.2)
            second.sendall(half)
            assert error(read_answer(second)) == (503, "too many requests are being read")
        time.sleep(0.2)
        assert door.infer([[1, 2, 3, 4]]) == [[2, 4, 6, 8]]


def test_a_compressed_body_is_not_read(door: OpenDoor) -> None:
    status, words = error(door.post(INFER, b"\x1f\x8b" + b"\0" * 20, Content_Encoding="gzip"))
    assert status == 415 and "Content-Encoding" in words


@pytest.mark.parametrize("sent", [b"P", b"POST /v2", head(Content_Length=5)[:-2]])
def test_a_slow_head_is_a_408(door: OpenDoor, sent: bytes) -> None:
    begun = time.monotonic()
    status, words = error(door.exchange(sent))
    assert (status, words) == (408, "the head did not come within 0.4 s")
    assert 0.3 < time.monotonic() - begun < 2


def test_a_head_that_trickles_is_a_408(door: OpenDoor) -> None:
    with door.connect() as client:
        ended = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                for letter in head(Content_Length=5):
                    client.sendall(bytes([letter]))
                    if ended.wait(0.05):
                        return

        sender = threading.Thread(target=trickle)
        sender.start()
        assert error(read_answer(client))[0] == 408
        ended.set()
        sender.join()


@pytest.mark.parametrize("framing", [{"Content_Length": 100}, {"Transfer_Encoding": "chunked"}])
def test_a_slow_body_is_a_408(door: OpenDoor, framing: dict[str, Any]) -> None:
    status, words = error(door.exchange(head(**framing), b"5\r\nabcde\r\n"))
    assert (status, words) == (408, "the body did not come within 0.4 s")


def test_who_sends_nothing_is_let_go(door: OpenDoor) -> None:
    with door.connect() as client:
        begun = time.monotonic()
        assert client.recv(10) == b""
        assert 0.6 < time.monotonic() - begun < 3


def test_who_does_not_read_its_answers_is_cut_off(backend: ModelBackend) -> None:
    backend.max_batch = 64
    with open_in_thread(backend, limits=HASTE) as door:
        values = np.zeros((64, 4000), np.float32)
        entry = {
            "name": "x",
            "shape": [64, 4000],
            "datatype": "FP32",
            "parameters": {"binary_data_size": values.nbytes},
        }
        words = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        headers = {
            "Content_Length": len(words) + values.nbytes,
            "Inference_Header_Content_Length": len(words),
        }
        request = head("/v2/models/any/infer", **headers) + words + values.tobytes()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(door.place)
            client.settimeout(5)
            with contextlib.suppress(OSError):
                for _ in range(20):
                    client.sendall(request)
            deadline = time.monotonic() + 5
            while door.door.tally.connections and time.monotonic() < deadline:
                time.sleep(0.05)
            assert door.door.tally.connections == 0
        assert door.infer([[1, 2, 3, 4]]) == [[2, 4, 6, 8]]


@pytest.mark.parametrize("cut", [1, 30, 60, 100, 150])
@pytest.mark.parametrize("reset", [True, False])
def test_a_request_that_is_cut_short_disturbs_nobody(door: OpenDoor, cut: int, reset: bool) -> None:
    body = json.dumps(GOOD).encode()
    request = head(Content_Length=len(body)) + body
    assert cut < len(request)
    for _ in range(5):
        with door.connect() as client:
            client.sendall(request[:cut])
            if reset:  # closed without farewell
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_hundreds_of_pipelined_requests_are_answered_in_order(door: OpenDoor) -> None:
    count = 300
    with door.connect() as client:
        sender = threading.Thread(
            target=lambda: client.sendall(b"".join(head(f"/v2/models/n{n}", "GET") for n in range(count)))
        )
        sender.start()
        reader = client.makefile("rb")
        for number in range(count):
            assert reader.readline().startswith(b"HTTP/1.1 404")
            length = 0
            while (line := reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert f"'n{number}'" in json.loads(reader.read(length))["error"]
        sender.join()


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(door: OpenDoor) -> None:
    """curl does so with bodies above a megabyte; who asks for too much is refused at once."""
    body = json.dumps(GOOD).encode()
    with door.connect() as client:
        client.sendall(head(Content_Length=len(body), Expect="100-continue"))
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert read_answer(client)[0] == 200
    assert error(door.exchange(head(Content_Length=10**9, Expect="100-continue")))[0] == 413


def test_a_wish_for_another_protocol_is_passed_over(door: OpenDoor) -> None:
    for wish in ("websocket", "h2c"):
        answer = door.get(
            "/v2", Connection="Upgrade", Upgrade=wish, Sec_WebSocket_Key="a", Sec_WebSocket_Version="13"
        )
        assert answer[0] == 200 and json.loads(answer[2])["name"] == "gkestimator"


def test_a_wrong_length_of_the_json_part_is_a_400(door: OpenDoor) -> None:
    for wrong in ("-1", "999", "1e2", ""):
        status, words = error(door.post(INFER, b"{}", Inference_Header_Content_Length=wrong))
        assert status == 400 and "Inference-Header-Content-Length" in words


def test_connections_beyond_the_most_are_told_so(backend: ModelBackend) -> None:
    with open_in_thread(backend, limits=DoorLimits(connections=20)) as door:
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                client = stack.enter_context(door.connect())
            time.sleep(0.2)
            begun = time.monotonic()
            assert error(door.exchange(head("/v2", "GET"))) == (
                503,
                "20 connections are open, no more are taken",
            )
            assert time.monotonic() - begun < 0.5
            asked(client)  # who is in is served
        time.sleep(0.2)
        assert door.infer([[1, 2, 3, 4]]) == [[2, 4, 6, 8]]
