"""Keep what runs where: processes on GPUs, their memory, and since when each GPU is in use."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gkestimator.documents import Replica
from gkestimator.simulation.arrays import Floats, Ints, NumberOrNone, Series
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.system import SimGpu, SimReplica, System


@dataclass(slots=True, kw_only=True, eq=False)
class ModelProcess:
    """Hold a model that is loaded on a GPU.

    ``asked`` and ``runs``: as the plan has it and as the simulator does; ``index``: its replica in the
    simulator that takes batches now (those of earlier settings may have some left). ``holds``: memory in
    percent of the GPU (None: unknown) by replica of the simulator that is not done yet. ``ends``: it gets no
    more batches.
    """

    name: str
    gpu: str
    asked: Replica
    runs: SimReplica
    index: int
    server: int
    ready_ms: float
    holds: dict[int, NumberOrNone] = field(default_factory=dict)
    ends: bool = False

    @property
    def memory_pct(self) -> NumberOrNone:
        """Return the most memory that any of its settings in use needs."""
        return max_memory(self.holds.values())


@dataclass(slots=True, kw_only=True, eq=False)
class GpuUse:
    """Hold a GPU from the start of the first load until its last batch is done.

    ``released_ms`` is when its last process was told to end (None: it runs), ``replicas`` those in the
    simulator that ran on it.
    """

    gpu: str
    start_ms: float
    released_ms: NumberOrNone = None
    replicas: list[int] = field(default_factory=list)

    def end_ms(self, last_done_ms: Floats, until_ms: float) -> float:
        """Return when it was free again; ``until_ms`` where it was not released."""
        if self.released_ms is None:
            return until_ms
        return max(self.released_ms, float(last_done_ms[self.replicas].max()))


def max_memory(parts: Iterable[NumberOrNone]) -> NumberOrNone:
    """Return the largest; None where one is unknown; 0 of none."""
    return _of_known(max, parts)


def memory_sum(parts: Iterable[NumberOrNone]) -> NumberOrNone:
    """Return the sum; None where one is unknown."""
    return _of_known(operator.add, parts)


def _of_known(combine: Callable[[float, float], float], parts: Iterable[NumberOrNone]) -> NumberOrNone:
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total = combine(total, part)
    return total


class ProcessFleet:
    """Hold the processes of a run, and the simulator that serves with them. Every change goes through here."""

    def __init__(self, simulator: Simulator, system: System) -> None:
        self.simulator = simulator
        self.gpus = list(system.gpus)  # as the simulator counts them
        self.replicas = list(system.replicas)
        self.processes: list[ModelProcess] = []  # those that run or have batches left
        self.uses: list[GpuUse] = []
        self.peak_memory_pct: dict[str, NumberOrNone] = {}
        self._numbers: dict[str, int] = {}
        self._servers = 0
        self._index = {g.id: i for i, g in enumerate(self.gpus)}

    def new_server(self) -> int:
        """Return a number for a server that no replica had yet."""
        self._servers += 1
        return self._servers - 1

    def next_name(self, model: str) -> str:
        """Return a name that no process had yet."""
        number = self._numbers.get(model, 0)
        self._numbers[model] = number + 1
        return f"{model}-{number}"

    def adopt(self, process: ModelProcess) -> None:
        """Take ``process`` in, which was in the simulator from the start."""
        self._servers = max(self._servers, process.server + 1)
        self._enter(process, 0.0)

    def running(self, gpu: str | None = None) -> list[ModelProcess]:
        """Return the processes that are not told to end (on ``gpu``), in order of their start."""
        return [p for p in self.processes if not p.ends and gpu in (None, p.gpu)]

    def used_gpus(self) -> list[str]:
        """Return the GPUs with processes that are not told to end, in order of their first use."""
        return list(dict.fromkeys(p.gpu for p in self.running()))

    def busy_gpus(self) -> set[str]:
        """Return the GPUs with processes at all, those that finish their last batches included."""
        return {p.gpu for p in self.processes}

    def memory_pct(self, gpu: str) -> NumberOrNone:
        """Return what all processes on ``gpu`` hold, those that end included."""
        return memory_sum(p.memory_pct for p in self.processes if p.gpu == gpu)

    def load(
        self,
        gpu: SimGpu,
        asked: Sequence[Replica],
        runs: Sequence[SimReplica],
        servers: Sequence[int],
        ready_ms: Series,
    ) -> None:
        """Load processes on ``gpu``, whose memory is taken from now on, ready at ``ready_ms``."""
        now = self.simulator.now_ms
        new = []
        if gpu.id not in self._index:
            new.append(gpu)
            self._index[gpu.id] = len(self.gpus)
            self.gpus.append(gpu)
        first = len(self.replicas)
        processes = []
        for number, (replica, server) in enumerate(zip(asked, servers, strict=True)):
            name = self.next_name(replica.model)
            placed = replace(runs[number], id=name, gpu=self._index[gpu.id], partition=server)
            process = ModelProcess(
                name=name,
                gpu=gpu.id,
                asked=replica,
                runs=placed,
                index=first + number,
                server=server,
                ready_ms=ready_ms[number],
            )
            processes.append(process)
            self.replicas.append(placed)
        self.simulator.add(self.replicas[first:], list(ready_ms), gpus=new)
        for process in processes:
            self._enter(process, now)

    def set(self, process: ModelProcess, asked: Replica, runs: SimReplica, server: int) -> None:
        """Let ``process`` go on as ``asked``.

        Batches are opened by the new settings from now on, those that it was given are served by the old
        ones, one at a time as ever (one server).
        """
        new = replace(runs, id=process.runs.id, gpu=process.runs.gpu, partition=server)
        process.asked = asked
        # How many requests its batches usually hold (``deal``) is one of the settings: a replica that stayed at the
        # old rate's beside a new one would be dealt many times its part.
        if new == process.runs:
            return
        self.simulator.retire([process.index])
        process.index = self.simulator.add([new], [max(process.ready_ms, self.simulator.now_ms)])[0]
        self.replicas.append(new)
        process.runs = new
        process.server = server
        process.holds[process.index] = asked.mreq_pct
        self._use(process.gpu).replicas.append(process.index)
        self._note_memory(process.gpu)

    def end(self, processes: Sequence[ModelProcess]) -> None:
        """Give ``processes`` no more batches; a GPU left without others is given back once they are done."""
        if not processes:
            return
        self.simulator.retire([p.index for p in processes])
        for process in processes:
            process.ends = True
        used = self.used_gpus()
        for gpu in dict.fromkeys(p.gpu for p in processes):
            if gpu not in used:
                self._use(gpu).released_ms = self.simulator.now_ms

    def settle(self) -> None:
        """Free the memory of what is done by now."""
        left: Ints = self.simulator.outstanding()
        for process in self.processes:
            for index in list(process.holds):
                current = index == process.index and not process.ends
                if left[index] == 0 and not current:
                    del process.holds[index]
        self.processes = [p for p in self.processes if p.holds]

    def _enter(self, process: ModelProcess, now: float) -> None:
        process.holds[process.index] = process.asked.mreq_pct
        self.processes.append(process)
        use = self._open(process.gpu)
        if use is None:
            use = GpuUse(gpu=process.gpu, start_ms=now)
            self.uses.append(use)
        use.replicas.append(process.index)
        self._note_memory(process.gpu)

    def _open(self, gpu: str) -> GpuUse | None:
        return next((u for u in reversed(self.uses) if u.gpu == gpu and u.released_ms is None), None)

    def _use(self, gpu: str) -> GpuUse:
        use = self._open(gpu)
        assert use is not None, f"{gpu} is in use"
        return use

    def _note_memory(self, gpu: str) -> None:
        before = self.peak_memory_pct.get(gpu, 0.0)
        self.peak_memory_pct[gpu] = max_memory((before, self.memory_pct(gpu)))
