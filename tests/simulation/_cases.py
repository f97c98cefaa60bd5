"""Systems, arrivals and changes drawn from a seed: every option and odd corner of the semantics, small enough for the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gkestimator.interference.base import FEATURES, TERMS
from gkestimator.interference.registry import MODELS
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.options import COPIES, DROPS, ROUTINGS, SERVICES, Options
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System

DURATION_MS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is done at the end of a chunk."""

    add: tuple[SimReplica, ...] = ()
    available_ms: tuple[float, ...] = ()
    gpus: tuple[SimGpu, ...] = ()
    retire: tuple[int, ...] = ()
    admit: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``changes[i]`` follow chunk ``i``."""

    system: System
    options: Options
    chunks: tuple[Chunk, ...]
    changes: tuple[Change, ...] = field(default=())

    def run(self, simulator: Callable[[System, Options], Any]) -> Result:
        """All chunks and changes through ``simulator``. Each change is followed by a look at what is outstanding."""
        engine = simulator(self.system, self.options)
        for chunk, change in zip(self.chunks, self.changes, strict=True):
            engine.advance(chunk)
            for source, admit in change.admit:
                engine.set_admission(source, admit)
            if change.retire:
                engine.retire(change.retire)
            if change.add or change.gpus:
                engine.add(change.add, change.available_ms, gpus=change.gpus)
        found: Result = engine.finish()
        return found


def case(seed: int, **fixed: Any) -> Case:
    """Case ``seed``; ``fixed`` options as given. Every third lies on a grid of half milliseconds: events at the same time
    are the rule there."""
    rng = np.random.default_rng([6, seed])
    grid = seed % 3 == 0
    names: dict[str, Any] = {
        "routing": str(rng.choice(ROUTINGS)),
        "service": "deterministic" if grid else str(rng.choice(SERVICES)),
        "copy": str(rng.choice(COPIES)),
        "interference": str(rng.choice(list(MODELS))) if rng.random() < 0.5 else "none",
        "drop": str(rng.choice(DROPS)),
    } | fixed
    options = Options(
        duration_ms=DURATION_MS,
        warmup_ms=float(rng.choice([0.0, 150.0])),
        window_ms=float(rng.choice([50.0, 130.0])),
        keep_requests=True,
        seed=seed,
        **names,
    )
    models = int(rng.integers(1, 5))
    gpus = [_gpu(rng, i) for i in range(int(rng.integers(1, 4)))]
    partitions: dict[int, int] = {}
    replicas: list[SimReplica] = []
    for m in range(models):
        for _ in range(int(rng.choice([0, 1, 1, 2, 3])) if rng.random() < 0.3 else int(rng.integers(1, 4))):
            replicas.append(_replica(rng, f"r{len(replicas)}", m, gpus, partitions, grid))
    load = float(rng.choice([0.3, 0.7, 0.95, 1.5]))
    sources = [_alone(m, rng) for m in range(models)]
    sources += [_application(a, models, rng) for a in range(int(rng.choice([0, 0, 1, 2])))]
    rates = [_rate(s, replicas, load / len(sources)) for s in sources]
    cuts = np.unique(np.round(rng.random(int(rng.integers(0, 5))) * 2 * DURATION_MS) / 2)
    ends = [float(c) for c in cuts if 0 < c < DURATION_MS] + [DURATION_MS]
    times = [_times(rng, rate, grid) for rate in rates]
    starts = [0.0, *ends[:-1]]
    chunks = tuple(
        Chunk(end_ms=b, times_ms=tuple(t[(t >= a) & (t < b)] for t in times))
        for a, b in zip(starts, ends, strict=True)
    )
    changes = [Change()] * len(chunks)
    if rng.random() < 0.5:
        count = len(replicas)
        for i, end in enumerate(ends):
            new_gpus = [_gpu(rng, len(gpus))] if rng.random() < 0.3 else []
            gpus += new_gpus
            added = [
                _replica(rng, f"late{count + k}", int(rng.integers(models)), gpus, partitions, grid)
                for k in range(int(rng.integers(0, 3)))
            ]
            gone = [r for r in range(count) if rng.random() < 0.2]
            changes[i] = Change(
                add=tuple(added),
                available_ms=tuple(end + float(rng.choice([0.0, 0.0, 20.5, 60.0])) for _ in added),
                gpus=tuple(new_gpus),
                retire=tuple(gone),
                admit=((int(rng.integers(len(sources))), float(rng.choice([0.0, 0.3, 1.0]))),),
            )
            count += len(added)
    return Case(
        system=System(
            sources=tuple(sources),
            models=tuple(
                SimModel(name=f"m{m}", slo_ms=float(rng.choice([20.0, 60.0]))) for m in range(models)
            ),
            gpus=tuple(gpus[: len(gpus) - sum(len(c.gpus) for c in changes)]),
            replicas=tuple(replicas),
        ),
        options=options,
        chunks=chunks,
        changes=tuple(changes),
    )


def closed_case(seed: int, **fixed: Any) -> Case:
    """Case ``seed`` in which some sources are clients that wait for their answers."""
    asked = case(seed, drop="none", **fixed)
    rng = np.random.default_rng([7, seed])
    sources = []
    first = list(asked.chunks[0].times_ms)
    rest = [list(chunk.times_ms) for chunk in asked.chunks[1:]]
    for k, source in enumerate(asked.system.sources):
        asks = any(not stage.after and stage.fan_out >= 1 for stage in source.stages)
        closed = asks and rng.random() < 0.7
        sources.append(replace(source, closed=closed))
        if closed:
            first[k] = np.zeros(int(rng.choice([1, 2, 5, 16])))
            for times in rest:
                times[k] = np.zeros(0)
    times = [first, *rest]
    chunks = [replace(chunk, times_ms=tuple(own)) for chunk, own in zip(asked.chunks, times, strict=True)]
    return replace(asked, system=replace(asked.system, sources=tuple(sources)), chunks=tuple(chunks))


def _gpu(rng: np.random.Generator, index: int) -> SimGpu:
    return SimGpu(id=f"g{index}", type="x", price_per_hour=1.0, terms=tuple(rng.random(TERMS).tolist()))


def _replica(
    rng: np.random.Generator,
    name: str,
    model: int,
    gpus: Sequence[SimGpu],
    partitions: dict[int, int],
    grid: bool,
) -> SimReplica:
    gpu = int(rng.integers(len(gpus)))
    partition = duty = None
    offset = 0.0
    if rng.random() < 0.5:
        partition = int(rng.integers(100, 103))
        gpu = partitions.setdefault(partition, gpu)
    if rng.random() < (0.5 if partition is not None else 0.1):
        duty, offset = float(rng.choice([8.0, 12.5, 30.0])), float(rng.choice([0.0, 3.0, 7.5]))
    batch = int(rng.choice([1, 1, 2, 3, 4, 8]))
    batches = tuple(b for b in (1, 2, 4, 8) if b <= batch) if rng.random() < 0.8 else (batch,)
    step = 0.25 if grid else float(rng.uniform(0.1, 0.4))
    first, slope = 4 * step * float(rng.integers(1, 8)), 4 * step * float(rng.integers(0, 3))

    def curve(scale: float) -> tuple[float, ...]:
        return tuple(scale * (first + slope * (b - 1)) for b in batches)

    network = rng.random() < 0.4
    return SimReplica(
        id=name,
        model=model,
        gpu=gpu,
        batch_size=batch,
        max_wait_ms=float(rng.choice([0.0, 2.5, 10.0, 40.0])),
        weight=float(rng.choice([1.0, 1.0, 2.0, 3.5])),
        deal=None if rng.random() < 0.5 else float(rng.uniform(0.5, batch)),
        partition=partition,
        duty_cycle_ms=duty,
        turn_offset_ms=offset,
        batches=batches,
        latencies_ms=curve(1.0),
        copies_ms=curve(0.25) if rng.random() < 0.7 else None,
        request_ms=curve(0.125) if network else None,
        response_ms=curve(0.0625) if network and rng.random() < 0.7 else None,
        features=tuple(tuple(rng.uniform(0.05, 0.7, FEATURES).tolist()) for _ in batches),
        sigma_below=0.1,
        sigma_above=0.3,
        creq_pct=float(rng.integers(10, 60)),
    )


def _alone(model: int, rng: np.random.Generator) -> SimSource:
    return SimSource(
        name=f"m{model}",
        application=False,
        rate_rps=1.0,
        slo_ms=50.0,
        stages=(SimStage(model=model),),
        admit=float(rng.choice([1.0, 1.0, 1.0, 0.6, 0.0])),
    )


def _application(index: int, models: int, rng: np.random.Generator) -> SimSource:
    stages: list[SimStage] = []
    for i in range(int(rng.integers(1, 5))):
        after = tuple(j for j in range(i) if rng.random() < 0.5)
        fan_out = float(rng.choice([1.0, 1.0, 2.0, 0.5, 1.25, 0.25]))
        stages.append(SimStage(model=int(rng.integers(models)), after=after, fan_out=fan_out))
    return SimSource(
        name=f"a{index}",
        application=True,
        rate_rps=1.0,
        slo_ms=100.0,
        stages=tuple(stages),
        admit=float(rng.choice([1.0, 0.8])),
    )


def _rate(source: SimSource, replicas: Sequence[SimReplica], load: float) -> float:
    """Requests a millisecond that load the models' own replicas by ``load``, roughly; a few where there are none."""
    asked = {stage.model for stage in source.stages}
    speeds = [sum(r.batch_size / r.latencies_ms[-1] for r in replicas if r.model == m) for m in asked]
    return min(2.0, load * min((s for s in speeds if s > 0), default=0.1))


def _times(rng: np.random.Generator, rate: float, grid: bool) -> np.ndarray:
    times = np.sort(rng.random(rng.poisson(rate * DURATION_MS)) * DURATION_MS)
    if grid:
        times = np.minimum(np.floor(times * 2) / 2, DURATION_MS - 0.5)
    elif rng.random() < 0.3:
        times = np.repeat(times[::2], 2)
    return np.asarray(times, np.float64)
