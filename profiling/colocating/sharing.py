"""How two models come to share the device: under MPS, by turns where it cannot be had, or the cores of a CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from gkestimator.core.errors import UsageError
from gkestimator.profiling.colocating.fleet import Ways, WorkerFleet
from gkestimator.profiling.colocating.jobs import PairOptions
from gkestimator.profiling.colocating.means import PairMeans
from gkestimator.profiling.colocating.mps import BINARY, MpsDaemon, MpsError, client_environment
from gkestimator.profiling.colocating.order import PairJob
from gkestimator.profiling.colocating.process import WorkerError
from gkestimator.profiling.colocating.session import PairFailed, WorkerSession
from gkestimator.profiling.raw import DeviceFacts

_WHOLE = 100.0


class Shared:
    """Workers on one device, and the MPS daemon that they share it through, while the context is open.

    ``sharing``: ``mps``, ``time`` or ``cpu``, final once :meth:`prove` returned; ``note``: why not MPS. ``folder``:
    ours alone. Raises UsageError where MPS is required and cannot be had.
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
        self._executor = executor
        self._facts = facts
        self._means = means
        self._folder = folder
        self._options = options
        self._tick = tick
        told, self._variables = means.told(device, facts)
        # A machine's only GPU needs no name; else daemon and clients both have it by its UUID, for they number apart.
        self._uuid = facts.uuid
        if (
            means.gpus() == 1
            and "CUDA_VISIBLE_DEVICES" not in os.environ
            and not (facts.uuid or "").startswith("MIG")
        ):
            self._variables = {}
            self._uuid = None
        self._command = [*means.worker_command(), "--executor", executor, "--device", told]
        self._command += ["--seed", str(options.seed)]
        self._daemon: MpsDaemon | None = None
        self._broken: Path | None = None
        self._started = 0
        self._proved = False
        self._pipes = folder / "no-pipes"  # no daemon listens there: a program runs without MPS
        (folder / "entries").mkdir()
        self._pipes.mkdir(mode=0o700)
        if device != "cpu":
            self._start_mps()
        self.session = self._session()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.fleet.stop()
        self._stop_mps()

    def prove(self, first: Callable[[], PairJob]) -> Mapping[str, str]:
        """Start the workers of the ``first`` job, prepare its models and see that MPS serves them; else, where it is
        not required, go on without. ``first`` is asked again then. Versions of the runtime. Raises UsageError."""
        trouble = self._trouble(first())
        if trouble is not None and self.sharing == "mps":
            complaint = None if self._daemon is None else self._daemon.complaint()
            self._without_mps(trouble if complaint is None else f"{trouble} ({complaint})")
            trouble = self._trouble(first())
        if trouble is not None:
            raise UsageError(f"no worker starts: {trouble}")
        self._proved = True
        return self.session.fleet.versions

    def words(self) -> list[str]:
        """How the device is shared, and what of it the workers see, in lines."""
        lines = []
        if self.sharing == "time":
            lines.append(f"models share {self._facts.name} by turns, not at once: {self.note}")
        found = self.session.fleet.seen.items()
        seen = dict(sorted((share, sms) for (_, share), sms in found if sms is not None))
        if self.sharing == "mps" and seen:
            lines.append(
                "SMs that workers see: " + ", ".join(f"{n} at {share:g} %" for share, n in seen.items())
            )
            whole = self._facts.limits.get("sms")
            blind = [f"{share:g} %" for share, n in seen.items() if share < _WHOLE and whole and n >= whole]
            if blind:
                lines.append(
                    f"at {', '.join(blind)} workers see every SM: either the driver does not tell, or the share is "
                    "not in force; latency alone at that share tells which"
                )
        return lines

    def _trouble(self, job: PairJob) -> str | None:
        """Why the workers of ``job`` do not start, or are not MPS's; None where all is well."""
        try:
            self.session.fleet.get(job.slots)
        except WorkerError as e:
            return str(e)
        # A worker has initialised CUDA when it says hello, and CUDA has the server started. Should a driver wait for
        # the first context, the models make it; one that fails here is met again later.
        if self._daemon is not None and not self._daemon.servers():
            with contextlib.suppress(PairFailed):
                self.session.ready(job)
            if self._daemon is None or not self._daemon.servers():  # None: that model broke its worker
                return "no MPS server comes up although clients run"
        return None

    def _see_server(self) -> None:
        """Workers that come later, perhaps to a new daemon, must not run beside it and be taken for its clients. Raises
        WorkerError."""
        if self._proved and self._daemon is not None and not self._daemon.servers():
            raise WorkerError("no MPS server is there although clients run")

    def _session(self) -> WorkerSession:
        ways = Ways(tick=self._tick, starting=self._anew, started=self._see_server, broke=self._end_broken)
        fleet = WorkerFleet(
            self._command, self._environment, self._folder, ways, together=self.sharing == "mps"
        )
        return WorkerSession(
            fleet,
            self._folder / "entries",
            runtime=self._executor,
            seed=self._options.seed,
            seconds=self._options.seconds,
            entry_s=self._options.entry_s,
        )

    def _environment(self, share: float) -> dict[str, str]:
        base = {**os.environ, **self._variables}
        if self.sharing == "cpu":
            # A core for each: two runtimes that both take all cores measure their threads' quarrels.
            base.setdefault("OMP_NUM_THREADS", "1")
        return client_environment(base, self._pipes, share if self.sharing == "mps" else None)

    def _start_mps(self) -> None:
        if self._options.mps == "off":
            self.note = "MPS is off"
            return
        binary = self._means.mps()
        if binary is None:
            self._without_mps(f"{BINARY} is not on this machine")
            return
        try:
            self._daemon = self._new_daemon(binary)
        except MpsError as e:
            self._without_mps(str(e))
            return
        self.sharing, self._pipes = "mps", self._daemon.pipes

    def _new_daemon(self, binary: Path) -> MpsDaemon:
        self._started += 1
        place = self._folder / f"mps-{self._started}"
        place.mkdir(mode=0o700)
        return MpsDaemon(binary, place, gpu_uuid=self._uuid, tick=self._tick)

    def _end_broken(self) -> None:
        """A client that died in the middle of its work leaves the server in a state that nobody knows (NVIDIA's word:
        undefined): no other is measured with it."""
        if self._daemon is not None:
            self._broken = self._daemon.binary
            self._stop_mps()

    def _anew(self) -> None:
        """A new daemon in the place of a broken one. Raises MpsError."""
        if self._broken is not None:
            self._daemon = self._new_daemon(self._broken)
            self._pipes = self._daemon.pipes
            self._broken = None

    def _without_mps(self, why: str) -> None:
        """Go on by turns. Raises UsageError where MPS is required."""
        if self._options.mps == "required":
            raise UsageError(f"mps: required, and cannot be had: {why}")
        if self.sharing == "mps":
            self.session.fleet.stop()
            self._stop_mps()
            self._broken = None
            self.sharing, self._pipes = "time", self._folder / "no-pipes"
            self.session = self._session()
        self.note = why

    def _stop_mps(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon = None
