"""What a simulation found, as a document: totals, models, applications, GPUs, time; beside what the plan promised."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "QUANTILES_PCT",
    "SIMULATION_VERSION",
    "SimulatedApplication",
    "SimulatedGpu",
    "SimulatedModel",
    "SimulationReport",
    "SimulationSettings",
    "SimulationTotals",
    "StageTimes",
    "TimelineModel",
    "read_simulation",
    "simulation_document",
    "simulation_json",
]

SIMULATION_VERSION = 1
MAX_SIMULATION_BYTES = 200 * 2**20
# Percent of the requests at which ``latency_quantiles_ms`` stand.
QUANTILES_PCT = (0.0, 1.0, 5.0, *(float(q) for q in range(10, 91, 10)), 95.0, 98.0, 99.0, 99.5, 99.9, 100.0)  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """Everything beside plan and table that decides the result. ``arrivals``: the process or the trace;
    ``max_wait_ms`` null: each replica's of the plan; ``network``, ``coefficients``: the file or null."""

    policy: str
    arrivals: str
    duration_s: float
    warmup_s: float
    rate_scale: float
    max_wait_ms: float | None
    admission: str
    routing: str
    service: str
    copy: str
    interference: str
    coefficients: str | None
    network: str | None
    window_s: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationTotals:
    """Requests to models, stages of applications included, as a plan counts them: ``goodput_rps`` answered within
    their model's SLO, ``throughput_rps`` answered, by the second; ``expected`` and ``promised`` are the plan's
    ``expected_goodput_rps`` and ``goodput_rps``.

    Requests of clients (an application's is one): ``asked_rps`` by the workload, ``arrived_rps``, ``rejected_rps``
    of these, ``on_time_pct`` of all that arrived, and their whole response times. ``cuti_pct``: Creq of what ran,
    over time and the GPUs used; ``muti_pct``: the plan's memory, mean of the GPUs used. Null: unknown, or a share
    of nothing.
    """

    goodput_rps: float
    throughput_rps: float
    promised_goodput_rps: float
    expected_goodput_rps: float | None
    asked_rps: float
    arrived_rps: float
    rejected_rps: float
    on_time_pct: float | None
    latency_mean_ms: float | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    latency_p999_ms: float | None
    latency_quantiles_ms: tuple[float, ...] | None
    cuti_pct: float | None
    muti_pct: float | None
    gpus_used: int
    cost_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """One part of the requests' time; null where no request was answered."""

    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModel:
    """One model, asked for by itself and in applications. ``arrived_rps``: at its router, or turned away at its
    own door (``rejected_rps``; an application's that is turned away stands with the application).
    ``on_time_pct``: of those that arrived. ``wait_mean_ms``: arrival to start of service. ``promised_rps``: the
    plan's goodput of its replicas. ``batch_mean`` and percent of batches full and timed out: null without one."""

    model: str
    slo_ms: float
    replicas: int
    asked_rps: float
    promised_rps: float
    arrived_rps: float
    rejected_rps: float
    goodput_rps: float
    throughput_rps: float
    on_time_pct: float | None
    wait_mean_ms: float | None
    latency_mean_ms: float | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    latency_p999_ms: float | None
    latency_quantiles_ms: tuple[float, ...] | None
    router: StageTimes
    network: StageTimes
    queue: StageTimes
    gpu: StageTimes
    batches: int
    batch_mean: float | None
    batches_full_pct: float | None
    batches_timed_out_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedApplication:
    """One application: requests of clients, whole responses."""

    application: str
    slo_ms: float
    asked_rps: float
    arrived_rps: float
    rejected_rps: float
    goodput_rps: float
    throughput_rps: float
    on_time_pct: float | None
    latency_mean_ms: float | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    latency_p999_ms: float | None
    latency_quantiles_ms: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpu:
    """One GPU. ``busy_pct``: of the time something ran; ``cuti_pct``: mean over time of the Creq of what ran;
    ``muti_pct``: the plan's."""

    id: str
    type: str
    busy_pct: float
    cuti_pct: float | None
    muti_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineModel:
    """By window of the settings' ``window_s`` from the start (warm-up included), by time of arrival: requests that
    arrived, those answered on time, the mean wait until service (null where none arrived)."""

    model: str
    arrived: tuple[int, ...]
    on_time: tuple[int, ...]
    wait_mean_ms: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """What a simulation found. ``notes`` say what a reader must know."""

    settings: SimulationSettings
    totals: SimulationTotals
    models: tuple[SimulatedModel, ...]
    applications: tuple[SimulatedApplication, ...]
    gpus: tuple[SimulatedGpu, ...]
    timeline: tuple[TimelineModel, ...]
    notes: tuple[str, ...] = ()


def simulation_document(report: SimulationReport) -> dict[str, Any]:
    """``report`` as the mapping that its JSON file holds."""
    return {"schema_version": SIMULATION_VERSION, **dataclasses.asdict(report)}


def simulation_json(report: SimulationReport) -> str:
    """``report`` as JSON text; numbers in full, so that reading gives them back."""
    return json.dumps(simulation_document(report), indent=1, allow_nan=False) + "\n"


def read_simulation(path: Path) -> SimulationReport:
    """The report in the JSON file at ``path``. Raises DocumentError naming the field."""
    raise NotImplementedError
