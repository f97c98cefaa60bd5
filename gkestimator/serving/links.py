"""The router's line to one worker: requests out in lists, answers back in lists, and a new worker after a death."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError

from gkestimator.core.records import NamedValues
from gkestimator.serving.messages import SentAnswer, SentRequest
from gkestimator.serving.routing import PendingRequest
from gkestimator.serving.served import ServedReplica

# Two calls to a worker begin so far apart at least: a call costs the router half a millisecond of its core.
_BETWEEN_S = 0.002
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0


class LinkOwner(Protocol):
    """Be told what comes back over a link."""

    def answered(self, request: PendingRequest, answer: SentAnswer) -> None:
        """Take the answer of a request."""
        ...

    def lost(self, requests: Sequence[PendingRequest], worker: str) -> None:
        """Take back requests that a worker held when it died."""
        ...

    def replaced(self) -> None:
        """Take note that a worker is there in the place of a dead one."""
        ...

    def say(self, line: str) -> None:
        """Take a line for whoever runs the service."""
        ...


class WorkerLink:
    """Hold one worker process: its replicas, and the requests that it has.

    ``start`` returns a new Ray actor. A call takes along all that came while the call before was under way: Ray's
    price is one of calls, not of requests.
    """

    def __init__(self, key: str, start: Callable[[], Any], owner: LinkOwner, *, drop: bool) -> None:
        self.key = key
        self.alive = False
        self.replicas: dict[str, ServedReplica] = {}
        self.restarts = 0
        self._start = start
        self._owner = owner
        self._drop = drop
        self._actor: Any = None
        self._started: Any = None  # in place of a dead one, not loaded yet
        self._buffer: list[PendingRequest] = []
        self._held: dict[int, PendingRequest] = {}
        self._sending = False
        self._closed = False
        self._back = asyncio.Event()  # not while a dead worker is being replaced
        self._back.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def load(self, replica: ServedReplica, wait_ms: float) -> NamedValues | None:
        """Load ``replica`` in this worker, which is started for its first; return its signature (None: emulated).

        Raises what the worker raises, RayActorError where it dies of it.
        """
        await self._back.wait()
        if self._actor is None:
            self._actor = self._start()
        signature: NamedValues | None = await self._actor.load.remote(replica, wait_ms)
        self.replicas[replica.name] = replica
        if not self.alive:
            self._open()
        return signature

    async def set(self, replica: ServedReplica) -> None:
        """Let a loaded replica go on with the settings of ``replica``."""
        self.replicas[replica.name] = replica
        if self.alive:  # else it is loaded anew, with these
            await self._actor.set.remote(replica)

    async def end(self, name: str) -> None:
        """Unload a replica that has nothing left to do; with the last one the worker ends too."""
        self.replicas.pop(name, None)
        if not self.replicas:
            self.close()
        elif self.alive:
            await self._actor.end.remote(name)

    async def pid(self) -> int:
        """Return the worker's process number."""
        number: int = await self._actor.pid.remote()
        return number

    def close(self) -> None:
        """End the worker at once."""
        self._closed = True
        self.alive = False
        self._back.set()
        for task in self._tasks:
            task.cancel()
        for actor in (self._actor, self._started):
            if actor is not None:
                ray.kill(actor)

    def send(self, request: PendingRequest) -> None:
        """Give ``request`` to the worker: now, or with the others that wait for the call under way."""
        self._held[request.number] = request
        self._buffer.append(request)
        if not self._sending:
            self._sending = True
            self._spawn(self._send(self._actor))

    def _open(self) -> None:
        self.alive = True
        self._spawn(self._receive(self._actor))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _send(self, actor: Any) -> None:
        try:
            while self._buffer and actor is self._actor:
                requests, self._buffer = self._buffer, []
                begun = time.monotonic()
                await actor.take.remote(self._packed(requests))
                await asyncio.sleep(begun + _BETWEEN_S - time.monotonic())
        except RayActorError as e:
            self._died(actor, e)
        finally:
            self._sending = False

    def _packed(self, requests: Sequence[PendingRequest]) -> list[SentRequest]:
        now = time.monotonic()
        packed = []
        for request in requests:
            assert request.load is not None
            request.sent = now
            deadline_s = request.deadline - now if self._drop else None
            sent = SentRequest(
                number=request.number,
                replica=request.load.replica.name,
                sample=request.sample,
                deadline_s=deadline_s,
            )
            packed.append(sent)
        return packed

    async def _receive(self, actor: Any) -> None:
        try:
            while actor is self._actor:
                answers: list[SentAnswer] = await actor.answers.remote()
                for answer in answers:
                    request = self._held.pop(answer.number, None)
                    if request is not None:
                        self._owner.answered(request, answer)
        except RayActorError as e:
            self._died(actor, e)

    def _died(self, actor: Any, error: RayActorError) -> None:
        """Give back what the worker held, and start another in its place."""
        if actor is not self._actor or self._closed:
            return  # its other task was first to see it
        self.alive = False
        self._actor = None
        self.restarts += 1
        self._back.clear()
        held, self._held = list(self._held.values()), {}
        self._buffer.clear()
        words = str(error).strip().splitlines()[0]
        self._owner.say(
            f"worker of {self.key} died ({words}): {len(held)} requests go elsewhere; it is restarted"
        )
        self._owner.lost(held, self.key)
        self._spawn(self._restart())

    async def _restart(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closed:
            actor = self._started = self._start()
            loaded = list(self.replicas.values())
            try:
                for replica in loaded:
                    await actor.load.remote(replica, 0.0)
            except Exception as e:  # noqa: BLE001 - whatever keeps it from loading may be over at the next try
                line = str(e).strip().splitlines()[-1]
                self._owner.say(f"worker of {self.key}: not back yet: {line}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            self._actor, self._started = actor, None
            self._open()
            self._back.set()
            self._owner.replaced()
            for replica in loaded:
                if replica.name not in self.replicas:  # ended meanwhile
                    await actor.end.remote(replica.name)
            self._owner.say(f"worker of {self.key}: back")
            return
