"""A worker: one process that answers for one or more replicas, by ONNX Runtime or emulated.

It is a Ray actor, but knows nothing of Ray: requests come in lists (:meth:`ServingWorker.take`), answers go in lists
(:meth:`ServingWorker.answers`), so that one call carries all that came while the call before was under way.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gkestimator.core.records import NamedValues, Names
from gkestimator.exporting.engines import batch_shapes
from gkestimator.exporting.ray_app.worker import (
    BadRequestError,
    DeviceLane,
    LateQueue,
    QueueSettings,
    ServedModel,
)
from gkestimator.hardware.runtimes import served_as
from gkestimator.hardware.runtimes.record import Provider
from gkestimator.serving.backend import RefusedError
from gkestimator.serving.messages import OK, SentAnswer, SentRequest, WorkerSettings
from gkestimator.serving.served import ServedReplica, is_cpu

if TYPE_CHECKING:
    from gkestimator.serving.emulating import EmulatedGpu


def asked_providers(replica: ServedReplica, path: Path) -> Sequence[Provider]:
    """Return the execution providers of a replica on a GPU, with their options."""
    asked = replica.asked
    served = served_as(asked.runtime)
    shapes: Names = ()
    if served.server.provider_options.shapes:
        shapes = batch_shapes(path, asked.dims, asked.batch_size, replica.cap)
    return served.providers(asked.dtype, asked.mreq_bytes, shapes)


class _LoadedReplica:
    """Hold a replica that a worker answers for: its queue on its lane, and its model (None: emulated)."""

    def __init__(self, queue: LateQueue, lane: DeviceLane, model: ServedModel | None) -> None:
        self.queue = queue
        self.lane = lane
        self.model = model


class ServingWorker:
    """Answer for the replicas of one process: of one GPU where it is emulated, of one partition of one else."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._loaded: dict[str, _LoadedReplica] = {}
        self._lanes: dict[str, DeviceLane] = {}
        self._gpu: EmulatedGpu | None = None
        if settings.law is not None:
            # The law is asked a few hundred times a second here, as plain Python in 9 us; many workers fit one machine.
            os.environ["GKEST_COMPILE"] = "0"
            from gkestimator.serving.emulating import EmulatedGpu

            self._gpu = EmulatedGpu(settings.law)
        self._answers: list[SentAnswer] = []
        self._some = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def pid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    async def load(self, replica: ServedReplica, wait_ms: float) -> NamedValues | None:
        """Load ``replica``, warm when this returns; return its signature (None: emulated, which takes ``wait_ms``).

        Raises what ONNX Runtime raises, ValueError for a file that cannot be batched.
        """
        if replica.name in self._loaded:
            return None
        lane = self._lanes.setdefault(replica.lane, DeviceLane())
        model = None
        if self._gpu is not None:
            await asyncio.sleep(wait_ms / 1e3)
            run: Any = self._emulated(replica)
        else:
            model = await asyncio.to_thread(self._open, replica)
            run = model.run
        queue = LateQueue(run, self._queue_settings(replica), lane)
        self._loaded[replica.name] = _LoadedReplica(queue, lane, model)
        if model is None:
            return None
        return model.signature

    def _emulated(self, replica: ServedReplica) -> Any:
        from gkestimator.serving.emulating import EmulatedReplica

        assert self._gpu is not None
        return EmulatedReplica(replica, self._gpu, self._settings.signatures[replica.model]).run

    def _open(self, replica: ServedReplica) -> ServedModel:
        assert self._settings.models is not None
        asked = replica.asked
        path = Path(self._settings.models, f"{replica.model}.onnx")
        providers: Sequence[Provider] = ()
        if not is_cpu(replica.gpu_type):
            providers = asked_providers(replica, path)
        model = ServedModel(
            path,
            providers=providers,
            threads=self._settings.threads,
            memory_bytes=asked.mreq_bytes,
        )
        if model.fixed_batch is not None and model.fixed_batch < replica.cap:
            raise ValueError(
                f"{replica.model}.onnx runs at batch {model.fixed_batch} alone, not {replica.cap}"
            )
        model.warm_up(replica.cap, dims=replica.dims())
        return model

    def _queue_settings(self, replica: ServedReplica) -> QueueSettings:
        settings = self._settings
        latency_ms = replica.time_ms if settings.drop else None
        return QueueSettings(cap=replica.cap, timeout_s=settings.timeout_s, latency_ms=latency_ms)

    async def set(self, replica: ServedReplica) -> None:
        """Let a loaded replica go on as ``replica``: with its cap, its times and its objective."""
        loaded = self._loaded[replica.name]
        loaded.queue.settings = self._queue_settings(replica)
        if self._gpu is not None:
            loaded.queue.run = self._emulated(replica)

    async def end(self, name: str) -> None:
        """Let a replica finish what it has, then unload it."""
        loaded = self._loaded.pop(name, None)
        if loaded is not None:
            await loaded.queue.drain()
            loaded.lane.remove(loaded.queue)

    async def take(self, requests: Sequence[SentRequest]) -> None:
        """Put requests into their replicas' queues."""
        now = time.monotonic()
        loop = asyncio.get_running_loop()
        for request in requests:
            task = loop.create_task(self._serve(request, now))
            self._tasks.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._tasks.discard)

    async def answers(self) -> list[SentAnswer]:
        """Return the answers since the last call, once there is one."""
        await self._some.wait()
        self._some.clear()
        ready, self._answers = self._answers, []
        return ready

    async def _serve(self, request: SentRequest, now: float) -> None:
        answer = await self._answered(request, now)  # apart: the list may be another by then
        self._answers.append(answer)
        self._some.set()

    async def _answered(self, request: SentRequest, now: float) -> SentAnswer:
        number = request.number
        loaded = self._loaded.get(request.replica)
        if loaded is None:
            return SentAnswer(number=number, status=503, words="its replica has just ended")
        deadline = None if request.deadline_s is None else now + request.deadline_s
        try:
            sample = request.sample
            if loaded.model is not None:
                sample = loaded.model.sample(sample)
            outputs, timing = await loaded.queue.submit(sample, deadline=deadline)
        except BadRequestError as e:
            return SentAnswer(number=number, status=400, words=str(e))
        except RefusedError as e:
            return SentAnswer(number=number, status=e.status, words=e.words)
        except Exception as e:  # noqa: BLE001 - whatever a model raises is the answer of its client
            return SentAnswer(number=number, status=500, words=f"the model failed: {type(e).__name__}: {e}")
        return SentAnswer(
            number=number,
            status=OK,
            outputs=outputs,
            batch=timing.batch,
            queue_ms=timing.queue_ms,
            gpu_ms=timing.gpu_ms,
        )
