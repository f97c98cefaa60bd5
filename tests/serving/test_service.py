"""A plan served for real, on Ray: over HTTP, through deaths of its parts, with re-plans, to its end."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pandas
import pytest
from _served_plans import planning, write_inputs

from gkestimator.serving.service import ServeSettings, Service, running_service
from gkestimator.simulation.replanning.settings import replanning_from

ray = pytest.importorskip("ray")
http = pytest.importorskip("tritonclient.http")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """One Ray on this machine for all services here."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200_000_000,
        log_to_driver=False,
        logging_level="error",
        _system_config={"worker_niceness": 0},
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("serving"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def service(session: None, folder: Path) -> Iterator[Service]:
    """An emulated service that plans again by USHER's threshold."""
    replan = replanning_from("usher", {"threshold_rps": 60, "headroom": 1.3, "load_ms": 100})
    settings = ServeSettings(
        plan=folder / "plan.json",
        planning=planning(folder, cluster=str(folder / "cluster.yaml"), replan=replan),
        models=None,
        port=free_port(),
        requests=folder / "requests.csv",
        state=folder / "state.json",
        timeout_s=10.0,
    )
    with running_service(settings, lambda line: None) as running:
        yield running


class Load:
    """Requests at even distances, each in a thread of the client's pool; every answer is counted."""

    def __init__(self, service: Service, rates_rps: dict[str, float], seconds: float) -> None:
        self.sent = 0
        self.answers: Counter[str] = Counter()
        self.by_second: dict[int, Counter[str]] = {}
        self._service = service
        self._rates = rates_rps
        self._seconds = seconds
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    async def _run(self) -> None:
        from tritonclient.http import aio

        client = aio.InferenceServerClient(self._service.url.removeprefix("http://"), conn_limit=200)
        begun = time.monotonic()
        await asyncio.gather(*(self._stream(client, name, rate, begun) for name, rate in self._rates.items()))
        await client.close()

    async def _stream(self, client: Any, model: str, rate: float, begun: float) -> None:
        tasks = []
        for number in range(int(rate * self._seconds)):
            wait_s = begun + number / rate - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(self._ask(client, model, begun)))
        await asyncio.gather(*tasks)

    async def _ask(self, client: Any, model: str, begun: float) -> None:
        self.sent += 1
        second = int(time.monotonic() - begun)
        answer = await ask(client, model)
        self.answers[answer] += 1
        self.by_second.setdefault(second, Counter())[answer] += 1


async def ask(client: Any, model: str) -> str:
    """Return ``ok``, or the status of the refusal."""
    tensor = http.InferInput("input", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.float32), binary_data=True)
    try:
        await client.infer(model, [tensor])
    except http.InferenceServerException as e:
        return str(e.status())
    except (OSError, aiohttp.ClientError):  # the server has gone
        return "closed"
    return "ok"


def test_every_model_is_answered_over_http(service: Service) -> None:
    client = http.InferenceServerClient(service.url.removeprefix("http://"))
    assert client.is_server_ready()
    for model in ("resnet", "bert", "mobile"):
        tensor = http.InferInput("input", [3, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((3, 1), np.float32), binary_data=True)
        answer = client.infer(model, [tensor]).as_numpy("output")
        assert answer.tolist() == [[0.0]] * 3
    with urllib.request.urlopen(f"{service.url}/metrics") as answer:
        assert b"gkest_serve_plan_version 1.0" in answer.read()


def test_a_worker_dies_and_every_request_is_answered(service: Service) -> None:
    with Load(service, {"resnet": 40, "bert": 30, "mobile": 50}, 6.0) as load:
        time.sleep(2.0)
        pids = service.pids()
        os.kill(pids["T4-0"], 9)
    assert load.answers.total() == load.sent > 700
    # What it held went to its neighbour, which had time left for most.
    assert set(load.answers) <= {"ok", "503"}
    assert load.answers["ok"] > 0.9 * load.sent
    lines: list[str] = []
    until = time.monotonic() + 20
    while time.monotonic() < until and not any("worker of T4-0: back" in line for line in lines):
        lines += service.look()
        time.sleep(0.2)
    assert "requests go elsewhere" in "\n".join(lines)
    assert "worker of T4-0: back" in "\n".join(lines)


def test_the_controller_dies_and_the_plan_goes_on(service: Service) -> None:
    before = ray.get(service.router.state.remote())
    pids = service.pids()
    with Load(service, {"resnet": 40, "bert": 30, "mobile": 60}, 5.0) as load:
        time.sleep(1.0)
        os.kill(pids["controller"], 9)
    assert load.answers == {"ok": load.sent}
    until = time.monotonic() + 20
    lines: list[str] = []
    while time.monotonic() < until and not any("controller is back" in line for line in lines):
        lines += service.look()
        time.sleep(0.2)
    assert f"the controller is back with plan {before.version}: " in "\n".join(lines)
    after = ray.get(service.router.state.remote())
    assert after == before
    assert service.pids()["controller"] != pids["controller"]


def test_a_step_of_the_rate_is_planned_for(service: Service) -> None:
    before = ray.get(service.router.state.remote())
    with Load(service, {"resnet": 180, "bert": 40, "mobile": 100}, 7.0) as load:
        pass
    after = ray.get(service.router.state.remote())
    assert after.version > before.version
    lines = "\n".join(service.look())
    assert f"plan {after.version} (resnet: from" in lines or f"plan {before.version + 1} (" in lines
    assert load.answers.total() == load.sent
    assert load.by_second[6]["ok"] > 0.9 * load.by_second[6].total()


def test_at_the_end_nothing_is_lost(service: Service, folder: Path) -> None:
    with Load(service, {"resnet": 60, "bert": 40, "mobile": 60}, 2.0) as load:
        time.sleep(1.0)
        assert service.drain(10.0) == 0
    assert load.answers["ok"] > 100
    assert set(load.answers) <= {"ok", "503", "closed"}
    log = pandas.read_csv(folder / "requests.csv")
    assert set(log["status"]) <= {"ok", "refused"}
    assert (log["total_ms"] < 10_100).all()
    assert log["plan_version"].max() > 1
    served = log[log["status"] == "ok"]
    parts = served[["router_ms", "network_ms", "queue_ms", "gpu_ms"]].sum(axis=1)
    assert np.allclose(parts, served["total_ms"], atol=0.01)


def test_models_are_computed_where_no_gpu_is(session: None, folder: Path, tmp_path: Path) -> None:
    for model, factor in (("resnet", 2.0), ("bert", 3.0), ("mobile", 4.0)):
        write_scaling_model(tmp_path / f"{model}.onnx", factor)
    settings = ServeSettings(
        plan=folder / "plan.json",
        planning=planning(folder, emulate=False),
        models=tmp_path,
        port=free_port(),
        drop=False,
    )
    said: list[str] = []
    with running_service(settings, said.append) as service:
        client = http.InferenceServerClient(service.url.removeprefix("http://"))
        tensor = http.InferInput("x", [2, 3], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
        for model, factor in (("resnet", 2.0), ("bert", 3.0), ("mobile", 4.0)):
            answer = client.infer(model, [tensor]).as_numpy("y")
            assert answer.tolist() == [[factor, 2 * factor, 3 * factor], [4 * factor, 5 * factor, 6 * factor]]
        with pytest.raises(http.InferenceServerException, match="x"):
            wrong = http.InferInput("x", [1, 4], "FP32")
            wrong.set_data_from_numpy(np.zeros((1, 4), np.float32))
            client.infer("resnet", [wrong])
        client.close()
    assert any("the CPU serves" in line for line in said)


def write_scaling_model(path: Path, factor: float) -> None:
    """Write a model that multiplies three numbers by ``factor``."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        "scaling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(np.array([factor], np.float32), "factor")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
