"""Write the page that ``measured_gpu.py`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _measured_models import MeasuredModels, Occurring
from _measured_operators import Errors, Operators, Split

from gkestimator.evaluation.api import Evaluation
from gkestimator.evaluation.compared import SummaryRow
from gkestimator.evaluation.metrics import summarise
from gkestimator.tables.layout import TextColumn, markdown_table

__all__ = ["Judged", "page"]

UNKNOWN, NOT_MEASURED, NOT_TOLD = "–", "not measured", "rows do not tell the host"
_MEMORY = {
    "reserved_bytes": "reserved (`max_memory_reserved` under torch)",
    "mreq_bytes": "with the context (`mreq_bytes`)",
}
_POINTS = {
    "sm_util_mean_pct": "SM utilisation, mean", "sm_util_busy_mean_pct": "SM utilisation, busy mean",
    "sm_util_max_pct": "SM utilisation, maximum", "occupancy_mean_pct": "occupancy, mean",
    "occupancy_max_pct": "occupancy, maximum",
}  # fmt: skip
_HOSTS = (("as assumed", False), ("of the other models", True))
_HOST_WORDS = (
    "Host: the launch overhead *as assumed* is the runtime profile's (or --host's); *of the other models* is fitted to the rows "
    "of the other models, each model left out in turn, for small batches wait for the host, which operators do not tell of."
)
_NOT_AT_ONCE = ("time", "cpu")
"""Ways of sharing that are not the co-location which is asked for."""
_LEAST_OPERATORS, _LEAST_COUNTED, _LEAST_PAIRS = 2_000, 300, 30
_MOST_LATENCY, _MOST_MEMORY, _MOST_POINTS = 10.0, 5.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One bundle beside the measurements. ``calls``: operator calls it was trained on; ``with_hosts``: the models' errors
    with the host's overhead of the other models (None: it cannot be told, or a host was given); ``why_not``: why there
    is no such bundle."""

    title: str
    calls: int
    operators: Errors | None
    models: Evaluation | None
    with_hosts: Sequence[SummaryRow] | None = None
    why_not: str = ""

    def summary(self, measure: str, *, model: str | None = None, host: bool = False) -> SummaryRow | None:
        """Of all rows, or of one model's, ``host``: with the host of the other models; None where it was not measured."""
        found = self.with_hosts if host else None if self.models is None else self.models.summarised
        scope = "gpu" if model is None else "model"
        return next(
            (
                row
                for row in found or ()
                if row.measure == measure and row.scope == scope and model in (None, row.name)
            ),
            None,
        )


def page(
    *,
    operators: Operators,
    models: MeasuredModels,
    occurring: Occurring,
    split: Split,
    shown: Sequence[Judged],
    pairs: Mapping[str, int] | None,
    interference: str | None,
    inputs: Sequence[tuple[Path, str]],
    seed: int,
) -> str:
    """The whole report as Markdown. ``shown``: before first, the one without the tested models' sizes last."""
    removed = shown[-1]
    lines = [
        f"# {operators.gpu.name}, measured",
        "",
        f"By `python benchmarks/measured_gpu.py --seed {seed}` from "
        + ", ".join(f"{path.name} (sha256 {digest})" for path, digest in inputs)
        + ".",
    ]
    if operators.gpu.stands_in:
        lines += [
            "",
            "**A CPU stands in for the GPU: this shows that the command works, and says nothing of a GPU.**",
        ]
    lines += ["", "## What was measured", "", *_counts(operators, models, pairs), ""]
    lines += ["## Operators left out", "", *_operators(operators, split, shown)]
    lines += ["## Whole models", "", *_models(operators, models, occurring, shown)]
    lines += ["## Models side by side", ""]
    lines += [NOT_MEASURED if interference is None else "\n".join(["```text", interference, "```"]), ""]
    lines += ["## Against the bars", "", *_verdict(operators, models, removed, pairs)]
    return "\n".join(lines)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> list[str]:
    """A Markdown table of which the first ``texts`` columns are not numbers."""
    return markdown_table(
        [
            TextColumn(heading=heading, cells=[row[i] for row in rows], right=i >= texts)
            for i, heading in enumerate(headings)
        ]
    )


def _counts(operators: Operators, models: MeasuredModels, pairs: Mapping[str, int] | None) -> list[str]:
    names = {row.model for row in models.rows}
    left = ", ".join(f"{count:,} {reason}" for reason, count in operators.skipped.items())
    rows = [
        ["operators in the datasets", f"{operators.entries:,}"],
        ["of quality ok", f"{operators.measured:,}"],
        ["with achieved occupancy by counters", f"{operators.counted:,}"],
        ["calls that the rules understand", f"{len(operators.calls):,}"],
        ["whole models", f"{len(names)} in {len(models.rows):,} rows"],
        ["groups side by side", NOT_MEASURED if pairs is None else f"{sum(pairs.values()):,}"],
    ]
    warned = sum(bool(row.warnings) for row in models.rows)
    notes = [f"Calls left out: {left}."] if left else []
    if pairs:
        notes.append(
            f"How groups shared the GPU: {', '.join(f'{n:,} {word}' for word, n in sorted(pairs.items()))}."
        )
    if warned:
        notes.append(f"{warned:,} rows of whole models carry a warning of their measurement.")
    return [*_table(["", "found"], rows), *(["", *notes] if notes else [])]


def _operators(operators: Operators, split: Split, shown: Sequence[Judged]) -> list[str]:
    before, trained = shown[0], shown[1]
    lines = [
        f"Sizes (family, rows, columns, product and convolution shape; every operator and precision of one together) drawn by "
        f"a hash: {len(split.test):,} calls are tested, {len(split.train):,} trained on; {len(split.neither):,} that hold a "
        "size of a tested call are neither. A call is all launches of an operator; error in % of its measured time.",
        "",
    ]
    if before.operators is None:
        return [*lines, NOT_MEASURED, ""]
    if trained.operators is None:
        lines += [f"No bundle of these: {trained.why_not}.", ""]
    headings = ["family", "calls", "roofline, median", "before, median", "mean", "inside %"]
    headings += ["trained, median", "mean", "90th", "worst", "inside %"]
    groups = [
        (name, before.operators.family == name) for name in sorted(set(before.operators.family.tolist()))
    ]
    everything = np.ones(len(before.operators.family), dtype=bool)
    groups.append(("all", everything))
    precisions = sorted(set(before.operators.precision.tolist()))
    groups += [(f"all, {p}", before.operators.precision == p) for p in precisions if len(precisions) > 1]
    rows = [
        [name, f"{int(at.sum()):,}", *_latency(before.operators, trained.operators, at)]
        for name, at in groups
    ]
    lines += [*_table(headings, rows), ""]
    points = [
        [what, name, *cells]
        for what, column in (
            ("achieved occupancy, counted", "occupancy"),
            ("SM utilisation, by launch", "sm_util"),
        )
        for name, at in groups[: len(groups) - (len(precisions) if len(precisions) > 1 else 0)]
        if (cells := _points(before.operators, trained.operators, column, at))
    ]
    headings = ["", "family", "calls", "before, median", "mean", "trained, median", "mean", "90th"]
    if not points:
        return [*lines, f"Achieved occupancy and SM utilisation of operators: {NOT_MEASURED}.", ""]
    return [*lines, "In points:", "", *_table(headings, points, texts=2), ""]


def _latency(before: Errors, trained: Errors | None, at: np.ndarray) -> Iterator[str]:
    yield f"{np.median(before.errors_pct(roofline=True)[at]):.1f}"
    errors = before.errors_pct()[at]
    yield from (f"{np.median(errors):.1f}", f"{errors.mean():.1f}", f"{100 * before.inside[at].mean():.0f}")
    if trained is None:
        yield from [UNKNOWN] * 5
        return
    found = summarise(trained.errors_pct()[at])
    assert found is not None
    yield from (f"{v:.1f}" for v in (found.median, found.mean, found.p90, found.worst))
    yield f"{100 * trained.inside[at].mean():.0f}"


def _points(before: Errors, trained: Errors | None, column: str, at: np.ndarray) -> list[str]:
    measured = getattr(before, column)
    known = at & np.isfinite(measured) & np.isfinite(getattr(before, f"estimated_{column}"))
    if not known.any():
        return []
    away = np.abs(getattr(before, f"estimated_{column}") - measured)[known]
    cells = [f"{int(known.sum()):,}", f"{np.median(away):.1f}", f"{away.mean():.1f}"]
    if trained is None:
        return [*cells, *[UNKNOWN] * 3]
    away = np.abs(getattr(trained, f"estimated_{column}") - measured)[known]
    return [*cells, f"{np.median(away):.1f}", f"{away.mean():.1f}", f"{np.quantile(away, 0.9):.1f}"]


def _models(
    operators: Operators, models: MeasuredModels, occurring: Occurring, shown: Sequence[Judged]
) -> list[str]:
    gone = len(operators.calls) - shown[-1].calls
    lines = [
        f"The tested models have {len(occurring.sizes):,} sizes; {gone:,} of {len(operators.calls):,} calls hold one of them "
        f"and are removed in the last row, {shown[-1].calls:,} stay. No bundle saw a whole model. Latency, error in %:",
        "",
    ]
    headings = ["trained on", "host", "calls", "rows", "median", "mean", "90th", "worst", "bias", "inside %"]
    rows = []
    for words, host in _HOSTS:
        for one in shown:
            if one.with_hosts is not None or not host:
                calls = f"{one.calls:,}" if one.calls else UNKNOWN
                rows.append(
                    [one.title, words, calls, *_error_cells(one, "latency_ms", inside=True, host=host)]
                )
    lines += [*_table(headings, rows, texts=2), "", _HOST_WORDS, ""]
    lines += [f"{one.title}: {one.why_not}." for one in shown if one.why_not]
    first = shown[0].summary("latency_ms")
    if first is not None and first.roofline_mean is not None:
        constant = UNKNOWN if first.constant_mean is None else f"{first.constant_mean:.1f}"
        lines += [
            f"Mean error of the summed rooflines {first.roofline_mean:.1f} %, of the roofline times the constant that fits the "
            f"other models best {constant} %.",
            "",
        ]
    names = list(
        dict.fromkeys(
            r.name for r in (shown[0].models.summarised if shown[0].models else ()) if r.scope == "model"
        )
    )
    rows = [[name, *_by_model(name, shown)] for name in names]
    if rows:
        headings = [
            "model",
            "rows",
            *(one.title for one in shown),
            "the last, host of the others",
            "bias",
            "worst",
        ]
        lines += ["By model, median (bias and worst of the last):", "", *_table(headings, rows), ""]
    lines += ["### Memory", "", *_memory(shown[0], names), ""]
    lines += ["### Occupancy and SM utilisation", "", *_shares(models, shown), ""]
    return lines


def _error_cells(
    one: Judged, measure: str, *, inside: bool = False, model: str | None = None, host: bool = False
) -> list[str]:
    found = one.summary(measure, model=model, host=host)
    if found is None:
        return [UNKNOWN] * (7 if inside else 6)
    cells = [f"{found.n:,}", *(f"{v:.1f}" for v in (found.median, found.mean, found.p90, found.worst))]
    cells.append(f"{found.bias:+.1f}")
    return [*cells, UNKNOWN if found.inside_pct is None else f"{found.inside_pct:.0f}"] if inside else cells


def _by_model(name: str, shown: Sequence[Judged]) -> list[str]:
    found = [one.summary("latency_ms", model=name) for one in shown]
    known = next((row for row in found if row is not None), None)
    told = shown[-1].summary("latency_ms", model=name, host=True)
    return [
        UNKNOWN if known is None else f"{known.n:,}",
        *(UNKNOWN if row is None else f"{row.median:.1f}" for row in found),
        *(
            [UNKNOWN] * 3
            if told is None
            else [f"{told.median:.1f}", f"{told.bias:+.1f}", f"{told.worst:.1f}"]
        ),
    ]


def _memory(one: Judged, names: Sequence[str]) -> list[str]:
    measured = {name: words for name, words in _MEMORY.items() if one.summary(name) is not None}
    if not measured:
        return [f"{NOT_MEASURED}."]
    headings = ["error in %", "model", "rows", "median", "mean", "90th", "worst", "bias"]
    rows = []
    for name, words in measured.items():
        rows.append([words, "all", *_error_cells(one, name)])
        rows += [
            [words, model, *_error_cells(one, name, model=model)]
            for model in names
            if one.summary(name, model=model) is not None
        ]
    return ["The same for every bundle: memory is calculated.", "", *_table(headings, rows, texts=2)]


def _shares(models: MeasuredModels, shown: Sequence[Judged]) -> list[str]:
    headings = ["error in points", "trained on", "host", "rows", "median", "mean", "90th", "worst", "bias"]
    rows = [
        [words, one.title, host_words, *_error_cells(one, name, host=host)]
        for name, words in _POINTS.items()
        for host_words, host in _HOSTS
        for one in shown
        if one.summary(name, host=host) is not None
    ]
    if not rows:
        return [f"{NOT_MEASURED}."]
    lines = _table(headings, rows, texts=3)
    ruled = sum(
        row.occupancy_source == "analytical" and row.occupancy_mean_pct is not None for row in models.rows
    )
    if ruled:
        lines += [
            "",
            f"Occupancy of {ruled:,} rows is this project's rule on measured launch geometry, not a counter's. What a bundle "
            "learned of counters departs from that rule, and counts here as an error; against counters it is judged above, "
            "operator by operator.",
        ]
    return lines


def _verdict(
    operators: Operators, models: MeasuredModels, removed: Judged, pairs: Mapping[str, int] | None
) -> list[str]:
    if operators.gpu.stands_in:
        return ["None is judged: a CPU stands in for the GPU."]
    at_once = None if pairs is None else sum(n for word, n in pairs.items() if word not in _NOT_AT_ONCE)
    rows = [
        _least("distinct operators, quality ok", operators.measured, _LEAST_OPERATORS),
        _least("of them with counters", operators.counted, _LEAST_COUNTED),
        _least("groups side by side", at_once, _LEAST_PAIRS),
    ]
    asked = [("reserved_bytes", "reserved memory", _MOST_MEMORY, "%", None)]
    asked += [
        (measure, words, most, unit, host)
        for measure, words, most, unit in (
            ("latency_ms", "latency", _MOST_LATENCY, "%"),
            ("occupancy_mean_pct", "mean occupancy", _MOST_POINTS, "points"),
            ("sm_util_mean_pct", "mean SM utilisation", _MOST_POINTS, "points"),
        )
        for host in _HOSTS
    ]
    for measure, words, most, unit, host in asked:
        what = f"median error of {words}" + ("" if host is None else f", host: {host[0]}")
        told = host is not None and host[1]
        rows.append(_most(what, removed, measure, most, unit, host=told, wanted=len(models.rows)))
    lines = _table(["bar", "asked", "found", ""], rows, texts=4)
    return ["Whole models by the bundle that was trained without their sizes:", "", *lines]


def _least(what: str, found: int | None, least: int) -> list[str]:
    if not found:
        return [what, f"at least {least:,}", NOT_MEASURED, NOT_MEASURED]
    verdict = "met" if found >= least else f"missed by {least - found:,}"
    return [what, f"at least {least:,}", f"{found:,}", verdict]


def _most(
    what: str, one: Judged, measure: str, most: float, unit: str, *, host: bool, wanted: int
) -> list[str]:
    """``wanted``: rows of whole models. Where only some of them could be compared the verdict is theirs alone."""
    found = one.summary(measure, host=host)
    asked = f"at most {most:g} {unit}"
    if found is None:
        why = NOT_TOLD if host and one.summary(measure) is not None else NOT_MEASURED
        return [what, asked, why, why]
    away = found.median - most
    verdict = "met" if away <= 0 else f"missed by {away:.1f} points"
    if found.n < wanted:
        verdict += f", by {found.n:,} of {wanted:,} rows"
    return [what, asked, f"{found.median:.1f} {unit}", verdict]
