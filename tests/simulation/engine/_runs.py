"""Small systems and arrivals at given times, for the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import CountedRequests, Result
from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System


class Cut(Arrivals):
    """Requests at ``times_ms`` of each source, in chunks that end at ``ends_ms`` (and at the end)."""

    def __init__(self, times_ms: Sequence[Sequence[float]], ends_ms: Sequence[float] = ()) -> None:
        self.times = [np.sort(np.array(times, float)) for times in times_ms]
        self.ends = sorted(ends_ms)
        self.sources = len(self.times)

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        start = 0.0
        for end in [*(e for e in self.ends if 0 < e < until_ms), until_ms]:
            yield Chunk(end_ms=end, times_ms=tuple(t[(t >= start) & (t < end)] for t in self.times))
            start = end


def replica(model: int = 0, gpu: int = 0, **values: object) -> SimReplica:
    """A replica that takes 10 ms for a batch of one and 16 for its largest, four."""
    given: dict[str, object] = {
        "id": f"{model}@{gpu}",
        "model": model,
        "gpu": gpu,
        "batch_size": 4,
        "max_wait_ms": 5.0,
        "weight": 1.0,
        "batches": (1, 4),
        "latencies_ms": (10.0, 16.0),
    }
    return SimReplica(**(given | values))  # type: ignore[arg-type]


def system(replicas: Sequence[SimReplica], models: int = 1, gpus: int = 1, admit: float = 1.0) -> System:
    """``models`` models, each with a source of its own."""
    return System(
        sources=tuple(
            SimSource(
                name=f"m{m}",
                application=False,
                rate_rps=1.0,
                slo_ms=50.0,
                stages=(SimStage(model=m),),
                admit=admit,
            )
            for m in range(models)
        ),
        models=tuple(SimModel(name=f"m{m}", slo_ms=50.0) for m in range(models)),
        gpus=tuple(SimGpu(id=f"g{g}", type="any", price_per_hour=None) for g in range(gpus)),
        replicas=tuple(replicas),
    )


def run(asked: System, arrivals: Arrivals, duration_ms: float = 1000.0, **options: object) -> Result:
    """Everything counted, requests kept."""
    simulator = Simulator(asked, Options(duration_ms=duration_ms, keep_requests=True, **options))  # type: ignore[arg-type]
    for chunk in arrivals.chunks(duration_ms):
        simulator.advance(chunk)
    return simulator.finish()


def content(result: Result) -> bytes:
    """Every number of a result."""
    parts = []
    for field in fields(result):
        value = getattr(result, field.name)
        if isinstance(value, CountedRequests):
            parts += [getattr(value, f.name).tobytes() for f in fields(value)]
        elif value is not None:  # None has an address, and no number
            parts.append(np.asarray(value).tobytes())
    return b"|".join(parts)


def finished(result: Result) -> list[float]:
    """When each request's answer was there, in order of completion."""
    kept = result.requests
    assert kept is not None
    return (kept.arrived_ms + kept.router_ms + kept.network_ms + kept.queue_ms + kept.gpu_ms).tolist()  # type: ignore[no-any-return]
