"""What the tests of the door share: a backend that computes in ONNX Runtime, and a door open in a thread of its own.

`python doors.py ONNX.. [limits as JSON]` opens one in a process of its own and prints where.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from gkestimator.exporting.ray_app.worker import LateQueue, QueueSettings, ServedModel
from gkestimator.serving.access import DEFAULT_LIMITS, DoorLimits
from gkestimator.serving.backend import Arrays, ServedSignature, signature_from

GOOD = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
INFER = "/v2/models/double/infer"


def doubling_network(path: Path, *, kind: int = TensorProto.FLOAT, width: int | str = 4) -> Path:
    """A model of one product: ``y`` is twice ``x``, whose samples are rows of ``width`` numbers."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["N", width])],
        [helper.make_tensor_value_info("y", kind, ["N", width])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def echoing_network(path: Path, kinds: Mapping[str, int]) -> Path:
    """A model that gives back each of its inputs, as ``<name>_out``."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in kinds]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, ["N", 2, 3]) for name, kind in kinds.items()],
        [helper.make_tensor_value_info(f"{name}_out", kind, ["N", 2, 3]) for name, kind in kinds.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


class ModelBackend:
    """Models of this process, by name: each request is batched late and run by ONNX Runtime."""

    def __init__(self, models: Mapping[str, Path], *, max_batch: int = 8) -> None:
        self.models = {name: ServedModel(path, threads=1) for name, path in models.items()}
        self.max_batch = max_batch
        self.is_ready = True
        self.timeouts: list[float | None] = []
        self.failure: Exception | None = None
        self.hold: float = 0.0
        self.cancelled = 0
        self._queues: dict[str, LateQueue] = {}

    def signatures(self) -> Mapping[str, ServedSignature]:
        return {
            name: signature_from(model.signature, max_batch=self.max_batch)
            for name, model in self.models.items()
        }

    def ready(self) -> bool:
        return self.is_ready

    async def infer(self, model: str, samples: Sequence[Arrays], timeout_ms: float | None) -> list[Arrays]:
        self.timeouts.append(timeout_ms)
        if self.failure is not None:
            raise self.failure
        try:
            await asyncio.sleep(self.hold)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if model not in self._queues:
            self._queues[model] = LateQueue(self.models[model].run, QueueSettings(cap=self.max_batch))
        queue = self._queues[model]
        answers = await asyncio.gather(*(queue.submit(sample) for sample in samples))
        return [outputs for outputs, _ in answers]

    def metrics(self) -> bytes:
        return b"# TYPE gkest_test gauge\ngkest_test 1\n"


class OpenDoor:
    """A door in a thread of its own: its address, its backend, and sockets to it."""

    def __init__(self, backend: ModelBackend, url: str, door: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.backend = backend
        self.loop = loop
        self.url = url
        self.door = door
        self.address = url.removeprefix("http://")
        host, _, port = self.address.rpartition(":")
        self.place = (host, int(port))

    def connect(self, timeout_s: float = 20) -> socket.socket:
        return socket.create_connection(self.place, timeout=timeout_s)

    def exchange(self, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send raw bytes, and return what comes back: status, headers (small letters) and body."""
        with self.connect() as client:
            with contextlib.suppress(ConnectionError):  # the answer may come before all is sent
                for part in parts:
                    client.sendall(part)
            return read_answer(client)

    def post(self, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return the answer to a POST; ``headers`` with _ for -."""
        lines = {"Host": "door", "Content-Length": str(len(body))}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return self.exchange(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        return self.exchange(f"GET {path} HTTP/1.1\r\nHost: door\r\n{lines}\r\n".encode())

    def infer(self, values: Sequence[Sequence[float]], model: str = "double") -> Any:
        """What a well-behaved client is answered, as JSON: the doubled rows, or the error."""
        document = {"inputs": [json_input("x", np.asarray(values, np.float32), "FP32")]}
        status, _, body = self.post(f"/v2/models/{model}/infer", json.dumps(document).encode())
        answer = json.loads(body)
        if status != 200:
            return status, answer["error"]
        (output,) = answer["outputs"]
        return np.reshape(output["data"], output["shape"]).tolist()


def json_input(name: str, values: np.ndarray[Any, Any], datatype: str) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(values.shape),
        "datatype": datatype,
        "data": values.ravel().tolist(),
    }


def read_answer(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer of HTTP/1.1, read to its end and no further."""
    with client.makefile("rb", buffering=0) as reader:
        first = reader.readline()
        if not first:
            raise ConnectionError("no answer")
        headers = {}
        while line := reader.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = b""
        while len(body) < int(headers.get("content-length", 0)):
            body += reader.read(int(headers["content-length"]) - len(body)) or b""
    return int(first.split()[1]), headers, body


def head(path: str = INFER, method: str = "POST", **headers: object) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nHost: door\r\n{lines}\r\n".encode("latin-1")


def asked(client: socket.socket) -> None:
    """Ask as a well-behaved client, on a connection that stays open."""
    body = json.dumps(GOOD).encode()
    with contextlib.suppress(ConnectionError):
        client.sendall(head(Content_Length=len(body)) + body)
        status, _, answer = read_answer(client)
        assert status == 200 and json.loads(answer)["outputs"][0]["data"] == [2, 4, 6, 8]


def error(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """The status and the one line of a refusal, which is JSON."""
    status, headers, body = answer
    assert headers["content-type"].startswith("application/json")
    document = json.loads(body)
    assert set(document) == {"error"} and "\n" not in document["error"] and len(document["error"]) < 400
    return status, document["error"]


@contextlib.contextmanager
def open_in_thread(
    backend: ModelBackend, *, token: str | None = None, limits: DoorLimits = DEFAULT_LIMITS
) -> Iterator[OpenDoor]:
    from gkestimator.serving.door import open_door

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    opening = open_door(backend, port=0, token=token, limits=limits)
    door = asyncio.run_coroutine_threadsafe(opening, loop).result(10)
    try:
        yield OpenDoor(backend, door.url, door, loop)
    finally:
        asyncio.run_coroutine_threadsafe(door.close(wait_s=1), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _serve(models: Mapping[str, Path], limits: DoorLimits) -> None:
    from gkestimator.serving.door import open_door

    door = await open_door(ModelBackend(models), port=0, limits=limits)
    print(door.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started it goes
    await door.close(wait_s=1)


if __name__ == "__main__":
    settings = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    asyncio.run(_serve({"double": Path(sys.argv[1])}, DoorLimits(**settings)))
