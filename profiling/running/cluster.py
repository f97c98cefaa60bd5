"""Working a plan off over a Ray cluster: chunks are tasks, each GPU type is a resource of its own.

A node offers a type with ``ray start --resources='{"gkest:H100": 1}'`` (one unit for each GPU), or by the accelerator
type that Ray finds itself. Every type measures the whole plan, into ``RAW/<type>/``. Tasks measure into a folder of
their node and send it back; the driver alone writes the raw folders. A task whose node dies is given to another.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError, TableError, UsageError, one_line
from gkestimator.jobs.disk import is_disk_full
from gkestimator.jobs.ray_cluster import connected
from gkestimator.jobs.stopping import Progress, Stop, stop_on_signals
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.cluster_tasks import describe, measure, unpack
from gkestimator.profiling.running.folder import RawFolder
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult, RunOptions
from gkestimator.profiling.running.local import end_words
from gkestimator.profiling.running.machine import Machine
from gkestimator.profiling.running.report import NO_MODELS, RunReport
from gkestimator.profiling.running.run import MeasuringMeans, Request, open_campaign

PREFIX = "gkest:"
ACCELERATOR = "accelerator_type:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TICK_S = 0.25
_LOOK_S = 2.0
NODES_AWAY_S = 30.0
"""A type none of whose nodes is alive for so long is given up; the same command goes on when they are back."""
_DESCRIBE_S = 600.0
_OVERTIME_S = 60.0
_LOST_TASKS_IN_A_ROW = 5
_MOST_SLOTS = 256


@dataclass(slots=True)
class _Type:
    """One GPU type: what its tasks ask Ray for, its raw folder, its campaign, its tasks under way."""

    name: str
    resource: str
    gpu: bool
    folder: RawFolder
    slots: int
    campaign: Campaign | None = None
    failure: RunReport | None = None
    tasks: dict[Any, ChunkJob] = field(default_factory=dict)
    lost: int = 0
    away_since: float | None = None

    @property
    def device(self) -> str:
        return "cuda:0" if self.gpu else "cpu"

    def options(self) -> dict[str, Any]:
        """What a task of this type needs. No retries of Ray's own: whether a chunk is worth another try is ours to
        say."""
        wanted: dict[str, Any] = {"num_cpus": 1, "max_retries": 0, "num_gpus": 1 if self.gpu else 0}
        # A trace of the accelerator suffices: the GPU itself is what is counted there.
        share = 0.001 if self.resource.startswith(ACCELERATOR) else 1
        return wanted | {"resources": {self.resource: share}}


def run_on_cluster(
    plan: SweepPlan,
    raw: Path,
    options: RunOptions,
    machine: Machine,
    *,
    stop: Stop,
    progress: Progress | None = None,
) -> RunReport:
    """As :func:`run_plan`, over a cluster; the report has a part per type. Raises UsageError where Ray or a cluster is
    missing, or it offers no such type."""
    begun = time.monotonic()
    with connected() as ray, ExitStack() as stack:
        offered = _offered(ray)
        types = [_type(name, raw, offered) for name in _names(options, offered)]
        for each in types:
            stack.enter_context(each.folder)
        _open(ray, types, plan, options, machine)
        with stop_on_signals(stop):
            _Driver(ray, types, machine, stop, progress).work()
        parts = tuple(_report(t, begun) for t in types)
    return _together(str(raw), parts)


def _offered(ray: Any) -> dict[str, list[Mapping[str, float]]]:
    """Resources of ours, and accelerator types, with those of the living nodes that have them."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        for resource in node["Resources"]:
            if resource.startswith((PREFIX, ACCELERATOR)):
                found.setdefault(resource, []).append(node["Resources"])
    return found


def _names(options: RunOptions, offered: Mapping[str, Any]) -> tuple[str, ...]:
    own = sorted(r.removeprefix(PREFIX) for r in offered if r.startswith(PREFIX))
    others = sorted(r.removeprefix(ACCELERATOR) for r in offered if r.startswith(ACCELERATOR))
    wanted = options.gpu_types or tuple(own or others)
    if not wanted:
        raise UsageError(
            "engine ray: the cluster offers no GPU type; start its nodes with ray start "
            "--resources='{\"gkest:H100\": 1}', one unit for each GPU"
        )
    for name in wanted:
        if not _NAME.fullmatch(name):
            raise UsageError(f"gpu-type: found {name[:40]!r}, expected letters, digits, dots and hyphens")
        if name not in own and name not in others:
            raise UsageError(
                f"gpu-type {name}: the cluster offers {', '.join(dict.fromkeys((*own, *others))) or 'none'}"
            )
    return wanted


def _type(name: str, raw: Path, offered: Mapping[str, list[Mapping[str, float]]]) -> _Type:
    if PREFIX + name in offered:
        resource = PREFIX + name
    else:
        resource = ACCELERATOR + name
    nodes = offered[resource]
    gpu = resource.startswith(ACCELERATOR) or all(n.get("GPU", 0) >= 1 for n in nodes)
    return _Type(
        name=name,
        resource=resource,
        gpu=gpu,
        folder=RawFolder(raw / name),
        slots=_slots(resource, nodes),
    )


def _slots(resource: str, nodes: list[Mapping[str, float]]) -> int:
    unit = "GPU" if resource.startswith(ACCELERATOR) else resource
    return min(_MOST_SLOTS, sum(int(n.get(unit, 0)) for n in nodes))


def _open(ray: Any, types: list[_Type], plan: SweepPlan, options: RunOptions, machine: Machine) -> None:
    """Open each type's campaign; one that cannot be begun leaves the others alone, all of them are an error."""
    task = ray.remote(describe)
    failures: list[GkestimatorError] = []
    for each in types:

        def find(request: Request, each: _Type = each) -> MeasuringMeans:
            asked = task.options(**each.options()).remote(request, each.device, machine)
            try:
                means, line = ray.get(asked, timeout=_DESCRIBE_S)
            except ray.exceptions.RayError as e:
                ray.cancel(asked, force=True)
                raise UsageError(f"gpu-type {each.name}: no node answered: {one_line(e, limit=200)}") from e
            if means is None:
                raise UsageError(f"gpu-type {each.name}: {line}")
            found: MeasuringMeans = means
            return found

        try:
            each.campaign = open_campaign(plan, options, each.folder, find, [each.device])
        except GkestimatorError as e:
            failures.append(e)
            each.failure = _nothing(str(each.folder.path), len(plan.entries), str(e))
    if len(failures) == len(types):
        raise failures[0]


def _nothing(raw: str, entries: int, line: str) -> RunReport:
    return RunReport(
        raw=raw,
        entries=entries,
        ok=0,
        failed=0,
        skipped=0,
        noisy=0,
        left=entries,
        counters=0,
        chunks=0,
        minutes=0.0,
        stopped=line,
        stop_status=2,
    )


class _Driver:
    def __init__(
        self, ray: Any, types: list[_Type], machine: Machine, stop: Stop, progress: Progress | None
    ) -> None:
        self.ray = ray
        self.machine = machine
        self.stop = stop
        self.progress = progress
        self.types = [t for t in types if t.campaign is not None]
        self.task = ray.remote(measure)
        self.looked = time.monotonic()

    def work(self) -> None:
        """Give chunks out and take them in until nothing is left, or the run must end."""
        over: float | None = None
        while True:
            self._look()
            for each in self.types:
                self._give(each)
            pending = {ref: each for each in self.types for ref in each.tasks}
            if not pending and not any(self._open(t) for t in self.types):
                break
            if self.stop() is not None:
                over = over or time.monotonic()
                if self.stop.asked or time.monotonic() - over > _OVERTIME_S:
                    self._cancel(pending)
                    break
            if pending:
                ready, _ = self.ray.wait(list(pending), num_returns=1, timeout=_TICK_S)
                for ref in ready:
                    self._take(pending[ref], ref)
            else:
                time.sleep(_TICK_S)
            self._show()
        for each in self.types:
            if each.campaign is not None:
                end_words(each.campaign, self.stop, gone=1)

    def _open(self, each: _Type) -> bool:
        campaign = each.campaign
        return (
            campaign is not None
            and campaign.stopped is None
            and self.stop() is None
            and bool(campaign.waiting)
        )

    def _look(self) -> None:
        """Nodes come and go: how many chunks may be under way, and whether a type has gone altogether."""
        now = time.monotonic()
        if now - self.looked < _LOOK_S:
            return
        self.looked, offered = now, _offered(self.ray)
        for each in self.types:
            each.slots = _slots(each.resource, offered.get(each.resource, []))
            each.away_since = None if each.slots else each.away_since or now
            if each.away_since is not None and now - each.away_since > NODES_AWAY_S and each.campaign:
                self._cancel(dict.fromkeys(each.tasks, each))
                each.campaign.stop(f"stopped: no node with {each.resource} is alive")

    def _give(self, each: _Type) -> None:
        campaign = each.campaign
        while campaign is not None and len(each.tasks) < each.slots and self._open(each):
            if each.folder.free_bytes() < campaign.options.min_free_mb * 2**20:
                campaign.disk_full()
                return
            left = self.stop.seconds_left()
            job = campaign.next_job(each.device, left)
            if job is None:
                return
            ref = self.task.options(**each.options()).remote(job, self.machine, left)
            each.tasks[ref] = job

    def _take(self, each: _Type, ref: Any) -> None:
        job = each.tasks.pop(ref)
        campaign = each.campaign
        assert campaign is not None
        try:
            result, data = self.ray.get(ref)
        except self.ray.exceptions.RayError as e:
            each.lost += 1
            line = one_line(
                str(e).strip().splitlines()[-1] if str(e).strip() else type(e).__name__, limit=200
            )
            campaign.give_back(job)
            campaign.problem(
                f"chunk {job.folder_name}: its task was lost and is given to another node: {line}"
            )
            if each.lost >= _LOST_TASKS_IN_A_ROW:
                campaign.stop(f"stopped: {each.lost} tasks in a row were lost: {line}")
            return
        each.lost = 0
        campaign.finished(job, self._commit(each, job, result, data))

    def _commit(self, each: _Type, job: ChunkJob, result: ChunkResult, data: bytes | None) -> ChunkResult:
        if data is None:
            return result
        aside = each.folder.aside(job.folder_name)
        try:
            unpack(data, aside, job, result)
            each.folder.commit(aside, job.folder_name)
            return result
        except TableError as e:
            return ChunkResult(kind="lost", line=str(e))
        except OSError as e:
            if not is_disk_full(e):
                raise
            return ChunkResult(kind="disk")
        finally:
            each.folder.drop(aside)

    def _cancel(self, tasks: Mapping[Any, _Type]) -> None:
        for ref, each in tasks.items():
            self.ray.cancel(ref, force=True)
            if each.campaign is not None:
                each.campaign.give_back(each.tasks.pop(ref))

    def _show(self) -> None:
        if self.progress is None:
            return
        shown = [t.campaign.progress() for t in self.types if t.campaign is not None]
        done = sum(s[1] for s in shown)
        total = sum(s[2] for s in shown)
        self.progress(f"{shown[0][0]} on {len(shown)} GPU types", done, total)


def _report(each: _Type, begun: float) -> RunReport:
    if each.campaign is None:
        assert each.failure is not None
        return each.failure
    return each.campaign.report(str(each.folder.path), (time.monotonic() - begun) / 60)


def _together(raw: str, parts: tuple[RunReport, ...]) -> RunReport:
    def total(of: Callable[[RunReport], int]) -> int:
        return sum(of(p) for p in parts)

    return RunReport(
        raw=raw,
        entries=total(lambda p: p.entries),
        ok=total(lambda p: p.ok),
        failed=total(lambda p: p.failed),
        skipped=total(lambda p: p.skipped),
        noisy=total(lambda p: p.noisy),
        left=total(lambda p: p.left),
        counters=total(lambda p: p.counters),
        chunks=total(lambda p: p.chunks),
        minutes=max(p.minutes for p in parts),
        parts=parts,
        whole=sum((p.whole for p in parts), NO_MODELS),
    )
