"""One end-to-end objective of an application, split over its models so that the load costs the least GPU
time.

A stage of rate r that runs by candidate c (batch B, latency L, throughput T) in batches of m <= B takes

    response = (m - 1) / r  +  L  +  queue

- filling: the first request of a batch waits for the other m - 1, which arrive at the model's whole rate r;
- service: L, that of the full batch, which bounds a smaller one's;
- queue: what 99 % of the batches wait at most for a replica. With n = ceil(r L / (0.9 m)) replicas the load
  is rho = r L / (m n) <= 0.9; a batch of m exponential gaps dealt to n replicas in turn has ca2 = 1 / (m n),
  service is deterministic, and Kingman's exponential tail P(wait > t) = rho exp(-2 (1 - rho) t / (ca2 L)) gives
  t = ca2 L / (2 (1 - rho)) ln(rho / 0.01), or 0 where rho is below 0.01.

Its cost is the GPU time that it takes: r L / m replicas are busy on average, each with the part of a GPU that
it is packed by, max(Creq, Mreq) / 100, times the GPU type's price where all prices are known. Of all (c, m)
those remain that no other beats in both. The split is the choice of one for each stage whose responses sum to
at most the objective on every way through the stages: among those that cost at most 5 % more than the
cheapest (a smaller gain is not worth slack that neighbours will need) the one whose longest way is shortest;
exactly, as a mixed-integer program over the stages' latest finishing times (Nexus, SOSP 2019, solves a like
problem over trees by dynamic programming over discretised budgets). What is left of the objective is spread
in proportion. Source of the tail: Kingman 1961; the rest derived here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.documents import Application, ModelLoad, Workload
from gkestimator.placement.integer import SLACK, IntegerProgram
from gkestimator.placement.problem import Figures, FloatByName, Floats
from gkestimator.tables.candidate import Candidate

FigureByName: TypeAlias = Mapping[str, float]

CandidatesByModel: TypeAlias = Mapping[str, Sequence[Candidate]]

_LOAD = 0.9
_LATE = 0.01
# A gain of less is not worth the slack that it costs: neighbours on the GPU slow a stage down by more.
_WORTH = 0.05
# Bound of the search, nodes times binaries: the same on every machine, unlike seconds.
_MAX_WORK = 200_000
_MOST_IN_ALL = 2_000  # beyond, no program is solved for any application: each takes up to 10 ms a stage
_MOST_STAGES = 100  # beyond, the cheapest split is taken as it is: the second program could take minutes


@frozen
class StageChoice:
    """Hold one way to run a stage: ``response_ms`` within which it answers, and ``cost``, GPU time per time
    (weighted by price)."""

    response_ms: float
    cost: float


def stage_objectives(
    workload: Workload,
    candidates: CandidatesByModel,
    prices: Figures | None = None,
) -> tuple[tuple[ModelLoad, ...], list[str]]:
    """Return every model of ``workload`` once, with the rate that reaches it and the objective it must keep,
    and notes.

    A model asked for in several places is one load: rates add up, the smallest objective and the largest
    weight hold. ``candidates`` by model, at least one each; ``prices`` by GPU type (USD per hour)."""
    loads = {m.name: m for m in workload.models}
    total = workload.model_rates_rps()
    stages_in_all = sum(len(application.stages) for application in workload.applications)
    notes = []
    for application in workload.applications:
        rates = application.rates_rps()
        budgets, how = split_objective(
            application, candidates, prices, filling_rps=total, stages_in_all=stages_in_all
        )
        for stage in application.stages:
            name = stage.model
            rate = rates[name]
            slo = budgets[name]
            weight = application.weight
            old = loads.get(name)
            if old is not None:
                rate += old.rate_rps
                slo = min(old.slo_ms, slo)
                weight = max(old.weight, weight)
                notes.append(f"{name} is asked for in several places: served as one, within {slo:.4g} ms")
            loads[name] = ModelLoad(name=name, rate_rps=rate, slo_ms=slo, weight=weight)
        parts = ", ".join(f"{s.model} {budgets[s.model]:.4g}" for s in application.stages)
        notes.append(f"application {application.name}: {application.slo_ms:g} ms split {how}: {parts} ms")
    return tuple(loads.values()), notes


def split_objective(
    application: Application,
    candidates: CandidatesByModel,
    prices: Figures | None = None,
    *,
    filling_rps: FigureByName | None = None,
    stages_in_all: int = 0,
) -> tuple[FloatByName, str]:
    """Return milliseconds for each stage, so that no way through the stages takes longer than the
    application's objective, and how they were found, in words.

    The split is that of least cost, see the module. Where no choice of batches leaves room to fill and queue:
    in proportion to each stage's fastest latency; so where the workload has more than ``_MOST_IN_ALL`` stages
    (``stages_in_all``). ``filling_rps``: the rate at which a model's batches fill, where others ask for it too
    (default: the application's own)."""
    if stages_in_all > _MOST_IN_ALL:
        how = f"in proportion to the fastest latencies, as all applications have more than {_MOST_IN_ALL:,} stages"
        return proportional_split(application, candidates), how
    rates = application.rates_rps()
    filling = filling_rps or rates
    costs = _price_of(candidates, rates, prices)
    menus = {}
    for name, rate in rates.items():
        menus[name] = choices(candidates[name], rate, prices=costs, filling_rps=filling[name])
    cheapest = None
    if all(menus.values()):
        fastest = {name: menu[0].response_ms for name, menu in menus.items()}
        if max(_longest(application, fastest).values()) <= application.slo_ms:
            cheapest = cheapest_choices(application, menus)
    if cheapest is None:
        how = "in proportion to the fastest latencies, as nothing leaves room to fill batches and queue"
        return proportional_split(application, candidates), how
    responses = {name: menus[name][i].response_ms for name, i in cheapest.items()}
    return _spread(application, responses), "by least GPU time"


def proportional_split(application: Application, candidates: CandidatesByModel) -> FloatByName:
    """Return milliseconds for each stage, in proportion to its fastest latency, on the longest way that it
    lies on."""
    fastest = {s.model: min(c.latency_ms for c in candidates[s.model]) for s in application.stages}
    return _spread(application, fastest)


def choices(
    candidates: Sequence[Candidate],
    rate_rps: float,
    *,
    prices: FigureByName | None = None,
    filling_rps: float | None = None,
) -> tuple[StageChoice, ...]:
    """Return the ways to serve ``rate_rps`` by ``candidates`` that none other beats in response and cost,
    fastest first.

    ``prices``: weight of a GPU's time by type (default 1). ``filling_rps``: rate at which batches fill, at
    least ``rate_rps``. Candidates that are larger than the GPU's memory are left out."""
    fill = max(rate_rps, filling_rps or 0.0) / 1e3
    ways = []
    for c in candidates:
        memory = c.memory_pct or 0.0
        if memory > 100:
            continue
        # Of a GPU that others share a replica takes compute or memory, whichever is more.
        if c.creq_pct is None:
            compute = c.sm_share_pct
        else:
            compute = c.creq_pct
        price = 1.0 if prices is None else prices[c.gpu]
        price *= max(compute, memory) / 100
        size = 1
        while True:
            busy = rate_rps / 1e3 * c.latency_ms / size
            response = _queue_ms(busy, size, c.latency_ms) + (size - 1) / fill + c.latency_ms
            ways.append((response, price * busy))
            if size == c.batch_size:
                break
            # A batch may leave before it is full: powers of two stand for all sizes below.
            size = min(2 * size, c.batch_size)
    best: list[StageChoice] = []
    for response, cost in sorted(ways):
        if not best or cost < best[-1].cost:
            best.append(StageChoice(response_ms=response, cost=cost))
    return tuple(best)


def _queue_ms(busy: float, size: int, latency_ms: float) -> float:
    """Return what all but a hundredth of the batches wait at most; ``busy``: replicas that are busy on
    average."""
    replicas = max(1, math.ceil(busy / _LOAD))
    load = busy / replicas
    if load <= _LATE:
        return 0.0
    return latency_ms / (size * replicas) / (2 * (1 - load)) * math.log(load / _LATE)


def _price_of(
    candidates: CandidatesByModel,
    names: Iterable[str],
    prices: Figures | None,
) -> FloatByName:
    """Return the weight of an hour of each GPU type: its price; without every price an hour of one type is
    taken to be worth an hour of another."""
    weights: FloatByName = {}
    for name in names:
        for candidate in candidates[name]:
            price = (prices or {}).get(candidate.gpu)
            weights[candidate.gpu] = math.nan if price is None else price
    if any(math.isnan(weight) for weight in weights.values()):
        return dict.fromkeys(weights, 1.0)
    return weights


def _longest(application: Application, times: FigureByName) -> FloatByName:
    """Return for each stage the longest way through the stages that it lies on."""
    until: FloatByName = {}
    for stage in application.stages:  # stages stand after those they follow
        until[stage.model] = times[stage.model] + max((until[m] for m in stage.after), default=0.0)
    after: FloatByName = dict.fromkeys(until, 0.0)
    for stage in reversed(application.stages):
        for before in stage.after:
            after[before] = max(after[before], times[stage.model] + after[stage.model])
    return {name: until[name] + after[name] for name in until}


def _spread(application: Application, times: FigureByName) -> FloatByName:
    """Return ``times`` stretched until the longest way of each stage takes the objective: on no way is the
    sum larger."""
    longest = _longest(application, times)
    return {name: application.slo_ms * times[name] / longest[name] for name in times}


def cheapest_choices(
    application: Application, menus: Mapping[str, Sequence[StageChoice]]
) -> dict[str, int] | None:
    """Return the index of the choice of each stage: of all splits within the objective whose cost is within
    ``_WORTH`` of the least, the one whose longest way is shortest (beyond ``_MOST_STAGES`` the cheapest as it
    is). None where the search ends at its bound without any."""
    program = IntegerProgram()
    # In the order of names: neither the file's order nor that of the rows may decide between equals.
    stages = sorted(application.stages, key=lambda s: s.model)
    chosen = {s.model: [program.column(upper=1.0, integer=True) for _ in menus[s.model]] for s in stages}
    # Times in parts of the objective, of which the solver's tolerance may take a hair.
    end = program.column(upper=1.0 - 2 * SLACK)
    finish = {s.model: program.column(upper=1.0) for s in stages}
    most = max(choice.cost for s in stages for choice in menus[s.model]) or 1.0
    cost = {}
    for stage in stages:
        done = (finish[stage.model], 1.0)
        columns = chosen[stage.model]
        program.row([(column, 1.0) for column in columns], low=1.0, high=1.0)
        taken = []
        for column, choice in zip(columns, menus[stage.model], strict=True):
            cost[column] = choice.cost / most
            taken.append((column, -choice.response_ms / application.slo_ms))
        program.row([done, *taken], low=0.0)
        for before in stage.after:
            program.row([done, (finish[before], -1.0), *taken], low=0.0)
        program.row([(end, 1.0), (finish[stage.model], -1.0)], low=0.0)
    nodes = max(1, _MAX_WORK // len(cost))
    best = program.solve(cost, nodes=nodes)
    if best is not None and len(stages) <= _MOST_STAGES:
        program.row(cost.items(), high=(1 + _WORTH) * best.objective + SLACK)
        best = program.solve({end: 1.0}, nodes=nodes, start=best.values) or best
    if best is None:
        return None
    return _taken(chosen, best.values)


def _taken(chosen: Mapping[str, Sequence[int]], values: Floats) -> dict[str, int]:
    """Return the index of the column of each stage that is 1."""
    return {name: next(n for n, i in enumerate(columns) if values[i]) for name, columns in chosen.items()}
