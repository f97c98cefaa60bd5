"""Print every line of "what must be shown": the bar, the figure reached, and whether it is met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from gkestimator.evaluation.cases import KernelCases
from gkestimator.evaluation.metrics import ErrorSummary, IntervalSummary, interval_summary, summarise
from gkestimator.evaluation.splits import chips

from .kernels import chip_job, gpu_cases, label_column
from .lines import Line, line
from .sections import section_lines
from .whole import PROFILED_HOST_US, WholeCase, whole_cases
from .workspace import Workspace

TRAIN = "neusight/train"
FAMILIES = ("linear", "bmm", "conv", "elementwise", "softmax", "layernorm")
SHAPES_BAR = dict(zip(FAMILIES, (8, 7, 12, 2, 3, 2.5), strict=True))
LARGER_BAR = {"linear": 11, "bmm": 12, "elementwise": 2, "softmax": 12, "layernorm": 7}
GPU_BAR = {"linear": 22, "bmm": 22, "conv": 25, "elementwise": 5, "softmax": 12, "layernorm": 12}
GPU_GOALS = ("elementwise", "softmax", "layernorm")
DEEPBENCH_BAR = 15.0
INSIDE_SEEN, INSIDE_UNSEEN, WIDTH = (87.0, 93.0), 80.0, 4.0


def mean_over_gpus(cases: KernelCases, method: str = "estimator") -> dict[str, ErrorSummary]:
    """Summary per GPU."""
    found = {}
    for gpu in np.unique(cases.gpu):
        summary = summarise(cases.where(gpu=str(gpu)).errors_pct(method))
        if summary is not None:
            found[str(gpu)] = summary
    return found


def kernel_intervals(cases: KernelCases) -> IntervalSummary | None:
    """Intervals against GPU time, where it is known and a regressor answered."""
    time = cases.gpu_time_us
    known = np.isfinite(time) & cases.trained
    part, time = cases.take(known), time[known]
    return interval_summary(part.estimates["estimator"], part.low_us, part.high_us, time)


def whole_intervals(cases: list[WholeCase]) -> IntervalSummary | None:
    """Intervals of whole models' latency."""
    columns = [
        np.array([getattr(c, n) for c in cases]) for n in ("latency_ms", "low_ms", "high_ms", "measured_ms")
    ]
    return interval_summary(*columns)


def latency_errors(cases: Iterable[WholeCase], method: str = "latency_ms") -> np.ndarray:
    """Absolute percentage errors of whole models' latency."""
    return np.array([100 * abs(getattr(c, method) / c.measured_ms - 1) for c in cases])


def memory_errors(cases: Iterable[WholeCase], field: str = "reserved_bytes") -> np.ndarray:
    """Absolute percentage errors of reserved memory, where the table has it."""
    return np.array(
        [100 * abs(getattr(c, field) / c.measured_bytes - 1) for c in cases if c.measured_bytes is not None]
    )


def points_off(cases: Iterable[WholeCase], name: str) -> np.ndarray:
    """Absolute errors in points of ``sm_util_pct``, ``occupancy_mean_pct`` or ``occupancy_max_pct``, the first two
    also with ``profiled_`` in front."""
    truth = f"measured_{name.removeprefix('profiled_')}"
    return np.array(
        [
            abs(getattr(c, name) - getattr(c, truth))
            for c in cases
            if getattr(c, truth) is not None and getattr(c, name) is not None
        ]
    )


def _mean(errors: np.ndarray) -> float | None:
    return float(errors.mean()) if errors.size else None


def lines(space: Workspace) -> list[Line]:
    """Every line, in the order of the table."""
    sections: tuple[Callable[[Workspace], Iterator[Line]], ...] = (
        _shapes, _larger, _gpus, _deepbench, _half, _ethz, _timm, _left_out_whole, _intervals, _whole_intervals, _usher,
        section_lines,
    )  # fmt: skip
    return [one for part in sections for one in part(space)]


def _shapes(space: Workspace) -> Iterator[Line]:
    cases = space.cases("shapes")
    for family, bar in SHAPES_BAR.items():
        value = None if cases is None else _mean(cases.where(family=family, source=TRAIN).errors_pct())
        yield line(f"shapes held out, GPUs seen: {family}", bar, value)


def _larger(space: Workspace) -> Iterator[Line]:
    cases = space.cases("larger")
    for family, bar in LARGER_BAR.items():
        apart = "P4" if family == "linear" else None
        value = None if cases is None else _mean(cases.where(family=family, no_gpu=apart).errors_pct())
        yield line(f"larger shapes, GPUs seen: {family}{' without P4' if apart else ''}", bar, value)


def _gpus(space: Workspace) -> Iterator[Line]:
    cases = gpu_cases(space)
    for family, bar in GPU_BAR.items():
        found = {} if cases is None else mean_over_gpus(cases.where(family=family, source=TRAIN))
        value = float(np.mean([s.mean for s in found.values()])) if found else None
        yield line(
            f"one GPU left out: {family}, mean of {len(found)} GPUs", bar, value, goal=family in GPU_GOALS
        )


def _deepbench(space: Workspace) -> Iterator[Line]:
    cases = space.cases("shapes")
    for gpu in ("V100-SXM2-16GB", "P100-PCIE-16GB", "T4"):
        for precision in ("fp32", "fp16"):
            part = (
                None
                if cases is None
                else cases.where(family="conv", source="deepbench", gpu=gpu, precision=precision)
            )
            value = None if part is None else _mean(part.errors_pct())
            more = "" if part is None else f" (n {len(part)})"
            yield line(
                f"DeepBench convolutions, shapes held out: {gpu} {precision}", DEEPBENCH_BAR, value, more=more
            )


def _half(space: Workspace) -> Iterator[Line]:
    shapes, h100, left = space.cases("shapes"), space.cases("h100-gemm"), gpu_cases(space)
    words = {"family": "linear", "precision": "bf16", "source": "aiconfigurator"}
    value = None if shapes is None else _mean(shapes.where(**words).errors_pct())
    yield line("bf16 GEMM (aiconfigurator), shapes held out", 5, value)
    value = None if h100 is None else _mean(h100.errors_pct())
    yield line("bf16 GEMM: H100 from A100 + RTX PRO 6000", 12, value)
    part = None if left is None else left.where(**words, gpu="H100-SXM")
    if part is not None and len(part):
        yield line("bf16 GEMM: H100 from every other GPU's rows", 12, _mean(part.errors_pct()))


def _ethz(space: Workspace) -> Iterator[Line]:
    cases = [c for c in whole_cases(space, "whole") if c.table == "ethz" and c.group == "report"]
    head = "V100 fp32 whole models, report group"
    found = summarise(latency_errors(cases))
    yield line(f"{head}: latency with copies, median", 8, found.median if found else None)
    yield line(f"{head}: latency with copies, mean", 12, found.mean if found else None)
    within = None if found is None else float(100 * np.mean(latency_errors(cases) <= 25))
    yield Line(
        what=f"{head}: rows within 25 %",
        bar="at least 90 %",
        figure="not measured" if within is None else f"{within:.0f} %",
        met=None if within is None else within >= 90,
    )
    yield line(f"{head}: reserved memory, one process, mean", 9, _mean(memory_errors(cases)))
    alone = [c for c in cases if c.batch == 4]
    yield line(f"{head}: reserved memory, batch 4 alone, mean", 9, _mean(memory_errors(alone, "fresh_bytes")))
    for name, words, bar in (
        ("sm_util_pct", "mean SM utilisation", 8), ("occupancy_mean_pct", "mean occupancy", 6),
        ("occupancy_max_pct", "maximum occupancy", 2.5),
    ):  # fmt: skip
        yield line(f"{head}: {words}, mean absolute error", bar, _mean(points_off(cases, name)), " points")
        slowed = np.empty(0) if name == "occupancy_max_pct" else points_off(cases, f"profiled_{name}")
        if len(slowed):
            what = f"{head}: {words}, host as slow as under a profiler ({PROFILED_HOST_US:.0f} us a call)"
            yield line(what, bar, _mean(slowed), " points")


def _timm(space: Workspace) -> Iterator[Line]:
    cases = [c for c in whole_cases(space, "whole") if c.table == "timm" and c.group == "report"]
    found = summarise(latency_errors(cases))
    yield line("RTX 3090 AMP whole models, report group: mean", 12, found.mean if found else None)
    yield line("RTX 3090 AMP whole models, report group: worst", 35, found.worst if found else None)


def _left_out_whole(space: Workspace) -> Iterator[Line]:
    cases = whole_cases(space, "whole-no-v100-conv")
    for table, words in (("ethz", "V100 fp32"), ("timm", "RTX 3090 AMP")):
        errors = latency_errors(c for c in cases if c.table == table and c.group == "report")
        yield line(f"{words} whole models without V100 convolutions in training: mean", 18, _mean(errors))


def interval_rows(space: Workspace) -> Iterator[tuple[str, str, IntervalSummary]]:
    """(kind of GPU, family, summary) of every family, GPUs seen and left out."""
    for kind, cases in (("seen", space.cases("shapes")), ("left out", gpu_cases(space))):
        if cases is None:
            continue
        words = label_column(cases)
        for word in sorted(set(words.tolist())):
            summary = kernel_intervals(cases.take(words == word))
            if summary is not None:
                yield kind, word, summary


def whole_interval_rows(space: Workspace) -> Iterator[tuple[str, str, IntervalSummary]]:
    """(kind of GPU, table and group, summary) of whole models."""
    for name, table, kind in (
        ("whole", "ethz", "seen"), ("whole", "timm", "left out"), ("whole-no-v100-conv", "ethz", "left out"),
    ):  # fmt: skip
        cases = [c for c in whole_cases(space, name) if c.table == table]
        for group in ("report", "development"):
            summary = whole_intervals([c for c in cases if c.group == group])
            if summary is not None:
                words = {"ethz": "V100 fp32", "timm": "RTX 3090 AMP"}[table]
                extra = " without V100 convolutions" if name != "whole" else ""
                yield kind, f"whole models {words}{extra}, {group}", summary


def _interval_lines(kind: str, word: str, summary: IntervalSummary) -> Iterator[Line]:
    low, high = INSIDE_SEEN if kind == "seen" else (INSIDE_UNSEEN, 100.0)
    ratio = summary.width_over_error
    head = f"90 % intervals, GPU {kind}: {word}"
    yield Line(
        what=f"{head}: share inside",
        bar=f"{low:g}-{high:g} %",
        figure=f"{summary.inside_pct:.1f} %",
        met=low <= summary.inside_pct <= high,
    )
    yield Line(
        what=f"{head}: median width",
        bar=f"at most {WIDTH:g} x median error",
        figure=f"{summary.width_pct:.0f} % = {'?' if ratio is None else format(ratio, '.1f')} x",
        met=None if ratio is None else ratio <= WIDTH,
    )


def _intervals(space: Workspace) -> Iterator[Line]:
    for kind, word, summary in interval_rows(space):
        yield from _interval_lines(kind, word, summary)


def _whole_intervals(space: Workspace) -> Iterator[Line]:
    for kind, word, summary in whole_interval_rows(space):
        if word.endswith("report"):
            yield from _interval_lines(kind, word, summary)


def _usher(space: Workspace) -> Iterator[Line]:
    there = all(
        (
            space.listed("usher-targets"),
            space.listed("usher-tau"),
            space.stored("member-"),
            space.cases("shapes") is not None,
        )
    )
    yield Line(
        what="USHER's claim: members against stack, literal against physical features, tau swept",
        bar="in the report",
        figure="tables below" if there else "not measured",
        met=True if there else None,
    )


def nested(space: Workspace) -> dict[str, object] | None:
    """What the card of the shipped bundle says of nested runs: mean errors and shares inside the interval, per family.

    None, saying why on stderr, where a result is missing or of another recipe.
    """
    stale = space.stale(["shapes", "larger", *(chip_job(c) for c in chips(space.rows, space.gpus))])
    if stale:
        space.tell(
            f"no nested figures for the card: run the accuracy command ({', '.join(stale)} not current)"
        )
        return None
    shapes, larger, left = space.cases("shapes"), space.cases("larger"), gpu_cases(space)
    assert shapes is not None and larger is not None and left is not None
    inside: dict[str, dict[str, float]] = {"seen": {}, "left out": {}}
    for kind, word, summary in interval_rows(space):
        inside[kind][word] = round(summary.inside_pct, 1)
    return {
        "made_by": "python -m benchmarks.accuracy: the identical recipe without the rows it is tested on",
        "unit": "mean absolute percentage error against what the publisher measured, launch gap included",
        "shapes_held_out_pct": _per_group(shapes, shapes.source),
        "larger_shapes_pct": _per_group(larger, larger.source),
        "gpu_left_out_pct": _per_group(left, left.gpu),
        "interval_90_inside_pct": inside,
    }


def _per_group(cases: KernelCases, column: np.ndarray) -> dict[str, dict[str, float]]:
    words = label_column(cases)
    found: dict[str, dict[str, float]] = {}
    for word in sorted(set(words.tolist())):
        for group in sorted(set(column[words == word].tolist())):
            mine = cases.take((words == word) & (column == group))
            found.setdefault(word, {})[str(group)] = round(float(mine.errors_pct().mean()), 1)
    return found
