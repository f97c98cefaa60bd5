"""What a placement is expected to serve on time, batch filling, queueing, interference and the estimate's interval
counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gkestimator.core.records import frozen
from gkestimator.placement.contention import slowdowns
from gkestimator.placement.goodput import assigned_rps
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import PlacementModel, Problem
from gkestimator.placement.queueing import OnTime, Server, interval_sigmas, on_time
from gkestimator.tables.candidate import Candidate


@frozen
class Expected:
    """``goodput_rps``: the sum of ``by_model``; None where a replica's slowdown is unknown (then ``notes`` say
    why). ``admitted_rps`` by model: the rate that is let in for that. ``max_wait_ms`` by replica, in the order they
    were given."""

    goodput_rps: float | None
    by_model: Mapping[str, float | None]
    admitted_rps: Mapping[str, float | None]
    max_wait_ms: tuple[float | None, ...]
    slowdown: tuple[float | None, ...]
    notes: tuple[str, ...] = ()


def expect(problem: Problem, placed: Sequence[Placed]) -> Expected:
    """The expected goodput of ``placed``; see :mod:`gkestimator.placement.queueing` and
    :mod:`gkestimator.placement.contention` for the model."""
    factors = slowdowns(placed, assigned_rps(problem, placed))
    busy = _busy_ms(placed)
    by_model: dict[str, float | None] = {}
    admitted: dict[str, float | None] = {}
    waits: list[float | None] = [None] * len(placed)
    of_model: dict[str, list[int]] = {m.name: [] for m in problem.models}
    for i, p in enumerate(placed):
        of_model[p.model].append(i)
    unknown = []
    for model in problem.models:
        here = of_model[model.name]
        if any(factors[i] is None for i in here):
            by_model[model.name] = admitted[model.name] = None
            unknown.append(model.name)
            continue
        keys = [
            (id(placed[i].candidate), placed[i].duty_cycle_ms, round(factors[i] or 1.0, 4), busy[i])
            for i in here
        ]
        counts = Counter(keys)
        first = dict(zip(reversed(keys), reversed(here), strict=True))
        servers = [
            server_of(
                model,
                placed[first[key]].candidate,
                slowdown=key[2],
                duty_cycle_ms=key[1],
                cycle_busy_ms=key[3],
                count=n,
            )
            for key, n in counts.items()
        ]
        found = model_on_time(model, servers, [placed[first[key]].candidate for key in counts])
        by_model[model.name], admitted[model.name] = found.rate_rps, found.admitted_rps
        wait = dict(zip(counts, found.max_wait_ms, strict=True))
        for i, key in zip(here, keys, strict=True):
            waits[i] = wait[key]
    notes = (
        (f"expected goodput is unknown: no utilisation in the table for {', '.join(unknown)} or a neighbour",)
        if unknown
        else ()
    )
    return Expected(
        goodput_rps=None if unknown else sum(v or 0.0 for v in by_model.values()),
        by_model=by_model,
        admitted_rps=admitted,
        max_wait_ms=tuple(waits),
        slowdown=tuple(factors),
        notes=notes,
    )


def _busy_ms(placed: Sequence[Placed]) -> list[float | None]:
    """By replica: the latencies of its partition together, None where it does not take turns."""
    total: dict[tuple[str, str | int], float] = defaultdict(float)
    keys = [(p.gpu.id, i if p.partition is None else p.partition) for i, p in enumerate(placed)]
    for p, key in zip(placed, keys, strict=True):
        total[key] += p.candidate.latency_ms
    return [
        None if p.duty_cycle_ms is None else round(total[key], 9) for p, key in zip(placed, keys, strict=True)
    ]


def model_on_time(
    model: PlacementModel, servers: Sequence[Server], candidates: Sequence[Candidate]
) -> OnTime:
    """Requests of ``model`` on time at ``servers``, whose candidates' widest interval counts."""
    sigmas = [interval_sigmas(c.latency_ms, c.row.latency_low_ms, c.row.latency_high_ms) for c in candidates]
    below = max((b for b, _ in sigmas), default=0.0)
    above = max((a for _, a in sigmas), default=0.0)
    return on_time(servers, model.rate_rps, model.slo_ms, sigma=above, sigma_below=below)


def server_of(
    model: PlacementModel,
    candidate: Candidate,
    *,
    slowdown: float = 1.0,
    duty_cycle_ms: float | None = None,
    cycle_busy_ms: float | None = None,
    count: int = 1,
) -> Server:
    """``count`` replicas of ``model`` by ``candidate``, with the latencies of smaller batches from the table.
    ``cycle_busy_ms``: how much of the duty cycle all turns of its partition take (None: its own alone)."""
    curve = {
        c.batch_size: c.latency_ms
        for c in model.on(candidate.gpu, sm_share_pct=candidate.sm_share_pct)
        if c.batch_size < candidate.batch_size
    }
    curve[candidate.batch_size] = candidate.latency_ms
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
