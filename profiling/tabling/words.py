"""What was tabled, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.profiling.tabling.table import TableResult
from gkestimator.tables import Requirement


def summary_words(result: TableResult) -> str:
    """Say in one line: rows, models, GPUs, and what was measured besides latency."""
    rows = result.rows
    gpus = ", ".join(f"{name} ({n:,})" for name, n in Counter(r.gpu for r in rows).items())
    return (
        f"{len(rows):,} rows of {len({r.model for r in rows}):,} models on {gpus}: "
        f"{_with(rows, 'kernels'):,} with launches, {_with(rows, 'sm_util_mean_pct'):,} with SM utilisation, "
        f"{_with(rows, 'reserved_bytes'):,} with reserved memory, {_with(rows, 'mreq_bytes'):,} with all memory; "
        f"{sum(bool(r.warnings) for r in rows):,} with a warning"
    )


def _with(rows: Sequence[Requirement], column: str) -> int:
    return sum(getattr(row, column) is not None for row in rows)


def _unfolds(row: Requirement) -> bool:
    traits = RUNTIMES.get(row.runtime)
    return traits is not None and traits.unfolds_batchnorm


def closing_words(result: TableResult) -> tuple[str, ...]:
    """Say how to compare the table with estimates: as what ran, which is the file's operators as they are."""
    table = result.files[0]
    specs = "".join(f" --gpu-spec {f}" for f in result.gpu_files)
    line = f"Beside estimates: gkest evaluate --truth {table} --models DIR{specs}"
    if any(map(_unfolds, result.rows)):
        line += " --no-unfold-batchnorm  (convolutions ran as in the files, BatchNorms folded into them)"
    return (line,)
