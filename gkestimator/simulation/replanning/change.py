"""Carry out one change of plan, from the decision until the last old replica is told to end."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan, Replica
from gkestimator.simulation.arrays import NumberOrNone, Texts
from gkestimator.simulation.replanning.fleet import ModelProcess, ProcessFleet, max_memory, memory_sum
from gkestimator.simulation.replanning.matching import Content, match_gpus, pair_replicas, setting_key
from gkestimator.simulation.system import SimGpu, SimReplica, System

FULL_PCT = 100.0 + 1e-5
# How often is looked whether memory is free, ms, where a load waits for it.
POLL_MS = 100.0
_ALL = ""


@frozen
class LoadingPace:
    """Hold how long loads take.

    ``each_ms``: one after the other on a GPU, or (``together_ms``) all in one time, and then everything is
    switched at once; ``gpu_start_ms`` more on a GPU that was not in use.
    """

    each_ms: float = 0.0
    together_ms: NumberOrNone = None
    gpu_start_ms: float = 0.0

    def ready_ms(self, start_ms: float, count: int) -> list[float]:
        """Return when each of ``count`` loads on one GPU is done."""
        if self.together_ms is not None:
            return [start_ms + self.together_ms] * count
        return [start_ms + self.each_ms * (k + 1) for k in range(count)]


@dataclass(slots=True, kw_only=True, eq=False)
class _Step:
    """Hold a replica of the new plan: how it is to run, and the process that goes on as it (None: to be loaded)."""

    gpu: str
    asked: Replica
    runs: SimReplica
    server: int
    process: ModelProcess | None
    ready_ms: NumberOrNone = None


@dataclass(slots=True, kw_only=True)
class Counted:
    """Count what a change did.

    Replicas run on as they were, run on with other settings, were loaded, or ended; ``moves``: loads of
    models that lost as many replicas elsewhere.
    """

    kept: int = 0
    reset: int = 0
    loads: int = 0
    ends: int = 0
    moves: int = 0
    retired_first: int = 0


def planned_replicas(plan: PlacementPlan, system: System) -> list[tuple[str, Replica, SimReplica]]:
    """Return the replicas of ``plan``, each with its GPU's id and what the simulator is told of it.

    A model's requests are dealt by throughput (all that counts of the weights is their proportion, and
    goodput is assigned in that one), so that a replica that stays is told nothing new.
    """
    simulated = iter(system.replicas)
    planned = []
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            runs = next(simulated)
            if replica.throughput_rps is not None:
                runs = replace(runs, weight=replica.throughput_rps)
            planned.append((gpu.id, replica, runs))
    return planned


class Change:
    """Change what runs towards ``plan`` with the fewest loads; ``system`` is what the simulator is told of
    it.

    A GPU with room for both loads at once, beside what runs. On one without, what is to leave it is told to
    end first, what is to need less goes on with its new settings, and the load waits until that memory is
    free. All else goes on as before until the new replicas of the model (of all models, where ``pace``
    switches at once) are ready. ``pool``: by type, the GPUs there are (None: they are rented, under ids of
    their own).
    """

    def __init__(
        self,
        fleet: ProcessFleet,
        plan: PlacementPlan,
        system: System,
        pace: LoadingPace,
        pool: Mapping[str, Texts] | None,
    ) -> None:
        self.counted = Counted()
        self._fleet = fleet
        self._pace = pace
        fleet.settle()
        self._busy = fleet.busy_gpus()
        names = _gpu_names(fleet, plan, pool)
        self._gpus: dict[str, SimGpu] = {}
        for gpu in system.gpus:
            if gpu.id in names:
                name = names[gpu.id]
                self._gpus[name] = replace(gpu, id=name)
        self._steps = _steps(fleet, planned_replicas(plan, system), names)
        staying = {id(step.process) for step in self._steps}
        self._ends = [p for p in fleet.running() if id(p) not in staying]
        self._waiting: set[str] = set()
        self._count()
        self._start()

    @property
    def done(self) -> bool:
        """Say whether everything is as the plan has it (what ends may still serve its last batches)."""
        return not self._steps and not self._ends

    def next_ms(self) -> float:
        """Return when :meth:`proceed` is to be called next."""
        now = self._fleet.simulator.now_ms
        times = [s.ready_ms for s in self._steps if s.ready_ms is not None and s.ready_ms > now]
        if self._waiting:
            times.append(now + POLL_MS)
        return min(times, default=now)

    def proceed(self) -> None:
        """Do what is due now."""
        fleet = self._fleet
        fleet.settle()
        for gpu in sorted(self._waiting):
            # Where nothing leaves any more, waiting frees nothing (parts of the plan's memory may be unknown).
            if self._fits(gpu) or not self._passing(gpu):
                self._waiting.discard(gpu)
                self._load(gpu)
        now = fleet.simulator.now_ms
        changing: list[_Step | ModelProcess] = [*self._steps, *self._ends]
        for group in dict.fromkeys(self._group(c.asked.model) for c in changing):
            steps = [s for s in self._steps if self._group(s.asked.model) == group]
            if all(self._is_ready(step, now) for step in steps):
                self._finish(group, steps)

    def _group(self, model: str) -> str:
        if self._pace.together_ms is None:
            return model
        return _ALL

    def _is_ready(self, step: _Step, now: float) -> bool:
        if step.process is None:
            return step.ready_ms is not None and step.ready_ms <= now
        return step.gpu not in self._waiting

    def _finish(self, group: str, steps: Sequence[_Step]) -> None:
        for step in steps:
            if step.process is not None:
                self._fleet.set(step.process, step.asked, step.runs, step.server)
        leaving = [p for p in self._ends if self._group(p.asked.model) == group]
        self._fleet.end([p for p in leaving if not p.ends])
        self._ends = [p for p in self._ends if p not in leaving]
        self._steps = [s for s in self._steps if s not in steps]

    def _start(self) -> None:
        loading = dict.fromkeys(s.gpu for s in self._steps)
        # What leaves first must be told so before anything loads: a GPU may be left by one and entered by another.
        for gpu in loading:
            if not self._fits(gpu):
                self._make_room(gpu)
                self._waiting.add(gpu)
        for gpu in loading:
            if gpu not in self._waiting:
                self._load(gpu)
        self.proceed()

    def _fits(self, gpu: str) -> bool:
        """Say whether all that is on ``gpu`` and all that is to be there have room beside each other."""
        steps = [s for s in self._steps if s.gpu == gpu]
        if not self._passing(gpu) and not any(_differs(s) for s in steps):
            return True  # nothing but what the plan has: whether that fits is the policy's to hold
        later = {id(s.process): s.asked.mreq_pct for s in steps}
        parts = [s.asked.mreq_pct for s in steps if s.process is None]
        for process in self._on(gpu):
            parts.append(max_memory((process.memory_pct, later.get(id(process), 0.0))))
        total = memory_sum(parts)
        return total is not None and total <= FULL_PCT

    def _on(self, gpu: str) -> list[ModelProcess]:
        return [p for p in self._fleet.processes if p.gpu == gpu]

    def _passing(self, gpu: str) -> bool:
        """Say whether something on ``gpu`` holds memory that it is to give back."""
        return any(p.ends or p in self._ends or len(p.holds) > 1 for p in self._on(gpu))

    def _make_room(self, gpu: str) -> None:
        leaving = [p for p in self._ends if p.gpu == gpu and not p.ends]
        self._fleet.end(leaving)
        self.counted.retired_first += len(leaving)
        for step in self._steps:
            process = step.process
            if step.gpu != gpu or process is None:
                continue
            before = process.memory_pct
            after = step.asked.mreq_pct
            if before is None or after is None or after < before:
                self._fleet.set(process, step.asked, step.runs, step.server)

    def _load(self, gpu: str) -> None:
        steps = [s for s in self._steps if s.gpu == gpu and s.process is None]
        if not steps:
            return
        start = self._fleet.simulator.now_ms
        if gpu not in self._busy:
            start += self._pace.gpu_start_ms
        ready = self._pace.ready_ms(start, len(steps))
        self._fleet.load(
            self._gpus[gpu],
            [s.asked for s in steps],
            [s.runs for s in steps],
            [s.server for s in steps],
            ready,
        )
        for step, time in zip(steps, ready, strict=True):
            step.ready_ms = time

    def _count(self) -> None:
        counted = self.counted
        loads: Counter[str] = Counter()
        ends = Counter(p.asked.model for p in self._ends)
        for step in self._steps:
            if step.process is None:
                loads[step.asked.model] += 1
            elif _differs(step):
                counted.reset += 1
            else:
                counted.kept += 1
        counted.loads, counted.ends = loads.total(), ends.total()
        counted.moves = (loads & ends).total()


def _differs(step: _Step) -> bool:
    return step.process is not None and setting_key(step.process.asked) != setting_key(step.asked)


def _gpu_names(fleet: ProcessFleet, plan: PlacementPlan, pool: Mapping[str, Texts] | None) -> dict[str, str]:
    """Return the GPU that each of the plan's becomes. Raises UsageError where the pool has too few."""
    types = {g.id: g.type for g in fleet.gpus}
    used = fleet.used_gpus()
    busy = fleet.busy_gpus()
    contents = []
    for gpu in used:
        replicas = tuple(process.asked for process in fleet.running(gpu))
        contents.append(Content(id=gpu, type=types[gpu], replicas=replicas))
    for gpu_type, count in Counter(g.type for g in plan.gpus).items():
        if pool is not None:
            free = [g for g in pool.get(gpu_type, ()) if g not in used]
            # One that has batches left is free too, after those that have none.
            names = sorted(free, key=lambda g: g in busy)
        else:
            fresh = (f"{gpu_type}-{number}" for number in itertools.count())
            unused = (name for name in fresh if name not in busy and name not in used)
            names = list(itertools.islice(unused, count))
        contents += [Content(id=name, type=gpu_type) for name in names]
    names_of = {}
    for planned, becomes in match_gpus(contents, plan.gpus).items():
        if becomes is None:
            raise UsageError(f"the new plan uses {planned}: expected no more GPUs of a type than there are")
        names_of[planned] = becomes
    return names_of


def _steps(
    fleet: ProcessFleet, planned: Sequence[tuple[str, Replica, SimReplica]], names: Mapping[str, str]
) -> list[_Step]:
    """Return the replicas of the new plan with the processes that go on as them, and their servers."""
    steps: list[_Step] = []
    for planned_gpu in dict.fromkeys(gpu for gpu, _, _ in planned):
        replicas = [(asked, runs) for gpu, asked, runs in planned if gpu == planned_gpu]
        running = fleet.running(names[planned_gpu])
        pairs = pair_replicas([p.asked for p in running], [asked for asked, _ in replicas])
        on_gpu = []
        for number, (asked, runs) in enumerate(replicas):
            process = None
            if number in pairs:
                process = running[pairs[number]]
            step = _Step(gpu=names[planned_gpu], asked=asked, runs=runs, server=-1, process=process)
            on_gpu.append(step)
        _give_servers(fleet, on_gpu)
        steps += on_gpu
    return steps


def _give_servers(fleet: ProcessFleet, steps: Sequence[_Step]) -> None:
    """Let replicas that take turns share a server, the one of most of the processes that go on in it.

    What an old server has left, the new turns wait for.
    """
    groups: dict[object, list[_Step]] = defaultdict(list)
    for step in steps:
        key: object = step.runs.partition
        if key is None:
            key = id(step)
        groups[key].append(step)
    taken: set[int] = set()
    for group in groups.values():
        before = Counter(s.process.server for s in group if s.process is not None)
        server = next((n for n, _ in before.most_common() if n not in taken), None)
        if server is None:
            server = fleet.new_server()
        taken.add(server)
        for step in group:
            step.server = server
