"""Estimate the models that NVIDIA published behind Triton under every runtime that served them: errors, and the order.

    python benchmarks/export_ort_models.py .accuracy/ort_graphs
    python benchmarks/export_triton_models.py .accuracy/triton_graphs
    GKEST_SHARED=/path/to/shared python benchmarks/runtimes_side_by_side.py [--fit] [--dry] [--bundle FOLDER]

``_triton_truth`` says which part of a row is compared. TorchScript is estimated as torch with attention as the model
spells it out and the host cost ``triton-torchscript`` of torch's profile; ONNX Runtime as release 1.9 ran these files
(``benchmarks/accuracy/ort_models.py``); TensorRT with the version of the row's container. Figures that rows of this table
decide are taken from half of the models, by a hash of their name (``--fit`` prints them); the others are reported apart.

It writes docs/accuracy/runtimes.md and all cases beside it as a CSV file.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _runtimes_page import write_page
from _shared import shared_dir
from _triton_truth import Judged, Measured, measured_rows

from gkestimator.core.errors import GkestimatorError
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row
from gkestimator.hardware.runtimes.profiles import load_runtime

ROOT = Path(__file__).parents[1]
CASES = ROOT / "docs" / "accuracy" / "runtimes-1.csv"
TORCHSCRIPT_HOST = "triton-torchscript"
VERSIONS = {"20.11": "7.2", "21.02": "7.2", "21.10": "8.0", "21.12": "8.2"}
"""TensorRT in NVIDIA's containers, by their support matrix."""
_SLOW_US = 1e5  # a host so slow that nothing else counts


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Hold what is estimated of one row, milliseconds; ``calls`` are those that the host issues."""

    ms: float
    low_ms: float
    high_ms: float
    roofline_ms: float
    kernels: int
    host_bound: bool
    warnings: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """Hold one measured row beside its estimates; ``scaled_ms`` is the CUDA provider's estimate, not yet scaled."""

    row: Measured
    estimate: Estimate
    scaled_ms: float

    def judged(self, estimate_ms: float) -> Judged:
        """Return the row beside one of its estimates."""
        return Judged(row=self.row, estimate_ms=estimate_ms)


def graph_of(model: str, shared: Path) -> Path:
    """Return the file of a model's graph; it need not be there."""
    kept = ROOT / ".accuracy"
    if model.startswith("bert_"):
        return kept / "ort_graphs" / f"{model}.nvidia.fp16.onnx"
    if model == "resnet50":
        return shared / "models" / "timm" / "resnet50.onnx"
    return kept / "triton_graphs" / f"{model}.onnx"


def dims_of(row: Measured) -> dict[str, int]:
    """Return the sizes that a row's graph leaves open besides the batch."""
    if row.model.startswith("bert_"):
        return {"S": 384}
    if row.frames:
        return {"T": row.frames}
    return {}


def options_of(runtime: str, row: Measured, host_us: float | None = None) -> dict[str, Any]:
    """Return how ``runtime`` ran the row's model."""
    options: dict[str, Any] = {"runtime": runtime, "dtype": row.precision, "dims": dims_of(row)}
    if runtime == "torch":
        options["attention"] = "eager"
        options["host_overhead_us"] = load_runtime("torch").host_overheads[TORCHSCRIPT_HOST]
    elif runtime == "onnxruntime":
        options["graph_level"] = "basic"
    elif "runtime_version" in {field.name for field in fields(EstimateRequest)}:
        options["runtime_version"] = VERSIONS.get(row.container)
    if host_us is not None:
        options["host_overhead_us"] = host_us
    return options


def estimated(path: Path, gpu: str, batches: Sequence[int], options: dict[str, Any]) -> dict[int, Estimate]:
    """Return the estimates of one graph by batch. Raises GkestimatorError."""
    engine = Engine(EstimateRequest(models=[path], gpus=[gpu], batch_sizes=list(batches), **options))
    found = {}
    for _, outcome in engine.run():
        if isinstance(outcome, GkestimatorError):
            raise outcome
        for answer in outcome:
            row = requirement_row(engine, answer)
            program = answer.lowering.program
            roofline = answer.predictions.roofline_us[program.kernel] * program.repeat
            assert row.batch_size is not None
            assert row.latency_ms is not None
            assert row.latency_low_ms is not None
            assert row.latency_high_ms is not None
            found[row.batch_size] = Estimate(
                ms=row.latency_ms,
                low_ms=row.latency_low_ms,
                high_ms=row.latency_high_ms,
                roofline_ms=float(roofline.sum()) / 1e3,
                kernels=int(row.kernels or 0),
                host_bound=bool(row.host_bound),
                warnings=row.warnings or "",
            )
    return found


def grouped(rows: Iterable[Measured]) -> list[list[Measured]]:
    """Return rows that differ by their batch alone, together."""
    groups: dict[tuple[object, ...], list[Measured]] = {}
    for row in rows:
        key = (row.gpu, row.model, row.runtime, row.precision, row.frames, row.container)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def cases_of(
    rows: Iterable[Measured], shared: Path, bundle: Path | None, tell: Callable[[str], object] = print
) -> list[Case]:
    """Return every row that has a graph beside its estimates; rows without are told of."""
    found = []
    for group in grouped(rows):
        first = group[0]
        path = graph_of(first.model, shared)
        if not path.is_file():
            tell(f"{first.model}: no graph, {len(group)} rows left out")
            continue
        batches = [row.batch for row in group]
        answers = []
        for runtime in (first.runtime, "onnxruntime"):
            options = options_of(runtime, first)
            if bundle is not None:
                options["bundles"] = [bundle]
            answers.append(estimated(path, first.gpu, batches, options))
        own, provider = answers
        for row in group:
            found.append(Case(row=row, estimate=own[row.batch], scaled_ms=provider[row.batch].ms))
    return found


def host_rows(rows: Iterable[Measured], shared: Path) -> pd.DataFrame:
    """Return how long TorchScript's host took for a call: rows of the first half whose outputs it did not wait for."""
    found = []
    bound = [row for row in rows if row.half == "chosen by" and row.runtime == "torch" and not row.client]
    for group in grouped(bound):
        first = group[0]
        batches = [row.batch for row in group if row.output_ms <= 0.1]
        slow = estimated(
            graph_of(first.model, shared), first.gpu, batches, options_of("torch", first, host_us=_SLOW_US)
        )
        for row in group:
            if row.batch in slow:
                calls = round(1e3 * slow[row.batch].ms / _SLOW_US)
                found.append((row.gpu, row.model, row.batch, row.ms, calls, 1e3 * row.ms / calls))
    return pd.DataFrame(found, columns=["gpu", "model", "batch", "ms", "calls", "us"])


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
    rows = list(measured_rows(pd.read_parquet(shared / "data" / "triton" / "triton_offline.parquet")))
    if asked.fit:
        hosts = host_rows(rows, shared)
        print(hosts.round(2).to_string(index=False))
        print(
            f"median {np.median(hosts.us):.1f} us; by GPU: {hosts.groupby('gpu').us.median().round(1).to_dict()}"
        )
        return
    cases = cases_of(rows, shared, asked.bundle)
    page = None if asked.dry else ROOT / "docs" / "accuracy" / "runtimes.md"
    text = write_page(cases, load_runtime("torch").host_overheads[TORCHSCRIPT_HOST], page)
    print(text)
    if not asked.dry:
        write_cases(cases, CASES)


if __name__ == "__main__":
    main()
