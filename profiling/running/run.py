"""``run_plan``: open the folder, see that everything is there before anything starts, measure, report."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.profiling.collectors.base import Collector
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.raw import RAW_VERSION, DeviceFacts, RunInfo
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.folder import RawFolder, plan_digest
from gkestimator.profiling.running.jobs import RunOptions, RunReport
from gkestimator.profiling.running.local import Progress, Stop, work_off
from gkestimator.profiling.running.machine import Machine, python_versions
from gkestimator.profiling.running.salvage import salvage

from gkestimator.errors import GkestimatorError, UsageError

__all__ = ["choose_devices", "make_campaign", "run_info", "run_plan"]

_DEVICE = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,2})")


def run_plan(
    plan: SweepPlan, raw: Path, options: RunOptions | None = None, *, progress: Progress | None = None,
    machine: Machine | None = None,
) -> RunReport:  # fmt: skip
    """Measure what ``plan`` asks for and earlier runs into ``raw`` have not measured.

    ``progress`` is called with (stage, done, total). ``raw`` is made if need be; with engine ``ray`` it holds a raw
    folder per GPU type. Raises UsageError (another run holds the folder, or it holds something else; no such device;
    an executor that cannot be loaded) and CollectorError (a profiler that is missing or records nothing) before
    anything is measured. Later trouble is in the report; what was measured stays.
    """
    options = options or RunOptions()
    if options.engine == "ray":
        from gkestimator.profiling.running.cluster import run_on_cluster

        return run_on_cluster(plan, raw, options, progress=progress, machine=machine)
    machine = machine or Machine()
    begun = time.monotonic()
    devices = choose_devices(options.devices, machine)
    with RawFolder(raw) as folder:
        earlier = folder.earlier()
        executor = options.executor or (earlier.executor if earlier else plan.runtime)
        wanted = earlier.collector if earlier and options.collector == "auto" else options.collector
        facts = {d: machine.facts(d) for d in devices}
        _one_type(facts)
        collector = machine.collector(wanted, devices[0], "timeline")
        counters, message = counters_collector(plan, options, machine, devices[0])
        versions = _versions(executor, devices[0], machine, collector, counters)
        info = run_info(plan, options, executor, collector.name, tuple(facts.values()), versions)
        folder.begin(plan, info)
        saved = salvage(folder) if collector.name == "none" else 0
        removed = folder.clean()
        campaign = make_campaign(plan, options, folder, info, counters, facts)
        if saved or removed:
            campaign.messages.append(
                f"an earlier run was cut off: {saved + removed} chunks in the making, {saved} of them saved"
            )
        if message:
            campaign.messages.append(message)
        if executor != plan.runtime:
            campaign.messages.append(
                f"the plan's patterns are those of {plan.runtime}, measured with {executor}: as it would run them"
            )
        deadline = None if options.minutes is None else begun + 60 * options.minutes
        work_off(campaign, folder, devices, machine, stop=Stop(deadline), progress=progress)
        return campaign.report(str(raw), (time.monotonic() - begun) / 60)


def choose_devices(asked: Sequence[str], machine: Machine) -> tuple[str, ...]:
    """``cpu``, ``cuda:0``, ... as asked; ``all``: every GPU; nothing: the first GPU, the CPU where there is none."""
    if not asked:
        return ("cuda:0",) if machine.gpus() else ("cpu",)
    found: list[str] = []
    for name in asked:
        if name == "all":
            count = machine.gpus()
            if not count:
                raise UsageError("device all: no GPU answers on this machine, expected at least one, or cpu")
            found += [f"cuda:{i}" for i in range(count)]
        elif _DEVICE.fullmatch(name):
            if name != "cpu" and int(name[5:]) >= machine.gpus():
                raise UsageError(f"device {name}: this machine shows {machine.gpus()} GPUs")
            found.append(name)
        else:
            raise UsageError(f"device: found {name[:40]!r}, expected cpu, cuda:N or all")
    return tuple(dict.fromkeys(found))


def counters_collector(
    plan: SweepPlan, options: RunOptions, machine: Machine, device: str
) -> tuple[Collector | None, str | None]:
    """The collector of the counters pass, or None and why there is no such pass."""
    wanted = sum(e.counters for e in plan.entries)
    if not wanted or not options.counters:
        return None, None
    if device == "cpu":
        return None, f"counters of {wanted} entries left out: a CPU has none that ncu reads"
    try:
        return machine.collector("ncu", device, "counters"), None
    except GkestimatorError as e:
        return None, f"counters of {wanted} entries left out: {e}"


def _versions(
    executor: str, device: str, machine: Machine, collector: Collector, counters: Collector | None
) -> dict[str, str]:
    found = python_versions() | dict(machine.versions(executor, device))
    for each in (collector, counters):
        version = None if each is None else each.version()
        if each is not None and version is not None:
            found[each.name] = version
    return found


def run_info(
    plan: SweepPlan, options: RunOptions, executor: str, collector: str, facts: tuple[DeviceFacts, ...],
    versions: dict[str, str],
) -> RunInfo:  # fmt: skip
    """What run.json says."""
    return RunInfo(
        schema_version=RAW_VERSION,
        plan_digest=plan_digest(plan),
        executor=executor,
        collector=collector,
        devices=facts,
        versions=versions,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        command=options.command,
    )


def make_campaign(
    plan: SweepPlan, options: RunOptions, folder: RawFolder, info: RunInfo, counters: Collector | None,
    facts: dict[str, DeviceFacts],
) -> Campaign:  # fmt: skip
    """The state of the run, with what earlier runs committed taken in."""
    campaign = Campaign(
        plan,
        options,
        executor=info.executor,
        collector=info.collector,
        counters_collector=None if counters is None else counters.name,
        facts=facts,
        next_number=folder.next_number(),
    )
    campaign.resume(folder.done())
    return campaign


def _one_type(facts: dict[str, DeviceFacts]) -> None:
    names = sorted({f.name for f in facts.values()})
    if len(names) > 1:
        raise UsageError(
            f"device: found {' and '.join(names)}, expected GPUs of one type; give each type a folder of its own"
        )
