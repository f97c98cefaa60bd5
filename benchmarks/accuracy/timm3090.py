"""Judge 88 vision models that nobody tuned to: RTX 3090, AMP, torch 2.4, channels first and channels last.

    GKEST_SHARED=... python -m benchmarks.accuracy.timm3090 [--kinds] [NAME ...]

prints the development models alone (those whose name contains a NAME), with ``--kinds`` the kinds of kernels that take
their time: what to look at while tuning. The 30 models drawn by a hash of their name are judged by the section only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from gkestimator.bundles.bundle import load_bundle
from gkestimator.evaluation.metrics import interval_summary, summarise

from .lines import Expected, Line, expected_of_models, line
from .sections import Section
from .timm_cases import DEVELOPMENT, LAYOUTS, REPORT, TimmCase, timm_cases, timm_graphs
from .workspace import ROOT, Workspace, shared_folder

JOB = "timm3090"
_SHIPPED = ROOT / "models/default"
MEAN_BAR, WORST_BAR = 7.0, 20.0
INSIDE_BAR = (83.0, 97.0)
_DIFFER_PCT = 3.0
"""Models whose two layouts differ by more than this are asked which is faster."""
SIGN_BAR, DIFFERENCE_BAR = 85.0, 5.0
_MEASURED, _ESTIMATED, _ROOFLINE = "measured_ms", "latency_ms", "roofline_ms"


def run(space: Workspace) -> None:
    """Estimate every graph in every layout by the shipped bundle."""
    bundle_files = [f"{p.name} {p.stat().st_size}" for p in sorted(_SHIPPED.rglob("*")) if p.is_file()]
    sources = [Path(__file__), Path(__file__).with_name("timm_cases.py")]
    key = [JOB, space.product_key, *bundle_files, *(p.read_text(encoding="utf-8") for p in sources)]
    if space.current(JOB, key):
        return
    cases = timm_cases(space.shared, load_bundle(_SHIPPED), timm_graphs(space.shared))
    rows = [asdict(case) for case in cases]
    space.keep(JOB, key, rows)
    space.tell(f"{JOB}: {len(rows)} rows")


def kept(space: Workspace) -> list[TimmCase]:
    """Return the rows that :func:`run` stored; none where it has not run."""
    return [TimmCase(**row) for row in space.listed(JOB) or []]  # type: ignore[arg-type]


def errors(cases: Sequence[TimmCase], method: str = _ESTIMATED) -> np.ndarray:
    """Return absolute errors of ``method``, percent."""
    return np.array([100 * abs(getattr(c, method) / c.measured_ms - 1) for c in cases])


def share_inside(cases: Sequence[TimmCase]) -> float | None:
    """Return the percentage of the measurements inside their interval; None without cases."""
    columns = [np.array([getattr(c, n) for c in cases]) for n in (_ESTIMATED, "low_ms", "high_ms", _MEASURED)]
    summary = interval_summary(*columns)
    return None if summary is None else summary.inside_pct


def differences(cases: Sequence[TimmCase], method: str) -> np.ndarray:
    """Return how much longer channels last take than channels first, percent, per model measured in both layouts at
    one batch size.
    """
    by_layout = {(c.model, c.batch, c.layout): c for c in cases}
    first, last = LAYOUTS
    result = []
    for (model, batch, layout), case in by_layout.items():
        other = by_layout.get((model, batch, last))
        if layout == first and other is not None:
            result.append(100 * (getattr(other, method) / getattr(case, method) - 1))
    return np.array(result)


def sign_right(cases: Sequence[TimmCase], method: str = _ESTIMATED) -> tuple[float | None, int]:
    """Return the percentage of the models that ``method`` says the faster layout of, and of how many."""
    measured = differences(cases, _MEASURED)
    apart = np.abs(measured) > _DIFFER_PCT
    if not apart.any():
        return None, 0
    right = np.sign(measured[apart]) == np.sign(differences(cases, method)[apart])
    return float(100 * right.mean()), int(apart.sum())


def difference_error(cases: Sequence[TimmCase], method: str = _ESTIMATED) -> float | None:
    """Return the median error of the difference between the layouts, points of percent; None without models."""
    measured = differences(cases, _MEASURED)
    if not measured.size:
        return None
    return float(np.median(np.abs(differences(cases, method) - measured)))


def lines(space: Workspace) -> Iterator[Line]:
    """Yield the bars of the reported models."""
    reported = [c for c in kept(space) if c.group == REPORT]
    for layout in LAYOUTS:
        yield from _layout_lines([c for c in reported if c.layout == layout], layout)
    yield from _difference_lines(reported)


def expected(space: Workspace) -> Iterator[Expected]:
    """Yield the first page's row of the reported models in each layout."""
    for layout in LAYOUTS:
        cases = [c for c in kept(space) if c.group == REPORT and c.layout == layout]
        if cases:
            what = f"vision models never tuned to, AMP, PyTorch, {layout}: {len(cases)} models"
            rooflines = errors(cases, _ROOFLINE).tolist()
            yield expected_of_models(what, "RTX 3090", errors(cases).tolist(), rooflines, share_inside(cases))


def _layout_lines(cases: Sequence[TimmCase], layout: str) -> Iterator[Line]:
    head = f"timm3090, {layout}, models never tuned to"
    summary, roofline = summarise(errors(cases)), summarise(errors(cases, _ROOFLINE))
    if summary is None or roofline is None:
        yield line(f"{head}: mean", MEAN_BAR, None)
        yield line(f"{head}: worst", WORST_BAR, None)
        return
    yield line(
        f"{head}: mean", MEAN_BAR, summary.mean, more=f" (n {summary.n}, roofline {roofline.mean:.1f} %)"
    )
    yield line(f"{head}: worst", WORST_BAR, summary.worst, more=f" (roofline {roofline.worst:.1f} %)")
    inside = share_inside(cases)
    low, high = INSIDE_BAR
    yield Line(
        what=f"{head}: share inside",
        bar=f"{low:g}-{high:g} %",
        figure="not measured" if inside is None else f"{inside:.1f} %",
        met=None if inside is None else low <= inside <= high,
    )


def _difference_lines(cases: Sequence[TimmCase]) -> Iterator[Line]:
    right, apart = sign_right(cases)
    head = "timm3090, nhwc against nchw, models never tuned to"
    yield Line(
        what=f"{head}: faster layout right where they differ by more than {_DIFFER_PCT:g} %",
        bar=f"at least {SIGN_BAR:g} %",
        figure="not measured" if right is None else f"{right:.1f} % (n {apart})",
        met=None if right is None else right >= SIGN_BAR,
    )
    what = f"{head}: median error of the difference"
    more = (
        f" (n {len(differences(cases, _MEASURED))}, roofline {difference_error(cases, _ROOFLINE) or 0:.1f})"
    )
    yield line(what, DIFFERENCE_BAR, difference_error(cases), " points", more=more)


def page(space: Workspace) -> list[str] | None:
    """Return the page: per layout and group, per family, and every model that is reported."""
    cases = kept(space)
    if not cases:
        return None
    from .tables import markdown

    text = [_INTRODUCTION, "", *markdown(_SUMMARY_HEAD, _summaries(cases), text=2)]
    text += ["", "## By family", "", _FAMILIES, "", *markdown(_FAMILY_HEAD, _families(cases), text=2)]
    rows = [_model_row(c) for c in cases if c.group == REPORT]
    return [*text, "", f"## Every model: {REPORT} group", "", *markdown(_MODEL_HEAD, rows, text=4)]


_INTRODUCTION = """88 graphs of timm models, measured by timm's authors on an RTX 3090 with torch 2.4 under autocast, channels
first (nchw) and channels last (nhwc), at the batch size of their table. The shipped bundle answers; no row of this table is
in its training data. 30 models, drawn by a hash of their name before anything was tuned, are reported; the others were
looked at (`python -m benchmarks.accuracy.timm3090` prints each of them)."""
_FAMILIES = """Mean error with its sign (estimated too long is positive), and the three kinds of kernels that take most of the
estimated time: where a family is off, one of them is the first to ask."""
_SUMMARY_HEAD = ("group", "layout", "n", "mean", "median", "worst", "inside %", "roofline mean")
_FAMILY_HEAD = (
    "family",
    "layout",
    "n",
    "mean error %",
    "signed %",
    "roofline %",
    "most of the time (share %)",
)
_MODEL_HEAD = (
    "model", "family", "attention", "layout", "batch", "measured ms", "estimated ms", "90 % interval", "error %",
    "roofline %",
)  # fmt: skip


def _summaries(cases: Sequence[TimmCase]) -> Iterator[tuple[str, ...]]:
    for group in (REPORT, DEVELOPMENT):
        for layout in LAYOUTS:
            mine = [c for c in cases if (c.group, c.layout) == (group, layout)]
            summary, roofline = summarise(errors(mine)), summarise(errors(mine, _ROOFLINE))
            if summary is None or roofline is None:
                continue
            figures = (summary.mean, summary.median, summary.worst, share_inside(mine) or 0.0, roofline.mean)
            yield (group, layout, str(summary.n), *(f"{figure:.1f}" for figure in figures))


def _families(cases: Sequence[TimmCase]) -> Iterator[tuple[str, ...]]:
    for family in sorted({c.family for c in cases}):
        for layout in LAYOUTS:
            mine = [c for c in cases if (c.family, c.layout) == (family, layout)]
            if not mine:
                continue
            signed = [100 * (c.latency_ms / c.measured_ms - 1) for c in mine]
            figures = (errors(mine).mean(), np.mean(signed), errors(mine, _ROOFLINE).mean())
            yield (family, layout, str(len(mine)), *(f"{figure:.1f}" for figure in figures), _most(mine))


def _most(cases: Sequence[TimmCase], count: int = 3) -> str:
    """Return the kinds of kernels that take most of the time, each with its mean share."""
    shares: dict[str, float] = {}
    for case in cases:
        total = sum(case.kinds.values())
        for kind, time in case.kinds.items():
            shares[kind] = shares.get(kind, 0.0) + 100 * time / total / len(cases)
    longest = sorted(shares.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{kind} {share:.0f}" for kind, share in longest)


def _model_row(case: TimmCase) -> tuple[str, ...]:
    signed = [100 * (time / case.measured_ms - 1) for time in (case.latency_ms, case.roofline_ms)]
    return (
        case.model,
        case.family,
        case.attention,
        case.layout,
        str(case.batch),
        f"{case.measured_ms:.1f}",
        f"{case.latency_ms:.1f}",
        f"{case.low_ms:.1f} to {case.high_ms:.1f}",
        *(f"{error:+.1f}" for error in signed),
    )


def main(arguments: Sequence[str]) -> int:
    """Print the development models whose name contains one of ``arguments``, or all of them."""
    shared = shared_folder()
    if shared is None:
        print("set GKEST_SHARED to the folder that holds data/ and models/", file=sys.stderr)
        return 2
    with_kinds = "--kinds" in arguments
    words = [word for word in arguments if not word.startswith("--")] or [""]
    graphs = [g for g in timm_graphs(shared) if g.group == DEVELOPMENT]
    chosen = [g for g in graphs if any(word in g.path.stem for word in words)]
    cases: list[TimmCase] = []
    for case in timm_cases(shared, load_bundle(_SHIPPED), chosen):
        cases.append(case)
        print(
            " ".join(f"{cell:>{width}}" for cell, width in zip(_model_row(case), _WIDTHS, strict=True)),
            flush=True,
        )
        if with_kinds:
            for kind, time in list(case.kinds.items())[:12]:
                print(f"{time:12.2f} ms {100 * time / case.measured_ms:6.1f} % of measured  {kind}")
    for row in _summaries(cases):
        print(dict(zip(_SUMMARY_HEAD, row, strict=True)))
    print("sign right (%, n)", sign_right(cases), "difference, points", difference_error(cases))
    return 0


_WIDTHS = (28, 28, 6, 5, 5, 8, 8, 18, 7, 7)
SECTION = Section(
    title="Vision models that nobody tuned to (RTX 3090, AMP)",
    jobs={JOB: run},
    lines=lines,
    page=page,
    expected=expected,
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
