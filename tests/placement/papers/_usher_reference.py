"""USHER by exhaustive enumeration, written for reading: every configuration of a group, packed GPU by GPU.
Shares no code with the policy beside the groups and the problem's types."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field

from gkestimator.documents import ModelLoad, Workload
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.papers.usher.policy import groups_of
from gkestimator.placement.problem import Gpu, Offer, PlacementModel, Problem
from gkestimator.tables import Requirement
from gkestimator.tables.candidate import Candidate


@dataclass
class UsedGpu:
    """A GPU with what it holds: (model, candidate)."""

    type: str
    number: int
    creq: float = 0.0
    mreq: float = 0.0
    held: list[tuple[str, Candidate]] = field(default_factory=list)

    def takes(self, model: str, candidate: Candidate | None) -> bool:
        if candidate is None or model in [m for m, _ in self.held]:
            return False
        return self.creq + candidate.creq_pct <= 100 + 1e-9 and self.mreq + candidate.memory_pct <= 100 + 1e-9

    def add(self, model: str, candidate: Candidate) -> None:
        self.held.append((model, candidate))
        self.creq += candidate.creq_pct
        self.mreq += candidate.memory_pct


def limits_of(problem: Problem) -> dict[str, float]:
    if problem.gpus:
        return dict(problem.counts)
    return {o.type: math.inf if o.limit is None else o.limit for o in problem.offers}


def cheapest_first(problem: Problem) -> list[str]:
    prices = problem.prices
    if any(prices.get(t) is None for t in problem.types):
        return list(problem.types)
    return sorted(problem.types, key=lambda t: prices[t])


def configurations(problem: Problem, model: PlacementModel) -> list[tuple[int, int]]:
    """(batch size, degree), ascending."""
    by_type = {t: [c for c in model.feasible(t) if 4 <= c.batch_size <= 128] for t in problem.types}
    most = sum(limits_of(problem).values())
    degrees = set()
    for rows in by_type.values():
        if rows:
            c = math.ceil(model.rate_rps / max(rows, key=lambda r: r.batch_size).throughput_rps)
            degrees |= {c * k for k in range(1, 7) if c * k <= most}
    batches = sorted({c.batch_size for rows in by_type.values() for c in rows})
    return [(b, d) for b in batches for d in sorted(degrees)]


def placing_order(
    problem: Problem, batches: dict[str, int], *, heavy: bool = True, sort: bool = True
) -> list[str]:
    demand = {}
    for name, batch in batches.items():
        rows = [c for t in problem.types for c in problem.by_name[name].feasible(t) if c.batch_size == batch]
        demand[name] = (
            sum(c.creq_pct for c in rows) / len(rows),
            sum(c.memory_pct for c in rows) / len(rows),
        )
    names = list(batches)

    def kind(name: str) -> str:
        creq, mreq = demand[name]
        if heavy and creq > 1.2 * mreq:
            return "c"
        return "m" if heavy and mreq > 1.2 * creq else "-"

    if sort:
        names.sort(key=lambda n: (*(-d for d in demand[n][:: -1 if kind(n) == "m" else 1]), n))
    turns = {k: [n for n in names if kind(n) == k] for k in "cm-"}
    mixed = itertools.chain.from_iterable(itertools.zip_longest(turns["c"], turns["m"]))
    return [n for n in mixed if n is not None] + turns["-"]


def packed(
    problem: Problem, used: list[UsedGpu], order: list[str], chosen: dict[str, tuple[int, int]]
) -> list[UsedGpu]:
    """``used`` GPUs, in the order opened, with the configuration ``chosen`` packed on top."""
    used = [UsedGpu(g.type, g.number, g.creq, g.mreq, list(g.held)) for g in used]
    group: list[UsedGpu] = []  # in the order in which the group comes to them
    for name in order:
        batch, degree = chosen[name]
        model = problem.by_name[name]
        row = {t: next((c for c in model.feasible(t) if c.batch_size == batch), None) for t in problem.types}
        for _ in range(degree):
            outside = [g for g in used if not any(g is h for h in group)]
            place = next((g for g in (*group, *outside) if g.takes(name, row[g.type])), None)
            if place is None:
                for gpu_type in cheapest_first(problem):
                    number = sum(g.type == gpu_type for g in used)
                    new = UsedGpu(gpu_type, number)
                    if number < limits_of(problem)[gpu_type] and new.takes(name, row[gpu_type]):
                        place = new
                        used.append(new)
                        break
            if place is None:
                break
            place.add(name, row[place.type])
            if not any(place is h for h in group):
                group.append(place)
    return used


def value(problem: Problem, used: list[UsedGpu], names: list[str]) -> tuple[float, float, float]:
    """Ascending: best first."""
    goodput = 0.0
    for name in names:
        served = sum(c.throughput_rps for g in used for m, c in g.held if m == name)
        goodput += min(problem.by_name[name].rate_rps, served)
    prices = [problem.prices.get(t) for t in problem.types]
    cost = 0.0 if None in prices else round(sum(problem.prices[g.type] for g in used), 6)
    return (-round(goodput, 6), *((cost, len(used)) if problem.elastic else (len(used), cost)))


def exhaustive(
    problem: Problem, *, heavy: bool = True, sort: bool = True, divide: bool = True
) -> tuple[list[UsedGpu], int]:
    """The used GPUs, and how many configurations were packed."""
    used: list[UsedGpu] = []
    count = 0
    for group in groups_of(problem.models, divide=divide):
        names = [m.name for m in problem.models if m.name in group.names] if not sort else list(group.names)
        options = {n: configurations(problem, problem.by_name[n]) for n in names}
        names = [n for n in names if options[n]]
        best = None
        for configuration in itertools.product(*(options[n] for n in names)):
            chosen = dict(zip(names, configuration, strict=True))
            order = placing_order(problem, {n: b for n, (b, _) in chosen.items()}, heavy=heavy, sort=sort)
            found = packed(problem, used, order, chosen)
            worth = value(problem, found, names)
            count += 1
            if best is None or worth < best[0]:
                best = (worth, found)
        if best is not None:
            used = best[1]
    return used, count


TYPES = ("V100-SXM2-16GB", "A100-SXM4-40GB", "T4")


def instance(seed: int, *, most: int = 2000) -> Problem:
    """The ``seed``-th random problem with at most ``most`` configurations: 2 to 7 models, 1 to 3 GPU types,
    fixed or rented; demands from crumbs to whole GPUs, loads from light to several times too much."""
    rng = random.Random(seed)
    while True:
        found = _drawn(rng)
        if 1 < size_of(found) <= most:
            return found


def size_of(problem: Problem, *, divide: bool = True) -> int:
    """How many configurations :func:`exhaustive` packs."""
    total = 0
    for group in groups_of(problem.models, divide=divide):
        total += math.prod(len(configurations(problem, problem.by_name[n])) or 1 for n in group.names)
    return total


def _drawn(rng: random.Random) -> Problem:
    types = rng.sample(TYPES, rng.choice((1, 1, 2, 3)))
    elastic = rng.random() < 0.4
    speed = {t: rng.uniform(0.3, 2.0) for t in types}
    size = rng.choice((2, 3, 4, 4, 5, 7))
    kind = rng.choice(("large", "small", "mixed", "balanced"))
    models = []
    for i in range(size):
        rps, base = rng.uniform(50, 500), rng.uniform(1, 10)
        creq, mreq = {
            "large": (rng.uniform(40, 99), rng.uniform(2, 30)),
            "small": (rng.uniform(5, 40), rng.uniform(5, 40)),
            "mixed": (rng.uniform(5, 99), rng.uniform(5, 95)),
            "balanced": (rng.choice((20.0, 40.0, 50.0)), rng.choice((20.0, 50.0, 60.0))),
        }[kind]
        rows = []
        for t in types:
            for k, batch in enumerate(rng.sample((4, 8, 16, 32), 2) if size > 3 else (4, 16, 64)):
                throughput = rps * speed[t] * (1 + 0.4 * k)
                rows.append(
                    row(
                        f"m{i}",
                        t,
                        batch,
                        latency_ms=base * (1 + batch / 4),
                        throughput_rps=throughput,
                        creq=min(100.0, creq * (1 + 0.1 * k) / speed[t] ** 0.5),
                        mreq=min(100.0, mreq * (1 + 0.2 * k)),
                    )
                )
        models.append((f"m{i}", rng.uniform(0.2, 2.5) * rps, rng.choice((40.0, 80.0, 300.0)), rows))
    count = rng.choice((1, 2, 3, 4, 6))
    return problem_of(
        models,
        {t: rng.randint(1, 2) if len(types) > 1 else count for t in types},
        prices={t: rng.choice((0.5, 1.0, 1.5, 3.0)) for t in types}
        if elastic or rng.random() < 0.5
        else None,
        elastic=elastic,
        limited=rng.random() < 0.3,
    )


def row(
    model: str, gpu: str, batch: int, *, latency_ms: float, throughput_rps: float, creq: float, mreq: float
) -> Requirement:
    return Requirement(
        model=model,
        gpu=gpu,
        runtime="torch",
        dtype="fp32",
        batch_size=batch,
        latency_ms=latency_ms,
        throughput_rps=throughput_rps,
        occupancy_max_pct=creq,
        mreq_pct=mreq,
        source="measured",
        occupancy_source="measured",
        memory_source="measured",
    )


def problem_of(
    models: list[tuple[str, float, float, list[Requirement]]],
    counts: dict[str, int],
    *,
    prices: dict[str, float] | None = None,
    elastic: bool = False,
    limited: bool = False,
) -> Problem:
    """``models``: name, rate, SLO, rows. ``counts``: GPUs of a fixed cluster by type; the limits of a rented
    one if ``limited``."""
    catalogue = gpu_catalogue()
    order = list(counts)
    built = tuple(
        PlacementModel(
            name=name,
            rate_rps=rate,
            slo_ms=slo,
            candidates=tuple(
                Candidate(
                    row=r,
                    latency_ms=r.latency_ms,
                    throughput_rps=r.throughput_rps,
                    creq_pct=r.occupancy_max_pct,
                    memory_pct=r.mreq_pct,
                    memory_bytes=None,
                )
                for r in sorted(rows, key=lambda r: (order.index(r.gpu), r.batch_size))
            ),
        )
        for name, rate, slo, rows in models
    )
    return Problem(
        models=built,
        gpus=()
        if elastic
        else tuple(Gpu(id=f"{t}-{i}", type=t) for t, n in counts.items() for i in range(n)),
        offers=tuple(
            Offer(type=t, price_per_hour=prices[t], limit=n if limited else None) for t, n in counts.items()
        )
        if elastic
        else (),
        objective="cost" if elastic else "goodput",
        creq="occupancy-max",
        specs={t: catalogue.spec(t) for t in counts},
        prices=dict(prices) if prices else dict.fromkeys(counts),
        workload=Workload(models=tuple(ModelLoad(name=n, rate_rps=r, slo_ms=s) for n, r, s, _ in models)),
    )
