"""Count what a service does, model by model, and say it in Prometheus' text format."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from gkestimator.core.records import frozen

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# What gauges are of: the answers of the last so many seconds, at most so many of a model.
WINDOW_S = 60.0
_MOST_KEPT = 4096
_PREFIX = "gkest_serve_"


@frozen
class MeteredAnswer:
    """Hold how a request was answered, for the meters. ``batch`` and ``queue_ms``: None where it was not served."""

    total_ms: float
    status: str
    on_time: bool
    batch: int | None
    queue_ms: float | None


@frozen
class WindowFigures:
    """Hold a model's figures of the last seconds; None where nothing was answered in them."""

    rate_rps: float
    on_time: float | None
    batch: float | None
    queue_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


class ModelMeter:
    """Count one model's requests since the start, and keep those of the last seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.arrived = 0
        self.on_time = 0
        self.by_status: Counter[str] = Counter()
        self._clock = clock
        self._begun = clock()
        self._arrivals: deque[float] = deque(maxlen=_MOST_KEPT)
        self._answers: deque[tuple[float, MeteredAnswer]] = deque(maxlen=_MOST_KEPT)

    def arrive(self) -> None:
        """Count a request that has come."""
        self.arrived += 1
        self._arrivals.append(self._clock())

    def answer(self, answer: MeteredAnswer) -> None:
        """Count the end of a request."""
        self.by_status[answer.status] += 1
        self.on_time += answer.on_time
        self._answers.append((self._clock(), answer))

    def figures(self) -> WindowFigures:
        """Return the figures of the last WINDOW_S seconds, or of as much of them as was kept."""
        now = self._clock()
        since = max(now - WINDOW_S, self._begun)
        if len(self._arrivals) == _MOST_KEPT:
            since = max(since, self._arrivals[0])
        arrived = sum(1 for at in self._arrivals if at >= since)
        rate_rps = arrived / max(now - since, 1e-3)
        recent = [answer for at, answer in self._answers if at >= now - WINDOW_S]
        served = [a for a in recent if a.batch is not None]
        times = [a.total_ms for a in served]
        p50_ms = p99_ms = None
        if times:
            p50_ms, p99_ms = (float(v) for v in np.percentile(times, (50, 99)))
        return WindowFigures(
            rate_rps=rate_rps,
            on_time=_mean(a.on_time for a in recent),
            batch=_mean(a.batch for a in served if a.batch is not None),
            queue_ms=_mean(a.queue_ms for a in served if a.queue_ms is not None),
            p50_ms=p50_ms,
            p99_ms=p99_ms,
        )


def _mean(values: Iterable[float]) -> float | None:
    known = [float(value) for value in values]
    if not known:
        return None
    return sum(known) / len(known)


class ServiceMeters:
    """Hold the meters of all models, and what is of the whole service (set by its router)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.models: dict[str, ModelMeter] = {}
        self.plan_version = 0
        self.worker_restarts = 0
        self.outstanding: Mapping[str, int] = {}
        self.replicas: Mapping[str, int] = {}
        self.replans: Mapping[str, int] = {}
        self._clock = clock

    def of(self, model: str) -> ModelMeter:
        """Return the meter of ``model``."""
        if model not in self.models:
            self.models[model] = ModelMeter(self._clock)
        return self.models[model]

    def render(self) -> bytes:
        """Return everything in Prometheus' text format. Needs prometheus_client."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now; prometheus_client asks."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily(
            f"{_PREFIX}plan_version", "Which plan serves, from 1.", value=self.plan_version
        )
        yield CounterMetricFamily(
            f"{_PREFIX}worker_restarts", "Workers that died.", value=self.worker_restarts
        )
        replans = CounterMetricFamily(f"{_PREFIX}replans", "Re-plans by outcome.", labels=["outcome"])
        for outcome, count in self.replans.items():
            replans.add_metric([outcome], count)
        yield replans
        requests = CounterMetricFamily(f"{_PREFIX}requests", "Requests ended.", labels=["model", "status"])
        on_time = CounterMetricFamily(f"{_PREFIX}on_time", "Requests answered on time.", labels=["model"])
        for name, meter in self.models.items():
            on_time.add_metric([name], meter.on_time)
            for status, count in meter.by_status.items():
                requests.add_metric([name, status], count)
        yield requests
        yield on_time
        for field, words in (("outstanding", "Requests under way."), ("replicas", "Replicas that run.")):
            gauge = GaugeMetricFamily(f"{_PREFIX}{field}", words, labels=["model"])
            for name, count in getattr(self, field).items():
                gauge.add_metric([name], count)
            yield gauge
        figures = {name: meter.figures() for name, meter in self.models.items()}
        for field, metric, words in _GAUGES:
            gauge = GaugeMetricFamily(
                f"{_PREFIX}{metric}", f"{words}, last {WINDOW_S:g} s.", labels=["model"]
            )
            for name, known in figures.items():
                value = getattr(known, field)
                if value is not None:
                    gauge.add_metric([name], value)
            yield gauge


_GAUGES = (
    ("rate_rps", "rate_rps", "Requests a second"),
    ("on_time", "on_time_ratio", "Part of the ended requests that was on time"),
    ("batch", "batch_size", "Mean batch that a request was served in"),
    ("queue_ms", "queue_ms", "Mean wait in a replica's queue"),
    ("p50_ms", "latency_p50_ms", "Median time to the answer"),
    ("p99_ms", "latency_p99_ms", "99th percentile of the time to the answer"),
)
