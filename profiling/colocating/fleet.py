"""The workers of a run on one device: one for each side and share, started when first needed, replaced when
they break.

They share the device under NVIDIA's MPS, by turns where that cannot be had, or the cores of a CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gkestimator.core.errors import UsageError
from gkestimator.profiling.colocating.jobs import PairMeans, PairOptions
from gkestimator.profiling.colocating.mps import BINARY, MpsDaemon, MpsError, client_environment
from gkestimator.profiling.colocating.order import PairJob, Slot
from gkestimator.profiling.colocating.process import WorkerError, WorkerProcess
from gkestimator.profiling.colocating.window import Times
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.type_names import Members, TextByName, Texts

_WHOLE = 100.0
_START_S = 180.0
_GRACE_S = 8.0


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """Hold a process that answers. ``sms``: that it sees; ``held``: ids of the models prepared in it;
    ``alone``: what was measured of models in it without a neighbour; ``call_s``: seconds of one of their
    first calls."""

    slot: Slot
    process: WorkerProcess
    sms: int | None
    versions: TextByName
    held: set[str] = field(default_factory=set)
    call_s: dict[str, float] = field(default_factory=dict)
    alone: dict[str, Times] = field(default_factory=dict)


class WorkerFleet:
    """Keep the workers on one device, and the MPS daemon that they share it through, while the context is
    open.

    ``sharing``: ``mps``, ``time`` or ``cpu``, final once :meth:`prove` returned; ``note``: why not MPS;
    ``start_s``: seconds that the workers started last took, together; ``versions``: of the runtime, as the
    worker started first tells. ``folder``: ours alone; it takes logs. ``tick`` is called while waiting.
    Raises UsageError where MPS is required and cannot be had.
    """

    def __init__(
        self,
        executor: str,
        device: str,
        facts: DeviceFacts,
        means: PairMeans,
        folder: Path,
        options: PairOptions,
        tick: Callable[[], None],
    ) -> None:
        self.sharing = "cpu" if device == "cpu" else "time"
        self.note: str | None = None
        self.tick = tick
        self.start_s: float | None = None
        self.versions: TextByName = {}
        self._seen: dict[float, int] = {}  # SMs that workers see, by their shares
        self._workers: dict[Slot, Worker] = {}
        self._facts = facts
        self._folder = folder
        self._required = options.mps == "required"
        worker_device, self._variables = means.child_device(device, facts)
        self._uuid = facts.uuid
        # A machine's only GPU needs no name; else daemon and clients both have it by its UUID, for they number apart.
        alone = means.gpus() == 1 and "CUDA_VISIBLE_DEVICES" not in os.environ
        if alone and not (facts.uuid or "").startswith("MIG"):
            self._variables = {}
            self._uuid = None
        self._command = [*means.worker_command(), "--executor", executor, "--device", worker_device]
        self._command += ["--seed", str(options.seed)]
        self._daemon: MpsDaemon | None = None
        self._broken: Path | None = None
        self._daemons = 0
        self._proved = False
        self._pipes = folder / "no-pipes"  # no daemon listens there: a program runs without MPS
        self._pipes.mkdir(mode=0o700)
        if device != "cpu":
            self._start_mps(options, means)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()

    @property
    def together(self) -> bool:
        """Return whether a worker that breaks takes the others with it: under MPS a fault of one client is a
        fault of all, and the server takes no new ones until they are gone."""
        return self.sharing == "mps"

    def prove(self, first: Callable[[], PairJob], prepare: Callable[[PairJob], object]) -> None:
        """Start the workers of the ``first`` job, ``prepare`` its models and see that MPS serves them; else,
        where it is not required, go on without. ``first`` is asked again then. Raises UsageError."""
        trouble = self._trouble(first(), prepare)
        if trouble is not None and self.sharing == "mps":
            complaint = None if self._daemon is None else self._daemon.complaint()
            self._without_mps(trouble if complaint is None else f"{trouble} ({complaint})")
            trouble = self._trouble(first(), prepare)
        if trouble is not None:
            raise UsageError(f"no worker starts: {trouble}")
        self._proved = True

    def _trouble(self, job: PairJob, prepare: Callable[[PairJob], object]) -> str | None:
        """Return why the workers of ``job`` do not start, or are not MPS's; None where all is well."""
        try:
            self.get(job.slots)
        except WorkerError as e:
            return str(e)
        # A worker has initialised CUDA when it says hello, and CUDA has the server started. Should a driver wait for
        # the first context, the models make it.
        if self._daemon is not None and not self._daemon.servers():
            prepare(job)
            if self._daemon is None or not self._daemon.servers():  # None: that model broke its worker
                return "no MPS server comes up although clients run"
        return None

    def words(self) -> list[str]:
        """Say how the device is shared, and what of it the workers see, in lines."""
        if self.sharing == "time":
            return [f"models share {self._facts.name} by turns, not at once: {self.note}"]
        seen = dict(sorted(self._seen.items()))
        if self.sharing == "cpu" or not seen:
            return []
        lines = ["SMs that workers see: " + ", ".join(f"{n} at {share:g} %" for share, n in seen.items())]
        whole = self._facts.limits.get("sms")
        blind = [f"{share:g} %" for share, n in seen.items() if share < _WHOLE and whole and n >= whole]
        if blind:
            lines.append(
                f"at {', '.join(blind)} workers see every SM: either the driver does not tell, or the share is not in "
                "force; latency alone at that share tells which"
            )
        return lines

    def get(self, slots: Iterable[Slot]) -> list[Worker]:
        """Return the workers of ``slots``; those that are missing are started, all at once. Raises WorkerError, and
        MpsError where a broken daemon cannot be replaced."""
        wanted = list(slots)
        missing = [slot for slot in dict.fromkeys(wanted) if slot not in self._workers]
        if missing:
            begun = time.monotonic()
            self._replace_daemon()
            self._start(missing)
            self.start_s = time.monotonic() - begun
            # Workers that come later, perhaps to a new daemon, must not run beside it and be taken for its clients.
            if self._proved and self._daemon is not None and not self._daemon.servers():
                self.stop()  # nobody may measure with them
                raise WorkerError("no MPS server is there although clients run")
        return [self._workers[slot] for slot in wanted]

    def _start(self, slots: Iterable[Slot]) -> None:
        starting: dict[Slot, WorkerProcess] = {}
        try:
            # All are started before the first is waited for: runtimes take seconds to load.
            for side, share in slots:
                log = self._folder / f"worker-{side}-{share:g}.log"
                # The share is fixed when CUDA is initialised: another share needs another process.
                starting[side, share] = WorkerProcess(self._command, self._environment(share), log)
            for slot in list(starting):
                hello = starting[slot].answer(0, within_s=_START_S, tick=self.tick)
                worker = _worker(slot, starting[slot], hello)
                self._workers[slot] = worker
                del starting[slot]
                self.versions = self.versions or worker.versions
                if worker.sms is not None:
                    self._seen[slot[1]] = worker.sms
        finally:
            for process in starting.values():
                process.stop(grace_s=0.0)

    def _environment(self, share: float) -> Texts:
        base = {**os.environ, **self._variables}
        if self.sharing == "cpu":
            # A core for each: two runtimes that both take all cores measure their threads' quarrels.
            base.setdefault("OMP_NUM_THREADS", "1")
        confined = None
        if self.sharing == "mps":
            confined = share
        return client_environment(base, self._pipes, confined)

    def all(self) -> list[Worker]:
        """Return the workers that run."""
        return list(self._workers.values())

    def broken(self, worker: Worker) -> None:
        """Kill a worker that is of no more use; it is started anew when it is needed next."""
        known = self._workers.get(worker.slot) is worker  # not one that took its place
        if known:
            del self._workers[worker.slot]
        worker.process.stop(grace_s=0.0)
        if known and self.together:
            self.stop()
            # A client that died in the middle of its work leaves the server in a state that nobody knows (NVIDIA's
            # word: undefined): no other is measured with it.
            if self._daemon is not None:
                self._broken = self._daemon.binary
                self._stop_daemon()

    def stop(self) -> None:
        """End all workers."""
        workers = self.all()
        self._workers = {}
        for worker in workers:
            worker.process.close()
        end = time.monotonic() + _GRACE_S
        for worker in workers:
            worker.process.stop(grace_s=end - time.monotonic())

    def _start_mps(self, options: PairOptions, means: PairMeans) -> None:
        if options.mps == "off":
            self.note = "MPS is off"
            return
        binary = means.mps()
        if binary is None:
            self._without_mps(f"{BINARY} is not on this machine")
            return
        try:
            self._start_daemon(binary)
            self.sharing = "mps"
        except MpsError as e:
            self._without_mps(str(e))

    def _start_daemon(self, binary: Path) -> None:
        self._daemons += 1
        place = self._folder / f"mps-{self._daemons}"
        place.mkdir(mode=0o700)
        self._daemon = MpsDaemon(binary, place, gpu_uuid=self._uuid, tick=self.tick)
        self._pipes = self._daemon.pipes

    def _replace_daemon(self) -> None:
        """Start a new daemon in the place of a broken one. Raises MpsError."""
        if self._broken is not None:
            self._start_daemon(self._broken)
            self._broken = None

    def _without_mps(self, why: str) -> None:
        """Go on by turns. Raises UsageError where MPS is required."""
        if self._required:
            raise UsageError(f"mps: required, and cannot be had: {why}")
        self._end_all()
        self._broken = None
        self.sharing = "time"
        self._pipes = self._folder / "no-pipes"
        self.note = why

    def _end_all(self) -> None:
        self.stop()
        self._stop_daemon()

    def _stop_daemon(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon = None


def _worker(slot: Slot, process: WorkerProcess, hello: Members) -> Worker:
    sms = hello.get("sms")
    versions = hello.get("versions")
    good = sms is None or (isinstance(sms, int) and not isinstance(sms, bool) and sms >= 1)
    if not good or not isinstance(versions, dict):
        raise WorkerError("its first words are no hello, expected sms and versions")
    return Worker(slot=slot, process=process, sms=sms, versions={str(k): str(v) for k, v in versions.items()})
