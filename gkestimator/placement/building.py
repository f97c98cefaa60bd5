"""From table, workload and cluster to the problem: every question has exactly one row, or is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.escaping import is_line
from gkestimator.core.options import spelled
from gkestimator.documents import Cluster, Workload
from gkestimator.documents.checking import valid_name
from gkestimator.documents.plan import BATCHINGS
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.placement.problem import Candidates, Gpu, Offer, PlacementModel, Problem, Words
from gkestimator.placement.slo import stage_objectives
from gkestimator.tables import Requirement
from gkestimator.tables.candidate import CREQ_COLUMNS, Candidate, without_context

OBJECTIVES = ("goodput", "cost")
# The columns that tell rows of one question apart, and that a user chooses by.
_TEXTS = ("runtime", "dtype", "dims")
_MAX_TEXT = 100  # of a runtime, a dtype or bound dimensions: what stands in plans and exports


def build_problem(
    rows: Iterable[Requirement],
    workload: Workload,
    cluster: Cluster,
    *,
    objective: str | None = None,
    creq: str = "sm-util-mean",
    seed: int = 0,
    runtime: str | None = None,
    dtype: str | None = None,
    dims: str | None = None,
    table: str = "table",
    batching: str = "early",
) -> Problem:
    """Return the problem of serving ``workload`` on ``cluster`` by what ``rows`` say.

    ``objective`` None: ``cost`` for an elastic cluster, ``goodput`` for a fixed one. ``runtime``, ``dtype``
    and ``dims`` keep the rows that name them. ``table`` is what messages call the rows. ``batching``: the law by
    which servers form batches, ``early`` or ``late``. Raises UsageError or
    TableError: unknown objective, creq or batching, a model without rows on any GPU type of the cluster, two rows for
    one question (model, GPU, batch size, SM share), a name that is not allowed.
    """
    if workload.languages:
        raise UsageError(
            f"{next(iter(workload.languages))}: found a language model, expected models that are served in batches "
            "(gkest schedule places language models by a table of gkest llm)"
        )
    if objective is None:
        objective = "cost" if cluster.elastic else "goodput"
    if objective not in OBJECTIVES:
        raise UsageError(f"objective {objective!r}: expected one of {', '.join(OBJECTIVES)}")
    if creq not in CREQ_COLUMNS:
        raise UsageError(f"creq {creq!r}: expected one of {', '.join(CREQ_COLUMNS)}")
    if batching not in BATCHINGS:
        raise UsageError(f"batching {batching!r}: expected one of {', '.join(BATCHINGS)}")
    specs = {spec.name: spec for spec in cluster.types}
    if not specs:
        raise UsageError("the cluster has no GPUs")
    candidates, notes = candidates_of(
        rows, workload.names(), specs, creq=creq, runtime=runtime, dtype=dtype, dims=dims, table=table
    )
    prices: dict[str, float | None] = {g.spec.name: g.spec.price_per_hour_usd for g in cluster.gpus}
    prices |= {e.spec.name: e.price_per_hour for e in cluster.elastic}
    loads, split_notes = stage_objectives(workload, candidates, prices)
    models = tuple(
        PlacementModel(
            name=load.name,
            rate_rps=load.rate_rps,
            slo_ms=load.slo_ms,
            weight=load.weight,
            candidates=candidates[load.name],
            batching=batching,
        )
        for load in loads
    )
    gpus = tuple(Gpu(id=f"{g.spec.name}-{i}", type=g.spec.name) for g in cluster.gpus for i in range(g.count))
    offers = tuple(
        Offer(type=e.spec.name, price_per_hour=e.price_per_hour, limit=e.limit) for e in cluster.elastic
    )
    return Problem(
        models=models,
        gpus=gpus,
        offers=offers,
        objective=objective,
        creq=creq,
        seed=seed,
        specs=specs,
        prices=prices,
        workload=workload,
        notes=(*cluster.notes, *notes, *split_notes),
    )


def candidates_of(
    rows: Iterable[Requirement],
    names: Sequence[str],
    specs: Mapping[str, GpuSpec],
    *,
    creq: str,
    runtime: str | None = None,
    dtype: str | None = None,
    dims: str | None = None,
    table: str = "table",
) -> tuple[dict[str, Candidates], list[str]]:
    """Return each model's candidates on ``specs``, in order, and notes. Raises as :func:`build_problem`."""
    order = {name: i for i, name in enumerate(specs)}
    gpus = _GpuNames(specs)
    asked = {"runtime": runtime, "dtype": dtype, "dims": dims}
    asked = {column: text for column, text in asked.items() if text is not None}
    known: set[str] = set()
    answers: dict[object, Requirement] = {}
    candidates: dict[str, list[Candidate]] = {name: [] for name in names}
    without_time: Counter[str] = Counter()
    lacking = False
    for row in rows:
        known.add(row.model)
        if row.model not in candidates:
            continue
        gpu = gpus.named(row.gpu)
        if gpu not in order or any(getattr(row, column) != text for column, text in asked.items()):
            continue
        _check_texts(row, table)
        other = answers.setdefault((row.model, gpu, row.batch_size, row.sm_share_pct), row)
        if other is not row:
            raise TableError(_two_rows(table, other, row))
        candidate = _candidate(row, specs[gpu], CREQ_COLUMNS[creq])
        if candidate is None:
            without_time[row.model] += 1
            continue
        lacking |= without_context(row)
        candidates[row.model].append(candidate)
    _check_complete(names, known, candidates, without_time, specs, table)
    notes = []
    if lacking:
        notes.append(
            "memory is packed by reserved_bytes where mreq_bytes is null: the CUDA context is not counted"
        )
    notes += [f"{name}: {n} rows without latency left out" for name, n in without_time.items()]
    in_order: dict[str, Candidates] = {}
    for name, own in candidates.items():
        own.sort(key=lambda c: (order[c.gpu], c.sm_share_pct, c.batch_size))
        in_order[name] = tuple(own)
    return in_order, notes


class _GpuNames:
    """Look up GPUs' names in the catalogue, each once: a table names the same few in millions of rows."""

    def __init__(self, specs: Mapping[str, GpuSpec]) -> None:
        self._catalogue = gpu_catalogue()
        # A type of the cluster keeps its name, whatever the catalogue calls it.
        self._names = {name: name for name in specs}

    def named(self, text: str) -> str:
        """Return the canonical name of the GPU that a table calls ``text``."""
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = self._catalogue.canonical(text)
        return name


def _check_texts(row: Requirement, table: str) -> None:
    """Raise TableError where a text of ``row`` cannot stand in plans and exports."""
    for column in _TEXTS:
        text = getattr(row, column)
        if not is_line(text, _MAX_TEXT):
            raise TableError(f"{table}: {row.model}: {column}: found {text[:40]!r}, expected a line of text")


def _check_complete(
    names: Sequence[str],
    known: Container[str],
    candidates: Mapping[str, Sequence[Candidate]],
    without_time: Container[str],
    specs: Iterable[str],
    table: str,
) -> None:
    """Raise TableError where a model of ``names`` has nothing to be placed by."""
    missing = [name for name in names if name not in known]
    if missing:
        models = "model" if len(missing) == 1 else "models"
        some = ", ".join(missing[:5])
        if len(missing) > 5:
            some += f" and {len(missing) - 5:,} more"
        raise TableError(f"{table}: no row for {models} {some}, which the workload asks for")
    gpus = ", ".join(specs)
    for name in names:
        if not valid_name(name):
            raise TableError(f"{table}: {name!r} is not a name that can be placed")
        if candidates[name]:
            continue
        if name in without_time:
            raise TableError(f"{table}: {name} has no row with a latency on {gpus}")
        chosen = ", ".join(spelled(option) for option in ("runtime", "dtype", "dims"))
        raise TableError(f"{table}: {name} has rows, but none on {gpus} (or none under {chosen})")


def _candidate(row: Requirement, spec: GpuSpec, column: str) -> Candidate | None:
    """Return ``row`` with what it leaves out worked out; None: neither its latency nor its throughput is
    known."""
    latency = row.latency_ms
    throughput = row.throughput_rps
    batch = row.batch_size or 1
    if latency is None and throughput:
        latency = 1e3 * batch / throughput
    elif throughput is None and latency:
        throughput = 1e3 * batch / latency
    if not latency or not throughput or math.isinf(latency) or math.isinf(throughput):
        return None
    size, percent = _memory(row, spec.memory_visible_bytes)
    if row.gpu != spec.name:
        row = replace(row, gpu=spec.name)
    return Candidate(
        row=row,
        latency_ms=latency,
        throughput_rps=throughput,
        creq_pct=getattr(row, column),
        memory_pct=percent,
        memory_bytes=size,
    )


def _memory(row: Requirement, visible: int | None) -> tuple[int | None, float | None]:
    """Return the memory of ``row`` in bytes and in percent of what is ``visible`` (None: unknown, which leaves the one
    unknown that follows from the other)."""
    size = row.mreq_bytes
    if size is None:
        size = row.reserved_bytes
    percent = row.mreq_pct
    if visible is None:
        return size, percent
    if percent is None and size is not None:
        percent = 100 * size / visible
    elif size is None and percent is not None:
        size = math.ceil(percent / 100 * visible)
    return size, percent


def _two_rows(table: str, first: Requirement, second: Requirement) -> str:
    differing = []
    for name in _TEXTS:
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            differing.append(f"--{name} ({one or 'none'} or {other or 'none'})")
    what = f"{first.model} on {first.gpu} at batch {first.batch_size}, {first.sm_share_pct:g} % of the SMs"
    return f"{table}: two rows answer for {what}; choose with {' or '.join(differing) or 'one row each'}"


def impossible(problem: Problem) -> Words:
    """Return the models that no policy could serve on this cluster, whatever is free, with the reason: every
    candidate is above the objective, or larger than the GPU's memory."""
    reasons = {}
    part_of = {s.model: a for a in problem.workload.applications for s in a.stages}
    for model in problem.models:
        in_time = [c for c in model.candidates if c.latency_ms <= model.slo_ms]
        if not in_time:
            best = min(model.candidates, key=lambda c: c.latency_ms)
            slo = f"SLO {model.slo_ms:.6g} ms"
            whole = part_of.get(model.name)
            if whole is not None:
                slo = f"its part {model.slo_ms:.4g} ms of the SLO {whole.slo_ms:g} ms of {whole.name}"
            reasons[model.name] = (
                f"{slo} is below its fastest latency, {best.latency_ms:.4g} ms "
                f"(batch {best.batch_size} on {best.gpu})"
            )
        elif all(c.memory_pct is not None and c.memory_pct > 100 for c in in_time):
            least = min(in_time, key=lambda c: c.memory_pct or 0.0)
            reasons[model.name] = (
                f"needs {least.memory_pct:.4g} % of the memory of {least.gpu} at batch {least.batch_size}, the "
                "least of all GPUs within its SLO"
            )
    return reasons
