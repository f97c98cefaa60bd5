"""The workers of a run: one for each side and share, started when first needed, replaced when they break."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.profiling.colocating.process import WorkerError, WorkerProcess
from gkestimator.profiling.colocating.window import Times

_START_S = 180.0
_GRACE_S = 8.0
Slot = tuple[str, float]
"""Side (``A`` or ``B``) and percent of the SMs."""


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """A process that answers. ``sms``: that it sees; ``held``: ids of the models prepared in it; ``alone``: what was
    measured of models in it without a neighbour; ``call_s``: seconds of one of their first calls."""

    slot: Slot
    process: WorkerProcess
    sms: int | None
    versions: Mapping[str, str]
    held: set[str] = field(default_factory=set)
    call_s: dict[str, float] = field(default_factory=dict)
    alone: dict[str, Times] = field(default_factory=dict)


@frozen
class Ways:
    """What happens around workers. ``tick``: called while waiting; ``starting`` and ``started``: before and after some
    are started, may raise; ``broke``: under MPS, when one broke and all have been ended."""

    tick: Callable[[], None]
    starting: Callable[[], None]
    started: Callable[[], None]
    broke: Callable[[], None]


class WorkerFleet:
    """``command``: a worker's; ``environment``: of one with a share; ``folder``: takes their logs. ``together``: a
    worker that breaks takes the others with it (under MPS a fault of one client is a fault of all, and the server takes
    no new ones until they are gone)."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Callable[[float], Mapping[str, str]],
        folder: Path,
        ways: Ways,
        *,
        together: bool,
    ) -> None:
        self._command = command
        self._environment = environment
        self._folder = folder
        self._ways = ways
        self.together = together
        self.tick = ways.tick
        self._workers: dict[Slot, Worker] = {}
        self.start_s: float | None = None
        """Seconds that the workers started last took, together."""
        self.versions: Mapping[str, str] = {}
        """Of the runtime, as the worker started first tells."""
        self.seen: dict[Slot, int | None] = {}
        """SMs that workers see, for every slot that was ever started."""

    def get(self, slots: Iterable[Slot]) -> list[Worker]:
        """The workers of ``slots``; those that are missing are started, all at once. Raises WorkerError."""
        wanted = list(slots)
        begun = time.monotonic()
        starting: dict[Slot, WorkerProcess] = {}
        if not self._workers.keys() >= set(wanted):
            self._ways.starting()
        try:
            for slot in wanted:
                if slot not in self._workers and slot not in starting:
                    log = self._folder / f"worker-{slot[0]}-{slot[1]:g}.log"
                    starting[slot] = WorkerProcess(self._command, self._environment(slot[1]), log)
            begun_any = bool(starting)
            for slot in list(starting):
                hello = starting[slot].answer(0, within_s=_START_S, tick=self.tick)
                self._workers[slot] = _worker(slot, starting[slot], hello)
                del starting[slot]
                self.seen[slot] = self._workers[slot].sms
                self.versions = self.versions or self._workers[slot].versions
        except BaseException:
            for process in starting.values():
                process.stop(grace_s=0.0)
            raise
        if begun_any:
            self.start_s = time.monotonic() - begun
            try:
                self._ways.started()
            except BaseException:
                self.stop()  # nobody may measure with them
                raise
        return [self._workers[slot] for slot in wanted]

    def all(self) -> list[Worker]:
        """Those that run."""
        return list(self._workers.values())

    def broken(self, worker: Worker) -> None:
        """``worker`` is of no more use: it is killed, and started anew when it is needed next."""
        known = self._workers.get(worker.slot) is worker  # not one that took its place
        if known:
            del self._workers[worker.slot]
        worker.process.stop(grace_s=0.0)
        if known and self.together:
            self.stop()
            self._ways.broke()

    def stop(self) -> None:
        """End all of them."""
        workers = self.all()
        self._workers = {}
        for worker in workers:
            worker.process.close()
        end = time.monotonic() + _GRACE_S
        for worker in workers:
            worker.process.stop(grace_s=end - time.monotonic())


def _worker(slot: Slot, process: WorkerProcess, hello: Mapping[str, Any]) -> Worker:
    sms = hello.get("sms")
    versions = hello.get("versions")
    good = sms is None or (isinstance(sms, int) and not isinstance(sms, bool) and sms >= 1)
    if not good or not isinstance(versions, dict):
        raise WorkerError("its first words are no hello, expected sms and versions")
    return Worker(slot=slot, process=process, sms=sms, versions={str(k): str(v) for k, v in versions.items()})
