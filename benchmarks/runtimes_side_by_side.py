"""Estimate the models that NVIDIA published behind Triton under every runtime that served them: errors, and the order.

    python benchmarks/export_ort_models.py .accuracy/ort_graphs
    python benchmarks/export_ort_diffusion.py .accuracy/ort_graphs --plain
    python benchmarks/export_triton_models.py .accuracy/triton_graphs
    GKEST_SHARED=/path/to/shared python benchmarks/runtimes_side_by_side.py [--fit] [--dry] [--bundle FOLDER]

``_triton_truth`` says which part of a row is compared. TorchScript is estimated as torch with attention as the model
spells it out and the host cost ``triton-torchscript`` of torch's profile; ONNX Runtime as release 1.9 ran these files
(``benchmarks/accuracy/ort_models.py``); TensorRT with the version of the row's container. Figures that rows of this table
decide are taken from half of the models, by a hash of their name (``--fit`` prints them); the others are reported apart.

It writes docs/accuracy/runtimes.md, runtimes-models.md and all cases beside them as a CSV file.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _diffusion_truth import MODEL as DIFFUSION
from _diffusion_truth import Part, diffusion_parts, diffusion_rows
from _runtimes_page import write_pages
from _shared import shared_dir
from _triton_truth import Judged, Measured, measured_rows

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.kernels import TENSORRT
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.hardware.runtimes.profiles import load_runtime

ROOT = Path(__file__).parents[1]
CASES = ROOT / "docs" / "accuracy" / "runtimes-1.csv"
GRAPHS = tuple(ROOT / ".accuracy" / name for name in ("ort_graphs", "triton_graphs"))
TORCHSCRIPT_HOST = "triton-torchscript"
VERSIONS = {"20.11": "7.2", "21.02": "7.2", "21.10": "8.0", "21.12": "8.2"}
"""TensorRT in NVIDIA's containers, by their support matrix."""
MOST_WAITED_MS = 0.1  # the tables' resolution
_SLOW_US = 1e5  # a host so slow that nothing else counts


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Hold another way to estimate some rows: those of a lowering, and of models whose names begin with ``models``."""

    words: str
    lowering: str
    models: str | tuple[str, ...]
    options: Mapping[str, Any]


_TRITON = ("bert_", "tft_", "jasper")
VARIANTS = (
    Variant(words="TFT's TorchScript in float32", lowering="torch", models="tft_", options={"dtype": "fp32"}),
    Variant(
        words="TensorRT with all fusions",
        lowering="tensorrt",
        models=_TRITON,
        options={"graph_level": "extended"},
    ),
    Variant(
        words="TensorRT of no given version",
        lowering="tensorrt",
        models=_TRITON,
        options={"runtime_version": None},
    ),
)
"""What the page says besides: how far the figures rest on what was assumed of the rows."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Hold what is estimated of one row, milliseconds; ``calls`` are those that the host issues."""

    ms: float
    low_ms: float
    high_ms: float
    roofline_ms: float
    kernels: int
    host_bound: bool


@dataclass(frozen=True, kw_only=True)
class Case:
    """Hold one measured row beside its estimates; ``scaled_ms`` is the CUDA provider's estimate, not yet scaled."""

    row: Measured
    estimate: Estimate
    scaled_ms: float

    def judged(self, estimate_ms: float) -> Judged:
        """Return the row beside one of its estimates."""
        return Judged(row=self.row, estimate_ms=estimate_ms)


def parts_of(row: Measured, runtime: str, shared: Path) -> list[Part]:
    """Return the graphs that one measurement ran; their files need not be there."""
    kept = ROOT / ".accuracy"
    if row.model == DIFFUSION:
        return diffusion_parts(kept / "ort_graphs", runtime, row.batch)
    path = kept / "triton_graphs" / f"{row.model}.onnx"
    dims = {}
    if row.model.startswith("bert_"):
        path = kept / "ort_graphs" / f"{row.model}.nvidia.fp16.onnx"
        dims = {"S": 384}
    elif row.model == "resnet50":
        path = shared / "models" / "timm" / "resnet50.onnx"
    elif row.frames:
        dims = {"T": row.frames}
    return [Part(path=path, batch=row.batch, dims=dims)]


def options_of(runtime: str, row: Measured, host_us: float | None = None) -> dict[str, Any]:
    """Return how ``runtime`` ran the row's model."""
    options: dict[str, Any] = {"runtime": runtime, "dtype": row.precision, "host_overhead_us": host_us}
    if row.model == DIFFUSION:
        return {**options, "batch_dim": "B"}
    if runtime == "torch":
        options["attention"] = "eager"
        if host_us is None:
            options["host_overhead_us"] = load_runtime("torch").host_overheads[TORCHSCRIPT_HOST]
    else:
        options["graph_level"] = "basic"
    if runtime_traits(runtime).library == TENSORRT:
        options["runtime_version"] = VERSIONS.get(row.container)
    return options


def estimated(part: Part, gpu: str, options: dict[str, Any]) -> Estimate:
    """Return the estimate of all runs of one graph. Raises GkestimatorError."""
    request = EstimateRequest(
        models=[part.path], gpus=[gpu], batch_sizes=[part.batch], dims=part.dims, **options
    )
    engine = Engine(request)
    for _, outcome in engine.run():
        if isinstance(outcome, GkestimatorError):
            raise outcome
        answer = outcome[0]
        row = requirement_row(engine, answer)
        program = answer.lowering.program
        roofline = answer.predictions.roofline_us[program.kernel] * program.repeat
        assert row.latency_ms is not None
        assert row.latency_low_ms is not None
        assert row.latency_high_ms is not None
        return Estimate(
            ms=part.runs * row.latency_ms,
            low_ms=part.runs * row.latency_low_ms,
            high_ms=part.runs * row.latency_high_ms,
            roofline_ms=part.runs * float(roofline.sum()) / 1e3,
            kernels=part.runs * int(row.kernels or 0),
            host_bound=bool(row.host_bound),
        )
    raise AssertionError("one model gives one outcome")


def together(parts: Sequence[Estimate]) -> Estimate:
    """Return the estimate of parts that run one after the other, its interval as if all erred together."""
    return Estimate(
        ms=sum(part.ms for part in parts),
        low_ms=sum(part.low_ms for part in parts),
        high_ms=sum(part.high_ms for part in parts),
        roofline_ms=sum(part.roofline_ms for part in parts),
        kernels=sum(part.kernels for part in parts),
        host_bound=any(part.host_bound for part in parts),
    )


def estimate_of(row: Measured, runtime: str, shared: Path, **more: Any) -> Estimate:
    """Return what ``runtime`` takes for a row's work; ``more`` are options beside those of :func:`options_of`."""
    options = {**options_of(runtime, row), **more}
    return together([estimated(part, row.gpu, options) for part in parts_of(row, runtime, shared)])


def cases_of(
    rows: Iterable[Measured], shared: Path, more: Mapping[str, Any], tell: Callable[[str], object] = print
) -> list[Case]:
    """Return every row that has its graphs beside its estimates; rows without are told of."""
    found = []
    absent: Counter[str] = Counter()
    for row in rows:
        runtimes = (row.runtime, "onnxruntime")
        if not all(part.path.is_file() for name in runtimes for part in parts_of(row, name, shared)):
            absent[f"{row.model}: no graph"] += 1
            continue
        try:
            gpu_catalogue().spec(row.gpu).refuse_unknown_peak(row.precision)
        except UsageError as error:
            absent[f"{row.model}: {error}"] += 1
            continue
        own, provider = (estimate_of(row, name, shared, **more) for name in runtimes)
        found.append(Case(row=row, estimate=own, scaled_ms=provider.ms))
    for why, count in sorted(absent.items()):
        tell(f"{count} rows left out: {why}")
    return found


def host_rows(rows: Iterable[Measured], shared: Path) -> pd.DataFrame:
    """Return how long TorchScript's host took for a call: rows of the first half whose outputs it did not wait for."""
    found = []
    for row in rows:
        if row.half != "chosen by" or row.runtime != "torch" or row.client or row.output_ms > MOST_WAITED_MS:
            continue
        slow = estimate_of(row, "torch", shared, host_overhead_us=_SLOW_US)
        calls = round(1e3 * slow.ms / _SLOW_US)
        found.append((row.gpu, row.model, row.batch, row.ms, calls, 1e3 * row.ms / calls))
    return pd.DataFrame(found, columns=["gpu", "model", "batch", "ms", "calls", "us"])


def changed(cases: Iterable[Case], variant: Variant, shared: Path, more: Mapping[str, Any]) -> list[Case]:
    """Return the cases with those that ``variant`` is about estimated anew."""
    found = []
    for case in cases:
        row = case.row
        if runtime_traits(row.runtime).lowers_as == variant.lowering and row.model.startswith(variant.models):
            estimate = estimate_of(row, row.runtime, shared, **{**more, **variant.options})
            case = replace(case, estimate=estimate)
        found.append(case)
    return found


def write_cases(cases: Iterable[Case], path: Path) -> None:
    """Write one line for each case."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("GPU", "model", "runtime", "precision", "batch", "frames", "measured", "half", "measured ms",
             "estimated ms", "90 % interval", "error %", "roofline ms", "kernels", "host binds")
        )  # fmt: skip
        for case in cases:
            row, estimate = case.row, case.estimate
            measured = "client" if row.client else "compute"
            error = 100 * (estimate.ms / row.ms - 1)
            interval = f"{estimate.low_ms:.2f} to {estimate.high_ms:.2f}"
            binds = "yes" if estimate.host_bound else "no"
            writer.writerow(
                (row.gpu, row.model, row.runtime, row.precision, row.batch, row.frames or "", measured, row.half,
                 f"{row.ms:.4g}", f"{estimate.ms:.4g}", interval, f"{error:+.1f}",
                 f"{estimate.roofline_ms:.4g}", estimate.kernels, binds)
            )  # fmt: skip


def main() -> None:
    """Print the figures; write the page and its cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="print TorchScript's host cost by row, and end")
    parser.add_argument("--dry", action="store_true", help="print alone")
    parser.add_argument("--bundle", type=Path, help="a bundle to judge instead of the shipped one")
    asked = parser.parse_args()
    shared = shared_dir()
    for folder in GRAPHS:
        if not folder.is_dir():  # a page without half of the models would read as a whole one
            raise SystemExit(f"{folder}: no such folder; export the models first (see --help)")
    rows = list(measured_rows(pd.read_parquet(shared / "data" / "triton" / "triton_offline.parquet")))
    rows += diffusion_rows(pd.read_parquet(shared / "data" / "onnxruntime" / "onnxruntime_readme.parquet"))
    if asked.fit:
        hosts = host_rows(rows, shared)
        print(hosts.round(2).to_string(index=False))
        print(
            f"median {np.median(hosts.us):.1f} us; by GPU: {hosts.groupby('gpu').us.median().round(1).to_dict()}"
        )
        return
    more = {"bundles": [asked.bundle]} if asked.bundle else {}
    cases = cases_of(rows, shared, more)
    variants = {variant.words: changed(cases, variant, shared, more) for variant in VARIANTS}
    folder = None if asked.dry else CASES.parent
    host_us = load_runtime("torch").host_overheads[TORCHSCRIPT_HOST]
    text = write_pages(cases, variants, host_us, folder)
    print(text)
    if not asked.dry:
        write_cases(cases, CASES)


if __name__ == "__main__":
    main()
