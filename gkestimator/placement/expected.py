"""What a placement serves: its goodput as every policy is measured (rate, or throughput within the objective,
whichever is less), and what it is expected to serve on time, batch filling, queueing, interference and the
estimate's interval counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gkestimator.core.records import frozen
from gkestimator.placement.contention import slowdowns
from gkestimator.placement.late import late_on_time
from gkestimator.placement.policy import Placed, PlacedReplicas
from gkestimator.placement.problem import (
    Figures,
    FloatByName,
    FloatsOrNone,
    Indices,
    Names,
    PlacementModel,
    Problem,
)
from gkestimator.placement.queueing import OnTime, Server, interval_sigmas, on_time
from gkestimator.tables.candidate import Candidate


@frozen
class Expected:
    """Hold ``goodput_rps``: the sum of ``by_model``; None where a replica's slowdown is unknown (then
    ``notes`` say why). ``admitted_rps`` by model: the rate that is let in for that. ``max_wait_ms`` by
    replica, in the order they were given."""

    goodput_rps: float | None
    by_model: Figures
    admitted_rps: Figures
    max_wait_ms: tuple[float | None, ...]
    slowdown: tuple[float | None, ...]
    notes: Names = ()


def capacities_rps(problem: Problem, placed: PlacedReplicas) -> FloatByName:
    """Return by model the throughput of its replicas whose latency (duty cycle included) is within the
    objective."""
    capacities = dict.fromkeys((m.name for m in problem.models), 0.0)
    for p in placed:
        if _in_time(problem, p):
            capacities[p.model] += p.most_rps
    return capacities


def goodput_rps(problem: Problem, placed: PlacedReplicas) -> FloatByName:
    """Return min(rate, capacity) by model. Source: USHER, section 5 (goodput: requests answered within their
    SLO)."""
    capacities = capacities_rps(problem, placed)
    return {m.name: min(m.rate_rps, capacities[m.name]) for m in problem.models}


def assigned_rps(problem: Problem, placed: PlacedReplicas) -> list[float]:
    """Return what each replica is to serve: its model's goodput in proportion to capacity."""
    capacities = capacities_rps(problem, placed)
    assigned = []
    for p in placed:
        total = capacities[p.model]
        rate = 0.0
        if total > 0 and _in_time(problem, p):
            rate = min(problem.by_name[p.model].rate_rps, total) * p.most_rps / total
        assigned.append(rate)
    return assigned


def _in_time(problem: Problem, placed: Placed) -> bool:
    return placed.response_ms <= problem.by_name[placed.model].slo_ms * (1 + 1e-9)


def expect(problem: Problem, placed: PlacedReplicas) -> Expected:
    """Return the expected goodput of ``placed``; see :mod:`gkestimator.placement.queueing` and
    :mod:`gkestimator.placement.contention` for the model."""
    factors = slowdowns(placed, assigned_rps(problem, placed))
    busy = _busy_ms(placed)
    by_model: dict[str, float | None] = {}
    admitted: dict[str, float | None] = {}
    waits: FloatsOrNone = [None] * len(placed)
    of_model: dict[str, Indices] = {m.name: [] for m in problem.models}
    for i, p in enumerate(placed):
        of_model[p.model].append(i)
    unknown = []
    for model in problem.models:
        name = model.name
        here = of_model[name]
        if any(factors[i] is None for i in here):
            by_model[name] = admitted[name] = None
            unknown.append(name)
            continue
        answer = _of_model(model, placed, here, factors, busy, waits)
        by_model[name] = answer.rate_rps
        admitted[name] = answer.admitted_rps
    notes: Names = ()
    goodput = None
    if not unknown:
        goodput = sum(rate or 0.0 for rate in by_model.values())
    else:
        models = ", ".join(unknown)
        notes = (f"expected goodput is unknown: no utilisation in the table for {models} or a neighbour",)
    return Expected(
        goodput_rps=goodput,
        by_model=by_model,
        admitted_rps=admitted,
        max_wait_ms=tuple(waits),
        slowdown=tuple(factors),
        notes=notes,
    )


def _of_model(
    model: PlacementModel,
    placed: PlacedReplicas,
    here: Sequence[int],
    factors: Sequence[float | None],
    busy: Sequence[float | None],
    waits: FloatsOrNone,
) -> OnTime:
    """Return what the replicas of ``model``, whose numbers are ``here``, serve on time, and write down their
    waits."""
    # Replicas that are alike are one server with a count.
    alike: dict[object, Indices] = defaultdict(list)
    for i in here:
        p = placed[i]
        alike[id(p.candidate), id(p.cap), p.duty_cycle_ms, round(factors[i] or 1.0, 4), busy[i]].append(i)
    servers = []
    candidates = []
    for numbers in alike.values():
        first = numbers[0]
        p = placed[first]
        server = server_of(
            model,
            p.largest,
            slowdown=round(factors[first] or 1.0, 4),
            duty_cycle_ms=p.duty_cycle_ms,
            cycle_busy_ms=busy[first],
            count=len(numbers),
        )
        servers.append(server)
        candidates.append(p.candidate)
    answer = model_on_time(model, servers, candidates)
    for numbers, wait in zip(alike.values(), answer.max_wait_ms, strict=True):
        for i in numbers:
            waits[i] = wait
    return answer


def _busy_ms(placed: PlacedReplicas) -> FloatsOrNone:
    """Return by replica the latencies of its partition together, None where it does not take turns."""
    total: dict[tuple[str, str | None], float] = defaultdict(float)
    for p in placed:
        total[p.gpu.id, p.partition] += p.candidate.latency_ms
    busy: FloatsOrNone = []
    for p in placed:
        if p.partition is not None:
            whole = total[p.gpu.id, p.partition]
        else:
            whole = p.candidate.latency_ms
        busy.append(None if p.duty_cycle_ms is None else round(whole, 9))
    return busy


def model_on_time(
    model: PlacementModel, servers: Sequence[Server], candidates: Sequence[Candidate]
) -> OnTime:
    """Return the requests of ``model`` on time at ``servers``, whose candidates' widest interval counts."""
    below = above = 0.0
    for c in candidates:
        sides = interval_sigmas(c.latency_ms, c.row.latency_low_ms, c.row.latency_high_ms)
        below = max(below, sides[0])
        above = max(above, sides[1])
    if model.batching == "late":
        law = late_on_time
    else:
        law = on_time
    return law(servers, model.rate_rps, model.slo_ms, sigma=above, sigma_below=below)


def server_of(
    model: PlacementModel,
    candidate: Candidate,
    *,
    slowdown: float = 1.0,
    duty_cycle_ms: float | None = None,
    cycle_busy_ms: float | None = None,
    count: int = 1,
) -> Server:
    """Return ``count`` replicas of ``model`` by ``candidate``, with the latencies of smaller batches from the
    table. ``cycle_busy_ms``: how much of the duty cycle all turns of its partition take (None: its own
    alone)."""
    curve = {candidate.batch_size: candidate.latency_ms}
    for smaller in model.on(candidate.gpu, sm_share_pct=candidate.sm_share_pct):
        if smaller.batch_size < candidate.batch_size:
            curve[smaller.batch_size] = smaller.latency_ms
    batches = tuple(sorted(curve))
    return Server(
        batch_size=candidate.batch_size,
        batches=batches,
        latencies_ms=tuple(curve[b] for b in batches),
        slowdown=slowdown,
        duty_cycle_ms=duty_cycle_ms,
        cycle_busy_ms=cycle_busy_ms,
        count=count,
    )
