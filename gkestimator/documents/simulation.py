"""Read and write what a simulation found: totals, models, applications, GPUs, time; beside what the plan
promised.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from gkestimator.core.errors import DocumentError
from gkestimator.core.escaping import utf8
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.core.versions import record_version
from gkestimator.documents.checking import Fields, load_json, of_version
from gkestimator.tables import records_dataframe, write_bytes

if TYPE_CHECKING:
    import pandas

MAX_SIMULATION_BYTES = 200 * 2**20
# Percent of the requests at which ``latency_quantiles_ms`` stand.
_MIDDLE = tuple(float(q) for q in range(5, 96, 5))
QUANTILES_PCT = (0.0, 1.0, 2.0, *_MIDDLE, 98.0, 99.0, 99.5, 99.9, 100.0)
T = TypeVar("T")


@frozen
class SimulationSettings:
    """Hold everything beside plan and table that decides the result. ``arrivals``: the process or the trace;
    ``max_wait_ms`` null: each replica's of the plan; ``network``, ``coefficients``: the file or null; ``batching``: the
    law that batches were formed by."""

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
    drop: str
    network: str | None
    window_s: float
    seed: int
    batching: str = "early"


@frozen
class SimulationTotals:
    """Hold requests to models, stages of applications included, as a plan counts them: ``goodput_rps``
    answered within their model's SLO, ``throughput_rps`` answered, by the second; ``promised_goodput_rps``
    and ``expected_goodput_rps`` are the plan's.

    Requests of clients (an application's is one): ``asked_rps`` by the workload, ``arrived_rps``,
    ``rejected_rps`` (turned away at the door) and ``dropped_rps`` (let in, and not served because too late)
    of these, ``on_time_pct`` of all that arrived, and their whole response times. ``cuti_pct``: Creq of what
    ran, over time and the GPUs used; ``muti_pct``: the plan's memory, mean of the GPUs used. Null: unknown,
    or a share of nothing.
    """

    goodput_rps: float
    throughput_rps: float
    promised_goodput_rps: float
    expected_goodput_rps: float | None
    asked_rps: float
    arrived_rps: float
    rejected_rps: float
    dropped_rps: float
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


@frozen
class StageTimes:
    """Hold one part of the requests' time; null where no request was answered."""

    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


@frozen
class SimulatedModel:
    """Hold one model, asked for by itself and in applications.

    ``arrived_rps``: at its router, or turned away at its own door (``rejected_rps``; an application's that is
    turned away stands with the application); ``dropped_rps``: let in, and not served because they were too
    late. ``on_time_pct``: of those that arrived. ``wait_mean_ms``: arrival to start of service.
    ``promised_rps``: the plan's goodput of its replicas. ``batch_mean`` and percent of batches full and timed
    out: null without one.
    """

    model: str
    slo_ms: float
    replicas: int
    asked_rps: float
    promised_rps: float
    arrived_rps: float
    rejected_rps: float
    dropped_rps: float
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


@frozen
class SimulatedApplication:
    """Hold one application: requests of clients, whole responses."""

    application: str
    slo_ms: float
    asked_rps: float
    arrived_rps: float
    rejected_rps: float
    dropped_rps: float
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


@frozen
class SimulatedLanguage:
    """Hold one language model: time to the first token (TTFT) and mean time per token after it (TPOT), their
    objectives; ``tokens_per_s`` of answers, warm-up and what came after the arrivals' end included, over the whole run.

    ``sequences_mean`` and ``cache_pct``: sequences and part of the pages held by all its replicas, means over the
    counted time. ``preempted``: sequences whose pages were taken, over the whole run; ``iterations`` too. Null:
    nothing was answered, or by one token each.
    """

    model: str
    slo_ttft_ms: float
    slo_tpot_ms: float
    ttft_mean_ms: float | None
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    ttft_p99_ms: float | None
    tpot_mean_ms: float | None
    tpot_p50_ms: float | None
    tpot_p90_ms: float | None
    tpot_p99_ms: float | None
    tokens_per_s: float | None
    sequences_mean: float
    cache_pct: float
    iterations: int
    preempted: int


@frozen
class SimulatedGpu:
    """Hold one GPU.

    ``busy_pct``: of the time something ran; ``cuti_pct``: mean over time of the Creq of what ran;
    ``muti_pct``: the plan's.
    """

    id: str
    type: str
    busy_pct: float
    cuti_pct: float | None
    muti_pct: float | None


@frozen
class TimelineModel:
    """Count one model's requests by window of the settings' ``window_s`` from the start, by time of arrival.

    Warm-up is included. Counted are requests that reached its router (what was refused at the door did not),
    those answered on time, and the mean wait until service of those that were served (null where none was).
    """

    model: str
    arrived: tuple[int, ...]
    on_time: tuple[int, ...]
    wait_mean_ms: tuple[float | None, ...]


@frozen
class SimulationReport:
    """Hold what a simulation found. ``notes`` say what a reader must know."""

    settings: SimulationSettings
    totals: SimulationTotals
    models: tuple[SimulatedModel, ...]
    applications: tuple[SimulatedApplication, ...]
    gpus: tuple[SimulatedGpu, ...]
    timeline: tuple[TimelineModel, ...]
    notes: Names = ()
    languages: tuple[SimulatedLanguage, ...] = ()

    @property
    def table(self) -> pandas.DataFrame:
        """Return one row per model: rates, shares and latencies."""
        return records_dataframe(self.models, SimulatedModel)

    def save(self, path: Path | str) -> Path:
        """Write the report as JSON, wholly or not at all, and return the path. Raises OutputError."""
        write_bytes(Path(path), utf8(simulation_json(self)))
        return Path(path)


def simulation_document(report: SimulationReport) -> NamedValues:
    """Return ``report`` as the mapping that its JSON file holds."""
    return {"schema_version": record_version(SimulationReport), **dataclasses.asdict(report)}


def simulation_json(report: SimulationReport) -> str:
    """Return ``report`` as JSON text; numbers in full, so that reading gives them back."""
    return json.dumps(simulation_document(report), indent=1, allow_nan=False) + "\n"


def read_simulation(path: Path) -> SimulationReport:
    """Return the report in the JSON file at ``path``. Raises DocumentError naming the field."""
    fields = load_json(path, what="a simulation's report", limit=MAX_SIMULATION_BYTES)
    with of_version(fields, record_version(SimulationReport)):
        return simulation_from(fields)


def simulation_from(fields: Fields) -> SimulationReport:
    """Return the report in ``fields``, its version taken. Raises DocumentError naming the field."""
    report = SimulationReport(
        settings=_read(SimulationSettings, fields.object("settings", what="settings of a simulation")),
        totals=_read(SimulationTotals, fields.object("totals", what="totals of a simulation")),
        models=_all(SimulatedModel, fields, "models", "a model of a simulation"),
        applications=_all(SimulatedApplication, fields, "applications", "an application of a simulation"),
        gpus=_all(SimulatedGpu, fields, "gpus", "a GPU of a simulation"),
        timeline=_all(TimelineModel, fields, "timeline", "a model over time"),
        notes=fields.lines("notes", []),
        languages=_all(SimulatedLanguage, fields, "languages", "a language model of a simulation", []),
    )
    fields.finish()
    # Readers take the two lists side by side.
    if [t.model for t in report.timeline] != [m.model for m in report.models]:
        raise DocumentError(f"{fields.where}: timeline: found other models than in models, expected the same")
    lengths = {len(v) for t in report.timeline for v in (t.arrived, t.on_time, t.wait_mean_ms)}
    if len(lengths) > 1:
        raise DocumentError(
            f"{fields.where}: timeline: found lists of different lengths, expected one length"
        )
    return report


def _all(kind: type[T], fields: Fields, name: str, what: str, default: Any = ...) -> tuple[T, ...]:
    return tuple(_read(kind, entry) for entry in fields.objects(name, default, what=what))


def _read(kind: type[T], fields: Fields) -> T:
    """Return a ``kind`` from ``fields``, each field as its type says: numbers are 0 or more everywhere here.

    A text that has a default may be left out, as reports of earlier versions do.
    """
    key: Any = kind  # mypy does not take a class for hashable
    values: NamedValues = {}
    own = {f.name: f.default for f in dataclasses.fields(key) if f.default is not dataclasses.MISSING}
    for name, hint in _hints(key).items():
        members = get_args(hint)
        optional = type(None) in members
        inner = members[0] if optional else hint
        if inner is float:
            values[name] = fields.number(name, null=optional)
        elif inner is int:
            values[name] = fields.whole(name, low=0, high=2**63 - 1, null=optional)
        elif inner is str:
            values[name] = fields.text(name, own.get(name, ...), null=optional)
        elif inner is StageTimes:
            values[name] = _read(StageTimes, fields.object(name, what="a stage's times"))
        else:
            values[name] = _numbers(fields, name, get_args(inner)[0], null=optional)
    fields.finish()
    return kind(**values)


@cache
def _hints(kind: type) -> NamedValues:
    return get_type_hints(kind)


def _numbers(fields: Fields, name: str, each: Any, *, null: bool) -> tuple[Any, ...] | None:
    """Return a list of numbers: whole where ``each`` is int, with nulls where it is float | None.

    ``null``: the whole list may be null.
    """
    kinds = {int: "integer", float: "number"}
    values = fields.items(name, of=kinds.get(each, ""), null=null)
    if values is None:
        return None
    if name == "latency_quantiles_ms" and len(values) != len(QUANTILES_PCT):
        raise fields.fail(name, f"found {len(values)} numbers, expected {len(QUANTILES_PCT)}")
    nulls = type(None) in get_args(each)
    expected = "numbers of at least 0"
    taken: Any = (int, float)
    if each is int:
        expected = f"whole {expected}"
        taken = int
    if nulls:
        expected += " or null"
    numbers: list[float | None] = []
    for value in values:
        if value is None and nulls:
            numbers.append(None)
        elif isinstance(value, taken) and not isinstance(value, bool) and 0 <= value <= 1e15:
            numbers.append(value if each is int else float(value))
        else:
            raise fields.fail(name, f"found {value!r:.60} in the list, expected {expected}")
    return tuple(numbers)
