"""Working a plan off over a Ray cluster: chunks are tasks, each GPU type is a resource of its own.

A node offers a type with ``ray start --resources='{"gkest:H100": 1}'`` (one unit for each GPU), or by the
accelerator type that Ray finds itself. Every type measures the whole plan, into ``RAW/<type>/``. Tasks
measure into a folder of their node and send it back; the driver alone writes the raw folders. A task whose
node dies is given to another.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError, UsageError, one_line
from gkestimator.jobs.ray_cluster import RayTasks, connected
from gkestimator.jobs.stopping import Progress, Stop, stop_on_signals
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.cluster_tasks import describe, measure, unpack
from gkestimator.profiling.running.folder import RawFolder
from gkestimator.profiling.running.jobs import ChunkJob, RunOptions
from gkestimator.profiling.running.local import say_why_left
from gkestimator.profiling.running.machine import Machine
from gkestimator.profiling.running.report import RunReport, together
from gkestimator.profiling.running.run import MeasuringMeans, Request, open_campaign
from gkestimator.profiling.type_names import Fields, Members, Names, NumberByName

PREFIX = "gkest:"
ACCELERATOR = "accelerator_type:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TICK_S = 0.25
_LOOK_S = 2.0
# A type none of whose nodes is alive for so long is given up; the same command goes on when they are back.
NODES_AWAY_S = 30.0
_DESCRIBE_S = 600.0
_OVERTIME_S = 60.0
_LOST_TASKS_IN_A_ROW = 5
_MOST_SLOTS = 256


Nodes = list[NumberByName]


@dataclass(slots=True, eq=False)
class _Type:
    """Hold one GPU type: what its tasks ask Ray for, its raw folder, its campaign, how many chunks may be under way
    (``slots``), and how many tasks in a row were lost."""

    name: str
    resource: str
    gpu: bool
    folder: RawFolder
    slots: int
    campaign: Campaign | None = None
    failure: RunReport | None = None
    lost: int = 0
    away_since: float | None = None

    @property
    def device(self) -> str:
        return "cuda:0" if self.gpu else "cpu"

    def needs(self) -> Fields:
        # A trace of the accelerator suffices: the GPU itself is what is counted there.
        share = 0.001 if self.resource.startswith(ACCELERATOR) else 1
        return {"num_gpus": 1 if self.gpu else 0, "resources": {self.resource: share}}

    def report(self, begun: float) -> RunReport:
        if self.campaign is not None:
            return self.campaign.report(str(self.folder.path), (time.monotonic() - begun) / 60)
        assert self.failure is not None
        return self.failure


def run_on_cluster(
    plan: SweepPlan,
    raw: Path,
    options: RunOptions,
    machine: Machine,
    *,
    stop: Stop,
    progress: Progress | None = None,
) -> RunReport:
    """Do what :func:`run_plan` does over a cluster; the report has a part per type. Raises UsageError where
    Ray or a cluster is missing, or it offers no such type."""
    begun = time.monotonic()
    with connected() as ray, ExitStack() as stack:
        offered = _offered(ray)
        types = [_type(name, raw, offered) for name in _names(options, offered)]
        for each in types:
            stack.enter_context(each.folder)
        _open(ray, types, plan, options, machine)
        with stop_on_signals(stop):
            begun_types = [(t, t.campaign) for t in types if t.campaign is not None]
            _Driver(ray, begun_types, machine, stop, progress).work()
        parts = tuple(t.report(begun) for t in types)
    return together(str(raw), parts)


def _offered(ray: Any) -> dict[str, Nodes]:
    """Return resources of ours, and accelerator types, with those of the living nodes that have them."""
    offered: dict[str, Nodes] = {}
    for node in ray.nodes():
        if node["Alive"]:
            for resource in node["Resources"]:
                if resource.startswith((PREFIX, ACCELERATOR)):
                    offered.setdefault(resource, []).append(node["Resources"])
    return offered


def _names(options: RunOptions, offered: Members) -> Names:
    own = sorted(r.removeprefix(PREFIX) for r in offered if r.startswith(PREFIX))
    others = sorted(r.removeprefix(ACCELERATOR) for r in offered if r.startswith(ACCELERATOR))
    wanted = options.gpu_types or tuple(own or others)
    if not wanted:
        raise UsageError(
            "engine ray: the cluster offers no GPU type; start its nodes with ray start "
            "--resources='{\"gkest:H100\": 1}', one unit for each GPU"
        )
    names = dict.fromkeys((*own, *others))
    for name in wanted:
        if not _NAME.fullmatch(name):
            raise UsageError(f"gpu-type: found {name[:40]!r}, expected letters, digits, dots and hyphens")
        if name not in names:
            raise UsageError(f"gpu-type {name}: the cluster offers {', '.join(names) or 'none'}")
    return wanted


def _type(name: str, raw: Path, offered: Mapping[str, Nodes]) -> _Type:
    accelerator = PREFIX + name not in offered
    resource = (ACCELERATOR if accelerator else PREFIX) + name
    nodes = offered[resource]
    gpu = accelerator or all(n.get("GPU", 0) >= 1 for n in nodes)
    return _Type(name, resource, gpu, RawFolder(raw / name), _slots(resource, nodes))


def _slots(resource: str, nodes: Nodes) -> int:
    unit = "GPU" if resource.startswith(ACCELERATOR) else resource
    return min(_MOST_SLOTS, sum(int(n.get(unit, 0)) for n in nodes))


def _open(ray: Any, types: list[_Type], plan: SweepPlan, options: RunOptions, machine: Machine) -> None:
    """Open each type's campaign; one that cannot be begun leaves the others alone, all of them are an error."""
    # One GPU type that cannot begin must not cost the others their run.
    failures: list[GkestimatorError] = []
    for each in types:

        def find(request: Request, each: _Type = each) -> MeasuringMeans:
            return _described(ray, each, request, machine)

        try:
            each.campaign = open_campaign(plan, options, each.folder, find, [each.device])
        except GkestimatorError as e:
            failures.append(e)
            entries = len(plan.entries)
            each.failure = RunReport(
                raw=str(each.folder.path), entries=entries, left=entries, stopped=str(e), stop_status=2
            )
    if len(failures) == len(types):
        raise failures[0]


def _described(ray: Any, each: _Type, request: Request, machine: Machine) -> MeasuringMeans:
    """Have a node of a type say what it measures with. Raises UsageError where none does."""
    tasks: RayTasks[_Type] = RayTasks(ray, describe)
    tasks.start(each, (request, each.device, machine), **each.needs())
    error: Exception | None = TimeoutError(f"within {_DESCRIBE_S:.0f} s")
    for _, described, error in tasks.finished(_DESCRIBE_S):
        if error is None:
            means, line = described
            if means is None:
                raise UsageError(f"gpu-type {each.name}: {line}")
            return means  # type: ignore[no-any-return]
    for _ in tasks.cancel(lambda _: True):
        pass
    raise UsageError(f"gpu-type {each.name}: no node answered: {one_line(error, limit=200)}")


@dataclass
class _Driver:
    ray: Any
    types: list[tuple[_Type, Campaign]]
    machine: Machine
    stop: Stop
    progress: Progress | None

    def __post_init__(self) -> None:
        self.tasks: RayTasks[tuple[_Type, Campaign, ChunkJob]] = RayTasks(self.ray, measure)
        self.looked = time.monotonic()

    def work(self) -> None:
        """Give chunks out and take them in until nothing is left, or the run must end."""
        while True:
            self._look()
            for each, campaign in self.types:
                self._give(each, campaign)
            if not len(self.tasks) and not any(self._goes_on(c) for _, c in self.types):
                break
            left = self.stop.seconds_left()
            if self.stop.asked or (left is not None and left < -_OVERTIME_S):
                self._cancel()
                break
            if len(self.tasks):
                self._take()
            else:
                time.sleep(_TICK_S)
            self._show()
        for _, campaign in self.types:
            say_why_left(campaign, self.stop)

    def _goes_on(self, campaign: Campaign) -> bool:
        return campaign.stopped is None and self.stop() is None and campaign.waiting > 0

    def _look(self) -> None:
        """Nodes come and go: see how many chunks may be under way, and whether a type has gone altogether."""
        now = time.monotonic()
        if now - self.looked < _LOOK_S:
            return
        self.looked = now
        offered = _offered(self.ray)
        for each, campaign in self.types:
            each.slots = _slots(each.resource, offered.get(each.resource, []))
            # A node that restarts within half a minute is no reason to give its type up.
            each.away_since = None if each.slots else each.away_since or now
            if each.away_since is not None and now - each.away_since > NODES_AWAY_S:
                self._cancel(each)
                campaign.stop(f"stopped: no node with {each.resource} is alive")

    def _give(self, each: _Type, campaign: Campaign) -> None:
        while campaign.running < each.slots and self._goes_on(campaign):
            if not each.folder.has_room(campaign.options.min_free_mb):
                campaign.disk_full()
                return
            left = self.stop.seconds_left()
            job = campaign.next_job(each.device, left)
            if job is None:
                return
            self.tasks.start((each, campaign, job), (job, self.machine, left), **each.needs())

    def _take(self) -> None:
        for (each, campaign, job), measured, error in self.tasks.finished(_TICK_S):
            if error is None:
                each.lost = 0
                result, files = measured
                if files is not None:
                    result = each.folder.keep(job, lambda aside: unpack(files, aside, job, result))  # noqa: B023
                campaign.finished(job, result)
                continue
            each.lost += 1
            lines = str(error).strip().splitlines() or [type(error).__name__]
            line = one_line(lines[-1], limit=200)
            campaign.give_back(job)
            campaign.problem(
                f"chunk {job.folder_name}: its task was lost and is given to another node: {line}"
            )
            if each.lost >= _LOST_TASKS_IN_A_ROW:
                campaign.stop(f"stopped: {each.lost} tasks in a row were lost: {line}")

    def _cancel(self, only: _Type | None = None) -> None:
        for _, campaign, job in self.tasks.cancel(lambda task: only in (None, task[0])):
            campaign.give_back(job)

    def _show(self) -> None:
        if self.progress is None:
            return
        stages, done, total = zip(*(c.progress() for _, c in self.types), strict=True)
        self.progress(f"{stages[0]} on {len(stages)} GPU types", sum(done), sum(total))
