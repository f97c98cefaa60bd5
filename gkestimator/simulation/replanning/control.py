"""Look at the arrivals, ask the policy again and change what runs, between chunks of the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.core.limits import check_amount
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan, Workload
from gkestimator.simulation.arrays import NumberOrNone, Numbers, Texts, generator_of
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.streams import Cutter
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.change import Change, Counted, LoadingPace, planned_replicas
from gkestimator.simulation.replanning.fleet import GpuUse, ModelProcess, ProcessFleet
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.simulation.replanning.triggers import Trigger, make_trigger
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import System

# Beside the run's own generators (door, service, interval factors, arrivals): the times of background changes.
_SPAWN_KEY = 5


@frozen
class PolicyDecision:
    """Hold that the policy was asked again at ``time_ms`` because of ``reason``, for ``rates_rps`` (by
    source).

    ``plan`` None: it could not answer (``failed`` says why) and the running plan stays. ``counted``: what the
    change did; ``ready_ms``: when the last replica of the new plan served and the last old one was told to
    end.
    """

    time_ms: float
    reason: str
    rates_rps: Numbers
    plan: PlacementPlan | None
    failed: str | None = None
    counted: Counted | None = None
    ready_ms: NumberOrNone = None


@frozen
class Replanned:
    """Hold what came of a run that began with ``plan``.

    ``system`` has every GPU and replica that ever was, ``uses`` the times in which GPUs were in use;
    ``peak_memory_pct`` by GPU: the most that it held at any time, changes included (None: unknown).
    """

    plan: PlacementPlan
    system: System
    result: Result
    decisions: tuple[PolicyDecision, ...]
    uses: tuple[GpuUse, ...]
    peak_memory_pct: Mapping[str, NumberOrNone]


def control(
    plan: PlacementPlan,
    place: Callable[[Workload], PlacementPlan],
    build: Callable[[PlacementPlan], System],
    arrivals: Arrivals,
    options: Options,
    settings: Replanning,
    *,
    pool: Mapping[str, Texts] | None = None,
    simulator: Callable[[System, Options], Simulator] = Simulator,
    progress: Callable[[float], None] = lambda now_ms: None,
) -> Replanned:
    """Serve ``arrivals`` by ``plan``, which is loaded at the start, and by later plans.

    The arrivals' streams are in the order of the plan's workload: models, then applications. ``place`` gives
    a plan for the rates that were counted. ``build`` says what the simulator is told of a plan. ``pool``: ids
    of the GPUs of a fixed cluster by type; None: GPUs are rented. One change at a time: while one is under
    way nothing is decided. ``progress`` is told the simulated time. Raises UsageError: a plan uses more GPUs
    than ``pool`` has, or the run is too long for the limit ``looks``.
    """
    check_amount("replan", "looks", options.duration_ms / settings.control_ms)
    fleet, system = _start(plan, build(plan), options, simulator)
    trigger = make_trigger(settings, plan.workload)
    cutter = Cutter(arrivals, options.duration_ms)
    draws = generator_of(options.seed, _SPAWN_KEY)
    decisions: list[PolicyDecision] = []
    change: Change | None = None
    pending: tuple[float, PlacementPlan] | None = None
    counts = np.zeros(arrivals.sources)
    end_ms = options.duration_ms
    tick = settings.control_ms
    now = 0.0
    idle = True
    while now < end_ms or not idle:
        chunk = cutter.take(_next_stop(now, end_ms, tick, change, pending))
        counts += [len(times) for times in chunk.times_ms]
        fleet.simulator.advance(chunk)
        now = chunk.end_ms
        if now >= tick:
            trigger.observe((counts / settings.control_ms * 1e3).tolist())
            counts[:] = 0
            tick += settings.control_ms
            if idle and now < end_ms:
                made = _decide(now, trigger, place)
                decisions += made
                if made and made[0].plan is not None:
                    pending = (now + settings.decision_ms, made[0].plan)
            progress(min(now, end_ms))
        if change is not None:
            change.proceed()
        if pending is not None and now >= pending[0]:
            target = build(pending[1])
            change = Change(fleet, pending[1], target, _pace(settings, draws), pool)
            notes = tuple(dict.fromkeys((*system.notes, *target.notes)))
            system = replace(system, sources=target.sources, notes=notes)
            # What the new plan does not serve at all must not wait for a replica for ever.
            _set_admission(fleet, system, only_closed=True)
            pending = None
        if change is not None and change.done:
            _set_admission(fleet, system)
            decisions[-1] = replace(decisions[-1], counted=change.counted, ready_ms=now)
            change = None
        idle = change is None and pending is None
    return Replanned(
        plan=plan,
        result=fleet.simulator.finish(),
        system=replace(system, gpus=tuple(fleet.gpus), replicas=tuple(fleet.replicas)),
        decisions=tuple(decisions),
        uses=tuple(fleet.uses),
        peak_memory_pct=fleet.peak_memory_pct,
    )


def _next_stop(
    now: float,
    end_ms: float,
    tick: float,
    change: Change | None,
    pending: tuple[float, PlacementPlan] | None,
) -> float:
    """Return when something is to be looked at next."""
    stops = []
    if now < end_ms:
        stops = [end_ms, tick]
    if change is not None:
        stops.append(change.next_ms())
    if pending is not None:
        stops.append(pending[0])
    return min(stops)


def _set_admission(fleet: ProcessFleet, system: System, *, only_closed: bool = False) -> None:
    """Let requests in as ``system`` says (``only_closed``: where it lets none in)."""
    for number, source in enumerate(system.sources):
        if source.admit == 0 or not only_closed:
            fleet.simulator.set_admission(number, source.admit)


def _start(
    plan: PlacementPlan, system: System, options: Options, simulator: Callable[[System, Options], Simulator]
) -> tuple[ProcessFleet, System]:
    """Return the first plan's replicas, each with a server of its own or its partition's, ready at 0."""
    planned = planned_replicas(plan, system)
    known = [r.partition for r in system.replicas if r.partition is not None]
    first_free = 1 + max(known, default=-1)
    replicas = []
    for number, (_, _, runs) in enumerate(planned):
        if runs.partition is None:
            runs = replace(runs, partition=first_free + number)
        replicas.append(runs)
    system = replace(system, replicas=tuple(replicas))
    fleet = ProcessFleet(simulator(system, options), system)
    for index, ((gpu, asked, _), runs) in enumerate(zip(planned, replicas, strict=True)):
        assert runs.partition is not None
        process = ModelProcess(
            name=fleet.next_name(asked.model),
            gpu=gpu,
            asked=asked,
            runs=runs,
            index=index,
            server=runs.partition,
            ready_ms=0.0,
        )
        fleet.adopt(process)
    return fleet, system


def _decide(now: float, trigger: Trigger, place: Callable[[Workload], PlacementPlan]) -> list[PolicyDecision]:
    """Ask the policy for a plan where that is due.

    Where it cannot answer, the plan that runs goes on: a controller must not stop serving.
    """
    reason = trigger.due(now)
    if reason is None:
        return []
    rates_rps = trigger.rates_rps
    plan = failed = None
    try:
        plan = place(trigger.asked())
    except GkestimatorError as e:
        failed = one_line(e, limit=300)
    trigger.planned(now)
    return [PolicyDecision(time_ms=now, reason=reason, rates_rps=rates_rps, plan=plan, failed=failed)]


def _pace(settings: Replanning, draws: np.random.Generator) -> LoadingPace:
    if settings.kind == "usher":
        return LoadingPace(each_ms=settings.load_ms, gpu_start_ms=settings.gpu_start_ms)
    drawn = draws.uniform(settings.background_from_ms, settings.background_to_ms)
    return LoadingPace(together_ms=float(drawn), gpu_start_ms=settings.gpu_start_ms)
