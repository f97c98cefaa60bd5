"""Read and write the placement plan: which replicas stand on which GPUs, what is served, and what is not and
why.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gkestimator.core.errors import DocumentError
from gkestimator.core.escaping import utf8
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.core.versions import record_version
from gkestimator.documents.checking import Fields, load_json, of_version
from gkestimator.documents.workload import Workload, workload_from
from gkestimator.tables import records_dataframe, write_bytes

if TYPE_CHECKING:
    import pandas

# A replica takes about 600 bytes: plans of some 300,000 replicas.
MAX_PLAN_BYTES = 200 * 2**20
_MOST_TOKENS = 1_000_000_000
BATCHINGS = ("early", "late")


@frozen
class Replica:
    """Hold one copy of a model on one GPU.

    ``sm_share_pct``: percent of the SMs it is confined to (100: not confined). ``partition``: replicas of one
    GPU with one partition take turns on it, each once every ``duty_cycle_ms`` (both null: it runs whenever it
    has a batch, beside its neighbours). ``latency_ms``, ``latency_low_ms`` and ``latency_high_ms`` are of one
    batch alone on the GPU, from the table. ``goodput_rps``: requests a second that it is to serve. ``slo_ms``
    and ``throughput_rps`` are the model's objective (its part of the application's) and what the replica can
    do (null in plans that others wrote). ``max_wait_ms``: how long a batch may wait to fill before it is run
    as it is, so that its first request still keeps the objective (null: unknown). ``creq_pct`` (the column
    named by the plan's ``creq``), ``mreq_bytes`` and ``mreq_pct`` (of the GPU's visible memory) are what it
    was packed by; null where the table does not know. ``max_batch_size``: how many requests a server that forms
    batches late (when the GPU is free) may put into one; ``mreq_bytes`` holds so many (null: ``batch_size``).
    """

    id: str
    model: str
    runtime: str
    dtype: str
    dims: str
    batch_size: int
    sm_share_pct: float
    partition: str | None
    duty_cycle_ms: float | None
    latency_ms: float
    goodput_rps: float
    slo_ms: float | None = None
    throughput_rps: float | None = None
    max_wait_ms: float | None = None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    creq_pct: float | None = None
    mreq_bytes: int | None = None
    mreq_pct: float | None = None
    max_batch_size: int | None = None


@frozen
class PlacedGpu:
    """Hold one GPU that is used. ``cuti_pct`` and ``muti_pct``: the sums of its replicas' Creq and Mreq (replicas
    that take turns count with the part of the duty cycle they run); null where a replica's is unknown."""

    id: str
    type: str
    cuti_pct: float | None
    muti_pct: float | None
    replicas: tuple[Replica, ...]


@frozen
class PlanTotals:
    """Hold the sums of a plan.

    ``goodput_rps``: over models, of min(rate, throughput of the model's replicas within the objective).
    ``expected_goodput_rps``: the same with batch filling, queueing, interference and the interval of the estimate
    counted. ``cost_per_hour`` in USD, null where a used GPU's price is unknown. ``gap_pct``: how far the plan
    is at most from the best value of its policy's own objective; null where the policy gives no bound."""

    goodput_rps: float
    expected_goodput_rps: float | None
    gpus_used: int
    cost_per_hour: float | None
    gap_pct: float | None = None


@frozen
class ModelOutlook:
    """Hold what the plan expects for one model: ``expected_rps`` requests a second answered on time of the
    ``rate_rps`` that are asked, each within ``slo_ms`` (null: unknown); ``goodput_rps`` as of the totals."""

    model: str
    rate_rps: float
    slo_ms: float
    goodput_rps: float
    expected_rps: float | None

    @property
    def on_time_pct(self) -> float | None:
        """Return the percent of its requests that is expected on time; None where that is unknown."""
        if self.expected_rps is None:
            return None
        return 100 * self.expected_rps / self.rate_rps


@frozen
class Unserved:
    """Say why the plan does not serve ``rate_rps`` of ``model``."""

    model: str
    rate_rps: float
    reason: str


@frozen
class LanguageReplica:
    """Say how the replica with the id ``replica``, of a language model, serves by iterations.

    ``beside``: ids of the other GPUs that hold it together with its own (tensor parallel). The cache of keys and values
    has ``pages`` of ``page_tokens``, of elements ``kv_dtype``; the replica's ``batch_size`` is the most sequences at
    once. An iteration takes at most ``budget_tokens`` new tokens, prompts in parts beside decoding (``chunked``) or
    whole prompts first. ``ttft_ms`` and ``tpot_ms`` are what is expected at the rate it is to serve, of 95 in 100.
    """

    replica: str
    beside: Names
    kv_dtype: str
    pages: int
    page_tokens: int
    budget_tokens: int
    chunked: bool
    ttft_ms: float
    tpot_ms: float


@frozen
class PlacementPlan:
    """Hold what a policy answers. ``creq`` names the measure of compute it packed by; ``notes`` say what a reader
    must know; ``languages`` how replicas of language models serve; ``models`` what is expected of each other model
    (empty in plans that others wrote). ``batching``: the law by which expected goodput was
    worked out, one of BATCHINGS: a batch fills at the router and is then queued (``early``), or it is formed of what
    waits once the GPU is free (``late``)."""

    policy: str
    creq: str
    objective: str
    seed: int
    workload: Workload
    gpus: tuple[PlacedGpu, ...]
    totals: PlanTotals
    unserved: tuple[Unserved, ...] = ()
    notes: Names = ()
    languages: tuple[LanguageReplica, ...] = ()
    batching: str = "early"
    models: tuple[ModelOutlook, ...] = ()

    @property
    def table(self) -> pandas.DataFrame:
        """Return one row per replica: the GPU that it stands on, and its fields."""
        placed = [(gpu, replica) for gpu in self.gpus for replica in gpu.replicas]
        frame = records_dataframe([replica for _, replica in placed], Replica)
        frame.insert(0, "gpu", [gpu.id for gpu, _ in placed])
        frame.insert(1, "gpu_type", [gpu.type for gpu, _ in placed])
        return frame

    def save(self, path: Path | str) -> Path:
        """Write the plan as JSON, wholly or not at all, and return the path. Raises OutputError."""
        write_bytes(Path(path), utf8(plan_json(self)))
        return Path(path)


def plan_document(plan: PlacementPlan) -> NamedValues:
    """Return ``plan`` as the mapping that its JSON file holds."""
    # A workload is written as its own file is, not as its records stand.
    without_workload = dataclasses.replace(plan, workload=Workload())
    document = {"schema_version": record_version(PlacementPlan), **dataclasses.asdict(without_workload)}
    document["workload"] = plan.workload.document()
    for optional in ("languages", "models"):
        if not document[optional]:
            del document[optional]
    return document


def plan_json(plan: PlacementPlan) -> str:
    """Return ``plan`` as JSON text; numbers in full, so that reading gives them back."""
    return json.dumps(plan_document(plan), indent=1, allow_nan=False) + "\n"


def read_plan(path: Path) -> PlacementPlan:
    """Return the plan in the JSON file at ``path``. Raises DocumentError naming the field."""
    fields = load_json(path, what="a plan", limit=MAX_PLAN_BYTES)
    with of_version(fields, record_version(PlacementPlan)):
        return plan_from(fields)


def plan_from(fields: Fields) -> PlacementPlan:
    """Return the plan in ``fields``, its version taken. Raises DocumentError naming the field."""
    gpus = tuple(_gpu(entry) for entry in fields.objects("gpus", what="a GPU of a plan"))
    plan = PlacementPlan(
        policy=fields.name("policy"),
        creq=fields.name("creq", "sm-util-mean"),
        objective=fields.name("objective", "goodput"),
        seed=fields.whole("seed", 0, low=0, high=2**63 - 1),
        workload=workload_from(fields.object("workload", what="a workload")),
        gpus=gpus,
        totals=_totals(fields.object("totals", what="totals of a plan")),
        unserved=tuple(_unserved(e) for e in fields.objects("unserved", [], what="an unserved model")),
        notes=fields.lines("notes", []),
        languages=tuple(
            _language(e) for e in fields.objects("languages", [], what="a replica of a language model")
        ),
        batching=fields.choice("batching", "early", BATCHINGS),
        models=tuple(_model(e) for e in fields.objects("models", [], what="a model of a plan")),
    )
    fields.finish()
    # Exports make objects of these names; the second would replace the first.
    if len({gpu.id for gpu in gpus}) < len(gpus):
        raise DocumentError(f"{fields.where}: gpus: two GPUs have one id, expected distinct ones")
    replicas = [(gpu, replica) for gpu in gpus for replica in gpu.replicas]
    if len({replica.id for _, replica in replicas}) < len(replicas):
        raise DocumentError(f"{fields.where}: gpus: two replicas have one id, expected distinct ones")
    asked = set(plan.workload.names())
    for planned in plan.models:
        if planned.model not in asked:
            raise DocumentError(f"{fields.where}: models: {planned.model} is not in the plan's workload")
    for gpu, replica in replicas:
        if replica.model not in asked:
            raise DocumentError(f"{fields.where}: {gpu.id}: {replica.model} is not in the plan's workload")
    _check_languages(fields.where, plan)
    return plan


def _check_languages(where: str, plan: PlacementPlan) -> None:
    """Raise DocumentError where ``languages`` and the replicas of language models are not the same, or a GPU of one is
    not the plan's or not its alone.
    """
    models = plan.workload.languages
    expected = sorted(r.id for gpu in plan.gpus for r in gpu.replicas if r.model in models)
    if sorted(language.replica for language in plan.languages) != expected:
        raise DocumentError(f"{where}: languages: expected one entry for each replica of a language model")
    empty = [gpu.id for gpu in plan.gpus if not gpu.replicas]
    beside = [gpu for language in plan.languages for gpu in language.beside]
    if len(set(beside)) < len(beside) or not set(beside) <= set(empty):
        raise DocumentError(
            f"{where}: languages: beside: expected GPUs of the plan without replicas, each once"
        )
    if any(len(gpu.replicas) > 1 and any(r.model in models for r in gpu.replicas) for gpu in plan.gpus):
        raise DocumentError(f"{where}: gpus: expected the replica of a language model alone on its GPU")


def _language(fields: Fields) -> LanguageReplica:
    language = LanguageReplica(
        replica=fields.name("replica"),
        beside=tuple(fields.words("beside", "ids of GPUs")),
        kv_dtype=fields.text("kv_dtype", limit=100),
        pages=fields.whole("pages", high=_MOST_TOKENS),
        page_tokens=fields.whole("page_tokens", high=_MOST_TOKENS),
        budget_tokens=fields.whole("budget_tokens", high=_MOST_TOKENS),
        chunked=fields.flag("chunked"),
        ttft_ms=fields.number("ttft_ms"),
        tpot_ms=fields.number("tpot_ms"),
    )
    fields.finish()
    return language


def _gpu(fields: Fields) -> PlacedGpu:
    gpu = PlacedGpu(
        id=fields.name("id"),
        type=fields.name("type"),
        cuti_pct=fields.number("cuti_pct", None, null=True),
        muti_pct=fields.number("muti_pct", None, null=True),
        replicas=tuple(_replica(entry) for entry in fields.objects("replicas", what="a replica")),
    )
    fields.finish()
    return gpu


def _replica(fields: Fields) -> Replica:
    replica = Replica(
        id=fields.name("id"),
        model=fields.name("model"),
        runtime=fields.text("runtime", limit=100),
        dtype=fields.text("dtype", limit=100),
        dims=fields.text("dims", "", limit=1000),
        batch_size=fields.whole("batch_size"),
        sm_share_pct=fields.number("sm_share_pct", 100.0, above=True, high=100),
        partition=fields.text("partition", None, limit=100, null=True),
        duty_cycle_ms=fields.number("duty_cycle_ms", None, above=True, null=True),
        latency_ms=fields.number("latency_ms", above=True),
        goodput_rps=fields.number("goodput_rps"),
        slo_ms=fields.number("slo_ms", None, above=True, null=True),
        throughput_rps=fields.number("throughput_rps", None, above=True, null=True),
        max_wait_ms=fields.number("max_wait_ms", None, null=True),
        latency_low_ms=fields.number("latency_low_ms", None, null=True),
        latency_high_ms=fields.number("latency_high_ms", None, null=True),
        creq_pct=fields.number("creq_pct", None, null=True),
        mreq_bytes=fields.whole("mreq_bytes", None, low=0, high=2**62, null=True),
        mreq_pct=fields.number("mreq_pct", None, null=True),
        max_batch_size=fields.whole("max_batch_size", None, null=True),
    )
    fields.finish()
    return replica


def _totals(fields: Fields) -> PlanTotals:
    totals = PlanTotals(
        goodput_rps=fields.number("goodput_rps"),
        expected_goodput_rps=fields.number("expected_goodput_rps", None, null=True),
        gpus_used=fields.whole("gpus_used", low=0),
        cost_per_hour=fields.number("cost_per_hour", None, null=True),
        gap_pct=fields.number("gap_pct", None, null=True),
    )
    fields.finish()
    return totals


def _model(fields: Fields) -> ModelOutlook:
    model = ModelOutlook(
        model=fields.name("model"),
        rate_rps=fields.number("rate_rps", above=True, high=1e12),
        slo_ms=fields.number("slo_ms", above=True),
        goodput_rps=fields.number("goodput_rps"),
        expected_rps=fields.number("expected_rps", None, null=True),
    )
    fields.finish()
    return model


def _unserved(fields: Fields) -> Unserved:
    part = Unserved(
        model=fields.name("model"),
        rate_rps=fields.number("rate_rps", above=True, high=1e12),
        reason=fields.text("reason"),
    )
    fields.finish()
    return part
