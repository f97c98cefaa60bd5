"""Judge attention of decoding sequences (one query each), and whole decoding steps put together from public tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gkestimator.evaluation.cases import KernelCases, predict_cases
from gkestimator.evaluation.metrics import summarise
from gkestimator.evaluation.splits import HELD_OUT, chip_of, hold_out_chip
from gkestimator.kernel_models.features.decode import FRAMEWORKS
from gkestimator.training.plan import PLANS
from gkestimator.training.rows import TrainingRows, by_gpu, shape_hash

from .decode_steps import STEPS, VECTORS, run_steps, run_vectors, steps_page, vectors_page
from .lines import Expected, Line, expected_of_kernels, line
from .sections import Section
from .workspace import SEED, Workspace

SHAPES_BAR = 10.0
GPU_BAR = 20.0
STEP_BAR = 10.0
SHAPES = "decode-shapes"
GPUS = ("A100-SXM4-80GB", "H100-SXM", "L40S", "RTX-PRO-6000")
_MOST_TESTED = 20_000  # of each GPU
_TYPICAL = "typical"


def framework_of(rows: TrainingRows) -> np.ndarray:
    """Return whose kernel each row is, with ``fp8`` where the cache is; ``typical`` is the median over frameworks."""
    names = np.full(len(rows), _TYPICAL, dtype=object)
    for framework in FRAMEWORKS:
        names[rows.table.has_word(framework)] = framework
    names[rows.table.has_word("uncut")] = "FlashAttention-2, uncut"
    return names


def _decode_rows(space: Workspace) -> np.ndarray:
    return np.flatnonzero(space.rows.table.family.astype(str) == "decode")


def _some(rows: TrainingRows, index: np.ndarray) -> np.ndarray:
    """Return at most 20,000 of the rows ``index`` of each GPU, drawn evenly."""
    rng = np.random.default_rng(SEED)
    drawn = []
    for _, mine in by_gpu(rows.gpu[index]):
        few = mine
        if len(mine) > _MOST_TESTED:
            few = rng.choice(mine, _MOST_TESTED, replace=False)
        drawn.append(index[few])
    return np.sort(np.concatenate(drawn))


def _judge(space: Workspace, job: str, plan: str, train: np.ndarray, test: np.ndarray) -> None:
    own = Path(__file__).read_text(encoding="utf-8")
    key = [job, space.data_key, space.recipe_key, space.judge_key, repr(PLANS[plan]), own]
    if space.current(job, key):
        return
    bundle = space.bundle(job, train, (PLANS[plan],))
    rows = space.rows.take(_some(space.rows, test))
    named = replace(rows, source=framework_of(rows))
    space.keep(job, key, predict_cases(bundle, named, space.gpus))
    space.tell(f"{job}: {len(rows):,} rows predicted")


def shapes(space: Workspace) -> None:
    """Shapes left out on every GPU and from every framework."""
    index = _decode_rows(space)
    out = shape_hash(space.rows.table.take(index)) < HELD_OUT
    _judge(space, SHAPES, "decode", index[~out], index[out])


def left_out(space: Workspace, gpu: str) -> None:
    """One GPU left out with all boards of its chip."""
    split = hold_out_chip(space.rows, chip_of(gpu, space.gpus))
    index = _decode_rows(space)
    rows = space.rows
    mine = index[rows.gpu[index] == gpu]
    _judge(space, gpu_job(gpu), "decode_unseen", np.intersect1d(split.train, index), mine)


def gpu_job(gpu: str) -> str:
    """Return the name of the experiment that leaves ``gpu`` out."""
    return f"decode-gpu-{gpu}"


def _mean(values: list[float]) -> float | None:
    if not values:
        return None
    return float(np.mean(values))


def _served(cases: KernelCases) -> KernelCases:
    """Return the cases of serving frameworks and their median, without uncut kernels."""
    return cases.take(np.isin(cases.source.astype(str), (*FRAMEWORKS, _TYPICAL)))


def lines(space: Workspace) -> Iterator[Line]:
    """Yield the three bars; each GPU left out counts the same."""
    cases = space.cases(SHAPES)
    value = None
    more = ""
    if cases is not None:
        served = _served(cases)
        errors = served.errors_pct()
        value = float(errors.mean())
        more = _beside(served)
    yield line("decode attention, held-out shapes", SHAPES_BAR, value, more=more)
    means = []
    bare = []
    typical = []
    for gpu in GPUS:
        left = space.cases(gpu_job(gpu))
        if left is not None:
            means.append(float(_served(left).errors_pct().mean()))
            bare.append(float(_served(left).errors_pct("roofline").mean()))
            typical.append(float(left.where(source=_TYPICAL).errors_pct().mean()))
    more = ""
    if bare:
        each = ", ".join(f"{m:.1f}" for m in means)
        alone = np.mean(typical)
        more = f" (mean of {len(means)} GPUs: {each}; typical kernel {alone:.1f} %; roofline {np.mean(bare):.0f} %)"
    yield line("decode attention, GPU left out", GPU_BAR, _mean(means), more=more)
    steps = space.listed(STEPS)
    value = None
    more = ""
    if steps:
        errors = np.array([float(s["error_pct"]) for s in steps])  # type: ignore[arg-type]
        roofs = np.array([float(s["roofline_pct"]) for s in steps])  # type: ignore[arg-type]
        value = float(errors.mean())
        more = f" ({len(errors)} steps, median {np.median(errors):.1f} %, roofline {roofs.mean():.0f} %)"
    yield line("decode of a whole decoder, from shared tables", STEP_BAR, value, more=more)


def expected(space: Workspace) -> Iterator[Expected]:
    """Yield the first page's rows: new shapes, and GPUs left out together."""
    shapes_left = space.cases(SHAPES)
    if shapes_left is not None:
        yield expected_of_kernels(
            "attention of a decoding step, new shapes", f"{len(GPUS)} GPUs", _served(shapes_left)
        )
    left = [cases for gpu in GPUS if (cases := space.cases(gpu_job(gpu))) is not None]
    if left:
        together = KernelCases.concatenate([_served(cases) for cases in left])
        yield expected_of_kernels("attention of a decoding step, new GPU", f"{len(left)} GPUs", together)


def _beside(cases: KernelCases) -> str:
    errors = cases.errors_pct()
    bare = cases.errors_pct("roofline")
    return f" (median {np.median(errors):.1f} %, {len(errors):,} rows, roofline {bare.mean():.0f} %)"


_HEAD = ["| GPU | whose kernel | rows | mean | median | roofline | inside |", "|---|---|---|---|---|---|---|"]


def _table(cases: KernelCases) -> Iterator[str]:
    """Yield a row for each GPU and framework."""
    yield from _HEAD
    for gpu in np.unique(cases.gpu):
        for framework in np.unique(cases.source.astype(str)):
            part = cases.where(gpu=str(gpu), source=str(framework))
            summary = summarise(part.errors_pct())
            if summary is None:
                continue
            roof = part.errors_pct("roofline").mean()
            inside = (part.low_us <= part.measured_us) & (part.measured_us <= part.high_us)
            yield (
                f"| {gpu} | {framework} | {summary.n:,} | {summary.mean:.1f} % | {summary.median:.1f} % "
                f"| {roof:.0f} % | {100 * inside.mean():.0f} % |"
            )


_FOREWORD = [
    "A decoder that makes its next token reads the keys and values of all tokens before: attention with one query a",
    "sequence. The framework whose kernel runs is an input of these tables (one shape differs by 1.4 to 1.6 times between",
    "them); `typical`, the median of the frameworks that measured a shape, is what an estimate assumes where nobody says",
    "whose kernel will run (runtimes torch and onnxruntime; `tensorrt` takes TensorRT-LLM's). All were measured on a cache",
    "of keys and values that stays in L2 from the last call while it fits. In a model it does not, because the weights of a",
    "step push it out: estimates of models are those of a cold cache.",
]


def page(space: Workspace) -> list[str] | None:
    """Return the page below its title; None before anything was run."""
    cases = space.cases(SHAPES)
    if cases is None:
        return None
    out = [*_FOREWORD, "", "## Held-out shapes", "", *_table(cases)]
    parts = []
    for gpu in GPUS:
        left = space.cases(gpu_job(gpu))
        if left is not None:
            parts.append(left)
    if parts:
        out += ["", "## GPU left out", "", *_table(KernelCases.concatenate(parts))]
    return [*out, *steps_page(space), *vectors_page(space)]


SECTION = Section(
    title="Decoding: attention with one query, and whole steps",
    jobs={
        SHAPES: shapes,
        **{gpu_job(gpu): partial(left_out, gpu=gpu) for gpu in GPUS},
        STEPS: run_steps,
        VECTORS: run_vectors,
    },
    lines=lines,
    page=page,
    expected=expected,
)
