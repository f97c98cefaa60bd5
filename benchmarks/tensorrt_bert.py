"""Estimate BERT under TensorRT beside NVIDIA's table, with each GPU's rows left out of what the estimate learned.

    GKEST_SHARED=... python benchmarks/tensorrt_bert.py [--bundle FOLDER] [--graphs FOLDER] [--dry]

The table (demo/BERT of NVIDIA/TensorRT): base and large, fp16 and int8, 128 and 384 tokens, batches 1 to 128, on A100, L40S
and T4. For each GPU the law of TensorRT's kernels (``gkestimator.training.runtime_laws``) is fitted on the other two; then
the newest rows of the GPU are estimated, and those of all its versions. The regressors of single kernels that the law
stands on are those of the bundle, whose measurements of matrix products are other people's.

Baselines: the roofline of the same kernels, and the estimate for ONNX Runtime's CUDA provider in fp16, times the constant
that suits all rows of a precision best. It writes ``docs/accuracy/tensorrt-bert.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
from _bert_cases import (
    CASE,
    RUNTIME,
    LoweredBerts,
    kernels_of_layer,
    measured_models,
    read_rows,
    version_times,
)
from _shared import shared_dir

from gkestimator.bundles.bundle import Bundle, load_bundle
from gkestimator.bundles.runtime_laws import RuntimeLaw
from gkestimator.kernel_models.features import tensor_cores
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.runtime_laws import MeasuredModels, VersionTimes, fit_law, predict_models

PAGE = Path(__file__).parents[1] / "docs" / "accuracy" / "tensorrt-bert.md"
BARS = {"fp16": 12.0, "int8": 15.0}
OPTIONS = {"runtime": RUNTIME}
BASELINE = {"runtime": "onnxruntime"}
Table = tuple[list[str], list[list[str]]]


def main() -> None:
    """Print the tables, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, help="bundle with the regressors; default: the package's")
    parser.add_argument(
        "--graphs", type=Path, default=Path(".accuracy/bert_graphs"), help="where graphs are kept"
    )
    parser.add_argument("--dry", action="store_true", help="print alone")
    asked = parser.parse_args()
    bundle = load_bundle(asked.bundle)
    rows = read_rows(shared_dir())
    measured = measured_models(rows, asked.graphs, OPTIONS)
    times = version_times(rows)
    laws = left_out_laws(measured, times, bundle)
    newest = estimated(rows[rows.newest], measured, laws, bundle, asked.graphs)
    shipped = fit_law(measured, times, bundle)
    sections = [
        ("By GPU and precision", by_gpu(newest)),
        ("By model and tokens", by_case(newest)),
        ("By batch", by_batch(newest)),
        ("By version", by_version(rows, measured, laws, shipped, bundle)),
        ("What versions change", version_factors(rows, shipped)),
        ("The law", law_table(shipped, laws)),
        ("Kernels of a layer", layer_table(measured)),
    ]
    for title, (header, cells) in sections:
        print(f"\n{title}\n{pd.DataFrame(cells, columns=header).to_string(index=False)}")
    without = without_steady_power(rows, measured, laws, bundle)
    print(f"\nT4 without what is known of its power: {without}")
    if not asked.dry:
        PAGE.write_text(page(sections, without), encoding="utf-8")
        print(f"wrote {PAGE}")


def left_out_laws(
    measured: Sequence[MeasuredModels], times: VersionTimes, bundle: Bundle
) -> dict[str, RuntimeLaw]:
    """Return, by GPU, the law that the other GPUs' rows give."""
    laws = {}
    for left_out in measured:
        others = [models for models in measured if models is not left_out]
        laws[left_out.gpu.name] = fit_law(others, times, bundle)
    return laws


def estimated(
    rows: pd.DataFrame,
    measured: Sequence[MeasuredModels],
    laws: dict[str, RuntimeLaw],
    bundle: Bundle,
    folder: Path,
) -> pd.DataFrame:
    """Return the newest rows with estimates (ms), whether their interval held, and both baselines."""
    parts = []
    for models in measured:
        gpu = models.gpu.name
        part = rows[rows.gpu == gpu]
        predicted = predict_models(laws[gpu], models, bundle)
        floor_us = models.launches @ roofline(models.table, models.gpu).roofline_us
        part = part.assign(
            ms=predicted.us / 1e3,
            held=predicted.held(models.measured_us),
            width=(predicted.high_us - predicted.low_us) / predicted.us,
            roofline=floor_us / 1e3,
            provider=provider_ms(part, gpu, folder, bundle),
        )
        parts.append(part)
    result = pd.concat(parts, ignore_index=True)
    result["constant"] = result.groupby("precision", group_keys=False).apply(best_constant)
    result["error"] = 100 * (result.ms / result.avg_ms - 1)
    result["roofline_error"] = 100 * (result.roofline / result.avg_ms - 1)
    result["provider_error"] = 100 * (result.constant * result.provider / result.avg_ms - 1)
    return result


def without_steady_power(
    rows: pd.DataFrame, measured: Sequence[MeasuredModels], laws: dict[str, RuntimeLaw], bundle: Bundle
) -> str:
    """Return the T4's errors if its tensor cores drew for long what they draw for milliseconds."""
    (models,) = (models for models in measured if models.gpu.name == "T4")
    part = rows[rows.newest & (rows.gpu == "T4")]
    with patch.dict(tensor_cores._STEADY_PICOJOULE, clear=True):
        predicted = predict_models(laws["T4"], models, bundle).us
    error = 100 * (predicted / models.measured_us - 1)
    by_precision = pd.Series(error, index=part.precision).groupby(level=0)
    return " and ".join(f"{mean_abs(each)} % ({precision})" for precision, each in by_precision)


def provider_ms(rows: pd.DataFrame, gpu: str, folder: Path, bundle: Bundle) -> list[float]:
    """Return GPU time under ONNX Runtime's CUDA provider in fp16, by row."""
    berts = LoweredBerts(folder, gpu, BASELINE)
    engine = berts.engine("fp16")
    engine.estimator = bundle.under("onnxruntime")
    by_model = {}
    for row in rows.assign(precision="fp16").drop_duplicates(CASE).itertuples():
        lowerings = berts.lowerings(row)
        (answer,) = engine.estimate([lowerings])
        by_model[row.model, row.sequence, row.batch] = answer.measures.gpu_ms
    return [by_model[row.model, row.sequence, row.batch] for row in rows.itertuples()]


def best_constant(rows: pd.DataFrame) -> pd.Series:
    """Return the constant with the least mean absolute error in percent, the same for all ``rows``."""
    ratio = (rows.provider / rows.avg_ms).to_numpy()
    constants = np.exp(np.linspace(np.log(0.1), np.log(3.0), 1000))
    errors = np.abs(np.outer(constants, ratio) - 1).mean(axis=1)
    return pd.Series(constants[int(np.argmin(errors))], index=rows.index)


def mean_abs(values: pd.Series) -> str:
    """Return the mean absolute value of percentages."""
    return f"{values.abs().mean():.1f}"


def by_gpu(rows: pd.DataFrame) -> Table:
    """Return errors by GPU and precision beside bars and baselines."""
    header = [
        "GPU left out",
        "version",
        "precision",
        "n",
        "mean %",
        "bar %",
        "median %",
        "worst %",
        "signed %",
    ]
    header += ["inside %", "median width %", "roofline %", "CUDA provider x constant %"]
    cells = []
    for (gpu, precision), part in rows.groupby(["gpu", "precision"]):
        cells.append(
            [
                gpu,
                str(part.version.iloc[0]),
                precision,
                str(len(part)),
                mean_abs(part.error),
                f"{BARS[precision]:g}",
                f"{part.error.abs().median():.1f}",
                f"{part.error.abs().max():.0f}",
                f"{part.error.mean():+.1f}",
                f"{100 * part.held.mean():.0f}",
                f"{100 * part.width.median():.0f}",
                mean_abs(part.roofline_error),
                f"{mean_abs(part.provider_error)} (x {part.constant.iloc[0]:.2f})",
            ]
        )
    return header, cells


def by_case(rows: pd.DataFrame) -> Table:
    """Return errors by GPU, model, precision and tokens."""
    header = ["GPU left out", "model", "precision", "tokens", "n", "mean %", "signed %", "inside %"]
    cells = []
    for key, part in rows.groupby(["gpu", "model", "precision", "sequence"]):
        figures = [mean_abs(part.error), f"{part.error.mean():+.1f}", f"{100 * part.held.mean():.0f}"]
        cells.append([*map(str, key), str(len(part)), *figures])
    return header, cells


def by_batch(rows: pd.DataFrame) -> Table:
    """Return signed errors by batch, each the mean over models and tokens."""
    batches = sorted(rows.batch.unique())
    cells = []
    for (gpu, precision), part in rows.groupby(["gpu", "precision"]):
        signed = part.groupby("batch").error.mean()
        cells.append([gpu, precision, *(f"{signed[batch]:+.0f}" for batch in batches)])
    return ["GPU left out", "precision", *(f"batch {batch}, %" for batch in batches)], cells


def by_version(
    rows: pd.DataFrame,
    measured: Sequence[MeasuredModels],
    laws: dict[str, RuntimeLaw],
    shipped: RuntimeLaw,
    bundle: Bundle,
) -> Table:
    """Return errors of the rows of versions that change something on their GPU: of the GPU left out, and of the law of
    all GPUs with its factors of versions and as if every version were the newest."""
    header = ["GPU", "version", "precision", "n", "left out %", "signed %", "all GPUs %", "without factors %"]
    cells = []
    for models in measured:
        mine = rows[rows.gpu == models.gpu.name]
        newest = mine[mine.newest]
        major, minor = models.gpu.compute_capability
        factors = shipped.measured_versions[f"{major}.{minor}"]
        place = {key: at for at, key in enumerate(zip(*(newest[c] for c in CASE), strict=True))}
        blind = predict_models(shipped, models, bundle).us
        for (_, version, precision), part in mine.groupby(["order", "version", "precision"]):
            if precision not in factors[version]:
                continue
            at = [place[key] for key in zip(*(part[c] for c in CASE), strict=True)]
            actual = part.avg_ms.to_numpy() * 1e3
            left_out, seen = (
                predict_models(law.at(version), models, bundle).us for law in (laws[models.gpu.name], shipped)
            )
            errors = [100 * pd.Series(us[at] / actual - 1) for us in (left_out, seen, blind)]
            figures = [mean_abs(errors[0]), f"{errors[0].mean():+.1f}", *map(mean_abs, errors[1:])]
            cells.append([models.gpu.name, version, precision, str(len(part)), *figures])
    return header, cells


def version_factors(rows: pd.DataFrame, law: RuntimeLaw) -> Table:
    """Return the time of each version over the newest of its GPU (median, middle 80 %), and the factor elsewhere."""
    newest = rows[rows.newest].set_index(CASE).avg_ms.rename("newest_ms")
    joined = rows.join(newest, on=CASE)
    joined["ratio"] = joined.avg_ms / joined.newest_ms
    gpus = sorted(rows.gpu.unique())
    cells = []
    for (_, version, precision), part in joined.groupby(["order", "version", "precision"]):
        ratios = []
        for gpu in gpus:
            mine = part.ratio[part.gpu == gpu]
            low, middle, high = mine.quantile([0.1, 0.5, 0.9]) if len(mine) else (np.nan,) * 3
            ratios.append(f"{middle:.2f} ({low:.2f}-{high:.2f})" if len(mine) else "")
        factor = law.versions[version].get(precision)
        cells.append([version, precision, *ratios, "none" if factor is None else f"{factor:.2f}"])
    return ["version", "precision", *gpus, "other GPUs"], cells


def law_table(shipped: RuntimeLaw, laws: dict[str, RuntimeLaw]) -> Table:
    """Return the figures of the law fitted on all GPUs and with each left out."""
    every = {"all GPUs": shipped, **{f"without {gpu}": law for gpu, law in laws.items()}}
    pairs = sorted({(f, p) for law in every.values() for f, by in law.factors.items() for p in by})
    cells = []
    for family, precision in pairs:
        factors = [law.factors.get(family, {}).get(precision) for law in every.values()]
        cells.append([f"{family} {precision}", *("" if f is None else f"{f:.2f}" for f in factors)])
    cells.append(["added to a kernel, us", *(f"{law.added_us:+.2f}" for law in every.values())])
    cells.append(["cycles of a score", *(f"{law.cycles_per_score:.2f}" for law in every.values())])
    cells.append(["half-width", *(f"{law.half_width:.2f}" for law in every.values())])
    cells.append(["widest half-width", *(f"{law.widest:.2f}" for law in every.values())])
    return ["figure", *every], cells


def layer_table(measured: Sequence[MeasuredModels]) -> Table:
    """Return the kernels of one layer of BERT base by precision."""
    models = measured[0]
    cells = []
    for precision in BARS:
        at = next(i for i, group in enumerate(models.group) if group.startswith(f"bert_base {precision}"))
        cells.append([precision, ", ".join(kernels_of_layer(models, at, layers=12))])
    return ["precision", "kernels"], cells


WORDS = """# BERT under TensorRT

Written by `python benchmarks/tensorrt_bert.py`; do not edit.

NVIDIA publishes what its demo/BERT takes: BERT base and large with a head that answers for each token, in fp16 and
int8, at 128 and 384 tokens and batches of 1 to 128, on three GPUs and in twelve versions of TensorRT. TensorRT compiles a
model for one GPU and brings kernels of its own. Few of them were ever measured alone and published, so what whole models
show is a part of the trained bundle: a *law* with a factor for each kind of kernel, what starting a kernel adds, the clock
cycles that an attention takes where one block of threads works through a whole head, and factors of versions.

Each GPU below was left out: its rows of BERT had no part in the law, nor in the width of the intervals, which was set on each
of the other two while that one was left out as well. The regressors of single kernels below the law know matrix products and
attention of A100 and L40S (measured by others under other libraries) and fp16 products of the T4. One figure beneath is not
independent of these rows: that a T4's tensor cores, running for long, draw as much energy for an operation as the V100's of
the same process (`gkestimator/kernel_models/steady.py`) was settled in sight of BERT's tables, these and Triton's. With the
energy that single products on a T4 show, the errors of its rows would be {without}.

Errors are mean absolute percentages of `avg_ms`. Estimates are GPU time: kernels follow one another as in a CUDA graph. The
table does not say whether one was used; its shortest time suggests it: 0.33 ms (BERT base, L40S, int8, batch 1) are 3.7 us for
each of some 90 kernels, less than one launch through the driver is taken to cost a host here (5 us). `inside` is the share of rows within the 90 % interval (bar: 80). Baselines: the roofline of the same
kernels, and the estimate for ONNX Runtime's CUDA provider in fp16 times the one constant that suits all rows of a precision
best (so it knows all GPUs).
"""
NOTES = {
    "By version": "Versions that change 2 % or more on a GPU. `--runtime-version` says which one runs. `left out`: the law of "
    "the other two GPUs; `all GPUs`: the law that is shipped, with its factors of versions, and without them.",
    "What versions change": "Time over that of the newest version of the same GPU, median and middle 80 % of the rows. A "
    "GPU that is in the table has a factor for its own version where the median differs by 2 % or more. Other GPUs have one "
    "where two of these know the version besides their newest, agree on its sign, and their mean differs so much: versions "
    "7.1 and 8.0 are slower on the A100 alone, 10.1 to 10.5 on the L40S alone (at large batches).",
    "The law": "Factors multiply what single kernels are estimated to take; families and precisions that are not listed "
    "have none, and that of attention fades where there are more queries than the models had (384). The factor of int8 "
    "copies says less of their speed than of their number: the plugins of NVIDIA's demo read and write int8 where an ONNX "
    "file is lowered to copies between types. The half-width is added in squares to that of each kernel's log(time), which "
    "the widest bounds then: both are the smallest with which nine in ten rows of GPUs left out lie inside.",
}


def page(sections: Sequence[tuple[str, Table]], without: str) -> str:
    """Return the page in Markdown; ``without``: the T4's errors without what is known of its power."""
    parts = [WORDS.format(without=without)]
    for title, (header, cells) in sections:
        lines = [f"## {title}", ""]
        if title in NOTES:
            lines += [NOTES[title], ""]
        lines += [_line(header), _line(["---"] * len(header)), *map(_line, cells)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
