"""Judge half and eighth precision on Ada and Hopper: FP8, INT8 and weight-only products, and what an L40S left out gets.

Frameworks run different kernels on one shape, so a case's ``source`` is its kernel's variant, which names the framework.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from gkestimator.evaluation.cases import KernelCases, predict_cases
from gkestimator.evaluation.splits import HELD_OUT
from gkestimator.training.plan import PLANS
from gkestimator.training.rows import TrainingRows, shape_hash

from .figures import kernel_intervals
from .lines import Expected, Line, expected_of_kernels, line
from .sections import Section
from .workspace import SEED, Workspace

_MOST_TESTED = 30_000
_HALF = ("bf16", "fp16")
_FP8_PLANS = tuple(
    name for name, plan in PLANS.items() if name.startswith("gemm_fp8") and plan.scope == "seen"
)
_INSIDE_SEEN = (85.0, 95.0)
_INSIDE_UNSEEN = 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Hold one experiment: the rows it is about, what is left out of training, and the regressors that are trained.

    ``gpus``: left out wholly; none are shapes, or, where ``source`` names one, that source. ``bar``: of the mean error,
    percent; None where it is only reported.
    """

    name: str
    title: str
    family: str
    precisions: tuple[str, ...]
    plans: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    source: str = ""
    bar: float | None = None

    def subject(self, rows: TrainingRows) -> np.ndarray:
        """Return the mask of the rows that it is about."""
        table = rows.table
        return (table.family == self.family) & np.isin(table.precision.astype(str), self.precisions)

    def left_out(self, rows: TrainingRows) -> np.ndarray:
        """Return the mask of the rows that are left out and tested."""
        if self.gpus:
            return np.isin(rows.gpu.astype(str), self.gpus)
        if self.source:
            return np.asarray(rows.source.astype(str) == self.source)
        return np.asarray(shape_hash(rows.table) < HELD_OUT)


_HOPPER = ("H100-SXM", "H800-SXM")
EXPERIMENTS = (
    Experiment(
        name="eighth-fp8",
        title="FP8 GEMM, shapes held out",
        family="linear",
        precisions=("fp8",),
        plans=_FP8_PLANS,
        bar=6,
    ),
    Experiment(
        name="eighth-fp8-h20",
        title="FP8 GEMM, H20 from the others",
        family="linear",
        precisions=("fp8",),
        plans=("gemm_fp8_unseen",),
        gpus=("H20",),
        bar=12,
    ),
    Experiment(
        name="eighth-bf16-l40s",
        title="bf16 GEMM, L40S left out",
        family="linear",
        precisions=_HALF,
        plans=("gemm_half_unseen",),
        gpus=("L40S",),
        bar=10,
    ),
    Experiment(
        name="eighth-context-l40s",
        title="context attention, L40S left out",
        family="attention",
        precisions=_HALF,
        plans=("attention_unseen",),
        gpus=("L40S",),
        bar=20,
    ),
    Experiment(
        name="eighth-fp8-authors",
        title="FP8 GEMM, PipeWeave's own test split",
        family="linear",
        precisions=("fp8",),
        plans=("gemm_fp8",),
        source="pipeweave/test",
    ),
    Experiment(
        name="eighth-int8",
        title="INT8 GEMM, shapes held out",
        family="linear",
        precisions=("int8",),
        plans=("gemm_int8", "gemm_int8_sglang"),
    ),
    Experiment(
        name="eighth-weights",
        title="products with weights of 8 bits, shapes held out",
        family="linear",
        precisions=("w8a16",),
        plans=("gemm_weight_only",),
    ),
    Experiment(
        name="eighth-fp8-hopper",
        title="FP8 GEMM, H100 and H800 left out",
        family="linear",
        precisions=("fp8",),
        plans=("gemm_fp8_unseen",),
        gpus=_HOPPER,
    ),
    Experiment(
        name="eighth-fp8-l40s",
        title="FP8 GEMM, L40S left out",
        family="linear",
        precisions=("fp8",),
        plans=("gemm_fp8_unseen",),
        gpus=("L40S",),
    ),
    Experiment(
        name="eighth-weights-l40s",
        title="products with weights of 8 bits, L40S left out",
        family="linear",
        precisions=("w8a16",),
        plans=("gemm_weight_only",),
        gpus=("L40S",),
    ),
)


def _run(space: Workspace, experiment: Experiment) -> None:
    plans = tuple(PLANS[name] for name in experiment.plans)
    own = Path(__file__).read_text(encoding="utf-8")
    key = [experiment.name, space.data_key, space.recipe_key, space.judge_key, *map(repr, plans), own]
    if space.current(experiment.name, key):
        return
    subject = np.flatnonzero(experiment.subject(space.rows))
    out = experiment.left_out(space.rows.take(subject))
    bundle = space.bundle(experiment.name, subject[~out], plans)
    test = subject[out]
    if len(test) > _MOST_TESTED:
        test = np.sort(np.random.default_rng(SEED).choice(test, _MOST_TESTED, replace=False))
    rows = space.rows.take(test)
    cases = predict_cases(bundle, rows, space.gpus)
    if experiment.family == "linear" and experiment.precisions != _HALF:
        cases = replace(cases, source=rows.table.variant.astype(str))
    space.keep(experiment.name, key, cases)


def _expected(space: Workspace) -> Iterator[Expected]:
    """Yield the first page's rows of the experiments that have a bar."""
    for experiment in EXPERIMENTS:
        cases = space.cases(experiment.name)
        if experiment.bar is not None and cases is not None:
            yield expected_of_kernels(experiment.title, f"{len(np.unique(cases.gpu))} GPUs", cases)


def _inside(cases: KernelCases) -> float | None:
    summary = kernel_intervals(cases)
    if summary is None:
        return None
    return summary.inside_pct


def _lines(space: Workspace) -> Iterator[Line]:
    for experiment in EXPERIMENTS:
        if experiment.bar is None:
            continue
        cases = space.cases(experiment.name)
        if cases is None:
            yield line(experiment.title, experiment.bar, None)
            continue
        beside = float(np.mean(cases.errors_pct("roofline")))
        more = f" (n {len(cases)}, roofline {beside:.0f} %)"
        yield line(experiment.title, experiment.bar, float(np.mean(cases.errors_pct())), more=more)
        yield _inside_line(experiment, cases)


def _inside_line(experiment: Experiment, cases: KernelCases) -> Line:
    low, high = _INSIDE_SEEN
    if experiment.gpus:
        low, high = _INSIDE_UNSEEN, 100.0
    inside = _inside(cases)
    assert inside is not None
    return Line(
        what=f"{experiment.title}: share inside",
        bar=f"{low:g}-{high:g} %",
        figure=f"{inside:.1f} %",
        met=low <= inside <= high,
    )


def _page(space: Workspace) -> list[str] | None:
    if all(space.cases(experiment.name) is None for experiment in EXPERIMENTS):
        return None
    text = [
        "Mean and median are absolute errors in percent of the published time; `inside` is the share of the 90 % intervals",
        "that hold it. A published time of FP8 holds the kernel that quantises the activations, where the framework launches",
        "one: it is estimated as a kernel of its own and counts in estimate and roofline alike. In an estimate,",
        "`--dtype fp8` stands for vLLM's kernels (`scaled.vllm`); `scaled` is a product of operands that are in 8 bits",
        "already. Frameworks differ by half and more on one shape, so that the framework is part of the kernel.",
        "",
        "Two remarks. The tile of FP8 products on Hopper, one of 128 x 128, was chosen with H20's times in view, since those of",
        "H100 and H800 fit several tiles alike: H20's figure is not wholly blind. L40S's misses its bar after three ways: a",
        "clock that follows the power limit and weights that are read from DRAM (this figure), the constants of the RTX PRO",
        "6000 alone, and training without older GPUs; estimates stay somewhat too fast.",
    ]
    for experiment in EXPERIMENTS:
        cases = space.cases(experiment.name)
        if cases is not None:
            text += ["", f"## {experiment.title}", "", *_table(cases)]
    return text


def _table(cases: KernelCases) -> list[str]:
    rows = ["| GPU | kernel | n | median | mean | roofline, mean | inside |", "|---|---|---|---|---|---|---|"]
    rows.append(_row("all", "all", cases))
    for gpu in np.unique(cases.gpu):
        of_gpu = cases.where(gpu=str(gpu))
        for source in np.unique(of_gpu.source):
            rows.append(_row(str(gpu), f"`{source}`", of_gpu.where(source=str(source))))
    return rows


def _row(gpu: str, kernel: str, cases: KernelCases) -> str:
    errors = cases.errors_pct()
    beside = float(np.mean(cases.errors_pct("roofline")))
    inside = _inside(cases)
    figures: Sequence[str] = (
        f"{len(cases)}",
        f"{np.median(errors):.1f}",
        f"{np.mean(errors):.1f}",
        f"{beside:.0f}",
        "-" if inside is None else f"{inside:.0f}",
    )
    return f"| {gpu} | {kernel} | {' | '.join(figures)} |"


SECTION = Section(
    title="Half and eighth precision on Ada and Hopper",
    jobs={experiment.name: partial(_run, experiment=experiment) for experiment in EXPERIMENTS},
    lines=_lines,
    page=_page,
    expected=_expected,
)
