"""Judge whole decoding steps and prompts of language models, summed from kernels that were measured alone.

What ``gkest llm`` calculates a step of is taken from it, kernel by kernel: the products and the attention of one layer times
the layers, and the output layer. Where a public table has the same product (m, n, k) or the same attention (sequences,
keys, heads, key-value heads, head size) on the same GPU, its time stands beside the estimate. Nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.dtypes import DType
from gkestimator.core.kernels import WARM_CACHE, Family, Kernel, KernelTable
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.intervals import widen
from gkestimator.estimation.request import EstimateRequest
from gkestimator.evaluation.splits import chip_of, hold_out_chip
from gkestimator.kernel_models.prediction import KernelPredictions
from gkestimator.kernel_models.steady import sustained
from gkestimator.llm.configs import read_decoder
from gkestimator.llm.decoder import Decoder
from gkestimator.llm.parts import Pass
from gkestimator.llm.sharing import shared_between
from gkestimator.llm.source import pass_graph
from gkestimator.training.plan import PLANS, ModelPlan

from .lines import Expected, Line, expected_of_models, line
from .llm_measured import GPUS, Measured, Table, measured_kernels
from .llm_steps_page import Step, errors_pct, inside, steps_page
from .sections import Section
from .workspace import ROOT, Workspace

SHAPES = "llm_steps-shapes"
WEIGHTS = "llm_steps-weights"
LEFT_OUT = "llm_steps-L40S"
_UNSEEN = "L40S"
_SHAPES_BAR = 10.0
_GPU_BAR = 20.0
_CONFIGURATIONS = ROOT / "tests/data/decoders"
DECODERS = (
    ("llama-3.1-8b", 1),
    ("llama-3.1-8b", 4),
    ("llama-3.1-70b", 8),
    ("qwen3-8b", 1),
    ("qwen3-8b", 2),
    ("opt-6.7b", 1),
    ("llama-2-7b", 1),
    ("llama-3.2-1b", 1),
)
"""Configurations whose products stand in the tables, and the GPUs that share one: a GPU's part of it is judged."""
BATCHES = (1, 8, 64)
CONTEXTS = (512, 4096, 32_768)
LONGEST_PROMPT = 16_384
"""Longest prompt whose attention was measured."""
_PLANS = ("gemm_half", "attention", "decode")
_FAMILIES = (Family.LINEAR, Family.ATTENTION, Family.DECODE)

Sizes: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Hold one pass of one GPU's part of a decoder: ``context`` keys; ``prompt`` says that all of them are new."""

    model: str
    gpus: int
    decoder: Decoder
    fused: bool
    batch: int
    context: int
    prompt: bool

    def run(self) -> Pass:
        """Return the pass."""
        tokens = self.context if self.prompt else 1
        return Pass(
            batch=self.batch,
            tokens=tokens,
            past=self.context - tokens,
            dtype=DType.BFLOAT16,
            cache=DType.BFLOAT16,
            fused=self.fused,
            merged=self.fused,
        )


Counts: TypeAlias = Mapping[Kernel, int]
"""How often each kernel of a pass runs."""


def cases() -> Iterator[Case]:
    """Yield every pass that is asked for, in both forms."""
    for model, gpus in DECODERS:
        decoder = shared_between(read_decoder(_CONFIGURATIONS / f"{model}.json"), gpus)
        for prompt in (False, True):
            contexts = (*CONTEXTS[:-1], LONGEST_PROMPT, CONTEXTS[-1]) if prompt else CONTEXTS
            for context in contexts:
                for batch in BATCHES:
                    for fused in (True, False):
                        yield Case(model, gpus, decoder, fused, batch, context, prompt)


def lowered(asked: Sequence[Case], gpu: str) -> list[Counts]:
    """Return the kernels of every pass on ``gpu``, as ``gkest llm`` lowers them."""
    engine = Engine(EstimateRequest((Path("decoder"),), (gpu,), runtime="torch", dtype="bf16"))
    passes = []
    for case in asked:
        (lowering,) = engine.lower_graphs(case.model, [pass_graph(case.decoder, case.run())]).values()
        counts: dict[Kernel, int] = {}
        for step in lowering.graph.steps:
            for kernel in step.kernels:
                counts[kernel] = counts.get(kernel, 0) + step.repeat
        passes.append(counts)
    return passes


def _sizes(table: KernelTable, index: np.ndarray, *, any_rows: bool) -> list[Sizes]:
    """Return family and sizes of the products of each row, which tell one shape from another whatever its traffic.

    ``any_rows``: products with one weight are alike, however many rows they multiply.
    """
    columns = [table.columns[f"gemm_{name}"][index] for name in ("batch", "m", "n", "k")]
    linear = table.family[index] == Family.LINEAR
    if any_rows:
        columns[1] = np.where(linear, 0.0, columns[1])
    family = table.family[index].astype(str)
    return list(zip(family.tolist(), *(column.tolist() for column in columns), strict=True))


def _asked_for(table: KernelTable, passes: Sequence[Counts], *, any_rows: bool) -> np.ndarray:
    """Return the mask of the rows of ``table`` that have the sizes of a product or attention of ``passes``."""
    distinct: dict[Kernel, None] = {}
    for counts in passes:
        distinct.update(dict.fromkeys(counts))
    kernels = KernelTable.from_kernels(list(distinct))
    asked = set(_sizes(kernels, np.flatnonzero(kernels.is_of(_FAMILIES)), any_rows=any_rows))
    mine = np.flatnonzero(table.is_of(_FAMILIES))
    mask = np.zeros(len(table), dtype=bool)
    mask[mine] = [sizes in asked for sizes in _sizes(table, mine, any_rows=any_rows)]
    return mask


def shapes(space: Workspace, *, job: str = SHAPES, any_rows: bool = False) -> None:
    """Judge on three GPUs; every shape of every pass is left out on all GPUs and from all publishers.

    ``any_rows``: so are products of other numbers of tokens with the passes' weights.
    """
    plans = tuple(PLANS[name] for name in _PLANS)
    asked = list(cases())

    def train() -> np.ndarray:
        passes: list[Counts] = []
        for gpu in GPUS:
            passes += lowered(asked, gpu)
        out = _asked_for(space.rows.table, passes, any_rows=any_rows)
        return np.flatnonzero(_trained_on(space, plans) & ~out)

    _judge(space, job, plans, train, asked, GPUS[:3])


def left_out(space: Workspace) -> None:
    """Judge on the L40S, of which nothing was trained on."""
    plans = tuple(PLANS[f"{name}_unseen"] for name in _PLANS)

    def train() -> np.ndarray:
        split = hold_out_chip(space.rows, chip_of(_UNSEEN, space.gpus))
        return np.intersect1d(split.train, np.flatnonzero(_trained_on(space, plans)))

    _judge(space, LEFT_OUT, plans, train, list(cases()), (_UNSEEN,))


def _trained_on(space: Workspace, plans: Sequence[ModelPlan]) -> np.ndarray:
    mask = np.zeros(len(space.rows), dtype=bool)
    for plan in plans:
        mask |= plan.mask(space.rows)
    return mask


def _judge(
    space: Workspace,
    job: str,
    plans: Sequence[ModelPlan],
    train: Callable[[], np.ndarray],
    asked: list[Case],
    gpus: Sequence[str],
) -> None:
    """Compare the passes ``asked`` on ``gpus`` by a bundle of ``plans`` from the rows of ``train()``, unless that is kept."""
    folder = Path(__file__).parent
    own = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in ("llm_steps", "llm_measured")]
    key = [job, space.data_key, space.product_key, *map(repr, plans), *own]
    if space.current(job, key):
        return
    bundle = space.bundle(job, train(), plans)
    table = measured_kernels(space.shared / "data")
    steps = []
    for gpu in gpus:
        steps += list(best_forms(_compared(space, bundle, table, asked, gpu)))
    space.keep(job, key, steps)
    space.tell(f"{job}: {len(steps):,} steps and prompts")


@dataclass(frozen=True, slots=True)
class Matched:
    """Hold a pass: its kernels, how often each runs, each as its publisher ran it, and its measurement if there is one."""

    case: Case
    kernels: list[Kernel]
    times: np.ndarray
    repeated: list[Kernel]
    rows: list[Measured | None]


def matched(case: Case, counts: Counts, table: Table, gpu: str) -> Matched:
    """Return the pass with what ``table`` has of its kernels on ``gpu``."""
    rows = [table.get((gpu, *measured_as(kernel, case))) for kernel in counts]
    return Matched(
        case=case,
        kernels=list(counts),
        times=np.array(list(counts.values()), dtype=np.float64),
        repeated=[as_measured(kernel, row) for kernel, row in zip(counts, rows, strict=True)],
        rows=rows,
    )


def _compared(
    space: Workspace, bundle: Bundle, table: Table, asked: Sequence[Case], gpu: str
) -> Iterator[Step]:
    """Yield each pass on ``gpu`` of which something was measured."""
    passes = [
        matched(case, counts, table, gpu) for case, counts in zip(asked, lowered(asked, gpu), strict=True)
    ]
    kernels: dict[Kernel, int] = {}
    for one in passes:
        for kernel in (*one.kernels, *one.repeated):
            kernels.setdefault(kernel, len(kernels))
    everything = KernelTable.from_kernels(list(kernels))
    spec = space.gpus[gpu]
    predictions = sustained(bundle.predict(everything, spec), everything, spec, 100.0)
    for one in passes:
        if any(one.rows):
            said = predictions.take(np.array([kernels[kernel] for kernel in one.kernels]))
            repeated = predictions.take(np.array([kernels[kernel] for kernel in one.repeated]))
            yield _record(one, gpu, said, repeated)


def as_measured(kernel: Kernel, row: Measured | None) -> Kernel:
    """Return decode attention as its publisher ran it: again and again on one cache, that stays in L2 if it fits, and by
    the framework that alone measured it.
    """
    if row is None or kernel.family != Family.DECODE:
        return kernel
    words = (kernel.variant, WARM_CACHE, row.kernel)
    return replace(kernel, variant=".".join(filter(None, words)))


def measured_as(kernel: Kernel, case: Case) -> tuple[str, tuple[int, ...]]:
    """Return the kind and sizes under which a table of measurements has ``kernel``."""
    shape = kernel.gemm
    if shape is not None and kernel.family == Family.LINEAR:
        return "product", (shape.m, shape.n, shape.k)
    if shape is not None and kernel.family in (Family.ATTENTION, Family.DECODE):
        kind = "decode" if kernel.family == Family.DECODE else "prefill"
        sequences = shape.batch // case.decoder.heads
        return kind, (sequences, shape.n, case.decoder.heads, case.decoder.kv_heads, shape.k)
    return "", ()


def _record(one: Matched, gpu: str, said: KernelPredictions, repeated: KernelPredictions) -> Step:
    """Return one line: the measured part of the pass, its estimate as measured (``repeated``) and as ``gkest llm`` says it."""
    case = one.case
    at = np.flatnonzero([row is not None for row in one.rows])
    rows = [row for row in one.rows if row is not None]
    measured = one.times[at] * np.array([row.time_us for row in rows])
    spans = one.times[at] * repeated.duration_us[at]
    attention = np.array([one.kernels[index].family != Family.LINEAR for index in at])
    said_us = one.times * said.duration_us
    low, high = _interval(repeated.take(at), spans)
    return {
        "gpu": gpu,
        "model": case.model,
        "gpus": case.gpus,
        "form": "fused" if case.fused else "composed",
        "kind": "prompt" if case.prompt else "step",
        "batch": case.batch,
        "context": case.context,
        "whole": _whole_layers(one),
        "share_pct": 100 * float(said_us[at].sum() / said_us.sum()),
        "sources": "+".join(sorted({row.source for row in rows})),
        "kernel": "".join(row.kernel for row in rows),
        "measured_ms": float(measured.sum()) / 1e3,
        "estimated_ms": float(spans.sum()) / 1e3,
        "said_ms": float(said_us[at].sum()) / 1e3,
        "low_ms": low / 1e3,
        "high_ms": high / 1e3,
        "roofline_ms": float((one.times[at] * repeated.roofline_us[at]).sum()) / 1e3,
        "product_measured_ms": float(measured[~attention].sum()) / 1e3,
        "product_estimated_ms": float(spans[~attention].sum()) / 1e3,
        "attention_measured_ms": float(measured[attention].sum()) / 1e3,
        "attention_estimated_ms": float(spans[attention].sum()) / 1e3,
    }


def _whole_layers(one: Matched) -> bool:
    """Return whether every product and the attention of the layers were measured; the output layer runs once."""
    for kernel, row in zip(one.kernels, one.rows, strict=True):
        head = kernel.gemm is not None and kernel.gemm.n == one.case.decoder.vocabulary
        if row is None and kernel.family in _FAMILIES and not head:
            return False
    return True


def _interval(predictions: KernelPredictions, spans: np.ndarray) -> tuple[float, float]:
    """Return the 90 % interval of a sum, as an estimate of a model has it."""
    half = np.log(predictions.high_us / np.maximum(predictions.duration_us, 1e-9))
    factor = widen(spans, np.arange(len(spans)), half, predictions.in_range, predictions.trained)
    return float((spans * np.exp(-factor * half)).sum()), float((spans * np.exp(factor * half)).sum())


def best_forms(steps: Iterator[Step]) -> Iterator[Step]:
    """Yield each pass in the form of which more was measured, the fused one where both are even."""
    chosen: dict[tuple[Any, ...], Step] = {}
    for step in steps:
        name = tuple(step[part] for part in ("gpu", "model", "gpus", "kind", "batch", "context"))
        other = chosen.get(name)
        # Layers that are wholly measured go before a larger share.
        if other is None or (step["whole"], step["share_pct"] - 1) > (other["whole"], other["share_pct"]):
            chosen[name] = step
    yield from chosen.values()


def counted(space: Workspace, gpu: str) -> list[Step]:
    """Return the steps and prompts on ``gpu`` all of whose layers' products and attention were measured."""
    job = LEFT_OUT if gpu == _UNSEEN else SHAPES
    return [step for step in space.listed(job) or [] if step["gpu"] == gpu and step["whole"]]


def lines(space: Workspace) -> Iterator[Line]:
    """Yield a bar for each GPU."""
    for gpu in GPUS:
        steps = counted(space, gpu)
        bar = _GPU_BAR if gpu == _UNSEEN else _SHAPES_BAR
        held = "GPU left out" if gpu == _UNSEEN else "held-out shapes"
        value = None
        more = ""
        if steps:
            value = float(errors_pct(steps).mean())
            roof = errors_pct(steps, "roofline_ms").mean()
            said = errors_pct(steps, "said_ms").mean()
            more = f" ({len(steps)} steps and prompts, as gkest llm says them {said:.1f} %, roofline {roof:.0f} %)"
        yield line(f"language models on {gpu}, {held}", bar, value, more=more)


def expected(space: Workspace) -> Iterator[Expected]:
    """Yield the first page's rows: new shapes, and a GPU left out."""
    for what, gpus, where in (("new shapes", GPUS[:3], "3 GPUs"), ("new GPU", (_UNSEEN,), _UNSEEN)):
        steps = [step for gpu in gpus for step in counted(space, gpu)]
        if steps:
            held = 100 * float(np.mean([inside(step) for step in steps]))
            yield expected_of_models(
                f"steps and prompts of language models, {what}",
                where,
                errors_pct(steps).tolist(),
                errors_pct(steps, "roofline_ms").tolist(),
                held,
            )


def page(space: Workspace) -> list[str] | None:
    """Return the page below its title; None before anything was run."""
    steps = [*(space.listed(SHAPES) or []), *(space.listed(LEFT_OUT) or [])]
    if not steps:
        return None
    return steps_page(steps, space.listed(WEIGHTS) or [])


SECTION = Section(
    title="Language models: whole steps and prompts",
    jobs={SHAPES: shapes, WEIGHTS: partial(shapes, job=WEIGHTS, any_rows=True), LEFT_OUT: left_out},
    lines=lines,
    page=page,
    expected=expected,
)
