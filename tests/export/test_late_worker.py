"""Late batching, the worker of the exported application and of `gkest serve`: when batches form, who is refused, who waits."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from hypothesis import given
from hypothesis import strategies as st

from gkestimator.exporting.ray_app.worker import (
    DeviceLane,
    LatencyCurve,
    LateQueue,
    QueueSettings,
    RefusedError,
    ServedModel,
    Timing,
)


class Device:
    """A model that takes its time: every batch as long as ``seconds``; it keeps the batches that it ran."""

    def __init__(self, seconds: float = 0.03) -> None:
        self.seconds = seconds
        self.batches: list[list[Any]] = []
        self.together = 0
        self.most_together = 0
        self.lock = threading.Lock()

    def __call__(self, samples: list[Any]) -> list[Any]:
        with self.lock:
            self.together += 1
            self.most_together = max(self.most_together, self.together)
            self.batches.append(samples)
        time.sleep(self.seconds)
        with self.lock:
            self.together -= 1
        return [("answer", sample) for sample in samples]


async def submitted(queue: LateQueue, samples: Sequence[Any], **fields: Any) -> list[Any]:
    """What each of ``samples``, submitted at once, was answered: a pair of answer and timing, or the refusal."""
    return await asyncio.gather(*(queue.submit(s, **fields) for s in samples), return_exceptions=True)


def statuses(answers: Sequence[Any]) -> list[int]:
    return [a.status if isinstance(a, RefusedError) else 200 for a in answers]


def test_batches_form_while_the_device_is_busy_and_nobody_waits_while_it_is_free() -> None:
    device = Device()

    async def go() -> list[Any]:
        queue = LateQueue(device, QueueSettings(cap=4))
        alone = await queue.submit("alone")
        together = await submitted(queue, range(9))
        assert queue.counters.answered == 10 and queue.counters.batches == 4
        assert queue.counters.in_batches == 10 and queue.outstanding == 0
        return [alone, *together]

    alone, *together = asyncio.run(go())
    assert alone[0] == ("answer", "alone") and alone[1].batch == 1
    assert alone[1].queue_ms < 29  # the device was free: it did not wait for others
    # The first runs alone, because the device was free; the others form batches of the oldest, up to the cap.
    assert device.batches == [["alone"], [0], [1, 2, 3, 4], [5, 6, 7, 8]]
    assert [a[0] for a in together] == [("answer", n) for n in range(9)]
    waits = [a[1].queue_ms for a in together]
    assert waits[0] < 29 and min(waits[1:5]) >= 29 and min(waits[5:]) >= 59


def test_a_coroutine_function_runs_in_the_loop() -> None:
    async def run(samples: list[int]) -> list[int]:
        await asyncio.sleep(0.01)
        return [-s for s in samples]

    async def go() -> list[Any]:
        return await submitted(LateQueue(run, QueueSettings(cap=8)), [1, 2, 3])

    assert [a[0] for a in asyncio.run(go())] == [-1, -2, -3]


def test_who_cannot_be_answered_in_time_is_refused_and_the_others_are_in_time() -> None:
    """Batches of two in 40 ms, 100 ms for all: the first alone, two more pairs have begun by 80 ms and none after."""
    device = Device(0.04)

    async def go() -> list[Any]:
        curve = LatencyCurve({2: 40.0})
        queue = LateQueue(device, QueueSettings(cap=2, latency_ms=curve))
        answers = await submitted(queue, range(20), deadline=time.monotonic() + 0.135)
        assert queue.counters.shed == 20 - queue.counters.answered
        return answers

    answers = asyncio.run(go())
    assert 1 <= statuses(answers).count(200) <= 5  # fewer on a machine that is busy
    assert all(a[1].queue_ms + 40 < 136 for a in answers if not isinstance(a, RefusedError))
    assert {a.status for a in answers if isinstance(a, RefusedError)} == {503}


def test_the_batch_about_to_run_decides_who_is_late() -> None:
    """Three wait, and a batch of three would end too late for the first; of two it would not be: the first is refused."""

    async def go() -> list[Any]:
        device = Device(0.01)
        queue = LateQueue(device, QueueSettings(cap=3, latency_ms=LatencyCurve({1: 10.0, 2: 20.0, 3: 500.0})))
        running = asyncio.create_task(queue.submit("running"))
        await asyncio.sleep(0)
        soon = time.monotonic() + 0.3
        answers = await submitted(queue, ["a", "b", "c"], deadline=soon)
        await running
        return [*answers, device.batches]

    *answers, batches = asyncio.run(go())
    assert statuses(answers) == [503, 200, 200]
    assert batches == [["running"], ["b", "c"]]


def test_a_full_queue_refuses_at_once() -> None:
    async def go() -> tuple[list[Any], float]:
        queue = LateQueue(Device(0.3), QueueSettings(cap=4, max_waiting=3))
        begun = time.monotonic()
        rest = asyncio.create_task(submitted(queue, range(4)))  # one runs, three wait
        await asyncio.sleep(0.005)
        with pytest.raises(RefusedError, match="the queue is full: 3 requests wait") as refused:
            await queue.submit("beyond")
        seconds = time.monotonic() - begun
        assert refused.value.status == 429 and queue.counters.full == 1
        return await rest, seconds

    answers, seconds = asyncio.run(go())
    assert statuses(answers) == [200] * 4 and seconds < 0.3


def test_nobody_waits_beyond_the_time_out_be_it_in_the_queue_or_in_the_run() -> None:
    device = Device(0.4)

    async def go() -> list[Any]:
        queue = LateQueue(device, QueueSettings(cap=1, timeout_s=0.1))
        begun = time.monotonic()
        answers = await submitted(queue, range(3))
        assert 0.09 < time.monotonic() - begun < 0.39
        assert queue.counters.timed_out == 3 and queue.outstanding == 1  # the one that still runs
        await queue.drain()
        return answers

    answers = asyncio.run(go())
    assert statuses(answers) == [504, 504, 504]
    assert str(answers[0]) == "no answer within 0.1 s"
    assert device.batches == [[0]]  # who was refused in the queue is not run


def test_whose_client_has_gone_is_not_run() -> None:
    device = Device()

    async def go() -> None:
        queue = LateQueue(device, QueueSettings(cap=1))
        first, second, third = (asyncio.create_task(queue.submit(n)) for n in range(3))
        await asyncio.sleep(0.005)
        second.cancel()
        await asyncio.gather(first, third)
        assert queue.counters.cancelled == 1 and queue.counters.answered == 2

    asyncio.run(go())
    assert device.batches == [[0], [2]]


def test_whose_client_goes_in_the_moment_a_batch_is_formed_is_neither_run_nor_refused() -> None:
    async def go() -> None:
        settings = QueueSettings(cap=8, latency_ms=LatencyCurve({1: 10.0}))
        queue = LateQueue(Device(), settings)
        running = asyncio.create_task(queue.submit("running"))
        late = asyncio.create_task(queue.submit("late", deadline=time.monotonic()))
        waiting = asyncio.create_task(queue.submit("waiting"))
        await asyncio.sleep(0.005)
        late.cancel()
        waiting.cancel()  # their tasks have not run since
        assert queue.form_batch() == []
        assert queue.counters.shed == 0
        await running

    asyncio.run(go())


def test_an_error_is_the_answer_of_its_own_batch_alone() -> None:
    def run(samples: list[Any]) -> list[Any]:
        time.sleep(0.01)
        if "bad" in samples:
            raise ValueError("no such kernel")
        return samples if "few" not in samples else []

    async def go() -> list[Any]:
        queue = LateQueue(run, QueueSettings(cap=2))
        answers = await submitted(queue, ["good", "bad", "beside", "good", "good", "few"])
        assert queue.counters.failed == 3 and queue.counters.answered == 3
        return answers

    answers = asyncio.run(go())
    assert [type(a).__name__ for a in answers] == [
        "tuple",
        "ValueError",
        "ValueError",
        "tuple",
        "tuple",
        "RuntimeError",
    ]
    assert "0 answers to 1 samples" in str(answers[-1])


def test_models_of_one_device_take_turns_by_their_oldest_request() -> None:
    device = Device(0.02)

    async def go() -> None:
        lane = DeviceLane()
        left, right = (LateQueue(device, QueueSettings(cap=8), lane) for _ in range(2))
        order = [("l1", left), ("l2", left), ("r1", right), ("l3", left), ("r2", right)]
        await asyncio.gather(*(queue.submit(name) for name, queue in order))

    asyncio.run(go())
    assert device.batches == [["l1"], ["l2", "l3"], ["r1", "r2"]]
    assert device.most_together == 1


def test_devices_run_beside_each_other() -> None:
    device = Device(0.1)

    async def go() -> None:
        queues = [LateQueue(device, QueueSettings(cap=8)) for _ in range(2)]
        await asyncio.gather(*(queue.submit(n) for n, queue in enumerate(queues)))

    asyncio.run(go())
    assert device.most_together == 2


def test_a_queue_that_ends_answers_what_came_and_refuses_what_comes() -> None:
    async def go() -> list[Any]:
        queue = LateQueue(Device(), QueueSettings(cap=2))
        rest = asyncio.create_task(submitted(queue, range(5)))
        await asyncio.sleep(0)
        ending = asyncio.create_task(queue.drain())
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="the server is ending"):
            await queue.submit("late")
        await ending
        assert rest.done() or queue.outstanding == 0
        return await rest

    assert statuses(asyncio.run(go())) == [200] * 5


def test_a_refusal_travels_between_processes() -> None:
    found = pickle.loads(pickle.dumps(RefusedError(503, "no replica")))
    assert (found.status, found.words, str(found)) == (503, "no replica", "no replica")


@given(st.dictionaries(st.integers(1, 64), st.floats(0.1, 1000), min_size=1), st.integers(1, 128))
def test_a_latency_lies_between_its_neighbours(points: dict[int, float], batch: int) -> None:
    found = LatencyCurve(points)(batch)
    if batch in points:
        assert found == pytest.approx(points[batch])
        return
    below = [points[max(s for s in points if s < batch)]] if min(points) < batch else []
    above = [points[min(s for s in points if s > batch)]] if max(points) > batch else []
    if below and above:
        assert min(*below, *above) * (1 - 1e-9) <= found <= max(*below, *above) * (1 + 1e-9)
    elif above:
        assert found == pytest.approx(above[0])
    else:
        assert found == pytest.approx(points[max(points)] * batch / max(points))


# --- a real model -------------------------------------------------------------------------------------------------


def test_a_real_model_answers_each_of_a_batch(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = serving.network(tmp_path / "m.onnx", sides=64)
    model = ServedModel(path, providers=("CUDAExecutionProvider",), threads=1, memory_bytes=2**30)
    images = np.random.default_rng(3).standard_normal((12, 3, 64, 64)).astype(np.float32)

    async def go() -> list[tuple[Any, Timing]]:
        queue = LateQueue(model.run, QueueSettings(cap=8))
        return await submitted(queue, [model.sample({"image": one}) for one in images])

    answers = asyncio.run(go())
    assert [timing.batch for _, timing in answers] == [1] + [8] * 8 + [3] * 3
    alone = [model.run([{"image": one}])[0]["scores"] for one in images]
    np.testing.assert_allclose([outputs["scores"] for outputs, _ in answers], alone, rtol=1e-5, atol=1e-6)


def test_a_model_says_what_it_takes_in_words_of_the_protocol(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = ServedModel(serving.network(tmp_path / "m.onnx", sides=None))
    assert model.signature == {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [3, -1, -1]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [5]}],
    }
    assert model.warm_up(4) == 0  # no length is known of H and W
    assert model.warm_up(4, dims={"H": 8, "W": 8}) == 1  # on a CPU one run is enough


def test_a_session_has_the_plans_provider_memory_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ONNX Runtime is asked for where it has the GPU's provider; nothing of CUDA is here, so the session is not made."""
    onnxruntime = pytest.importorskip("onnxruntime")
    asked = {}

    class AskedError(Exception):
        pass

    def session(path: str, *, sess_options: Any, providers: list[Any]) -> None:
        asked.update(path=path, threads=sess_options.intra_op_num_threads, providers=providers)
        raise AskedError

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    gpu = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: gpu)
    with pytest.raises(AskedError):
        ServedModel(tmp_path / "m.onnx", providers=("CUDAExecutionProvider",), threads=1, memory_bytes=2**30)
    options = {"arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": str(2**30)}
    assert asked["providers"] == [("CUDAExecutionProvider", options), "CPUExecutionProvider"]
    assert asked["threads"] == 1
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: gpu[2:])
    with pytest.raises(AskedError):
        ServedModel(tmp_path / "m.onnx")
    assert asked["providers"] == ["CPUExecutionProvider"]
