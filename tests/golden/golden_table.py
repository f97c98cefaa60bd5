"""The golden table: estimates of the golden set, reduced to the columns a change of estimates shows in, and the
difference between two such tables in words."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from golden_models import golden_models

from gkestimator.core.errors import GkestimatorError
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row
from gkestimator.tables import Requirement

GPUS = ("V100-SXM2-16GB", "T4", "A100-SXM4-80GB", "H100-SXM", "L4", "RTX-3090", "RTX-4090")
BATCHES = (1, 32)
RUNS = (("torch", "fp32"), ("torch", "amp"), ("onnxruntime", "auto"), ("onnxruntime", "fp16"))
KEY = ("model", "gpu", "runtime", "dtype", "batch_size")
VALUES = (
    "latency_ms", "latency_low_ms", "latency_high_ms", "gpu_ms", "reserved_bytes", "sm_util_mean_pct",
    "occupancy_mean_pct", "occupancy_max_pct", "coverage_pct",
)  # fmt: skip
THRESHOLD_PCT = 1.0
"""A value that moved by more than this share of its size is a changed estimate."""
POINTS = 1.0
"""The same for columns that are percentages, in points."""
_DIGITS = 5
Key = tuple[str, ...]
Table = dict[Key, dict[str, float | None]]


def golden_estimates(models: Sequence[Path]) -> Table:
    """Estimate ``models`` on GPUS x BATCHES x RUNS. ``gpu_ms`` is the time of the kernels alone: what the host hides
    in ``latency_ms`` shows there."""
    table: Table = {}
    for runtime, dtype in RUNS:
        request = EstimateRequest(models=models, gpus=GPUS, batch_sizes=BATCHES, runtime=runtime, dtype=dtype)
        engine = Engine(request)
        for path, outcome in engine.run():
            if isinstance(outcome, GkestimatorError):
                raise AssertionError(f"{path.name}, {runtime} {dtype}: {outcome}")
            for e in outcome:
                row = requirement_row(engine, e)
                values = {name: getattr(row, name, None) for name in VALUES} | {"gpu_ms": e.measures.gpu_ms}
                table[key_of(row)] = {name: _rounded(value) for name, value in values.items()}
    return table


def key_of(row: Requirement) -> Key:
    """What identifies a row, as text."""
    return tuple(str(getattr(row, name)) for name in KEY)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def golden_csv(table: Mapping[Key, Mapping[str, float | None]]) -> bytes:
    """``table`` as CSV, five digits a value, null as an empty cell."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow((*KEY, *VALUES))
    for key, values in table.items():
        writer.writerow(
            (*key, *("" if v is None else f"{v:.{_DIGITS}g}" for v in map(values.__getitem__, VALUES)))
        )
    return buffer.getvalue().encode()


def read_golden(path: Path) -> Table:
    """The table that :func:`golden_csv` wrote."""
    with open(path, newline="", encoding="utf-8") as stream:
        return {
            tuple(row[name] for name in KEY): {n: float(row[n]) if row[n] else None for n in VALUES}
            for row in csv.DictReader(stream)
        }


def differences(old: Table, new: Table) -> list[str]:
    """One line per row that is gone, new or changed by more than THRESHOLD_PCT (POINTS), the largest change of
    latency first; empty when nothing changed."""
    lines = [(math.inf, f"gone: {' '.join(key)}") for key in old if key not in new]
    lines += [(math.inf, f"new: {' '.join(key)}") for key in new if key not in old]
    for key, before in old.items():
        after = new.get(key)
        if after is None:
            continue
        moved = [(size, text) for name in VALUES for size, text in _moved(name, before[name], after[name])]
        if moved:
            size = max(s for s, _ in moved)
            lines.append((size, f"{' '.join(key)}: " + ", ".join(text for _, text in moved)))
    return [text for _, text in sorted(lines, key=lambda pair: -pair[0])]


def _moved(name: str, before: float | None, after: float | None) -> list[tuple[float, str]]:
    if before is None or after is None:
        return [] if before == after else [(math.inf, f"{name} {before} -> {after}")]
    if name.endswith("_pct"):
        points = after - before
        return [(abs(points), f"{name} {before:g} -> {after:g}")] if abs(points) > POINTS else []
    change = 100 * (after / before - 1) if before else (0.0 if after == before else math.inf)
    return (
        [(abs(change), f"{name} {before:g} -> {after:g} ({change:+.1f} %)")]
        if abs(change) > THRESHOLD_PCT
        else []
    )


def summary(old: Table, new: Table) -> list[str]:
    """Median and largest change of GPU time per GPU and run: what a retrained bundle did, at a glance."""
    groups: dict[str, list[float]] = {}
    for key in old.keys() & new.keys():
        before, after = old[key]["gpu_ms"], new[key]["gpu_ms"]
        if before and after:
            groups.setdefault(f"{key[1]} {key[2]} {key[3]}", []).append(100 * (after / before - 1))
    lines = []
    for name, changes in sorted(groups.items()):
        changes.sort()
        middle = changes[len(changes) // 2]
        lines.append(f"{name}: gpu_ms median {middle:+.1f} %, from {changes[0]:+.1f} to {changes[-1]:+.1f} %")
    return lines


def golden_path() -> Path:
    """The committed table."""
    return Path(__file__).parent / "golden.csv"


__all__ = [
    "differences",
    "golden_csv",
    "golden_estimates",
    "golden_models",
    "golden_path",
    "read_golden",
    "summary",
]
