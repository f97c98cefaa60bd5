"""Judge recurrent layers: LSTM and GRU of sizes left out, and on GPUs left out with every board of their chip.

There are 315 rows of 110 layers, too few for one part of 15 %: every row is left out once, in five parts by a hash of the
layer (the same on all GPUs and in both precisions), each with the rest as the only training rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.evaluation.cases import KernelCases, predict_cases
from gkestimator.evaluation.metrics import summarise
from gkestimator.evaluation.splits import chips
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.training.importers.deepbench_rnn import recurrent_rows
from gkestimator.training.plan import PLANS
from gkestimator.training.recipe import fit_bundle
from gkestimator.training.rows import TrainingRows
from gkestimator.training.train import training_gpus

from .figures import kernel_intervals
from .lines import Expected, Line, expected_of_kernels, line
from .sections import Section
from .tables import markdown, number
from .workspace import SEED, Workspace

PARTS = 5
INSIDE = (85.0, 95.0)
LAYERS, SIZES, GPUS = "rnn-layers", "rnn-sizes", "rnn-gpus"
BARS = {LAYERS: 15.0, SIZES: 15.0, GPUS: 30.0}
WORDS = {
    LAYERS: "layers left out (cell, hidden, batch, steps)",
    SIZES: "sizes left out (cell, hidden, batch, whatever the steps)",
    GPUS: "GPU left out with every board of its chip",
}
_BY_SIZE = ("gemm_k", "gemm_m")
_BY_LAYER = (*_BY_SIZE, "gemm_batch")


def layer_parts(table: KernelTable, columns: Sequence[str]) -> np.ndarray:
    """Return a part from 0 for every row, by a hash of the cell and ``columns``: no precision, no GPU."""
    parts = np.empty(len(table), dtype=int)
    for row in range(len(table)):
        sizes = [f"{table.columns[name][row]:.0f}" for name in columns]
        word = "|".join([str(table.variant[row]), *sizes])
        parts[row] = zlib.crc32(word.encode()) % PARTS
    return parts


def chip_parts(rows: TrainingRows, gpus: dict[str, GpuSpec]) -> np.ndarray:
    """Return a part for every row: the number of its chip."""
    parts = np.empty(len(rows), dtype=int)
    for number_of_chip, boards in enumerate(chips(rows, gpus)):
        parts[np.isin(rows.gpu.astype(str), sorted(boards))] = number_of_chip
    return parts


def measured(space: Workspace) -> tuple[TrainingRows, dict[str, GpuSpec]]:
    """Return the rows of recurrent layers, and their GPUs."""
    rows = recurrent_rows(space.shared / "data/deepbench/rnn_forward.parquet")
    catalogue = gpu_catalogue(training_gpus())
    return rows, {name: catalogue.spec(name) for name in np.unique(rows.gpu.astype(str)).tolist()}


def run(space: Workspace, name: str) -> None:
    """Leave every part out once, and keep what the rest says of it; the family of a case is its cell."""
    plan = PLANS["rnn_unseen"] if name == GPUS else PLANS["rnn"]
    own = Path(__file__).read_text(encoding="utf-8")
    key = [name, space.data_key, space.recipe_key, space.judge_key, repr(plan), own]
    if space.current(name, key):
        return
    rows, gpus = measured(space)
    if name == GPUS:
        parts = chip_parts(rows, gpus)
    else:
        parts = layer_parts(rows.table, _BY_LAYER if name == LAYERS else _BY_SIZE)
    answers = []
    for part in np.unique(parts):
        test = rows.take(parts == part)
        fitted = fit_bundle([rows.take(parts != part)], gpus, seed=SEED, plans=(plan,), geometry=False)
        cases = predict_cases(fitted.bundle, test, gpus)
        answers.append(replace(cases, family=test.table.variant.astype(str)))
    space.keep(name, key, KernelCases.concatenate(answers))


def _lines(space: Workspace) -> Iterator[Line]:
    for name, bar in BARS.items():
        cases = space.cases(name)
        what = f"LSTM and GRU, {WORDS[name]}"
        if cases is None:
            yield line(f"{what}: mean error", bar, None)
            continue
        beside = float(np.mean(cases.errors_pct("roofline")))
        error = float(np.mean(cases.errors_pct()))
        yield line(f"{what}: mean error", bar, error, more=f" (n {len(cases)}, roofline {beside:.0f} %)")
        yield _inside_line(what, cases)


def _inside_line(what: str, cases: KernelCases) -> Line:
    low, high = INSIDE
    summary = kernel_intervals(cases)
    assert summary is not None
    return Line(
        what=f"{what}: share inside",
        bar=f"{low:g}-{high:g} %",
        figure=f"{summary.inside_pct:.1f} %",
        met=low <= summary.inside_pct <= high,
    )


def _expected(space: Workspace) -> Iterator[Expected]:
    for name, where in ((LAYERS, "GPUs measured"), (GPUS, "GPUs not measured")):
        cases = space.cases(name)
        if cases is None:
            continue
        yield expected_of_kernels("LSTM and GRU layers (fp32, fp16)", where, cases)


def _page(space: Workspace) -> list[str] | None:
    if any(space.cases(name) is None for name in BARS):
        return None
    rows, _ = measured(space)
    text = [
        f"DeepBench's LSTM and GRU layers, {len(rows)} measured times (cuDNN 7, one layer, one direction, forward). They are those of",
        "the steps alone: products of the inputs were skipped there, and are a matrix product of their own in an estimate.",
        "Two boards (M40, Titan X) serve training alone. Mean absolute errors in percent; `formula` is the anchor without",
        "anything learned. The constants of the two anchors and the members were chosen on other parts of the same rows, by",
        "another hash, and on the same chips: there are too few to set some aside.",
        "",
        "A larger batch, hidden size or number of steps is never estimated to be faster. Measured times do not all obey: cuDNN",
        f"7 took up to {_smaller_and_slower(rows):.1f} times as long at batch 16 as at 32, which estimates do not follow.",
    ]
    for name in BARS:
        cases = space.cases(name)
        assert cases is not None
        text += ["", f"## {WORDS[name][0].upper()}{WORDS[name][1:]}", "", *_table(cases)]
    return text


def _smaller_and_slower(rows: TrainingRows) -> float:
    """Return the largest ratio of the time at batch 16 to that of the same layer at batch 32 on the same GPU."""
    columns = rows.table.columns
    times: dict[tuple[str, ...], float] = {}
    for row in range(len(rows)):
        words = [rows.gpu[row], rows.table.precision[row], rows.table.variant[row]]
        sizes = [f"{columns[name][row]:.0f}" for name in ("gemm_k", "gemm_batch", "gemm_m")]
        times[(*words, *sizes)] = float(rows.measured_us[row])
    ratios = []
    for layer, time in times.items():
        twice = times.get((*layer[:-1], "32"))
        if layer[-1] == "16" and twice is not None:
            ratios.append(time / twice)
    return max(ratios)


def _table(cases: KernelCases) -> list[str]:
    rows = [_cells("all", cases)]
    for cell in np.unique(cases.family):
        rows.append(_cells(str(cell), cases.where(family=str(cell))))
    for gpu in np.unique(cases.gpu):
        for precision in np.unique(cases.precision):
            part = cases.where(gpu=str(gpu), precision=str(precision))
            if len(part):
                rows.append(_cells(f"{gpu} {precision}", part))
    head = ("", "n", "mean", "median", "90th", "roofline", "formula", "inside %", "width %")
    return markdown(head, rows)


def _cells(word: str, cases: KernelCases) -> list[str]:
    summary, inside = summarise(cases.errors_pct()), kernel_intervals(cases)
    assert summary is not None and inside is not None
    others = [float(np.mean(cases.errors_pct(method))) for method in ("roofline", "analytical")]
    figures = (summary.mean, summary.median, summary.p90, *others, inside.inside_pct, inside.width_pct)
    return [word, f"{summary.n}", *map(number, figures)]


SECTION = Section(
    title="Recurrent layers",
    jobs={name: partial(run, name=name) for name in BARS},
    lines=_lines,
    page=_page,
    expected=_expected,
)
