"""The router: every request comes here, goes to the replica with the least work, and is answered, whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gkestimator.serving.backend import Arrays, RefusedError, ServedSignature, signature_from
from gkestimator.serving.fleet import Fleet
from gkestimator.serving.messages import OK, RouterReport, RouterSettings, RouterState, SentAnswer
from gkestimator.serving.metrics import MeteredAnswer, ServiceMeters
from gkestimator.serving.request_log import RequestLog, logged, status_word
from gkestimator.serving.routing import LaneLoad, PendingRequest, ReplicaLoad, Routes
from gkestimator.serving.served import ServedReplica

_FLUSH_S = 0.5
_LEAST_SAMPLES = 64


class RequestRouter:
    """Answer requests by the workers of a fleet. It is a Ray actor, and the backend of its own door."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._born = f"{os.getpid()}-{time.time_ns()}"
        self._meters = ServiceMeters()
        self._signatures: dict[str, ServedSignature] = dict(settings.fleet.workers.signatures)
        self._fleet = Fleet(settings.fleet, self)
        self._routes = Routes((), dict.fromkeys(self._signatures, 0.0), 0)
        self._loads: dict[str, ReplicaLoad] = {}
        self._lanes: dict[tuple[str, str], LaneLoad] = {}
        self._numbers = itertools.count()
        self._open: set[PendingRequest] = set()
        self._ending = False
        self._reported = time.monotonic()
        self._zero = self._reported
        self._arrived: Counter[str] = Counter()
        self._news: list[str] = []
        self._log: RequestLog | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._door: Any = None

    # What the controller asks.

    async def start(self) -> str:
        """Open the door, if it is not open; return where. Raises OSError where the port is taken."""
        if self._door is None:
            if self._settings.requests is not None:
                self._log = RequestLog(Path(self._settings.requests))
                self._spawn(self._flush())
            from gkestimator.serving.door import open_door

            self._door = await open_door(self, **self._settings.door)
        where: str = self._door.url
        return where

    async def state(self) -> RouterState:
        """Return which plan is routed, and what is loaded."""
        return RouterState(born=self._born, version=self._routes.version, loaded=tuple(self._fleet.loaded()))

    async def load(self, replicas: Sequence[ServedReplica], wait_ms: float) -> None:
        """Load ``replicas``, warm when this returns; they get no requests before :meth:`switch`. Raises UsageError."""
        signatures = await self._fleet.load(replicas, wait_ms)
        most: dict[str, int] = {}
        for replica in replicas:
            most[replica.model] = max(replica.cap, _LEAST_SAMPLES, most.get(replica.model, 0))
        for model, signature in signatures.items():
            if signature is not None:
                self._signatures[model] = signature_from(signature, max_batch=most[model])

    async def switch(
        self, replicas: Sequence[ServedReplica], objectives_ms: Mapping[str, float], version: int
    ) -> None:
        """Give requests to ``replicas`` alone from now on, with these settings. They are loaded."""
        loads = []
        for replica in replicas:
            load = self._loads.get(replica.name)
            if load is None or load.replica != replica:
                load = await self._reset(replica)
            loads.append(load)
        self._routes = Routes(loads, objectives_ms, version)
        self._fleet.fill_spares()
        self._lanes = {(r.gpu, r.lane): load.lane for r, load in zip(replicas, loads, strict=True)}
        self._meters.plan_version = version

    async def _reset(self, replica: ServedReplica) -> ReplicaLoad:
        """Return what counts the requests of ``replica``, whose settings are new."""
        settings = self._settings
        link = self._fleet.link(replica)
        if replica.name in self._loads:
            await link.set(replica)
        lane = self._lanes.setdefault((replica.gpu, replica.lane), LaneLoad())
        load = ReplicaLoad(replica, link, lane, limit=settings.max_waiting, timeout_s=settings.timeout_s)
        self._loads[replica.name] = load
        return load

    async def end(self, names: Sequence[str]) -> None:
        """Unload replicas once they have answered what they have; they must not be routed any more."""
        loaded = {replica.name: replica for replica in self._fleet.loaded()}
        for name in names:
            if name in loaded:
                self._spawn(self._retire(loaded[name]))

    async def _retire(self, replica: ServedReplica) -> None:
        self._loads.pop(replica.name, None)
        until = time.monotonic() + self._settings.timeout_s
        while self._holds(replica.name) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        with contextlib.suppress(Exception):  # a worker that is dead has nothing to unload
            await self._fleet.end(replica)

    def _holds(self, name: str) -> bool:
        return any(r.load is not None and r.load.replica.name == name for r in self._open)

    async def report(self, replans: Mapping[str, int]) -> RouterReport:
        """Return what came since the report before; take note of the re-plans, which the metrics say."""
        now = time.monotonic()
        seconds, self._reported = now - self._reported, now
        arrived, self._arrived = self._arrived, Counter()
        self._meters.replans = dict(replans)
        return RouterReport(born=self._born, seconds=seconds, arrived=dict(arrived))

    async def news(self) -> list[str]:
        """Return the lines since the last call that whoever runs the service is to read."""
        news, self._news = self._news, []
        return news

    async def pids(self) -> dict[str, int]:
        """Return the process numbers: of the router (``router``), and of each worker."""
        pids = {"router": os.getpid()}
        for key, link in self._fleet.links.items():
            if link.alive:
                pids[key] = await link.pid()
        return pids

    async def drain(self, limit_s: float) -> int:
        """Refuse new requests, wait for those under way; return how many were left after ``limit_s`` (refused)."""
        self._ending = True
        until = time.monotonic() + limit_s
        while self._open and time.monotonic() < until:
            await asyncio.sleep(0.02)
        left = list(self._open)
        for request in left:
            self._end(request, SentAnswer(number=request.number, status=503, words="the server has ended"))
        await asyncio.sleep(0.1)  # for the door to write the last answers
        if self._door is not None:
            await self._door.close()
        if self._log is not None:
            self._log.close()
        self._fleet.close()
        return len(left)

    # What the door asks.

    def signatures(self) -> Mapping[str, ServedSignature]:
        """Return every model that can be asked for, by name."""
        return self._signatures

    def ready(self) -> bool:
        """Return whether requests of every model are answered."""
        return not self._ending and self._routes.ready()

    def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        meters = self._meters
        outstanding = Counter(dict.fromkeys(self._routes.by_model, 0))
        for request in self._open:
            outstanding[request.model] += 1
        meters.outstanding = outstanding
        meters.replicas = {model: len(self._routes.live(model)) for model in self._routes.by_model}
        meters.worker_restarts = sum(link.restarts for link in self._fleet.links.values())
        return meters.render()

    async def infer(self, model: str, samples: Sequence[Arrays], timeout_ms: float | None) -> list[Arrays]:
        """Return the outputs of each sample. Raises RefusedError; all are answered or none.

        Every sample is a request of its own: it counts, is batched and is logged by itself.
        """
        requests: list[PendingRequest] = []
        try:
            for sample in samples:
                requests.append(self._admit(model, sample, timeout_ms))
            return [await request.answer for request in requests]
        finally:
            for request in requests:
                if not request.answer.done():
                    request.answer.cancel()
                elif not request.answer.cancelled():
                    request.answer.exception()  # asyncio would else say that nobody has read it

    def _admit(self, model: str, sample: Arrays, timeout_ms: float | None) -> PendingRequest:
        """Give a new request to a replica. Raises RefusedError."""
        now = time.monotonic()
        wait_s = self._settings.timeout_s
        if timeout_ms is not None:
            wait_s = min(wait_s, timeout_ms / 1e3)
        objective_s = self._routes.objectives_ms.get(model, 0.0) / 1e3
        loop = asyncio.get_running_loop()
        request = PendingRequest(
            number=next(self._numbers),
            model=model,
            sample=sample,
            arrived=now,
            deadline=now + min(objective_s, wait_s),
            expires=now + wait_s,
            answer=loop.create_future(),
        )
        self._arrived[model] += 1
        self._meters.of(model).arrive()
        self._open.add(request)
        request.timer = loop.call_at(loop.time() + wait_s, self._time_out, request)
        self._send(request, now)
        if request.answer.done():
            request.answer.result()  # refused at once: raises
        return request

    def _send(self, request: PendingRequest, now: float) -> None:
        """Give ``request`` to the replica with the least work, or refuse it."""
        refusal = None
        load = None
        if self._ending:
            refusal = (503, "the server is ending")
        elif request.model not in self._routes.by_model:
            refusal = (503, f"no plan serves {request.model}")
        else:
            load = self._routes.choose(request.model)
            if load is None:
                refusal = (503, f"no replica of {request.model} runs")
            elif load.count >= load.limit:
                refusal = (429, f"the queues of {request.model} are full: {load.count} requests wait")
            elif self._settings.drop and request.deadline < now + load.least_ms / 1e3:
                refusal = (503, "it cannot be answered within its objective any more")
        if refusal is not None or load is None:
            status, words = refusal or (503, "")
            self._end(request, SentAnswer(number=request.number, status=status, words=words))
            return
        request.load = load
        request.version = self._routes.version
        request.tries += 1
        load.add(1)
        load.link.send(request)

    # What links say.

    def answered(self, request: PendingRequest, answer: SentAnswer) -> None:
        """Take the answer of a worker."""
        if request.load is not None:
            request.load.add(-1)
        self._end(request, answer)

    def lost(self, requests: Sequence[PendingRequest], worker: str) -> None:
        """Give requests that a dead worker held to others, where there is time left; the rest are refused."""
        now = time.monotonic()
        for request in requests:
            if request.load is not None:
                request.load.add(-1)
            if request in self._open:
                self._send(request, now)

    def replaced(self) -> None:
        """Have another spare worker for the next death."""
        self._fleet.fill_spares()

    def say(self, line: str) -> None:
        """Take a line for whoever runs the service."""
        self._news.append(line)

    def _time_out(self, request: PendingRequest) -> None:
        words = f"no answer within {request.expires - request.arrived:g} s"
        self._end(request, SentAnswer(number=request.number, status=504, words=words))

    def _end(self, request: PendingRequest, answer: SentAnswer) -> None:
        """Answer ``request``, if it was not yet; count it and log it."""
        if request not in self._open:
            return
        self._open.discard(request)
        if request.timer is not None:
            request.timer.cancel()
        now = time.monotonic()
        slo_ms = self._routes.objectives_ms.get(request.model, 0.0)
        total_ms = (now - request.arrived) * 1e3
        metered = MeteredAnswer(
            total_ms=total_ms,
            status=status_word(answer.status),
            on_time=answer.status == OK and total_ms <= slo_ms,
            batch=answer.batch,
            queue_ms=answer.queue_ms,
        )
        self._meters.of(request.model).answer(metered)
        if self._log is not None:
            self._log.add(logged(request, answer, now=now, zero=self._zero, slo_ms=slo_ms))
        if request.answer.done():  # its client has gone
            return
        if answer.outputs is not None:
            request.answer.set_result(answer.outputs)
        else:
            request.answer.set_exception(RefusedError(answer.status, answer.words))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _flush(self) -> None:
        while self._log is not None:
            await asyncio.sleep(_FLUSH_S)
            self._log.flush()
