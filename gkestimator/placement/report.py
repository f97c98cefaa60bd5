"""A plan for people and for spreadsheets: which replicas stand where, what every model gets, and the words
that close a run."""

from __future__ import annotations

import csv
import dataclasses
import io
import statistics
import string
from collections import Counter, defaultdict
from collections.abc import Sequence

from gkestimator.core.errors import UsageError, one_line
from gkestimator.documents import PlacedGpu, PlacementPlan, Replica, plan_json
from gkestimator.placement.problem import Problem
from gkestimator.tables.layout import TextColumn, printable, text_table
from gkestimator.tables.units import number_text, percent_text

PLAN_FORMATS = ("table", "csv", "json")
PLAN_SUFFIXES = {".json": "json", ".csv": "csv", ".txt": "table"}
_MANY = 5


def render_plan(plan: PlacementPlan, form: str) -> bytes:
    """``plan`` as ``table``, ``csv`` (one row a replica) or ``json`` (the plan document), UTF-8. Raises
    UsageError for another."""
    makers = {"table": plan_text, "csv": plan_csv, "json": plan_json}
    if form not in makers:
        raise UsageError(f"format {form!r} is not known, expected one of {', '.join(PLAN_FORMATS)}")
    return makers[form](plan).encode()


def plan_csv(plan: PlacementPlan) -> str:
    """One row for each replica: ``gpu``, ``gpu_type``, then the fields of a replica as in the plan document.
    Null is an empty cell, numbers stand in full."""
    names = [f.name for f in dataclasses.fields(Replica)]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["gpu", "gpu_type", *names])
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            cells = [getattr(replica, name) for name in names]
            writer.writerow([gpu.id, gpu.type, *("" if c is None else c for c in cells)])
    return buffer.getvalue()


def plan_text(plan: PlacementPlan) -> str:
    """The plan at 100 columns: the GPUs with their replicas (GPUs with the same content once, with their
    number), what every model gets, totals, notes."""
    lines = [f"policy {plan.policy} · objective {plan.objective} · Creq {plan.creq} · seed {plan.seed}", ""]
    lines += text_table(_gpu_columns(plan)) if plan.gpus else ["no GPU is used"]
    lines += ["", *text_table(_model_columns(plan)), "", _totals(plan)]
    if plan.unserved:
        lines += ["", "not served:"]
        lines += [f"  {u.model}: {number_text(u.rate_rps)} req/s: {u.reason}" for u in plan.unserved]
    if plan.notes:
        lines += ["", *(f"note: {note}" for note in plan.notes)]
    return "\n".join(printable(line) for line in lines) + "\n"


def plan_content(gpu: PlacedGpu) -> tuple[object, ...]:
    """What two GPUs that look alike in the table and in the picture share."""
    sets = _letters(gpu)
    return (
        gpu.type,
        *(
            (
                r.model,
                r.runtime,
                r.dtype,
                r.dims,
                r.batch_size,
                r.sm_share_pct,
                sets.get(r.partition),
                r.duty_cycle_ms,
                r.latency_ms,
                number_text(r.goodput_rps),
                number_text(r.max_wait_ms),
            )
            for r in gpu.replicas
        ),
    )


def _letters(gpu: PlacedGpu) -> dict[str | None, str]:
    """A letter (a number, from the 27th on) for each partition of ``gpu``: their names are long and say no more."""
    names = dict.fromkeys(r.partition for r in gpu.replicas if r.partition is not None)
    letters = string.ascii_lowercase
    return {name: letters[i] if i < len(letters) else str(i + 1) for i, name in enumerate(names)}


def _gpu_columns(plan: PlacementPlan) -> list[TextColumn]:
    contents = [plan_content(g) for g in plan.gpus]
    alike = Counter(contents)
    shown: list[tuple[PlacedGpu, int, Replica, bool]] = []
    seen = set()
    for gpu, content in zip(plan.gpus, contents, strict=True):
        if content not in seen:
            seen.add(content)
            shown += [(gpu, alike[content], r, i == 0) for i, r in enumerate(gpu.replicas)]
    columns = [
        TextColumn(
            heading="GPU", cells=[g.id if first else "" for g, _, _, first in shown], right=False, shrink=8
        )
    ]
    if any(n > 1 for _, n, _, _ in shown):
        columns.append(_column("alike", [f"{n:,}" if first else "" for _, n, _, first in shown]))
    columns += [
        _column("Cuti %", [percent_text(g.cuti_pct) if first else "" for g, _, _, first in shown]),
        _column("Muti %", [percent_text(g.muti_pct) if first else "" for g, _, _, first in shown]),
        TextColumn(heading="model", cells=[r.model for _, _, r, _ in shown], right=False, shrink=8),
    ]
    replicas = [r for _, _, r, _ in shown]
    for heading, cells in (
        ("runtime", [r.runtime for r in replicas]),
        ("dtype", [r.dtype for r in replicas]),
        ("dims", [r.dims for r in replicas]),
    ):
        if len(set(cells)) > 1:
            columns.append(TextColumn(heading=heading, cells=cells, right=False, shrink=4))
    columns.append(_column("batch", [f"{r.batch_size:,}" for r in replicas]))
    if any(r.sm_share_pct < 100 for r in replicas):
        columns.append(_column("SM share", [f"{r.sm_share_pct:g}" for r in replicas]))
    if any(r.duty_cycle_ms is not None for r in replicas):
        columns.append(
            TextColumn(
                heading="turn ms",
                cells=[_turn(g, r) for g, _, r, _ in shown],
                right=False,
                shrink=8,
            )
        )
    return [
        *columns,
        _column("Creq %", [percent_text(r.creq_pct) for r in replicas]),
        _column("Mreq %", [percent_text(r.mreq_pct) for r in replicas]),
        _column("run ms", [number_text(r.latency_ms) for r in replicas]),
        _column("wait ms", [number_text(r.max_wait_ms) for r in replicas]),
        _column("req/s", [number_text(r.goodput_rps) for r in replicas]),
    ]


def _turn(gpu: PlacedGpu, replica: Replica) -> str:
    cycle = replica.duty_cycle_ms
    letter = _letters(gpu).get(replica.partition)
    if cycle is None:
        return ""
    return f"{number_text(cycle)} {letter}"


def _model_columns(plan: PlacementPlan) -> list[TextColumn]:
    asked = plan.workload.model_rates_rps()
    missing = {u.model: u.rate_rps for u in plan.unserved}
    replicas: dict[str, list[Replica]] = defaultdict(list)
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            replicas[replica.model].append(replica)
    alone = {m.name: m.slo_ms for m in plan.workload.models}
    part_of: dict[str, list[str]] = defaultdict(list)
    for application in plan.workload.applications:
        for stage in application.stages:
            part_of[stage.model].append(application.name)
    slo = {m: next((r.slo_ms for r in replicas[m]), None if part_of[m] else alone[m]) for m in asked}
    served = [asked[m] - missing.get(m, 0.0) for m in asked]
    columns = [TextColumn(heading="model", cells=list(asked), right=False, shrink=10)]
    if part_of and any(part_of.values()):
        columns.append(
            TextColumn(heading="of", cells=[", ".join(part_of[m]) for m in asked], right=False, shrink=10)
        )
    return [
        *columns,
        _column("SLO ms", [number_text(slo[m]) for m in asked]),
        _column("asked/s", [number_text(rate) for rate in asked.values()]),
        _column("served/s", [number_text(max(0.0, rate)) for rate in served]),
        _column(
            "%", [percent_text(100 * max(0.0, s) / a) for s, a in zip(served, asked.values(), strict=True)]
        ),
        _column("replicas", [f"{len(replicas[m]):,}" for m in asked]),
        TextColumn(
            heading="batch sizes", cells=[_batches(replicas[m]) for m in asked], right=False, shrink=10
        ),
    ]


def _batches(replicas: Sequence[Replica]) -> str:
    found = Counter(r.batch_size for r in replicas)
    return ", ".join(f"{size:,}" if n == 1 else f"{n:,} x {size:,}" for size, n in sorted(found.items()))


def _column(heading: str, cells: Sequence[str]) -> TextColumn:
    return TextColumn(heading=heading, cells=cells)


def _totals(plan: PlacementPlan) -> str:
    totals = plan.totals
    parts = [
        f"goodput {number_text(totals.goodput_rps, digits=6)} req/s",
        f"expected {number_text(totals.expected_goodput_rps, digits=6)} req/s",
        f"GPUs used {totals.gpus_used:,}",
        f"cost {number_text(totals.cost_per_hour)} USD per hour",
    ]
    if totals.gap_pct is not None:
        if totals.gap_pct < 0.01:
            gap = "under 0.01"
        else:
            gap = f"at most {number_text(totals.gap_pct)}"
        parts.append(f"{gap} % from its policy's best")
    return " · ".join(parts)


def plan_words(plan: PlacementPlan, problem: Problem) -> list[str]:
    """What closes a run, on stderr: what is served, on how many GPUs and at which cost; what is not and why;
    how far to trust it."""
    asked = sum(plan.workload.model_rates_rps().values())
    totals = plan.totals
    replicas = [r for gpu in plan.gpus for r in gpu.replicas]
    served = {r.model for r in replicas}
    there = f" of {len(problem.gpus):,}" if problem.gpus else ""
    gpus = "GPU" if totals.gpus_used == 1 and not there else "GPUs"
    cost = "price unknown" if totals.cost_per_hour is None else f"{totals.cost_per_hour:,.2f} USD per hour"
    goodput, expected = (number_text(v, digits=4) for v in (totals.goodput_rps, totals.expected_goodput_rps))
    lines = [
        f"{plan.policy} places {len(served):,} of {len(problem.models):,} models as {len(replicas):,} "
        f"{'replica' if len(replicas) == 1 else 'replicas'} on {totals.gpus_used:,}{there} {gpus} "
        f"({cost}): goodput {goodput} of {number_text(asked, digits=4)} req/s; "
        + (
            "how much of it is expected in time is unknown."
            if totals.expected_goodput_rps is None
            else f"{expected} expected in time once batches fill, queue and share the GPU."
        )
    ]
    if plan.unserved:
        some = [f"{u.model} {number_text(u.rate_rps)} req/s ({u.reason})" for u in plan.unserved[:_MANY]]
        more = len(plan.unserved) - len(some)
        lines.append(f"Not served: {'; '.join(some)}{f'; and {more:,} more models' if more else ''}.")
    if replicas:
        lines.append(_trust(replicas, problem, served))
    return [one_line(line, limit=2000) for line in lines]


def _trust(replicas: Sequence[Replica], problem: Problem, served: set[str]) -> str:
    sources = sorted({c.row.source for name in served for c in problem.by_name[name].candidates})
    wide = [
        50 * (r.latency_high_ms - r.latency_low_ms) / r.latency_ms
        for r in replicas
        if r.latency_low_ms is not None and r.latency_high_ms is not None
    ]
    if sources == ["measured"]:
        return "The latencies were measured."
    text = f"The latencies are estimates ({', '.join(sources)})"
    if not wide:
        return f"{text} without intervals."
    middle = statistics.median(wide)
    most = max(wide)
    return f"{text}: 90 % intervals of ±{percent_text(middle)} % in the middle and ±{percent_text(most)} % at most."
