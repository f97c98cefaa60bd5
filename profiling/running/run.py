"""``run_plan``: open the folder, see that everything is there before anything starts, measure, report."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.records import frozen
from gkestimator.jobs.stopping import Progress, Stop
from gkestimator.profiling.collectors import AUTO, records_launches
from gkestimator.profiling.collectors.base import Collector, CollectorError
from gkestimator.profiling.collectors.registry import automatic_collectors, serves_counters_alone
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.raw import RAW_VERSION, DeviceFacts, RunInfo
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.folder import RawFolder, plan_digest
from gkestimator.profiling.running.jobs import RunOptions
from gkestimator.profiling.running.local import work_off
from gkestimator.profiling.running.machine import Machine, python_versions
from gkestimator.profiling.running.report import RunReport
from gkestimator.profiling.running.salvage import salvage

_DEVICE = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,2})")


def run_plan(
    plan: SweepPlan,
    raw: Path,
    options: RunOptions | None = None,
    *,
    progress: Progress | None = None,
    machine: Machine | None = None,
) -> RunReport:
    """Measure what ``plan`` asks for and earlier runs into ``raw`` have not measured.

    ``progress`` is called with (stage, done, total). ``raw`` is made if need be; with engine ``ray`` it holds a raw
    folder per GPU type. Raises UsageError (another run holds the folder, or it holds something else; no such device;
    an executor that cannot be loaded) and CollectorError (a profiler that is missing or records nothing) before
    anything is measured. Later trouble is in the report; what was measured stays.
    """
    options = options or RunOptions()
    machine = machine or Machine()
    begun = time.monotonic()
    stop = Stop(None if options.minutes is None else begun + 60 * options.minutes)
    if options.engine == "ray":
        from gkestimator.profiling.running.cluster import run_on_cluster

        return run_on_cluster(plan, raw, options, machine, stop=stop, progress=progress)
    devices = choose_devices(options.devices, machine)
    with RawFolder(raw) as folder:
        campaign = open_campaign(
            plan, options, folder, lambda request: find_means(request, devices, machine), devices
        )
        work_off(campaign, folder, devices, machine, stop=stop, progress=progress)
        return campaign.report(str(raw), (time.monotonic() - begun) / 60)


@frozen
class Request:
    """What a run wants to measure with; ``counters``: of how many entries hardware counters are wanted."""

    executor: str
    collector: str
    counters: int


@frozen
class MeasuringMeans:
    """What a machine measures with, tried out: collectors by name (``counters``: None without such a pass), devices in
    the order asked, versions by name."""

    collector: str
    counters: str | None
    facts: tuple[DeviceFacts, ...]
    versions: Mapping[str, str]
    messages: tuple[str, ...] = ()


def find_means(request: Request, devices: Sequence[str], machine: Machine) -> MeasuringMeans:
    """Look for everything that measuring needs, on the machine where it will happen. Raises UsageError and
    CollectorError for what is missing."""
    facts = tuple(machine.facts(d) for d in devices)
    names = sorted({f.name for f in facts})
    if len(names) > 1:
        raise UsageError(
            f"device: found {' and '.join(names)}, expected GPUs of one type; give each type a folder of its own"
        )
    counters: Collector | None
    messages: tuple[str, ...] = ()
    if serves_counters_alone(request.collector):
        collector = machine.collector(AUTO, devices[0], "timeline")  # counters need launches to belong to
        counters = machine.collector(request.collector, devices[0], "counters")
    else:
        collector = machine.collector(request.collector, devices[0], "timeline")
        counters, messages = _counters(request.counters, devices[0], machine)
    versions = python_versions() | dict(machine.versions(request.executor, devices[0]))
    for each in filter(None, (collector, counters)):
        version = each.version()
        if version is not None:
            versions[each.name] = version
    return MeasuringMeans(
        collector=collector.name,
        counters=None if counters is None else counters.name,
        facts=facts,
        versions=versions,
        messages=messages,
    )


def _counters(wanted: int, device: str, machine: Machine) -> tuple[Collector | None, tuple[str, ...]]:
    if not wanted:
        return None, ()
    if device == "cpu":
        return None, (f"counters of {wanted} entries left out: a CPU has none that ncu reads",)
    try:
        return machine.collector(automatic_collectors(device, "counters")[0], device, "counters"), ()
    except GkestimatorError as e:
        return None, (f"counters of {wanted} entries left out: {e}",)


def open_campaign(
    plan: SweepPlan,
    options: RunOptions,
    folder: RawFolder,
    find: Callable[[Request], MeasuringMeans],
    devices: Sequence[str],
) -> Campaign:
    """A run into ``folder``: begun, or gone on with where an earlier one ended. ``find`` looks for what it needs where
    it will be measured. Raises as :func:`run_plan`."""
    earlier = folder.earlier()
    executor = options.executor or (earlier.executor if earlier else plan.runtime)
    if earlier and options.collector == AUTO:
        collector = earlier.collector
    else:
        collector = options.collector
    if options.counters:
        counted = sum(e.counters and e.model is None for e in plan.entries)
    else:
        counted = 0
    counters_alone = serves_counters_alone(collector)
    if counters_alone and not options.counters:
        raise UsageError(f"collector {collector}: goes with counters, found no-counters")
    try:
        means = find(Request(executor=executor, collector=collector, counters=counted))
    except CollectorError as e:
        if not any(entry.model is not None for entry in plan.entries):
            raise
        raise CollectorError(f"{e}; collector none would give the latency of whole models") from e
    info = RunInfo(
        schema_version=RAW_VERSION,
        plan_digest=plan_digest(plan),
        executor=executor,
        collector=collector if counters_alone else means.collector,
        devices=means.facts,
        versions=means.versions,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        command=options.command,
    )
    folder.begin(plan, info)
    saved = salvage(folder)
    removed = folder.clean()
    campaign = Campaign(
        _all_counted(plan) if counters_alone else plan,
        options,
        executor=executor,
        collector=means.collector,
        counters_collector=means.counters,
        facts=dict(zip(devices, means.facts, strict=True)),
        next_number=folder.next_number(),
    )
    campaign.resume(folder.done())
    if saved or removed:
        campaign.messages.append(
            f"an earlier run was cut off in {saved + removed} chunks; the records of {saved} were saved"
        )
    campaign.messages += (*means.messages, *_unrecorded(plan, means))
    if counters_alone:
        campaign.messages += _uncounted(plan, collector)
    if executor != plan.runtime and any(e.model is None for e in plan.entries):
        campaign.messages.append(
            f"the plan's patterns are those of {plan.runtime}; {executor} runs them as it would any model"
        )
    return campaign


def _unrecorded(plan: SweepPlan, means: MeasuringMeans) -> tuple[str, ...]:
    if records_launches(means.collector) or all(f.kind == "cpu" for f in means.facts):
        return ()
    models = sum(e.model is not None for e in plan.entries)
    lines = []
    if models:
        lines.append(
            f"collector none: nothing records the launches of {models} whole models, so that they get a latency and "
            "no timeline"
        )
    if models < len(plan.entries):
        lines.append(
            "collector none: nothing records the launches, so that gkest profile build can make no rows of them"
        )
    return tuple(lines)


def _uncounted(plan: SweepPlan, collector: str) -> tuple[str, ...]:
    models = sum(e.model is not None for e in plan.entries)
    if not models:
        return ()
    return (
        f"counters of {models} whole models are not taken: {collector} would replay each of their launches",
    )


def _all_counted(plan: SweepPlan) -> SweepPlan:
    return replace(plan, entries=tuple(replace(e, counters=True) for e in plan.entries))


def choose_devices(asked: Sequence[str], machine: Machine) -> tuple[str, ...]:
    """``cpu``, ``cuda:0``, ... as asked; ``all``: every GPU; nothing: the first GPU, the CPU where there is none."""
    count = machine.gpus()
    if not asked:
        return ("cuda:0",) if count else ("cpu",)
    found: list[str] = []
    for name in asked:
        if name == "all":
            if not count:
                raise UsageError("device all: no GPU answers on this machine, expected at least one, or cpu")
            found += [f"cuda:{i}" for i in range(count)]
        elif _DEVICE.fullmatch(name):
            if name != "cpu" and int(name[5:]) >= count:
                raise UsageError(f"device {name}: this machine shows {count} GPUs")
            found.append(name)
        else:
            raise UsageError(f"device: found {name[:40]!r}, expected cpu, cuda:N or all")
    return tuple(dict.fromkeys(found))
