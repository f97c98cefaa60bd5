"""The application of the Ray Serve export: its parts, and all of it in a real local Ray Serve on stand-ins for GPUs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
import yaml
from serving import deployment, instance

from gkestimator.exporting.ray_serve import RayServeExporter
from gkestimator.exporting.writing import write_files

pytest.importorskip("ray.serve", reason="needs ray[serve] (extra ray)")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The application as it is exported, imported from a folder of its own."""
    folder = tmp_path_factory.mktemp("app")
    write_files(folder, RayServeExporter().files(deployment([instance()])))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        return importlib.import_module("gkest_serve_app")


@pytest.fixture(scope="module")
def worker(app: Any) -> Any:
    """The worker, as the application imported it."""
    return sys.modules["gkest_serve_worker"]


def images(count: int, *, side: int = 8) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).standard_normal((count, 3, side, side)).astype(np.float32)


def expected(path: Path, batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"image": one[None]})[0] for one in batch])


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("gkest_serve_app", {"gkest_serve_worker", "numpy", "ray", "starlette"}),
        ("gkest_serve_worker", {"numpy", "onnxruntime"}),
    ],
)
def test_the_application_needs_nothing_of_gkestimator(app: Any, module: str, needs: set[str]) -> None:
    tree = ast.parse(Path(app.__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    imported = {
        alias.name.partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
    } | {n.module.partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    assert imported - set(sys.stdlib_module_names) == needs


def test_a_batch_answers_each_sample_for_itself(app: Any, tmp_path: Path) -> None:
    path = serving.network(tmp_path / "m.onnx")
    model = app.ServedModel(path)
    batch = images(5)
    samples = [model.sample({"image": one.tolist()}) for one in batch]
    answers = model.run(samples)
    np.testing.assert_allclose([a["scores"] for a in answers], expected(path, batch), rtol=1e-5, atol=1e-6)


def test_a_file_of_one_batch_size_is_filled_up(app: Any, tmp_path: Path) -> None:
    path = serving.network(tmp_path / "m.onnx", batch=4)
    model = app.ServedModel(path)
    assert model.fixed_batch == 4
    batch = images(3)
    answers = model.run([model.sample({"image": one}) for one in batch])
    whole = onnxruntime.InferenceSession(path).run(None, {"image": np.concatenate([batch, batch[-1:]])})[0]
    np.testing.assert_allclose([a["scores"] for a in answers], whole[:3], rtol=1e-5, atol=1e-6)


def test_samples_of_several_shapes_are_answered_in_order(app: Any, tmp_path: Path) -> None:
    path = serving.network(tmp_path / "m.onnx", sides=None)
    model = app.ServedModel(path)
    samples = [images(1, side=side)[0] for side in (8, 6, 8, 7)]
    answers = model.run([model.sample({"image": one}) for one in samples])
    for one, answer in zip(samples, answers, strict=True):
        np.testing.assert_allclose(answer["scores"], expected(path, one[None])[0], rtol=1e-5, atol=1e-6)


def test_outputs_without_the_batch_are_left_out(app: Any, tmp_path: Path) -> None:
    model = app.ServedModel(serving.two_outputs(tmp_path / "m.onnx"))
    (answer, _) = model.run([model.sample({"x": [1, 2, 3, 4, 5, 6]}), model.sample({"x": [0] * 6})])
    assert {name: values.tolist() for name, values in answer.items()} == {"y": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"expected inputs \['image'\]"),
        ({"image": images(1)[0], "more": 1}, "expected inputs"),
        ([1], "expected inputs"),
        ({"image": images(1)}, r"found shape \[1, 3, 8, 8\]"),
        ({"image": images(1, side=7)[0]}, r"found shape \[3, 7, 7\]"),
        ({"image": "x"}, "expected tensor"),
        ({"image": [[1], [1, 2]]}, "expected tensor"),
    ],
)
def test_a_wrong_request_is_told_what_is_expected(app: Any, tmp_path: Path, given: Any, said: str) -> None:
    model = app.ServedModel(serving.network(tmp_path / "m.onnx"))
    with pytest.raises(app.BadRequestError, match=said):
        model.sample(given)


def test_whole_numbers_are_not_rounded_into_being(worker: Any) -> None:
    kind = np.dtype(np.uint8)
    assert worker._exact(np.asarray([3.0, 255]), kind).tolist() == [3, 255]
    for wrong in ([1.5], [-1], [256], ["x"], [float("nan")]):
        with pytest.raises(ValueError), np.errstate(invalid="ignore"):
            worker._exact(np.asarray(wrong), kind)


def test_requests_are_divided_by_weight(app: Any) -> None:
    class Handle:
        def __init__(self) -> None:
            self.infer_timed, self.got = self, 0

        async def remote(self, inputs: Any) -> tuple[dict[str, Any], None]:
            self.got += 1
            return {}, None

    handles = [Handle(), Handle(), Handle()]
    router = app.Router({"a": 300.0, "b": 100.0, "c": 0.0}, *handles)

    async def send() -> None:
        for number in range(1, 401):
            await router.infer({})
            assert abs(handles[0].got - 0.75 * number) <= 1  # never far behind, not only in the end

    asyncio.run(send())
    assert [h.got for h in handles] == [300, 100, 0]


# --- a real Ray Serve ---------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def ray_session(folder: Path, job: dict[str, Any], *, app: Path, models: Path) -> list[dict[str, Any]]:
    """What ray_serve_session.py answers; every process that it starts is gone afterwards."""
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job | {"port": free_port()}))
    env = {
        **os.environ,
        "GKEST_MODELS": str(models),
        "PYTHONPATH": str(app),
        "HOME": str(folder),  # Ray keeps a token and its usage there
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    env.pop("RAY_ADDRESS", None)  # a cluster of this machine is none of the test's
    script = Path(__file__).parent / "ray_serve_session.py"
    with open(folder / "ray.log", "w+", encoding="utf-8") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", str(script), str(job_file)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = child.communicate(timeout=280)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        log.seek(0)
        assert child.returncode == 0, log.read()[-3000:]
    answer: list[dict[str, Any]] = json.loads(out.strip().splitlines()[-1])
    return answer


def requests(application: str, batch: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"application": application, "inputs": {"image": np.asarray(one).tolist()}} for one in batch]


@pytest.mark.slow
def test_a_real_ray_serve_starts_the_deployments_and_answers(tmp_path: Path) -> None:
    """Two GPUs stand in as numbers. A model at two batch sizes behind one door, one from a folder; then a
    configuration that asks for more than there is."""
    models = tmp_path / "models"
    small = serving.network(models / "small.onnx")
    other = serving.network(models / "zoo" / "other.v1+x#y.onnx", seed=1)
    fits = [
        instance("small", id="small-0", batch_size=4, creq_pct=40.0),
        instance("small", id="small-1", gpu_id="V100-SXM2-16GB-1", batch_size=2, goodput_rps=100.0),
        instance("zoo/other.v1+x#y", gpu_id="V100-SXM2-16GB-1", creq_pct=60.00001),
    ]
    # Three of 0.6 on two GPUs: two come up, one stays pending.
    over = [
        instance("small", id="small-0", batch_size=4, creq_pct=30.0),
        *(instance("big", id=f"big-{n}", gpu_id=f"V100-SXM2-16GB-{n}", creq_pct=60.0) for n in range(3)),
    ]
    serving.network(models / "big.onnx")
    for name, plan in (("fits", fits), ("over", over)):
        write_files(tmp_path / name, RayServeExporter().files(deployment(plan)))
    batch = images(6)
    job = {
        "gpus": 2,
        "accelerators": ["V100"],
        "stages": [
            {
                "folder": str(tmp_path / "fits"),
                "wait_s": 120,
                "until": None,
                "requests": [
                    *requests("small", batch),
                    *requests("zoo_other.v1_x_y", batch),
                    {"application": "small", "inputs": {"picture": [1]}},
                ],
            },
            {
                "folder": str(tmp_path / "over"),
                "wait_s": 60,
                "until": {"small": 1, "big": 2},
                "requests": requests("small", batch[:1]),
            },
        ],
    }
    first, second = ray_session(tmp_path, job, app=tmp_path / "fits", models=models)

    assert first["states"] == {"small": "RUNNING", "zoo_other.v1_x_y": "RUNNING"}
    running = {name: [way["RUNNING"] for way in ways.values()] for name, ways in first["replicas"].items()}
    assert running == {"small": [1, 1, 1], "zoo_other.v1_x_y": [1]}
    answers = [a["outputs"]["scores"] for a in first["answers"][:12]]
    np.testing.assert_allclose(answers[:6], expected(small, batch), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(answers[6:], expected(other, batch), rtol=1e-5, atol=1e-6)
    assert first["answers"][12]["text"] == '{"error":"expected inputs [\'image\']"}'

    assert second["states"]["small"] == "RUNNING" and second["states"]["big"] == "DEPLOYING"
    assert second["replicas"]["big"]["big"] in ({"RUNNING": 2, "STARTING": 1}, {"RUNNING": 2})
    np.testing.assert_allclose(second["answers"][0]["outputs"]["scores"], answers[0], rtol=1e-5, atol=1e-6)


def spent(answer: dict[str, Any]) -> dict[str, float]:
    """The header Server-Timing: the size of the batch, and milliseconds in the queue and in the run."""
    pattern = r'batch;desc="(\d+)", queue;dur=([\d.]+), run;dur=([\d.]+)'
    batch, queue, run = map(float, re.fullmatch(pattern, answer["spent"]).groups())  # type: ignore[union-attr]
    return {"batch": batch, "queue": queue, "run": run}


@pytest.mark.slow
def test_a_real_ray_serve_batches_late_and_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """One replica of a model of some 20 ms a sample: requests one by one, twelve at a time, and far more than it can do."""
    models = tmp_path / "models"
    path = serving.slow_network(models / "slow.onnx", layers=24)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    values = np.linspace(-1, 1, 50, dtype=np.float32)
    scores = [session.run(None, {"x": np.array([[v]])})[0][0] for v in values]
    begun = time.perf_counter()
    session.run(None, {"x": values[:4, None]})
    latency_ms = (time.perf_counter() - begun) * 1e3
    plan = [instance("slow", batch_size=4, max_batch_size=6, latency_ms=latency_ms, slo_ms=1000.0)]
    files = RayServeExporter().files(deployment(plan))
    write_files(tmp_path / "app", files)
    timeout_s = yaml.safe_load(files[0].text)["http_options"]["request_timeout_s"]
    stage = {"folder": str(tmp_path / "app"), "wait_s": 120, "until": None}
    sent = [{"application": "slow", "inputs": {"x": [float(v)]}} for v in values]
    job = {
        "gpus": 1,
        "accelerators": ["V100"],
        "stages": [
            stage | {"requests": sent[:5], "at_once": 1},
            stage | {"requests": sent[:36], "at_once": 12},
            stage | {"requests": sent * 8, "at_once": 200},
        ],
    }
    one_by_one, twelve, overload = ray_session(tmp_path, job, app=tmp_path / "app", models=models)

    for answer, score in zip(one_by_one["answers"], scores, strict=False):
        np.testing.assert_allclose(answer["outputs"]["y"], score, rtol=1e-4, atol=1e-5)
        assert spent(answer)["batch"] == 1
        assert spent(answer)["queue"] < latency_ms  # free: it does not wait for others
    for answer, score in zip(twelve["answers"], scores, strict=False):
        np.testing.assert_allclose(answer["outputs"]["y"], score, rtol=1e-4, atol=1e-5)
    batches = [spent(answer)["batch"] for answer in twelve["answers"]]
    assert max(batches) == 6 and np.mean(batches) > 2  # formed while the model was busy, up to the plan's cap

    answered = [a for a in overload["answers"] if "outputs" in a]
    refused = [a for a in overload["answers"] if "outputs" not in a]
    assert len(answered) > 20 and len(refused) > 20
    assert {a["status"] for a in refused} <= {429, 503}
    said = {a["text"] for a in refused}  # by Ray's proxy, whose queue is full, or by the worker
    assert all("Request dropped due to backpressure" in text or '{"error":"' in text for text in said)
    assert np.mean([spent(a)["batch"] for a in answered]) > 4
    assert max(a["seconds"] for a in overload["answers"]) < timeout_s
