"""Write the report's tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gkestimator.evaluation.cases import KernelCases
from gkestimator.evaluation.metrics import ErrorSummary, summarise
from gkestimator.kernel_models.regressors import MEMBERS

from .figures import (
    FAMILIES,
    TRAIN,
    Line,
    interval_rows,
    kernel_intervals,
    latency_errors,
    mean_over_gpus,
    memory_errors,
    points_off,
    whole_interval_rows,
)
from .kernels import gpu_cases, label_column
from .lines import Expected
from .sections import section_expected
from .whole import WholeCase, whole_cases
from .workspace import Workspace

SUMMARY = ("n", "mean", "median", "90th", "worst")
METHODS = (
    ("roofline", "roofline"), ("constant", "best constant"), ("analytical", "analytical"), ("literal", "USHER literal"),
)  # fmt: skip


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> list[str]:
    """A Markdown table; the first ``text`` columns are words, the others numbers."""
    rule = ["---" if i < text else "---:" for i in range(len(head))]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]


def number(value: float | None, digits: int = 1) -> str:
    """A figure for people: whole from 100 up; a dash for what is unknown."""
    if value is None or not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.{digits}f}"


def summary_cells(summary: ErrorSummary | None) -> list[str]:
    """n, mean, median, 90th percentile, worst."""
    if summary is None:
        return ["0", "–", "–", "–", "–"]
    return [f"{summary.n:,}", *map(number, (summary.mean, summary.median, summary.p90, summary.worst))]


def bars(found: Sequence[Line]) -> list[str]:
    """The table of what must be shown."""
    words = {True: "yes", False: "**no**", None: "–"}
    return markdown(
        ("what", "bar", "figure", "met"),
        [
            (line.what, line.bar + (" (goal)" if line.goal else ""), line.figure, words[line.met])
            for line in found
        ],
        text=4,
    )


_WHOLE_WORDS = {
    "ethz": ("whole models, FP32, PyTorch", "V100 (kernels trained on)"),
    "timm": ("whole models, AMP, PyTorch", "RTX 3090 (none of its kernels trained on)"),
}


def expected(space: Workspace) -> list[str]:
    """Return the first page's table: what was estimated, where, how many cases, how far off, how often inside."""
    rows = [*_expected_models(space), *section_expected(space), *_expected_kernels(space)]
    head = ("estimated", "on", "cases", "median error", "mean", "roofline's median", "inside the interval")
    cells = []
    for row in rows:
        figures = (row.median, row.mean, row.roofline, row.inside)
        cells.append((row.what, row.where, f"{row.cases:,}", *(_percent(value) for value in figures)))
    return markdown(head, cells, text=2)


def _percent(value: float | None) -> str:
    text = number(value)
    if text == "–":
        return text
    return f"{text} %"


def _expected_models(space: Workspace) -> Iterator[Expected]:
    """Yield a row for each table of whole models, the report group alone."""
    whole = [case for case in whole_cases(space, "whole") if case.group == "report"]
    for table, (what, where) in _WHOLE_WORDS.items():
        cases = [case for case in whole if case.table == table]
        if not cases:
            continue
        errors = latency_errors(cases)
        held = [case.low_ms <= case.measured_ms <= case.high_ms for case in cases]
        yield Expected(
            what=f"{what}: {len({case.model for case in cases})} models",
            where=where,
            cases=len(cases),
            median=float(np.median(errors)),
            mean=float(errors.mean()),
            roofline=float(np.median(latency_errors(cases, "roofline_ms"))),
            inside=100 * float(np.mean(held)),
        )


def _expected_kernels(space: Workspace) -> Iterator[Expected]:
    """Yield a row for single kernels at new shapes, and one on new GPUs."""
    for what, cases in (
        ("single kernels, new shapes", space.cases("shapes")),
        ("single kernels, new GPU", gpu_cases(space)),
    ):
        if cases is None:
            continue
        errors = cases.errors_pct()
        intervals = kernel_intervals(cases)
        yield Expected(
            what=what,
            where=f"{len(np.unique(cases.gpu))} GPUs",
            cases=len(cases),
            median=float(np.median(errors)),
            mean=float(errors.mean()),
            roofline=float(np.median(cases.errors_pct("roofline"))),
            inside=None if intervals is None else intervals.inside_pct,
        )


def summary(space: Workspace) -> list[str]:
    """A few lines for the README: the estimator beside the roofline."""
    rows = []
    shapes, left = space.cases("shapes"), gpu_cases(space)
    names = " / ".join(FAMILIES)
    for words, cases in (("new shapes, GPU trained on", shapes), ("GPU not trained on", left)):
        if cases is None:
            continue
        cells = []
        for method in ("estimator", "roofline"):
            found = []
            for family in FAMILIES:
                per_gpu = mean_over_gpus(cases.where(family=family, source=TRAIN), method).values()
                found.append(number(float(np.mean([s.mean for s in per_gpu])) if per_gpu else None))
            cells.append(" / ".join(found))
        rows.append((f"kernels, FP32, {words}: {names}", "mean over GPUs", *cells))
    whole = [c for c in whole_cases(space, "whole") if c.group == "report"]
    for table, words in (
        ("ethz", "whole models, V100, FP32, torch"),
        ("timm", "whole models, RTX 3090 (none of its kernels trained on), AMP, torch"),
    ):
        mine = [c for c in whole if c.table == table]
        if mine:
            both = [summarise(latency_errors(mine, m)) for m in ("latency_ms", "roofline_ms")]
            cells = [f"{number(s.median)} / {number(s.mean)}" for s in both if s is not None]
            rows.append(
                (f"{words}: {len({c.model for c in mine})} models, {len(mine)} rows", "median / mean", *cells)
            )
    return markdown(("absolute error in percent", "", "estimator", "roofline"), rows, text=2)


def _mean(cases: KernelCases, method: str) -> float:
    """Mean error of a method; NaN where it does not answer every case."""
    known = method in cases.estimates and bool(np.isfinite(cases.estimates[method]).all())
    return float(cases.errors_pct(method).mean()) if known else float("nan")


def _means(cases: KernelCases, methods: Sequence[str]) -> list[str]:
    return [number(_mean(cases, method)) for method in methods]


def _groups(cases: KernelCases, *columns: np.ndarray) -> Iterator[tuple[tuple[str, ...], KernelCases]]:
    """Every combination of words of ``columns`` with its cases, sorted."""
    numbered = [np.unique(c, return_inverse=True) for c in columns]
    codes = np.stack([inverse for _, inverse in numbered], axis=1)
    for code in np.unique(codes, axis=0):
        key = tuple(str(words[i]) for (words, _), i in zip(numbered, code, strict=True))
        yield key, cases.take(np.flatnonzero((codes == code).all(axis=1)))


def _methods(cases: KernelCases) -> list[tuple[str, str]]:
    """Return the methods that answered these cases, with their headings."""
    return [(method, words) for method, words in METHODS if method in cases.estimates]


def by_source(cases: KernelCases, members: bool) -> list[str]:
    """Per family and source: the estimator's errors, and the mean error of every other method."""
    extra = [m for m in MEMBERS if m in cases.estimates] if members else []
    head = (
        "family",
        "source",
        *SUMMARY,
        *(words for _, words in _methods(cases)),
        *(m.replace("_", " ") for m in extra),
    )
    rows = [
        (
            *key,
            *summary_cells(summarise(part.errors_pct())),
            *_means(part, [m for m, _ in _methods(cases)]),
            *_means(part, extra),
        )
        for key, part in _groups(cases, label_column(cases), cases.source)
    ]
    return markdown(head, rows, text=2)


def members_in_words(cases: KernelCases) -> str:
    """How much the stack gains over its best member, over families; empty without members."""
    alone = [m for m in MEMBERS if m in cases.estimates]
    gains: dict[str, float] = {}
    best: list[str] = []
    for (word,), part in _groups(cases, label_column(cases)):
        errors = {m: _mean(part, m) for m in alone}
        errors = {m: e for m, e in errors.items() if np.isfinite(e)}
        if errors:
            least = min(errors, key=lambda m: errors[m])
            best.append(least)
            gains[word] = errors[least] - _mean(part, "estimator")
    if not gains:
        return ""
    low, high = min(gains, key=lambda w: gains[w]), max(gains, key=lambda w: gains[w])
    often = ", ".join(f"{m.replace('_', ' ')} {best.count(m)}" for m in alone if m in best)
    return (
        f"Over {len(gains)} families the mean error of the stack lies {np.mean(list(gains.values())):.2f} points below that of "
        f"the family's best single member (from {gains[low]:+.2f}, {low}, to {gains[high]:+.2f}, {high}); best were {often}."
    )


def by_gpu(cases: KernelCases, gpu_time: bool = False) -> list[str]:
    """Per family, GPU and source: the estimator's errors, and the mean error of every other method."""
    head = ("family", "GPU", "source", *SUMMARY, *(words for _, words in _methods(cases)))
    rows = [
        (*key, *summary_cells(summarise(part.errors_pct())), *_means(part, [m for m, _ in _methods(cases)]))
        for key, part in _groups(cases, label_column(cases), cases.gpu, cases.source)
    ]
    return markdown(head, rows, text=3)


def over_gpus(cases: KernelCases) -> list[str]:
    """Per family: mean over GPUs of the mean error per GPU, for every method."""
    head = ("family", "GPUs", "estimator", *(words for _, words in _methods(cases)))
    rows = []
    for (word,), part in _groups(cases, label_column(cases)):
        per_gpu = [p for _, p in _groups(part, part.gpu)]
        cells = []
        for method in ("estimator", *(m for m, _ in _methods(cases))):
            means = [_mean(p, method) for p in per_gpu]
            cells.append(number(float(np.mean(means))))
        rows.append((word, str(len(per_gpu)), *cells))
    return markdown(head, rows)


def whole_by_model(cases: Sequence[WholeCase]) -> list[str]:
    """Per model and per group of one table: latency, and where measured memory, SM utilisation and occupancy."""
    detailed = any(c.measured_bytes is not None for c in cases)
    head = ["model", "group", *SUMMARY, "roofline", "analytical"]
    if detailed:
        head += ["memory %", "SM util. points", "mean occ. points", "max occ. points"]
    rows = []
    for group in ("report", "development"):
        mine = [c for c in cases if c.group == group]
        for model in sorted({c.model for c in mine}):
            rows.append([model, group, *_whole_cells([c for c in mine if c.model == model], detailed)])
        if mine:
            rows.append([f"**all {group}**", group, *_whole_cells(mine, detailed)])
    return markdown(head, rows, text=2)


def _whole_cells(cases: Sequence[WholeCase], detailed: bool) -> list[str]:
    cells = summary_cells(summarise(latency_errors(cases)))
    cells += [number(float(latency_errors(cases, m).mean())) for m in ("roofline_ms", "analytical_ms")]
    if detailed:
        parts = [memory_errors(cases), *(points_off(cases, f) for f in _POINTS)]
        cells += [number(float(p.mean()) if p.size else None) for p in parts]
    return cells


_POINTS = ("sm_util_pct", "occupancy_mean_pct", "occupancy_max_pct")


def whole_rows(cases: Sequence[WholeCase]) -> list[str]:
    """Every row: estimated and measured latency and memory."""
    head = (
        "model",
        "batch",
        "measured ms",
        "estimated ms",
        "90 % interval",
        "error %",
        "measured MiB",
        "estimated MiB",
    )
    rows = [
        (
            c.model, str(c.batch), f"{c.measured_ms:.2f}", f"{c.latency_ms:.2f}", f"{c.low_ms:.2f} to {c.high_ms:.2f}",
            f"{100 * (c.latency_ms / c.measured_ms - 1):+.1f}",
            "–" if c.measured_bytes is None else f"{c.measured_bytes / 2**20:,.0f}",
            "–" if c.measured_bytes is None else f"{c.reserved_bytes / 2**20:,.0f}",
        )
        for c in cases
    ]  # fmt: skip
    return markdown(head, rows)


def whole_baselines(cases: Sequence[WholeCase]) -> list[str]:
    """Beside the estimator: roofline, the same times one constant fitted on the development group, analytical; and
    for shares of the GPU the constant that is best on the very rows it is judged by."""
    rows = []
    for table, words in (("ethz", "V100 fp32"), ("timm", "RTX 3090 AMP")):
        mine = [c for c in cases if c.table == table]
        known = [c for c in mine if c.group == "development"]
        left = [c for c in mine if c.group == "report"]
        if not known or not left:
            continue
        factor = float(np.median([c.measured_ms / c.roofline_ms for c in known]))
        constant = np.array([100 * abs(factor * c.roofline_ms / c.measured_ms - 1) for c in left])
        for name, errors in (
            ("estimator", latency_errors(left)), ("roofline", latency_errors(left, "roofline_ms")),
            (f"{factor:.2f} x roofline", constant), ("analytical", latency_errors(left, "analytical_ms")),
        ):  # fmt: skip
            rows.append((f"{words} latency, %", name, *summary_cells(summarise(errors))))
        for field, unit in (
            ("sm_util_pct", "mean SM utilisation"), ("occupancy_mean_pct", "mean occupancy"),
            ("occupancy_max_pct", "maximum occupancy"),
        ):  # fmt: skip
            truth = [v for c in left if (v := getattr(c, f"measured_{field}")) is not None]
            if truth:
                rows.append(
                    (f"{unit}, points", "estimator", *summary_cells(summarise(points_off(left, field))))
                )
                middle = float(np.median(truth))
                best = np.abs(np.array(truth) - middle)
                rows.append((f"{unit}, points", f"constant {middle:.1f}", *summary_cells(summarise(best))))
    return markdown(("report group", "method", *SUMMARY), rows, text=2)


def intervals(space: Workspace) -> list[str]:
    """Share inside and width, per family and whole model."""
    rows = [
        (
            word, kind, f"{s.n:,}", number(s.inside_pct), number(s.width_pct), number(s.median_error_pct),
            number(s.width_over_error), number(None if s.width_over_error is None else s.width_over_error / 2),
        )
        for kind, word, s in (*interval_rows(space), *whole_interval_rows(space))
    ]  # fmt: skip
    head = (
        "of",
        "GPU",
        "n",
        "inside %",
        "median width %",
        "median error %",
        "width / error",
        "half width / error",
    )
    return markdown(head, rows, text=2)


def usher_targets(found: Sequence[dict[str, object]]) -> list[str]:
    """Features x target per family and split."""
    targets = list(dict.fromkeys(str(r["target"]) for r in found))
    kinds = [(f, t) for f in ("literal", "physical") for t in targets]
    value = {(r["family"], r["split"], r["features"], r["target"]): float(str(r["error_pct"])) for r in found}
    rows = []
    for split in dict.fromkeys(str(r["split"]) for r in found):
        for family in dict.fromkeys(str(r["family"]) for r in found if r["split"] == split):
            rows.append((split, family, *(number(value.get((family, split, f, t))) for f, t in kinds)))
    return markdown(("split", "family", *(f"{f}, {t}" for f, t in kinds)), rows, text=2)


def usher_tau(found: Sequence[dict[str, object]]) -> list[str]:
    """Largest sum of occupancies by tau, per graph, number of streams and reading."""
    taus = sorted({float(str(r["tau_ms"])) for r in found})
    words = {
        "table": "overlap, or starts within tau on other streams",
        "starts": "starts within tau, any stream",
    }
    value = {
        (r["model"], r["streams"], r["reading"], float(str(r["tau_ms"]))): float(str(r["occupancy_max_pct"]))
        for r in found
    }
    rows = [
        (str(model), text, str(streams), *(number(value.get((model, streams, reading, t))) for t in taus))
        for model in dict.fromkeys(r["model"] for r in found)
        for reading, text in words.items()
        for streams in sorted({int(str(r["streams"])) for r in found})
    ]
    return markdown(("model", "concurrent are", "streams", *(f"tau {t:g} ms" for t in taus)), rows, text=2)
