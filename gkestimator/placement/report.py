"""A plan for people and for spreadsheets: which replicas stand where, what every model gets, and the words
that close a run."""

from __future__ import annotations

import dataclasses
import statistics
import string
from collections import Counter, defaultdict
from collections.abc import Sequence

from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.escaping import printable, utf8
from gkestimator.core.records import frozen
from gkestimator.documents import LanguageReplica, PlacedGpu, PlacementPlan, Replica, plan_json
from gkestimator.placement.problem import Problem
from gkestimator.reporting.text import (
    counts,
    figures,
    first_of_each,
    percents,
    plural,
    varying,
    words,
)
from gkestimator.tables.csv_text import csv_text
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import number_text, percent_text

PLAN_FORMATS = ("table", "csv", "json")
PLAN_SUFFIXES = {".json": "json", ".csv": "csv", ".txt": "table"}
_MANY = 5
_BEHIND_PCT = 99.0  # of its requests expected on time: a model below is named


def render_plan(plan: PlacementPlan, form: str) -> bytes:
    """Return ``plan`` as ``table``, ``csv`` (one row a replica) or ``json`` (the plan document), UTF-8.
    Raises UsageError for another."""
    makers = {"table": plan_text, "csv": plan_csv, "json": plan_json}
    if form not in makers:
        raise UsageError(f"format {form!r} is not known, expected one of {', '.join(PLAN_FORMATS)}")
    return utf8(makers[form](plan))


def plan_csv(plan: PlacementPlan) -> str:
    """Return one row for each replica: ``gpu``, ``gpu_type``, then the fields of a replica as in the plan
    document. Null is an empty cell, numbers stand in full."""
    names = [f.name for f in dataclasses.fields(Replica)]
    rows = [
        [gpu.id, gpu.type, *(getattr(replica, name) for name in names)]
        for gpu in plan.gpus
        for replica in gpu.replicas
    ]
    return csv_text(["gpu", "gpu_type", *names], rows)


def plan_text(plan: PlacementPlan) -> str:
    """Return the plan at 100 columns: the GPUs with their replicas (GPUs with the same content once, with
    their number), what every model gets, totals, notes."""
    lines = [f"policy {plan.policy} · objective {plan.objective} · Creq {plan.creq} · seed {plan.seed}", ""]
    if plan.gpus:
        lines += text_table(_gpu_columns(plan))
    else:
        lines += ["no GPU is used"]
    lines += ["", *text_table(_model_columns(plan)), "", _totals(plan)]
    if plan.unserved:
        lines += ["", "not served:"]
    for unserved in plan.unserved:
        lines.append(f"  {unserved.model}: {number_text(unserved.rate_rps)} req/s: {unserved.reason}")
    if plan.notes:
        lines.append("")
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(printable(line) for line in lines) + "\n"


def plan_content(gpu: PlacedGpu) -> tuple[object, ...]:
    """Return what two GPUs that look alike in the table and in the picture share."""
    sets = _letters(gpu)
    content: list[object] = [gpu.type]
    for r in gpu.replicas:
        shown = (
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
            r.max_batch_size,
        )
        content.append(shown)
    return tuple(content)


def _letters(gpu: PlacedGpu) -> dict[str | None, str]:
    """Return a letter (a number, from the 27th on) for each partition of ``gpu``: their names are long and
    say no more."""
    letters: dict[str | None, str] = {}
    for replica in gpu.replicas:
        if replica.partition is not None and replica.partition not in letters:
            number = len(letters)
            letter = string.ascii_lowercase[number : number + 1]
            letters[replica.partition] = letter or str(number + 1)
    return letters


@frozen
class _Row:
    """Hold one replica of the table: its GPU, how many GPUs are alike, and whether it is the GPU's first."""

    gpu: PlacedGpu
    alike: int
    replica: Replica
    first: bool

    @property
    def turn(self) -> str:
        """Return its duty cycle and the letter of its partition; empty where it takes no turns."""
        cycle = self.replica.duty_cycle_ms
        if cycle is None:
            return ""
        return f"{number_text(cycle)} {_letters(self.gpu).get(self.replica.partition)}"


def _rows(plan: PlacementPlan) -> list[_Row]:
    """Return the replicas of the GPUs that differ, in order."""
    contents = {gpu.id: plan_content(gpu) for gpu in plan.gpus}
    alike = Counter(contents.values())
    rows = []
    for gpu in plan.gpus:
        count = alike.pop(contents[gpu.id], 0)
        if count:
            rows += [_Row(gpu=gpu, alike=count, replica=r, first=i == 0) for i, r in enumerate(gpu.replicas)]
    return rows


def _gpu_columns(plan: PlacementPlan) -> list[TextColumn]:
    rows = _rows(plan)
    replicas = [row.replica for row in rows]
    of_gpu = [words("GPU", [row.gpu.id for row in rows], shrink=8)]
    if any(row.alike > 1 for row in rows):
        of_gpu.append(counts("alike", [row.alike for row in rows]))
    of_gpu.append(percents("Cuti %", [row.gpu.cuti_pct for row in rows]))
    of_gpu.append(percents("Muti %", [row.gpu.muti_pct for row in rows]))
    firsts = [row.first for row in rows]
    columns = [first_of_each(column, firsts) for column in of_gpu]
    columns.append(words("model", [r.model for r in replicas], shrink=8))
    ways = [
        words(name, [getattr(r, name) for r in replicas], shrink=4) for name in ("runtime", "dtype", "dims")
    ]
    columns += varying(ways)
    return [*columns, *_replica_columns(rows)]


def _replica_columns(rows: Sequence[_Row]) -> list[TextColumn]:
    replicas = [row.replica for row in rows]
    return [
        *_batch_columns(rows, replicas),
        percents("Creq %", [r.creq_pct for r in replicas]),
        percents("Mreq %", [r.mreq_pct for r in replicas]),
        figures("run ms", [r.latency_ms for r in replicas]),
        figures("wait ms", [r.max_wait_ms for r in replicas]),
        figures("req/s", [r.goodput_rps for r in replicas]),
    ]


def _batch_columns(rows: Sequence[_Row], replicas: Sequence[Replica]) -> list[TextColumn]:
    """Return how each replica runs: its batch, and what not every plan has."""
    columns = [counts("batch", [r.batch_size for r in replicas])]
    if any(r.max_batch_size is not None for r in replicas):
        columns.append(counts("at most", [r.max_batch_size or r.batch_size for r in replicas]))
    if any(r.sm_share_pct < 100 for r in replicas):
        columns.append(figures("SM share", [r.sm_share_pct for r in replicas], "{:g}".format))
    if any(r.duty_cycle_ms is not None for r in replicas):
        columns.append(words("turn ms", [row.turn for row in rows], shrink=8))
    return columns


def _model_columns(plan: PlacementPlan) -> list[TextColumn]:
    asked = plan.workload.model_rates_rps()
    served = _served_rps(plan)
    replicas: dict[str, list[Replica]] = defaultdict(list)
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            replicas[replica.model].append(replica)
    part_of = _applications_of(plan)
    # A stage's objective is known by its replicas alone: the workload has that of the whole application.
    slo: dict[str, float | None] = {m.name: m.slo_ms for m in plan.workload.models if m.name not in part_of}
    slo |= {model: of_model[0].slo_ms for model, of_model in replicas.items()}
    expected = {planned.model: planned.on_time_pct for planned in plan.models}
    on_time = []
    if expected:
        on_time.append(percents("on time %", [expected.get(m) for m in asked]))
    columns = [words("model", asked, shrink=10)]
    if part_of:
        columns.append(words("of", [", ".join(part_of.get(m, ())) for m in asked], shrink=10))
    columns += [
        figures("SLO ms", [slo.get(m) for m in asked]),
        figures("asked/s", asked.values()),
        figures("served/s", [served[m] for m in asked]),
        percents("%", [100 * served[m] / rate for m, rate in asked.items()]),
        *on_time,
        counts("replicas", [len(replicas[m]) for m in asked]),
        words("batch sizes", [_batches(replicas[m]) for m in asked], shrink=10),
    ]
    return columns


def _served_rps(plan: PlacementPlan) -> dict[str, float]:
    """Return the requests a second that the plan serves, by model."""
    asked = plan.workload.model_rates_rps()
    served = dict(asked)
    for unserved in plan.unserved:
        served[unserved.model] = max(0.0, asked[unserved.model] - unserved.rate_rps)
    return served


def _applications_of(plan: PlacementPlan) -> dict[str, list[str]]:
    """Return the applications that each model is a stage of."""
    part_of: dict[str, list[str]] = defaultdict(list)
    for application in plan.workload.applications:
        for stage in application.stages:
            part_of[stage.model].append(application.name)
    return part_of


def _batches(replicas: Sequence[Replica]) -> str:
    sizes = Counter(r.batch_size for r in replicas)
    texts = []
    for size, count in sorted(sizes.items()):
        many = f"{count:,} x " if count > 1 else ""
        texts.append(f"{many}{size:,}")
    return ", ".join(texts)


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
    """Return what closes a run, on stderr: what is served, on how many GPUs and at which cost; what is not
    and why; how far to trust it."""
    if plan.workload.languages:
        return _language_words(plan)
    replicas = [r for gpu in plan.gpus for r in gpu.replicas]
    served = {r.model for r in replicas}
    lines = [_served_words(plan, problem, len(served), len(replicas))]
    if plan.unserved:
        some = [f"{u.model} {number_text(u.rate_rps)} req/s ({u.reason})" for u in plan.unserved[:_MANY]]
        more = len(plan.unserved) - len(some)
        if more:
            some.append(f"and {more:,} more models")
        lines.append(f"Not served: {'; '.join(some)}.")
    if replicas:
        lines.append(_trust(replicas, problem, served))
    return [one_line(line, limit=2000) for line in lines]


def _language_words(plan: PlacementPlan) -> list[str]:
    """Return what closes a run over language models: one line for each model's copies, and what is not served."""
    replicas = {r.id: (gpu, r) for gpu in plan.gpus for r in gpu.replicas}
    copies: dict[str, list[LanguageReplica]] = defaultdict(list)
    for language in plan.languages:
        copies[replicas[language.replica][1].model].append(language)
    lines = []
    for name, of_model in copies.items():
        gpu, replica = replicas[of_model[0].replica]
        rate = sum(replicas[language.replica][1].goodput_rps for language in of_model)
        lines.append(
            f"{name}: {number_text(rate, digits=4)} req/s on {plural(len(of_model), 'replica')}, the first on "
            f"{1 + len(of_model[0].beside)} x {gpu.type} ({replica.dtype}): 95 in 100 get the first token within "
            f"{number_text(max(r.ttft_ms for r in of_model))} ms and one more every "
            f"{number_text(max(r.tpot_ms for r in of_model))} ms, up to {replica.batch_size:,} at once."
        )
    lines += [f"Not served: {u.model} {number_text(u.rate_rps)} req/s ({u.reason})." for u in plan.unserved]
    return [one_line(line, limit=2000) for line in lines]


def _served_words(plan: PlacementPlan, problem: Problem, models: int, replicas: int) -> str:
    totals = plan.totals
    asked = sum(plan.workload.model_rates_rps().values())
    if problem.gpus:
        gpus = f"{totals.gpus_used:,} of {len(problem.gpus):,} GPUs"
    else:
        gpus = plural(totals.gpus_used, "GPU")
    cost = "price unknown"
    if totals.cost_per_hour is not None:
        cost = f"{totals.cost_per_hour:,.2f} USD per hour"
    goodput = number_text(totals.goodput_rps, digits=4)
    expected = "how much of it is expected in time is unknown."
    if totals.expected_goodput_rps is not None:
        in_time = number_text(totals.expected_goodput_rps, digits=4)
        expected = f"{in_time} expected in time once batches fill, queue and share the GPU."
    behind = [p for p in plan.models if p.on_time_pct is not None and p.on_time_pct < _BEHIND_PCT]
    if behind:
        worst = min(behind, key=lambda p: p.on_time_pct or 0.0)
        expected += f" Worst off: {worst.model}, {worst.on_time_pct:.3g} % of its requests"
        if len(behind) > 1:
            expected += f"; {len(behind):,} models below {_BEHIND_PCT:g} %"
        expected += "."
    return (
        f"{plan.policy} places {models:,} of {len(problem.models):,} models as {plural(replicas, 'replica')} on "
        f"{gpus} ({cost}): goodput {goodput} of {number_text(asked, digits=4)} req/s; {expected}"
    )


def _trust(replicas: Sequence[Replica], problem: Problem, served: set[str]) -> str:
    sources = sorted({c.row.source for name in served for c in problem.by_name[name].candidates})
    if sources == ["measured"]:
        return "The latencies were measured."
    half_widths = []
    for r in replicas:
        if r.latency_low_ms is not None and r.latency_high_ms is not None:
            half_widths.append(50 * (r.latency_high_ms - r.latency_low_ms) / r.latency_ms)
    text = f"The latencies are estimates ({', '.join(sources)})"
    if not half_widths:
        return f"{text} without intervals."
    middle = percent_text(statistics.median(half_widths))
    most = percent_text(max(half_widths))
    return f"{text}: 90 % intervals of ±{middle} % in the middle and ±{most} % at most."
