"""The controller: looks at the arrivals, asks the policy again, changes what runs; between chunks of the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan, Workload
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.streams import Cutter
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.change import Change, Counted, LoadingPace, planned_replicas
from gkestimator.simulation.replanning.fleet import GpuUse, ModelProcess, ProcessFleet
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.simulation.replanning.triggers import make_trigger
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import System

# Beside the run's own generators (door, service, interval factors, arrivals): the times of background changes.
_SPAWN_KEY = 5


@frozen
class PolicyDecision:
    """The policy was asked again at ``time_ms`` because of ``reason``, for ``rates_rps`` (by source, as counted).

    ``plan`` None: it could not answer (``failed`` says why) and the running plan stays. ``counted``: what the change
    did; ``ready_ms``: when the last replica of the new plan served and the last old one was told to end."""

    time_ms: float
    reason: str
    rates_rps: tuple[float, ...]
    plan: PlacementPlan | None
    failed: str | None = None
    counted: Counted | None = None
    ready_ms: float | None = None


@frozen
class Replanned:
    """What came of a run that began with ``plan``. ``system`` has every GPU and replica that ever was, ``uses`` the
    times in which GPUs were in use; ``peak_memory_pct`` by GPU: the most that it held at any time, changes included
    (None: unknown)."""

    plan: PlacementPlan
    system: System
    result: Result
    decisions: tuple[PolicyDecision, ...]
    uses: tuple[GpuUse, ...]
    peak_memory_pct: Mapping[str, float | None]


def control(
    plan: PlacementPlan,
    place: Callable[[Workload], PlacementPlan],
    build: Callable[[PlacementPlan], System],
    arrivals: Arrivals,
    options: Options,
    settings: Replanning,
    *,
    pool: Mapping[str, Sequence[str]] | None = None,
    simulator: Callable[[System, Options], Simulator] = Simulator,
    progress: Callable[[float], None] | None = None,
) -> Replanned:
    """Serve ``arrivals`` (streams in the order of the plan's workload: models, then applications) by ``plan``, which
    is loaded at the start, and by the plans that ``place`` gives for the rates that were counted.

    ``build`` says what the simulator is told of a plan. ``pool``: ids of the GPUs of a fixed cluster by type; None:
    GPUs are rented. One change at a time: while one is under way nothing is decided. ``progress`` is told the
    simulated time. Raises UsageError: a plan uses more GPUs than ``pool`` has.
    """
    fleet, system = _start(plan, build(plan), options, simulator)
    trigger = make_trigger(settings, plan.workload)
    cutter = Cutter(arrivals, options.duration_ms)
    draws = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence(options.seed, spawn_key=(_SPAWN_KEY,)))
    )
    decisions: list[PolicyDecision] = []
    change: Change | None = None
    pending: tuple[float, PlacementPlan] | None = None
    counts = np.zeros(arrivals.sources)
    tick = settings.control_ms
    now = 0.0
    while now < options.duration_ms or change is not None or pending is not None:
        if now < options.duration_ms:
            until = [options.duration_ms, tick]
        else:
            until = []
        until += [change.next_ms()] if change is not None else []
        until += [pending[0]] if pending is not None else []
        chunk = cutter.take(min(until))
        counts += [len(t) for t in chunk.times_ms]
        fleet.simulator.advance(chunk)
        now = chunk.end_ms
        if now >= tick:
            trigger.observe((counts / settings.control_ms * 1e3).tolist())
            counts[:] = 0
            tick += settings.control_ms
            if change is None and pending is None and now < options.duration_ms:
                reason = trigger.due(now)
                if reason is not None:
                    decision = _decide(now, reason, trigger.rates_rps, trigger.asked(), place)
                    trigger.planned(now)
                    decisions.append(decision)
                    if decision.plan is not None:
                        pending = (now + settings.decision_ms, decision.plan)
            if progress is not None:
                progress(min(now, options.duration_ms))
        if change is not None:
            change.proceed()
        if pending is not None and now >= pending[0]:
            target = build(pending[1])
            change = Change(fleet, pending[1], target, _pace(settings, draws), pool)
            notes = tuple(dict.fromkeys((*system.notes, *target.notes)))
            system = replace(system, sources=target.sources, notes=notes)
            # What the new plan does not serve at all must not wait for a replica for ever.
            for source in (i for i, asked in enumerate(target.sources) if asked.admit == 0):
                fleet.simulator.set_admission(source, 0.0)
            pending = None
        if change is not None and change.done:
            for source, asked in enumerate(system.sources):
                fleet.simulator.set_admission(source, asked.admit)
            decisions[-1] = replace(decisions[-1], counted=change.counted, ready_ms=now)
            change = None
    return Replanned(
        plan=plan,
        result=fleet.simulator.finish(),
        system=replace(system, gpus=tuple(fleet.gpus), replicas=tuple(fleet.replicas)),
        decisions=tuple(decisions),
        uses=tuple(fleet.uses),
        peak_memory_pct=fleet.peak_memory_pct,
    )


def _start(
    plan: PlacementPlan, system: System, options: Options, simulator: Callable[[System, Options], Simulator]
) -> tuple[ProcessFleet, System]:
    """The first plan's replicas, each with a server of its own or its partition's, ready at 0."""
    planned = planned_replicas(plan, system)
    first = 1 + max((r.partition for r in system.replicas if r.partition is not None), default=-1)
    servers = [first + i if r.partition is None else r.partition for i, (_, _, r) in enumerate(planned)]
    system = replace(
        system,
        replicas=tuple(
            replace(runs, partition=server) for (_, _, runs), server in zip(planned, servers, strict=True)
        ),
    )
    fleet = ProcessFleet(simulator(system, options), system)
    for index, ((gpu, asked, _), runs) in enumerate(zip(planned, system.replicas, strict=True)):
        assert runs.partition is not None
        fleet.adopt(
            ModelProcess(
                name=fleet.next_name(asked.model),
                gpu=gpu,
                asked=asked,
                runs=runs,
                index=index,
                server=runs.partition,
                ready_ms=0.0,
            )
        )
    return fleet, system


def _decide(
    now: float,
    reason: str,
    rates_rps: tuple[float, ...],
    asked: Workload,
    place: Callable[[Workload], PlacementPlan],
) -> PolicyDecision:
    try:
        plan = place(asked)
    except GkestimatorError as e:  # the plan that runs goes on: a controller must not stop serving
        return PolicyDecision(
            time_ms=now, reason=reason, rates_rps=rates_rps, plan=None, failed=one_line(e, limit=300)
        )
    return PolicyDecision(time_ms=now, reason=reason, rates_rps=rates_rps, plan=plan)


def _pace(settings: Replanning, draws: np.random.Generator) -> LoadingPace:
    if settings.kind == "usher":
        return LoadingPace(each_ms=settings.load_ms, gpu_start_ms=settings.gpu_start_ms)
    drawn = draws.uniform(settings.background_from_ms, settings.background_to_ms)
    return LoadingPace(together_ms=float(drawn), gpu_start_ms=settings.gpu_start_ms)
