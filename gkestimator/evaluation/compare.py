"""Estimate what was measured, and set the two side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.records import frozen
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row
from gkestimator.evaluation.compared import ComparedRow, SummaryRow
from gkestimator.evaluation.host import HostCase
from gkestimator.evaluation.matching import Matched
from gkestimator.evaluation.metrics import summarise, weighted_median
from gkestimator.evaluation.truth import MEASURES
from gkestimator.memory import cumulative_reserved
from gkestimator.tables import Requirement

OTHER_MEASURES = MEASURES[1:]
_GROSS = 2.3
"""Decades: milliseconds taken for seconds or microseconds are three off."""


@frozen
class Comparison:
    """Rows in the truth's order, the errors of what could not be estimated, and a host case for each row that has a
    latency (what a fit of the host needs)."""

    rows: tuple[ComparedRow, ...]
    failures: tuple[GkestimatorError, ...]
    cases: tuple[HostCase, ...]
    notes: tuple[str, ...]


def compare(
    matched: Sequence[Matched],
    options: Mapping[str, Any],
    *,
    one_process: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Estimate every matched row. ``options`` are those of :class:`EstimateRequest` that all rows share.

    ``one_process``: the rows of one model under one set of options were measured in one process, in their order, so
    that memory which an earlier one made the runtime reserve is still held.
    """
    groups: dict[tuple[Any, ...], list[Matched]] = {}
    for m in matched:
        at = m.measurement
        key = (m.path, m.runtime, m.dtype, at.dims, at.sm_share_pct, at.batch_size is None)
        groups.setdefault(key, []).append(m)
    rows: dict[int, ComparedRow] = {}
    cases: dict[int, HostCase] = {}
    failures: dict[str, GkestimatorError] = {}
    notes: dict[str, None] = {}
    for done, group in enumerate(groups.values()):
        if progress is not None:
            progress(group[0].name, done, len(groups))
        for m, outcome in _estimated(group, options, notes, one_process):
            if isinstance(outcome, GkestimatorError):
                failures.setdefault(f"{m.path}: {outcome}", outcome)
                continue
            row, case = outcome
            rows[m.measurement.row] = row
            if case is not None:
                cases[m.measurement.row] = case
    if progress is not None:
        progress("", len(groups), len(groups))
    ordered = [rows[number] for number in sorted(rows)]
    return Comparison(
        rows=tuple(_with_constants(ordered)),
        failures=tuple(e if one_named(text, e) else GkestimatorError(text) for text, e in failures.items()),
        cases=tuple(cases[number] for number in sorted(cases)),
        notes=tuple(notes),
    )


def one_named(text: str, error: GkestimatorError) -> bool:
    """Whether ``error`` names its file already; ``text`` is the file's path and the error."""
    return Path(text.partition(": ")[0]).name in str(error)


_Outcome = tuple[ComparedRow, HostCase | None] | GkestimatorError


def _estimated(
    group: Sequence[Matched], options: Mapping[str, Any], notes: dict[str, None], one_process: bool
) -> Iterator[tuple[Matched, _Outcome]]:
    """One estimate per row of ``group`` (same model, runtime, dtype, dims and share).

    All GPUs and batch sizes are asked for together; where that fails, each row alone, so that one impossible
    batch size or GPU costs no other row.
    """
    try:
        found = _ask(group, options, notes)
    except GkestimatorError as e:
        if len(group) == 1:
            yield group[0], e
            return
        for m in group:
            yield from _estimated([m], options, notes, one_process)
        return
    reserved = _in_one_process(group, found) if one_process else {}
    for m in group:
        key = (m.gpu, m.measurement.batch_size)
        yield m, _beside(m, *found[key], reserved.get(key))


def _ask(
    group: Sequence[Matched], options: Mapping[str, Any], notes: dict[str, None]
) -> dict[tuple[str, int | None], tuple[Engine, Estimated]]:
    """Answers by GPU and batch size (None: as exported). Raises the first error."""
    first = group[0].measurement
    batches = [m.measurement.batch_size for m in group]
    of_the_rows = {
        "models": group[0].path,
        "gpus": tuple(dict.fromkeys(m.gpu for m in group)),
        "batch_sizes": None if first.batch_size is None else tuple(dict.fromkeys(b for b in batches if b)),
        "dims": dict(first.dims) or options.get("dims", {}),
        "runtime": group[0].runtime,
        "dtype": group[0].dtype,
        "sm_shares": first.sm_share_pct,
    }
    request = EstimateRequest(**{**options, **of_the_rows})
    engine = Engine(request)
    if engine.host_note:
        notes.setdefault(engine.host_note)
    found = {}
    for _, outcome in engine.run():
        if isinstance(outcome, GkestimatorError):
            raise outcome
        for e in outcome:
            batch = None if first.batch_size is None else e.lowering.lowered.batch_size
            found[e.target.gpu.name, batch] = (engine, e)
    return found


def _in_one_process(
    group: Sequence[Matched], found: Mapping[tuple[str, int | None], tuple[Engine, Estimated]]
) -> dict[tuple[str, int | None], int]:
    """Reserved bytes after each of the group's rows on each GPU, run in the order of the rows."""
    reserved: dict[tuple[str, int | None], int] = {}
    for gpu in dict.fromkeys(m.gpu for m in group):
        keys = list(dict.fromkeys((gpu, m.measurement.batch_size) for m in group if m.gpu == gpu))
        engine, first = found[keys[0]]
        after = cumulative_reserved(
            [found[key][1].lowering.graph for key in keys],
            allocator=engine.profile.allocator,
            figures=engine.profile.allocator_bytes,
            library_workspace_bytes=engine.profile.library_workspace_bytes(first.target.gpu),
        )
        reserved.update(zip(keys, after, strict=True))
    return reserved


def _beside(
    m: Matched, engine: Engine, e: Estimated, reserved: int | None
) -> tuple[ComparedRow, HostCase | None]:
    """``reserved`` None: what a fresh process reserves."""
    estimate = requirement_row(engine, e)
    if reserved is not None:
        context = estimate.context_bytes
        mreq = None if context is None else reserved + context
        estimate = replace(estimate, reserved_bytes=reserved, mreq_bytes=mreq)
    values = m.measurement.values
    measured = values.get("latency_ms")
    latency = estimate.latency_ms
    assert latency is not None
    complete = estimate.latency_high_ms is not None  # else a lower bound, which is compared with nothing
    program = e.lowering.program
    p = e.predictions
    copy = (estimate.copy_ms or 0.0) if engine.request.include_copy else 0.0
    roofline = float(np.dot(p.roofline_us[program.kernel], program.repeat)) / 1e3 + copy
    timed = measured is not None and complete and latency > 0
    row = ComparedRow(
        row=m.measurement.row,
        model=m.name,
        gpu=m.gpu,
        runtime=m.runtime,
        dtype=estimate.dtype,
        batch_size=estimate.batch_size,
        dims=estimate.dims,
        sm_share_pct=estimate.sm_share_pct,
        measured_ms=measured,
        estimated_ms=latency if timed else None,
        low_ms=estimate.latency_low_ms if timed else None,
        high_ms=estimate.latency_high_ms if timed else None,
        error_pct=100 * (latency / measured - 1) if timed and measured else None,
        inside=_inside(estimate, measured) if timed and measured else None,
        roofline_ms=roofline if timed else None,
        host_bound=estimate.host_bound,
        host_overhead_us=estimate.host_overhead_us,
        **{
            key: value
            for name in OTHER_MEASURES
            if name in values
            for key, value in ((f"measured_{name}", values[name]), (name, _number(getattr(estimate, name))))
        },
        source=estimate.source,
        coverage_pct=estimate.coverage_pct,
        warnings=estimate.warnings,
    )
    if not timed or measured is None:
        return row, None
    moved = e.memory.input_bytes + e.memory.output_bytes
    case = HostCase(
        model=m.name,
        gpu=m.gpu,
        runtime=m.runtime,
        measured_ms=measured,
        program=program,
        duration_us=p.duration_us[program.kernel],
        streams=engine.streams,
        moved_bytes=float(moved) if engine.request.include_copy else None,
        host_overhead_us=engine.host_overhead_us,
        copy_bytes_per_s=engine.copy_bytes_per_s,
    )
    return row, case


def _number(value: float | None) -> float | None:
    if value is None:
        return None
    return float(value)


def _inside(estimate: Requirement, measured: float) -> bool | None:
    low = estimate.latency_low_ms
    high = estimate.latency_high_ms
    if low is None or high is None:
        return None
    return low <= measured <= high


def _with_constants(rows: Sequence[ComparedRow]) -> Iterator[ComparedRow]:
    """Every row with the roofline times the constant that fits the GPU's rows of other models best (least mean absolute
    percentage error); without other models there is none."""
    ratios: dict[str, list[tuple[str, float]]] = {}
    for r in rows:
        if r.measured_ms and r.roofline_ms:
            ratios.setdefault(r.gpu, []).append((r.model, r.measured_ms / r.roofline_ms))
    known: dict[tuple[str, str], float | None] = {}
    for r in rows:
        if not r.measured_ms or not r.roofline_ms:
            yield r
            continue
        key = (r.gpu, r.model)
        if key not in known:
            others = np.array([ratio for model, ratio in ratios[r.gpu] if model != r.model])
            known[key] = weighted_median(others, 1 / others) if others.size else None
        constant = known[key]
        yield r if constant is None else replace(r, constant_ms=constant * r.roofline_ms)


def summaries(rows: Sequence[ComparedRow]) -> tuple[SummaryRow, ...]:
    """Summaries of every measure over all rows (where there are several GPUs), per GPU and per model."""
    groups: dict[tuple[str, str], list[ComparedRow]] = {}
    if len({r.gpu for r in rows}) > 1:
        groups["all", "all"] = list(rows)
    for scope in ("gpu", "model"):
        for r in rows:
            groups.setdefault((scope, getattr(r, scope)), []).append(r)
    found = []
    for measure in MEASURES:
        for (scope, name), members in groups.items():
            summary = _summary(scope, name, measure, members)
            if summary is not None:
                found.append(summary)
    return tuple(found)


def _summary(scope: str, name: str, measure: str, rows: Sequence[ComparedRow]) -> SummaryRow | None:
    signed = list(_signed(measure, rows))
    summary = summarise([abs(error) for error in signed])
    if summary is None:
        return None
    latency = measure == "latency_ms"
    inside = [r.inside for r in rows if r.inside is not None]
    return SummaryRow(
        scope=scope,
        name=name,
        measure=measure,
        unit="points" if measure.endswith("_pct") else "%",
        n=summary.n,
        mean=summary.mean,
        median=summary.median,
        p90=summary.p90,
        worst=summary.worst,
        bias=statistics.median(signed),
        inside_pct=100 * statistics.fmean(inside) if latency and inside else None,
        roofline_mean=_mean_error((r.roofline_ms, r.measured_ms) for r in rows) if latency else None,
        constant_mean=_mean_error((r.constant_ms, r.measured_ms) for r in rows) if latency else None,
    )


def _signed(measure: str, rows: Sequence[ComparedRow]) -> Iterator[float]:
    for r in rows:
        if measure == "latency_ms":
            estimated = r.estimated_ms
            measured = r.measured_ms
        else:
            estimated = getattr(r, measure)
            measured = getattr(r, f"measured_{measure}")
        if estimated is None or measured is None:
            continue
        yield estimated - measured if measure.endswith("_pct") else 100 * (estimated / measured - 1)


def _mean_error(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Mean absolute percentage error of (estimated, measured); None unless every measured row has an estimate."""
    known = [(e, m) for e, m in pairs if m is not None]
    if not known or any(e is None for e, _ in known):
        return None
    return statistics.fmean(abs(100 * (e / m - 1)) for e, m in known if e is not None)


def unit_warning(rows: Sequence[ComparedRow]) -> str | None:
    """A line where measured latencies look like another unit than milliseconds: nearly all are off by about the same
    factor of hundreds."""
    away = sorted(
        math.log10(r.estimated_ms / r.measured_ms) for r in rows if r.estimated_ms and r.measured_ms
    )
    if not away:
        return None
    middle = statistics.median(away)
    near = sum(abs(a - middle) < 1 for a in away) / len(away)
    if abs(middle) < _GROSS or near < 0.75:
        return None
    unit = "seconds" if middle > 0 else "microseconds"
    return (
        f"warning: estimates are about {10 ** abs(middle):,.0f} times {'larger' if middle > 0 else 'smaller'} than the "
        f"measurements: does latency_ms hold {unit}? expected milliseconds a batch"
    )
