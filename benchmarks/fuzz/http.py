"""Send hostile HTTP to the door of ``gkest serve``: 20 requests a case, after each of which a right one is answered."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.serving.access import DoorLimits
from gkestimator.serving.backend import Arrays, ServedSignature, ServedTensor

REQUESTS = 20
_TRIES = 5
_LIMITS = DoorLimits(head_s=0.3, body_s=0.3, idle_s=0.6, write_s=0.3, connections=64)
_TOKEN = "right-token"
_MODELS: dict[str, tuple[tuple[str, tuple[int | None, ...]], ...]] = {
    "double": (("FP32", (4,)),),
    "any": (("FP32", (None, None)),),
    "text": (("BYTES", (None,)),),
    "mixed": (("INT64", (2,)), ("BOOL", (2,)), ("UINT64", ()), ("FP16", (1, 1, 3))),
}
_SIGNATURES = {
    name: ServedSignature(
        inputs=tuple(ServedTensor(name=f"x{i}", datatype=d, shape=s) for i, (d, s) in enumerate(tensors)),
        outputs=tuple(ServedTensor(name=f"y{i}", datatype=d, shape=s) for i, (d, s) in enumerate(tensors)),
        max_batch=8,
    )
    for name, tensors in _MODELS.items()
}
_GOOD = json.dumps(
    {"inputs": [{"name": "x0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
).encode()
_AUTHORITY = f"Authorization: Bearer {_TOKEN}\r\n".encode()


class _Echo:
    """A backend of this process: every model gives back its inputs."""

    def signatures(self) -> Mapping[str, ServedSignature]:
        return _SIGNATURES

    def ready(self) -> bool:
        return True

    async def infer(self, model: str, samples: Sequence[Arrays], timeout_ms: float | None) -> list[Arrays]:
        await asyncio.sleep(0)
        return [{name.replace("x", "y"): value for name, value in sample.items()} for sample in samples]

    def metrics(self) -> bytes:
        return b""


class _Log(logging.Handler):
    """Keep what is wrong with the log: an error, or a text that steers a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR or not (text.isascii() and text.isprintable()):
            self.wrong.append(f"log: {text!r}")


def prepare(cache: Path) -> None:
    """Load what a case needs."""
    import gkestimator.serving.door  # noqa: F401


def case(rng: random.Random, cache: Path, folder: Path) -> Callable[[], int]:
    """Return a function that opens a door and sends what ``rng`` makes."""
    seed = rng.getrandbits(64)
    return lambda: _run(random.Random(seed))


def _run(rng: random.Random) -> int:
    from gkestimator.serving.door import open_door

    log = _Log()
    logging.getLogger().addHandler(log)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    token = _TOKEN if rng.random() < 0.3 else None
    door = asyncio.run_coroutine_threadsafe(
        open_door(_Echo(), port=0, token=token, limits=_LIMITS), loop
    ).result(60)
    place = ("127.0.0.1", int(door.url.rpartition(":")[2]))
    wrong: list[str] = []
    for _ in range(REQUESTS):
        parts = _hostile(rng)
        wrong += [f"{problem} after {parts!r:.2000}" for problem in _exchange(place, parts)]
        if problem := _right_request_fails(place):
            wrong.append(f"{problem} after {parts!r:.2000}")
    asyncio.run_coroutine_threadsafe(door.close(wait_s=1), loop).result(60)
    for text in (*wrong, *log.wrong):
        print(f"Traceback (most recent call last): {text}")
    return int(bool(wrong or log.wrong))


def _exchange(place: tuple[str, int], parts: Sequence[bytes | float]) -> list[str]:
    """Send ``parts`` (a number: a pause in seconds) and return what is wrong with what comes back."""
    answer = b""
    with (
        socket.create_connection(place, timeout=3) as client,
        contextlib.suppress(OSError),
    ):
        for part in parts:
            if isinstance(part, float):
                time.sleep(part)
            else:
                client.sendall(part)
        if len(parts) == 1:
            client.shutdown(socket.SHUT_WR)
        while data := client.recv(2**16):
            answer += data
    if not answer:
        return []
    if not answer.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")) and answer[9:12] != b"505":
        return [f"no HTTP: {answer[:100]!r}"]
    wrong = []
    if answer[9:12] == b"500":
        wrong.append(f"500: {answer[-200:]!r}")
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.count(b"\r\n") > 20 or b"\x1b" in head:
        wrong.append(f"odd head {head[:300]!r}")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    whole = length is not None and len(body) == int(
        length[1]
    )  # a door that closes early may cut its own answer
    if answer[9:10] == b"4" and whole:
        words = json.loads(body)["error"]
        if not words.isprintable() or len(words) > 600:
            wrong.append(f"not one short line: {words[:200]!r}")
    return wrong


def _right_request_fails(place: tuple[str, int]) -> str:
    """Return what is wrong with the answer to a right request, if anything.

    A machine that stops this process for longer than the door waits lets a right request time out: it is sent again.
    """
    for _ in range(_TRIES):
        begun = time.monotonic()
        answer = _right_answer(place)
        if b'"data": [1.0, 2.0, 3.0, 4.0]' in answer:
            return ""
        if time.monotonic() - begun < _LIMITS.head_s:
            break
    return f"a right request got {answer!r:.300}"


def _right_answer(place: tuple[str, int]) -> bytes:
    answer = b""
    with socket.create_connection(place, timeout=20) as client, contextlib.suppress(ConnectionError):
        client.sendall(_post(_GOOD, authority=_AUTHORITY + b"Connection: close\r\n"))
        while part := client.recv(2**16):
            answer += part
    return answer


def _post(
    body: bytes, path: str = "/v2/models/double/infer", *, headers: bytes = b"", authority: bytes = b""
) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n".encode("latin-1", "replace")
    return head + authority + headers + b"\r\n" + body


def _hostile(rng: random.Random) -> list[bytes | float]:
    """Return one hostile connection's bytes, in parts."""
    make = rng.choice(
        [_line, _headers, _framing, _chunks, _json, _json, _values, _values, _binary, _binary, _flow, _noise]
    )
    parts = make(rng)
    if rng.random() < 0.6:
        parts = [
            p.replace(b"Host: a\r\n", b"Host: a\r\n" + _AUTHORITY) if isinstance(p, bytes) else p
            for p in parts
        ]
    if rng.random() < 0.15:
        parts = [_mutated(rng, p) if isinstance(p, bytes) else p for p in parts]
    return parts


def _mutated(rng: random.Random, data: bytes) -> bytes:
    mutable = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if mutable:
            mutable[rng.randrange(len(mutable))] = rng.choice([0, 10, 13, 27, 127, 255, rng.randrange(256)])
    return bytes(mutable[: rng.randint(0, len(mutable))]) if rng.random() < 0.3 else bytes(mutable)


_PATHS = (
    *(
        "/v2/models/../../etc/passwd",
        "/v2/models/double/../double/infer",
        "//v2/models/double/infer",
        "*",
        "/%2e%2e/",
        "/v2/models/%00/infer",
    ),
    *(
        "/v2/models/%ff%fe/infer",
        "/v2/models/%1b%5b2J/infer",
        "http://[::1/v2",
        "http://a:99999/v2",
        "http://b@a/v2",
        "/v2/models/double/versions/1/infer",
    ),
    *(
        "/v2/models/double/versions/%2e%2e/infer",
        "/v2;a",
        "/v2?x=%",
        "/v2#f",
        "/v2/models/" + "a/" * 500,
        "/metrics",
        "/v2/models/\u202e",
        "?",
        "",
        "/" + "x" * 9000,
    ),
    *(
        "http://\u2100.com/",
        "/v2/models/double%2Finfer",
        "https://",
        "/v2/models/double/ready/infer",
        "/v2/models//ready",
        "//",
        "///x@:1",
    ),
)


def _line(rng: random.Random) -> list[bytes | float]:
    words = ["GET", "POST", "get", "CONNECT", "OPTIONS", "TRACE", "PRI", "HEAD", "PUT"]
    method = rng.choice([*words, "G" * 5000, "G\x00T", "", "\u202e"])
    version = rng.choice(
        ["HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/99.9", "HTTP/1.", "", "ICY/1.1", "HTTP/1.1 x"]
    )
    end = rng.choice(["\r\n", "\n", "\r", "\r\n\r\n", "\x00\r\n"])
    text = f"{method} {rng.choice(_PATHS)} {version}{end}Host: a\r\nConnection: close\r\n\r\n"
    return [text.encode(errors="replace")]


def _headers(rng: random.Random) -> list[bytes | float]:
    header = rng.choice([
        b"A: " + b"x" * rng.choice([8_000, 8_190, 70_000]), b"A: b\r\n" * rng.choice([50, 5_000]), b"A : b", b" A: b", b"A\x00: b", b": b",
        b"Host: b", b"Authorization: Bearer " + b"\xff" * 50, b"Authorization: Bearer " + b"a" * 7_000, b"Authorization: Basic x",
        b"Authorization: bearer right-token\r\nAuthorization: Bearer no", b"Inference-Header-Content-Length: " + rng.choice([b"-1", b"1e3", b"\xb2", b"9" * 4000, b"0", b"+1", b" "]),
        b"Expect: 100-continue", b"Expect: 200-ok", b"Upgrade: websocket\r\nConnection: upgrade", b"Cookie: " + b"a=b;" * 1500, b"Accept-Encoding: gzip",
        b"Content-Type: text/plain; charset=\x1b[31m", b"Connection: " + b"close," * 900, b"Content-Encoding: gzip, br", b"Range: bytes=0-", b"Content-Type: multipart/form-data; boundary=",
    ])  # fmt: skip
    return [_post(_GOOD, headers=header + b"\r\n")]


def _framing(rng: random.Random) -> list[bytes | float]:
    lies = rng.sample([
        b"Content-Length: 5", b"Content-Length: 6", b"Content-Length: -1", b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length: 99999999999999999999", b"Content-Length: 0x5",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: \x0bchunked", b"Transfer-Encoding : chunked", b"Content-Length: 5_0", b"Content-Length: " + b"0" * 500,
    ], rng.randint(1, 3))  # fmt: skip
    body = rng.choice(
        [
            b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            b"5\r\nabcde\r\n0\r\n\r\n",
            _GOOD,
            b"abcde",
            b"",
        ]
    )
    return [b"POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\n" + b"\r\n".join(lies) + b"\r\n\r\n" + body]


def _chunks(rng: random.Random) -> list[bytes | float]:
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    size = rng.choice(
        [
            b"5",
            b"-5",
            b"FFFFFFFFFFFFFFFF",
            b"0x5",
            b"5;" + b"a" * 9000,
            b"5 ",
            b"",
            b"G",
            b"00000000000000005",
            b"5;\x1b=\n",
            b"5_5",
            b"FFFFFFF",
        ]
    )
    chunk = size + b"\r\nabcde" + rng.choice([b"\r\n", b"\n", b"", b"xx"])
    ending = rng.choice(
        [
            b"0\r\n\r\n",
            b"0\r\nA: b\r\n\r\n",
            b"0\r\n" + b"A: b\r\n" * 3000 + b"\r\n",
            b"",
            b"0\r\nContent-Length: 5\r\n\r\n",
        ]
    )
    return [head + chunk * rng.choice([1, 3, 2000]) + ending]


def _deep(rng: random.Random) -> Any:
    value: Any = 1
    for _ in range(rng.choice([30, 64, 70, 500, 900])):
        value = [value] if rng.random() < 0.9 else {"a": value}
    return value


def _odd(rng: random.Random) -> Any:
    """Return a value of JSON that is seldom expected."""
    return rng.choice([
        None, True, -1, 0, 2**31, 2**63, 2**64, 10**400, -(10**18), 1.5, 1e308, -0.0, "", "x0", "\x1b[2J\n", "\ud800", "\u202e", "a" * 70_000, [], {}, [[]], {"a": 1}, [None], [1, [2]], _deep(rng),
        ["\ud800"], [True, 1.5], ["1"], [10**30], [2**64 - 1, 1], [1e400 if rng.random() < 0.1 else 1e38], [0] * 5000, {"binary_data_size": -1}, {"binary_data_size": 1e3}, {"timeout": 0}, {"timeout": 2**70}, {"binary_data_output": "x"},
    ])  # fmt: skip


def _entry(rng: random.Random, number: int, datatype: str, shape: tuple[int | None, ...]) -> dict[str, Any]:
    sizes = [rng.choice([1, 1, 2, 8]), *(rng.choice([1, 3]) if size is None else size for size in shape)]
    value: Any = {"BYTES": rng.choice(["ä", "\ud800", ""]), "BOOL": True}.get(datatype, 1)
    return {"name": f"x{number}", "shape": sizes, "datatype": datatype, "data": [value] * int(np.prod(sizes))}


def _valid(rng: random.Random) -> tuple[str, dict[str, Any]]:
    model = rng.choice(list(_MODELS))
    inputs = [_entry(rng, i, *tensor) for i, tensor in enumerate(_MODELS[model])]
    return f"/v2/models/{model}/infer", {
        "id": "7",
        "inputs": inputs,
        "outputs": [{"name": "y0"}],
        "parameters": {"timeout": 10**6, "binary_data_output": rng.random() < 0.3},
    }


def _values(rng: random.Random) -> list[bytes | float]:
    """A right document with some fields replaced, left out or repeated."""
    path, document = _valid(rng)
    for _ in range(rng.randint(0, 3)):
        target = (
            rng.choice([document, *document["inputs"]])
            if isinstance(document.get("inputs"), list) and document["inputs"]
            else document
        )
        if not isinstance(target, dict) or not target:
            continue
        key = rng.choice([*target, "parameters"])
        how = rng.random()
        if how < 0.15:
            target.pop(key, None)
        elif how < 0.3 and isinstance(target.get(key), list) and target[key]:
            target[key] = target[key] * rng.choice([0, 2, 40])
        elif how < 0.45 and isinstance(target.get(key), list) and target[key]:
            target[key][rng.randrange(len(target[key]))] = _odd(rng)
        else:
            target[key] = _odd(rng)
    with contextlib.suppress(RecursionError):
        return [_post(json.dumps(document).encode(), path)]
    return [b"GET / HTTP/1.1\r\n\r\n"]


def _json(rng: random.Random) -> list[bytes | float]:
    """Bytes that are no JSON, or JSON that costs."""
    depth = rng.choice([10, 900, 5_000, 30_000])
    body = rng.choice([
        b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth, b"1" * depth, b"-" + b"9" * 4301, b"1e" + b"9" * 400, b"NaN", b'{"inputs": Infinity}', b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"", b"{", b'"\\ud800"', b"nul",
        b'{"inputs": [], "inputs": 3, "inputs": ' + _GOOD[11:], b"{" + b'"a": 1, ' * depth + b'"b": 2}', b'{"inputs": [' + b"{}," * depth + b"{}]}", _GOOD.replace(b"4]", b"1e400]"), _GOOD.replace(b"[1, 4]", b"[1, 4.0]"),
        _GOOD.replace(b"[1, 2", b"[NaN, 2"), _GOOD.replace(b"3, 4", b"3, " + b"4" * 4300), _GOOD.decode().encode("utf-16"), _GOOD.decode().encode("utf-32"), gzip.compress(b"0" * 10_000_000), _GOOD + b"\0",
    ])  # fmt: skip
    headers = b"Content-Encoding: gzip\r\n" if body[:2] == b"\x1f\x8b" or rng.random() < 0.1 else b""
    return [_post(body, headers=headers)]


def _binary(rng: random.Random) -> list[bytes | float]:
    """The binary extension with lengths that lie."""
    path, document = _valid(rng)
    raw = b""
    for entry in document["inputs"]:
        count = len(entry.pop("data"))
        sizes = {"INT64": 8, "UINT64": 8, "FP16": 2, "BOOL": 1, "FP32": 4}
        part = rng.randbytes(count * sizes.get(entry["datatype"], 0))
        if entry["datatype"] == "BOOL":
            part = bytes(count)
        elif entry["datatype"] == "BYTES":
            part = b"".join(
                struct.pack("<I", rng.choice([2, 2, 2, 0, 2**32 - 1])) + rng.choice([b"ab", b"\xff\xff"])
                for _ in range(count)
            )
        size: Any = len(part)
        if rng.random() < 0.25:
            size = rng.choice([size + 1, -size, size - 1, 2**63, True, 0, "4", None])
        entry["parameters"] = {"binary_data_size": size}
        raw += part
    document["parameters"] = {"binary_data_output": rng.choice([True, False, 1, "x"])}
    words = json.dumps(document).encode()
    length = rng.choice([len(words)] * 5 + [len(words) + 1, len(words) - 1, 0, len(words) + len(raw)])
    return [_post(words + raw, path, headers=f"Inference-Header-Content-Length: {length}\r\n".encode())]


def _flow(rng: random.Random) -> list[bytes | float]:
    """Requests that come slowly, in pieces, in a row, or end early."""
    request = _post(_GOOD)
    kind = rng.randrange(5)
    if kind == 0:
        return [request[: rng.randint(0, len(request))], 0.35 if rng.random() < 0.3 else 0.01]
    if kind == 1:
        cuts = sorted(rng.sample(range(len(request)), 4))
        pieces = [request[a:b] for a, b in zip([0, *cuts], [*cuts, len(request)], strict=True)]
        return [part for piece in pieces for part in (piece, 0.01)]
    if kind == 2:
        return [request * rng.choice([2, 50, 300])]
    if kind == 3:
        return [request + rng.randbytes(50) + request]
    return [_post(_GOOD, headers=b"Expect: 100-continue\r\n")[: -len(_GOOD)], 0.02, _GOOD + request]


def _noise(rng: random.Random) -> list[bytes | float]:
    return [
        rng.choice(
            [b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n" * 500, b"\0" * 5000, b""]
        )
        + rng.randbytes(rng.randint(0, 300))
    ]
