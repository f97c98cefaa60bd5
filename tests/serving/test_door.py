"""The door to the network over real sockets: Triton's own client, health, metrics, the token, ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doors import ModelBackend, OpenDoor, doubling_network, echoing_network, open_in_thread, read_answer
from onnx import TensorProto

from gkestimator.core.errors import UsageError
from gkestimator.serving.access import check_address, read_token
from gkestimator.serving.backend import RefusedError

pytest.importorskip("aiohttp", reason="needs ray[serve] (extra ray)")
pytest.importorskip("onnxruntime")
TOKEN = "s3cret-of-32-letters-and-digits--"


@pytest.fixture
def backend(tmp_path: Path) -> ModelBackend:
    kinds = {"words": TensorProto.STRING, "flags": TensorProto.BOOL, "counts": TensorProto.INT64}
    return ModelBackend(
        {
            "double": doubling_network(tmp_path / "double.onnx"),
            "zoo/wide": doubling_network(tmp_path / "wide.onnx", width=3 * 224 * 224),
            "echo": echoing_network(tmp_path / "echo.onnx", kinds),
        }
    )


@pytest.fixture
def door(backend: ModelBackend) -> Iterator[OpenDoor]:
    with open_in_thread(backend) as opened:
        yield opened


@pytest.fixture
def http() -> Any:
    """Triton's own client over HTTP."""
    pytest.importorskip("geventhttpclient", reason="needs tritonclient[http] (extra test)")
    from tritonclient import http

    return http


@contextlib.contextmanager
def triton_client(http: Any, door: OpenDoor, **options: Any) -> Iterator[Any]:
    client = http.InferenceServerClient(door.address, **options)
    try:
        yield client
    finally:
        client.close()


def test_tritons_client_is_answered(door: OpenDoor, http: Any) -> None:
    with triton_client(http, door) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("zoo/wide")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        metadata = client.get_model_metadata("zoo/wide", model_version="1")
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3 * 224 * 224]}]


@pytest.mark.parametrize("to_server", [True, False])
@pytest.mark.parametrize("to_client", [True, False])
def test_tritons_client_infers_in_bytes_and_in_json(
    door: OpenDoor, http: Any, to_server: bool, to_client: bool
) -> None:
    values = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    with triton_client(http, door) as client:
        entry = http.InferInput("x", [3, 4], "FP32")
        entry.set_data_from_numpy(values, binary_data=to_server)
        wanted = [http.InferRequestedOutput("y", binary_data=to_client)]
        answer = client.infer("double", [entry], outputs=wanted, request_id="r1", timeout=2_000_000)
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * values)
        assert answer.get_response()["id"] == "r1" and answer.get_response()["model_name"] == "double"
    assert door.backend.timeouts == [2000.0]


def test_tritons_client_sends_large_images_and_many_at_once(door: OpenDoor, http: Any) -> None:
    images = np.random.default_rng(1).standard_normal((8, 3 * 224 * 224)).astype(np.float32)
    with triton_client(http, door, concurrency=8) as client:
        pending = []
        for number in range(8):
            entry = http.InferInput("x", [1, 3 * 224 * 224], "FP32")
            entry.set_data_from_numpy(images[number : number + 1])
            pending.append(client.async_infer("zoo/wide", [entry]))
        for number, request in enumerate(pending):
            np.testing.assert_array_equal(request.get_result().as_numpy("y")[0], 2 * images[number])


def test_inputs_of_several_types_come_and_go_in_bytes(door: OpenDoor, http: Any) -> None:
    values = {
        "words": np.array([[["a", "bc", ""], ["größer", "\n", "x" * 500]]], dtype=object),
        "flags": np.array([[[True, False, True], [False, False, True]]]),
        "counts": np.arange(6, dtype=np.int64).reshape(1, 2, 3) * 10**15,
    }
    with triton_client(http, door) as client:
        entries = []
        for (name, array), datatype in zip(values.items(), ("BYTES", "BOOL", "INT64"), strict=True):
            entries.append(http.InferInput(name, [1, 2, 3], datatype))
            entries[-1].set_data_from_numpy(array)
        answer = client.infer("echo", entries)
        texts = [[text.decode() for text in row] for row in answer.as_numpy("words_out")[0]]
        assert texts == values["words"][0].tolist()
        for name in ("flags", "counts"):
            np.testing.assert_array_equal(answer.as_numpy(f"{name}_out"), values[name])


def test_json_alone_will_do(door: OpenDoor) -> None:
    assert door.infer([[1, 2, 3, 4], [5, 6, 7, 8]]) == [[2, 4, 6, 8], [10, 12, 14, 16]]


def test_health_says_what_is(door: OpenDoor) -> None:
    assert door.get("/v2/health/live")[0] == 200
    assert door.get("/v2/health/ready")[0] == 200
    door.backend.is_ready = False
    assert door.get("/v2/health/live")[0] == 200
    assert door.get("/v2/health/ready")[0] == 503
    assert door.get("/v2/models/double/ready")[0] == 503


def test_metrics_are_the_backends_and_the_doors(door: OpenDoor) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    door.infer([[1, 2, 3, 4]])
    door.infer([[1]])
    status, headers, body = door.get("/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [
        sample for family in parser.text_string_to_metric_families(body.decode()) for sample in family.samples
    ]
    found = {(s.name, s.labels.get("status")): s.value for s in samples}
    assert found["gkest_test", None] == 1
    assert found["gkest_door_answers_total", "200"] == found["gkest_door_answers_total", "400"] == 1
    assert found["gkest_door_connections", None] == 1  # the one that asks


@pytest.mark.parametrize("status", [429, 503, 504])
def test_a_refusal_of_the_backend_is_the_answer(door: OpenDoor, status: int) -> None:
    door.backend.failure = RefusedError(status, "it is so")
    assert door.infer([[1, 2, 3, 4]]) == (status, "it is so")


def test_a_model_that_fails_says_its_kind_alone_and_the_log_is_one_line(
    door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    door.backend.failure = ValueError("secret \x1b[2J\nroot logged in")
    assert door.infer([[1, 2, 3, 4]]) == (500, "the model failed: ValueError")
    (record,) = [r for r in caplog.records if r.name.startswith("gkestimator")]
    assert "ValueError" in record.getMessage()
    assert record.getMessage().isprintable() and record.getMessage().isascii()
    door.backend.failure = None
    assert door.infer([[1, 2, 3, 4]]) == [[2, 4, 6, 8]]


def test_whose_client_has_gone_is_not_run(door: OpenDoor) -> None:
    door.backend.hold = 30
    document = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    body = json.dumps(document).encode()
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: door\r\nContent-Length: {len(body)}\r\n\r\n"
    with door.connect() as client:
        client.sendall(head.encode() + body)
        while not door.backend.timeouts:
            time.sleep(0.01)
    end = time.monotonic() + 5
    while not door.backend.cancelled and time.monotonic() < end:
        time.sleep(0.01)
    assert door.backend.cancelled == 1


def test_a_door_that_closes_does_not_wait_for_idle_connections(backend: ModelBackend) -> None:
    with open_in_thread(backend) as door, door.connect() as idle, door.connect() as used:
        used.sendall(b"GET /v2 HTTP/1.1\r\nHost: door\r\n\r\n")
        assert read_answer(used)[0] == 200
        begun = time.monotonic()
        asyncio.run_coroutine_threadsafe(door.door.close(wait_s=5), door.loop).result(10)
        assert time.monotonic() - begun < 2
        assert idle.recv(1) == used.recv(1) == b""


def test_a_door_that_closes_answers_what_came(backend: ModelBackend) -> None:
    backend.hold = 0.2
    answers: list[Any] = []
    with open_in_thread(backend) as door:
        client = threading.Thread(target=lambda: answers.append(door.infer([[1, 2, 3, 4]])))
        client.start()
        while not backend.timeouts:
            time.sleep(0.01)
    client.join(5)
    assert answers == [[[2, 4, 6, 8]]]
    with pytest.raises(ConnectionRefusedError):
        door.connect()


# --- who may come in ----------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_but_by_health(backend: ModelBackend, http: Any) -> None:
    with open_in_thread(backend, token=TOKEN) as door:
        assert door.get("/v2/health/live")[0] == door.get("/v2/health/ready")[0] == 200
        for path in ("/v2", "/metrics", "/v2/models/double", "/nowhere"):
            status, headers, body = door.get(path)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert "Authorization: Bearer TOKEN" in json.loads(body)["error"]
        for wrong in ("Bearer", "Bearer x", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer gr\xfcn"):
            assert door.get("/v2", Authorization=wrong)[0] == 401
        assert door.get("/v2", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert door.infer([[1, 2, 3, 4]])[0] == 401
        assert door.backend.timeouts == []
    with open_in_thread(backend, token=TOKEN) as door, triton_client(http, door) as client:
        assert (
            client.get_server_metadata(headers={"Authorization": f"Bearer {TOKEN}"})["name"] == "gkestimator"
        )


def test_the_token_is_compared_in_constant_time(
    backend: ModelBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hmac

    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    with open_in_thread(backend, token=TOKEN) as door:
        door.get("/v2", Authorization="Bearer guess")
    assert compared == [(b"guess", TOKEN.encode())]


def test_a_token_is_read_from_a_file_that_is_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    path.chmod(0o640)  # a group of operators, or of a Kubernetes secret
    assert read_token(path) == TOKEN
    path.chmod(0o604)
    with pytest.raises(
        UsageError, match=r"everybody on this machine may read the token \(mode 604\): chmod 600"
    ):
        read_token(path)


@pytest.mark.parametrize(
    "text", [b"", b" \n", b"two words", b"two\nlines", b"\xff\xfe", b"x" * 5000, b"a\0b"]
)
def test_a_file_without_a_token_is_an_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=r"token: .*expected a token") as refused:
        read_token(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="the token cannot be read: No such file"):
        read_token(tmp_path / "nothing")


def test_without_a_token_it_listens_on_the_loopback_address_alone(backend: ModelBackend) -> None:
    from gkestimator.serving.door import open_door

    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, None)
    for host in ("0.0.0.0", "::", "192.0.2.7"):
        with pytest.raises(
            UsageError, match="found no token, without which the door listens on the loopback address alone"
        ) as refused:
            asyncio.run(open_door(backend, host=host, port=0))
        assert "\n" not in str(refused.value)
        check_address(host, TOKEN)
    with pytest.raises(UsageError, match="nowhere.invalid"):
        check_address("nowhere.invalid", TOKEN)


def test_two_requests_on_one_connection_are_answered_in_order(door: OpenDoor) -> None:
    request = b"GET /v2/models/double HTTP/1.1\r\nHost: door\r\n\r\nGET /v2 HTTP/1.1\r\nHost: door\r\n\r\n"
    with door.connect() as client:
        client.sendall(request)
        first = read_answer(client)
        assert (first[0], json.loads(first[2])["name"]) == (200, "double")
        second = read_answer(client)
        assert (second[0], json.loads(second[2])["name"]) == (200, "gkestimator")


def test_the_name_of_a_model_may_hold_what_urls_escape(tmp_path: Path) -> None:
    backend = ModelBackend({"zoo/v1+x#y": doubling_network(tmp_path / "m.onnx")})
    with open_in_thread(backend) as door:
        assert door.infer([[1, 2, 3, 4]], model="zoo/v1+x%23y") == [[2, 4, 6, 8]]
