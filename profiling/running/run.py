"""``run_plan``: open the folder, see that everything is there before anything starts, measure, report."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.records import frozen
from gkestimator.hardware.runtimes import executor_of
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
from gkestimator.profiling.type_names import Names, TextByName

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

    ``progress`` is called with (stage, done, total). ``raw`` is made if need be; with engine ``ray`` it holds
    a raw folder per GPU type. Raises UsageError (another run holds the folder, or it holds something else; no
    such device; an executor that cannot be loaded) and CollectorError (a profiler that is missing or records
    nothing) before anything is measured. Later trouble is in the report; what was measured stays.
    """
    options = options or RunOptions()
    machine = machine or Machine()
    begun = time.monotonic()
    stop = Stop(options.minutes)
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
    """Say what a run wants to measure with; ``counters``: of how many entries hardware counters are wanted."""

    executor: str
    collector: str
    counters: int


@frozen
class MeasuringMeans:
    """Say what a machine measures with, tried out: collectors by name (``counters``: None without such a
    pass), devices in the order asked, versions by name."""

    collector: str
    counters: str | None
    facts: tuple[DeviceFacts, ...]
    versions: TextByName
    messages: Names = ()


def find_means(request: Request, devices: Sequence[str], machine: Machine) -> MeasuringMeans:
    """Look for everything that measuring needs, on the machine where it will happen. Raises UsageError and
    CollectorError for what is missing."""
    facts = tuple(machine.facts(d) for d in devices)
    names = sorted({f.name for f in facts})
    if len(names) > 1:
        raise UsageError(
            f"device: found {' and '.join(names)}, expected GPUs of one type; give each type a folder of its own"
        )
    messages: Names = ()
    if serves_counters_alone(request.collector):
        collector = machine.collector(AUTO, devices[0], "timeline")  # counters need launches to belong to
        counters: Collector | None = machine.collector(request.collector, devices[0], "counters")
    else:
        collector = machine.collector(request.collector, devices[0], "timeline")
        counters, messages = _counters(request.counters, devices[0], machine)
    profilers = {c.name: c.version() for c in (collector, counters) if c is not None}
    known = {name: version for name, version in profilers.items() if version is not None}
    counting = None
    if counters is not None:
        counting = counters.name
    return MeasuringMeans(
        collector=collector.name,
        counters=counting,
        facts=facts,
        versions=python_versions() | dict(machine.versions(request.executor, devices[0])) | known,
        messages=messages,
    )


def _counters(wanted: int, device: str, machine: Machine) -> tuple[Collector | None, Names]:
    if not wanted:
        return None, ()
    if device == "cpu":
        return None, (f"counters of {wanted} entries left out: a CPU has none that ncu reads",)
    try:
        return machine.collector(automatic_collectors(device, "counters")[0], device, "counters"), ()
    except GkestimatorError as e:
        return None, (f"counters of {wanted} entries left out: {e}",)


def _request(plan: SweepPlan, options: RunOptions, earlier: RunInfo | None) -> Request:
    executor = options.executor or (earlier.executor if earlier else plan.runtime)
    executor_of(executor)  # refuses a runtime that nothing here profiles under
    collector = earlier.collector if earlier and options.collector == AUTO else options.collector
    if serves_counters_alone(collector) and not options.counters:
        raise UsageError(f"collector {collector}: goes with counters, found no-counters")
    counters = sum(e.counters and e.model is None for e in plan.entries) if options.counters else 0
    return Request(executor=executor, collector=collector, counters=counters)


def open_campaign(
    plan: SweepPlan,
    options: RunOptions,
    folder: RawFolder,
    find: Callable[[Request], MeasuringMeans],
    devices: Sequence[str],
) -> Campaign:
    """Begin a run into ``folder``, or go on with it where an earlier one ended. ``find`` looks for what it
    needs where it will be measured. Raises as :func:`run_plan`."""
    request = _request(plan, options, folder.earlier())
    try:
        means = find(request)
    except CollectorError as e:
        if all(e.model is None for e in plan.entries):
            raise
        raise CollectorError(f"{e}; collector none would give the latency of whole models") from e
    counters_alone = serves_counters_alone(request.collector)
    info = RunInfo(
        schema_version=RAW_VERSION,
        plan_digest=plan_digest(plan),
        executor=request.executor,
        collector=request.collector if counters_alone else means.collector,
        devices=means.facts,
        versions=means.versions,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        command=options.command,
    )
    folder.begin(plan, info)
    saved = salvage(folder)
    removed = folder.clean()
    if counters_alone:
        plan = replace(plan, entries=tuple(replace(e, counters=True) for e in plan.entries))
    campaign = Campaign(
        plan,
        options,
        executor=request.executor,
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
    campaign.messages += means.messages
    _say_what_is_left_out(campaign, means, request.collector if counters_alone else None)
    return campaign


def _say_what_is_left_out(campaign: Campaign, means: MeasuringMeans, counting: str | None) -> None:
    """Say what nothing records, and what a collector that is ``counting`` leaves out."""
    say = campaign.messages.append
    entries = campaign.plan.entries
    models = sum(e.model is not None for e in entries)
    if not records_launches(means.collector) and any(f.kind != "cpu" for f in means.facts):
        nothing = "collector none: nothing records the launches"
        if models:
            say(f"{nothing} of {models} whole models, so that they get a latency and no timeline")
        if models < len(entries):
            say(f"{nothing}, so that gkest profile build can make no rows of them")
    if counting is not None and models:
        say(
            f"counters of {models} whole models are not taken: {counting} would replay each of their launches"
        )
    runtime = campaign.plan.runtime
    if campaign.executor != runtime and models < len(entries):
        say(
            f"the plan's patterns are those of {runtime}; {campaign.executor} runs them as it would any model"
        )


def choose_devices(asked: Sequence[str], machine: Machine) -> Names:
    """Return ``cpu``, ``cuda:0``, ... as asked; ``all``: every GPU; nothing: the first GPU, the CPU where there is
    none. Raises UsageError."""
    count = machine.gpus()
    if not asked:
        return ("cuda:0",) if count else ("cpu",)
    devices: list[str] = []
    for name in asked:
        if name == "all":
            if not count:
                raise UsageError("device all: no GPU answers on this machine, expected at least one, or cpu")
            devices += [f"cuda:{i}" for i in range(count)]
        elif not _DEVICE.fullmatch(name):
            raise UsageError(f"device: found {name[:40]!r}, expected cpu, cuda:N or all")
        elif name != "cpu" and int(name[5:]) >= count:
            raise UsageError(f"device {name}: this machine shows {count} GPUs")
        else:
            devices.append(name)
    return tuple(dict.fromkeys(devices))
