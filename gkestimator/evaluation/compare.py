"""Estimate what was measured, and set the two side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gkestimator.core.errors import GkestimatorError, ModelError, NoBatchError
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.request import EstimateRequest, Progress
from gkestimator.estimation.rows import requirement_row
from gkestimator.evaluation.compared import ComparedRow, SummaryRow
from gkestimator.evaluation.host import HostCase
from gkestimator.evaluation.matching import Matched
from gkestimator.evaluation.metrics import summarise, weighted_median
from gkestimator.evaluation.truth import MEASURES
from gkestimator.tables import Requirement

OTHER_MEASURES = MEASURES[1:]
# Decades: milliseconds taken for seconds or microseconds are three off.
_GROSS = 2.3
Options: TypeAlias = Mapping[str, Any]
Notes: TypeAlias = dict[str, None]
Answers = Mapping[tuple[str, int | None], tuple[Engine, Estimated]]
"""Estimates by GPU and batch size (None: as exported), each with the engine that made it."""


@frozen
class Comparison:
    """Hold rows in the truth's order, and the errors of what could not be estimated.

    ``cases``: one for each row that has a latency; a fit of the host needs them.
    """

    rows: tuple[ComparedRow, ...]
    failures: tuple[GkestimatorError, ...]
    cases: tuple[HostCase, ...]
    notes: Names


def compare(
    matched: Sequence[Matched],
    options: Options,
    *,
    one_process: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Estimate every matched row. ``options`` are those of :class:`EstimateRequest` that all rows share.

    ``one_process``: the rows of one model under one set of options were measured in one process, in their
    order, so that memory which an earlier one made the runtime reserve is still held.
    """
    groups: dict[tuple[Any, ...], list[Matched]] = {}
    for m in matched:
        at = m.measurement
        key = (m.path, m.runtime, m.dtype, at.dims, at.sm_share_pct, at.batch_size is None)
        groups.setdefault(key, []).append(m)
    rows: dict[int, ComparedRow] = {}
    cases: dict[int, HostCase] = {}
    failures: dict[str, GkestimatorError] = {}
    notes: Notes = {}
    for done, group in enumerate(groups.values()):
        if progress is not None:
            progress(group[0].name, done, len(groups))
        for m, outcome in _estimated(group, options, notes, one_process):
            if isinstance(outcome, GkestimatorError):
                failures.setdefault(f"{m.path}: {outcome}", outcome)
                continue
            row, case = outcome
            rows[row.row] = row
            if case is not None:
                cases[row.row] = case
    if progress is not None:
        progress("", len(groups), len(groups))
    # The command prints these lines alone, so each must say which file it is about.
    named = [e if one_named(text, e) else GkestimatorError(text) for text, e in failures.items()]
    ordered = [rows[number] for number in sorted(rows)]
    return Comparison(
        rows=tuple(_with_constants(ordered)),
        failures=tuple(named),
        cases=tuple(cases[number] for number in sorted(cases)),
        notes=tuple(notes),
    )


def one_named(text: str, error: GkestimatorError) -> bool:
    """Return whether ``error`` names its file already; ``text`` is the file's path and the error."""
    return Path(text.partition(": ")[0]).name in str(error)


_Outcome = tuple[ComparedRow, HostCase | None] | GkestimatorError


def _estimated(
    group: Sequence[Matched], options: Options, notes: Notes, one_process: bool
) -> Iterator[tuple[Matched, _Outcome]]:
    """Yield one estimate per row of ``group`` (same model, runtime, dtype, dims and share).

    All GPUs and batch sizes are asked for together; where that fails, each row alone, so that one impossible
    batch size or GPU costs no other row.
    """
    try:
        answers = _ask(group, options, notes)
    except GkestimatorError as e:
        if len(group) == 1:
            yield group[0], e
            return
        for m in group:
            yield from _estimated([m], options, notes, one_process)
        return
    reserved = _in_one_process(group, answers) if one_process else {}
    for m in group:
        try:
            outcome: _Outcome = _compared_row(m, answers, reserved)
        except ModelError as e:
            outcome = e
        yield m, outcome


def _compared_row(
    m: Matched, answers: Answers, reserved: Mapping[tuple[str, int | None], int]
) -> tuple[ComparedRow, HostCase | None]:
    """Return one row beside its estimate. Raises ModelError for an estimate that no table holds."""
    key = (m.gpu, m.measurement.batch_size)
    engine, answer = answers[key]
    estimate = _with_memory(requirement_row(engine, answer), reserved.get(key))
    row = _beside(m, estimate, _roofline_ms(engine, answer, estimate))
    case = None
    if row.estimated_ms is not None:
        case = _host_case(m, engine, answer)
    return row, case


def _ask(group: Sequence[Matched], options: Options, notes: Notes) -> Answers:
    """Return the answers for all rows of the group. Raises the first error."""
    first = group[0].measurement
    exported = first.batch_size is None
    batches = dict.fromkeys(m.measurement.batch_size for m in group)
    of_the_rows = {
        "models": group[0].path,
        "gpus": tuple(dict.fromkeys(m.gpu for m in group)),
        "batch_sizes": None if exported else tuple(batches),
        "dims": dict(first.dims) or options.get("dims", {}),
        "runtime": group[0].runtime,
        "dtype": group[0].dtype,
        "sm_shares": first.sm_share_pct,
    }
    engine = Engine(EstimateRequest(**{**options, **of_the_rows}))
    for note in filter(None, (engine.host_note, engine.version_note)):
        notes.setdefault(note)
    answers = {}
    for _, outcome in engine.run():
        if isinstance(outcome, GkestimatorError):
            raise outcome
        for e in outcome:
            batch = None if exported else e.lowering.lowered.batch_size
            # The engine goes with its answer: where the group failed as a whole, each row has an engine of its own.
            answers[e.target.gpu.name, batch] = (engine, e)
    for m in group:
        if (m.gpu, m.measurement.batch_size) not in answers:
            raise NoBatchError(
                f"{m.name}: no input has a batch dimension: found batch size {m.measurement.batch_size}, expected 1"
            )
    return answers


def _in_one_process(group: Sequence[Matched], answers: Answers) -> dict[tuple[str, int | None], int]:
    """Return the reserved bytes after each of the group's rows on each GPU, run in the order of the rows."""
    reserved: dict[tuple[str, int | None], int] = {}
    for gpu in dict.fromkeys(m.gpu for m in group):
        keys = list(dict.fromkeys((gpu, m.measurement.batch_size) for m in group if m.gpu == gpu))
        engine, first = answers[keys[0]]
        graphs = [answers[key][1].lowering.graph for key in keys]
        after = engine.cumulative_reserved(graphs, first.target.gpu)
        reserved.update(zip(keys, after, strict=True))
    return reserved


def _with_memory(estimate: Requirement, reserved: int | None) -> Requirement:
    """Return the estimate with another sum of reserved bytes; None leaves what a fresh process reserves."""
    if reserved is None:
        return estimate
    context = estimate.context_bytes
    mreq = None if context is None else reserved + context
    return replace(estimate, reserved_bytes=reserved, mreq_bytes=mreq)


def _roofline_ms(engine: Engine, e: Estimated, estimate: Requirement) -> float:
    """Return the sum of the kernels' rooflines, and the copies where the measurement includes them."""
    program = e.lowering.program
    kernels_ms = float(np.dot(e.predictions.roofline_us[program.kernel], program.repeat)) / 1e3
    if engine.request.include_copy:
        return kernels_ms + (estimate.copy_ms or 0.0)
    return kernels_ms


def _beside(m: Matched, estimate: Requirement, roofline_ms: float) -> ComparedRow:
    """Return the measured row beside its estimate. An estimate without an upper end is compared with nothing."""
    values = m.measurement.values
    others: NamedValues = {}
    for name in OTHER_MEASURES:
        if name in values:
            others[f"measured_{name}"] = values[name]
            others[name] = _number(getattr(estimate, name))
    row = ComparedRow(
        row=m.measurement.row,
        model=m.name,
        gpu=m.gpu,
        runtime=m.runtime,
        dtype=estimate.dtype,
        batch_size=estimate.batch_size,
        dims=estimate.dims,
        sm_share_pct=estimate.sm_share_pct,
        measured_ms=values.get("latency_ms"),
        host_bound=estimate.host_bound,
        host_overhead_us=estimate.host_overhead_us,
        **others,
        source=estimate.source,
        coverage_pct=estimate.coverage_pct,
        warnings=estimate.warnings,
    )
    measured = row.measured_ms
    latency = estimate.latency_ms
    high = estimate.latency_high_ms
    if not measured or not latency or high is None:
        return row
    low = estimate.latency_low_ms
    inside = None
    if low is not None:
        inside = low <= measured <= high
    return replace(
        row,
        estimated_ms=latency,
        low_ms=low,
        high_ms=high,
        error_pct=100 * (latency / measured - 1),
        inside=inside,
        roofline_ms=roofline_ms,
    )


def _host_case(m: Matched, engine: Engine, e: Estimated) -> HostCase:
    """Return what a fit of the host needs of a row whose latency was measured and estimated."""
    moved = None
    if engine.request.include_copy:
        moved = float(e.memory.input_bytes + e.memory.output_bytes)
    program = e.lowering.program
    return HostCase(
        model=m.name,
        gpu=m.gpu,
        runtime=m.runtime,
        measured_ms=m.measurement.values["latency_ms"],
        program=program,
        duration_us=e.predictions.duration_us[program.kernel],
        streams=engine.streams,
        moved_bytes=moved,
        host_overhead_us=engine.host_overhead_us,
        copy_bytes_per_s=engine.copy_bytes_per_s,
    )


def _number(value: float | None) -> float | None:
    if value is None:
        return None
    return float(value)


def _with_constants(rows: Sequence[ComparedRow]) -> Iterator[ComparedRow]:
    """Yield every row with the roofline times the constant that fits the GPU's rows of other models best.

    Best: least mean absolute percentage error. Without other models there is none.
    """
    ratios: dict[str, list[tuple[str, float]]] = {}
    for r in rows:
        if r.measured_ms and r.roofline_ms:
            ratios.setdefault(r.gpu, []).append((r.model, r.measured_ms / r.roofline_ms))
    # By GPU and model: a constant that had seen the model would be judged on what it was fitted to.
    known: dict[tuple[str, str], float | None] = {}
    for r in rows:
        if not r.measured_ms or not r.roofline_ms:
            yield r
            continue
        key = (r.gpu, r.model)
        if key not in known:
            others = np.array([ratio for model, ratio in ratios[r.gpu] if model != r.model])
            known[key] = None
            if others.size:
                known[key] = weighted_median(others, 1 / others)
        constant = known[key]
        yield r if constant is None else replace(r, constant_ms=constant * r.roofline_ms)


def summaries(rows: Sequence[ComparedRow]) -> tuple[SummaryRow, ...]:
    """Return summaries of every measure over all rows (where there are several GPUs), per GPU and per model."""
    groups: dict[tuple[str, str], list[ComparedRow]] = {}
    if len({r.gpu for r in rows}) > 1:
        groups["all", "all"] = list(rows)
    for scope in ("gpu", "model"):
        for r in rows:
            groups.setdefault((scope, getattr(r, scope)), []).append(r)
    summarised = []
    for measure in MEASURES:
        for (scope, name), members in groups.items():
            summary = _summary(scope, name, measure, members)
            if summary is not None:
                summarised.append(summary)
    return tuple(summarised)


def _summary(scope: str, name: str, measure: str, rows: Sequence[ComparedRow]) -> SummaryRow | None:
    signed = [error for r in rows if (error := r.signed_error(measure)) is not None]
    summary = summarise([abs(error) for error in signed])
    if summary is None:
        return None
    unit = "%"
    if measure.endswith("_pct"):
        unit = "points"
    row = SummaryRow(
        scope=scope,
        name=name,
        measure=measure,
        unit=unit,
        n=summary.n,
        mean=summary.mean,
        median=summary.median,
        p90=summary.p90,
        worst=summary.worst,
        bias=statistics.median(signed),
    )
    if measure != "latency_ms":
        return row
    inside = [r.inside for r in rows if r.inside is not None]
    inside_pct = None
    if inside:
        inside_pct = 100 * statistics.fmean(inside)
    return replace(
        row,
        inside_pct=inside_pct,
        roofline_mean=_mean_error((r.roofline_ms, r.measured_ms) for r in rows),
        constant_mean=_mean_error((r.constant_ms, r.measured_ms) for r in rows),
    )


def _mean_error(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Return the mean absolute percentage error of (estimated, measured).

    None unless every measured row has an estimate: means over different rows cannot be compared.
    """
    errors = []
    for estimated, measured in pairs:
        if measured is None:
            continue
        if estimated is None:
            return None
        errors.append(abs(100 * (estimated / measured - 1)))
    return statistics.fmean(errors) if errors else None


def unit_warning(rows: Sequence[ComparedRow]) -> str | None:
    """Return a line where measured latencies look like another unit than milliseconds.

    Then nearly all are off by about the same factor of hundreds.
    """
    away = []
    for r in rows:
        if r.estimated_ms and r.measured_ms:
            away.append(math.log10(r.estimated_ms / r.measured_ms))
    if not away:
        return None
    middle = statistics.median(away)
    near = sum(abs(a - middle) < 1 for a in away) / len(away)
    if abs(middle) < _GROSS or near < 0.75:
        return None
    unit = "microseconds"
    direction = "smaller"
    if middle > 0:
        unit = "seconds"
        direction = "larger"
    return (
        f"warning: estimates are about {10 ** abs(middle):,.0f} times {direction} than the measurements: does "
        f"latency_ms hold {unit}? expected milliseconds a batch"
    )
