"""Makes the measured lowering of a GPU from labelled calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gkestimator.bundles.measured_lowering import LAUNCH_COLUMNS, MOST_CALLS, MeasuredLowering, signatures
from gkestimator.core.kernels import Family, KernelTable
from gkestimator.tables import KernelMeasurement
from gkestimator.training.calls import Label

REPEATABLE = 0.03
"""Least 90 % half-width of log(time) of a call that was measured: what clocks and neighbours change from one day to the
next at least. Judged; ``duration_cv`` only tells of repeats that follow each other."""
_ARRANGED = 0.3
_ARRANGEMENTS = frozenset(
    {
        Family.ATTENTION,
        Family.COPY,
        Family.FFT,
        Family.GATHER,
        Family.POOLING,
        Family.REDUCTION,
        Family.RESAMPLE,
        Family.RNN,
        Family.SCAN,
        Family.SCATTER,
        Family.SOFTMAX,
        Family.SORT,
    }
)
"""Families of which a kernel's key leaves open what moves its time: the permutation of a transpose, whether a reduced
axis is the last, windows, indices. The half-width is then at least ``_ARRANGED`` (judged)."""
_NORMAL_90 = 1.645
_LONGEST_NAME = 200


def build_lowering(labels: Sequence[Label]) -> MeasuredLowering | None:
    """One call per distinct kernel and runtime: the geometric mean of its times, the launches of the one nearest to it.
    None without labels that own their launches."""
    own = [label for label in labels if label.whole]
    if not own:
        return None
    keys = signatures(KernelTable.from_kernels([label.kernel for label in own]))
    grouped: dict[tuple[str, tuple[str, str, str, bytes]], list[Label]] = {}
    for label, key in zip(own, keys, strict=True):
        grouped.setdefault((label.call.runtime, key), []).append(label)
    chosen: list[Label] = []
    duration = []
    width = []
    for group in list(grouped.values())[:MOST_CALLS]:
        logs = np.log([label.duration_us for label in group])
        middle = float(logs.mean())
        best = group[int(np.argmin(np.abs(logs - middle)))]
        chosen.append(best)
        duration.append(math.exp(middle))
        least = _ARRANGED if best.kernel.family in _ARRANGEMENTS else REPEATABLE
        width.append(min(5.0, max(least, _NORMAL_90 * math.hypot(float(logs.std()), _cv(best.rows)))))
    rows = [(row, label.duration_us) for label in chosen for row in label.rows]
    columns = np.array([_columns(row, total) for row, total in rows])
    return MeasuredLowering(
        table=KernelTable.from_kernels([label.kernel for label in chosen]),
        runtime=_objects([label.call.runtime for label in chosen]),
        duration_us=np.array(duration),
        width=np.array(width),
        first=np.concatenate([[0], np.cumsum([len(label.rows) for label in chosen])]).astype(np.int64),
        kind=_objects([row.kind for row, _ in rows]),
        name=_objects([_name(row) for row, _ in rows]),
        columns={name: columns[:, j] for j, name in enumerate(LAUNCH_COLUMNS)},
    )


def blocks_of(text: str | None) -> float:
    """Product of a grid or block ``x,y,z``; NaN where it is not told."""
    try:
        if text:
            return float(math.prod(int(v) for v in text.split(",")))
        return math.nan
    except ValueError:
        return math.nan


def _cv(rows: Sequence[KernelMeasurement]) -> float:
    """Of the sum of the launches, their errors taken as independent."""
    total = sum(row.duration_us or 0.0 for row in rows)
    spread = math.hypot(*((row.duration_us or 0.0) * (row.duration_cv or 0.0) for row in rows))
    return spread / total


def _columns(row: KernelMeasurement, total_us: float) -> tuple[float, ...]:
    shared = [row.static_smem_bytes, row.dynamic_smem_bytes]
    values = {
        "share": (row.duration_us or 0.0) / total_us,
        "grid_blocks": blocks_of(row.grid),
        "block_threads": blocks_of(row.block),
        "registers_per_thread": row.registers_per_thread,
        "shared_bytes": None if None in shared else sum(v or 0 for v in shared),
        "occupancy_pct": row.achieved_occupancy_pct,
    }
    return tuple(math.nan if values[n] is None else float(values[n]) for n in LAUNCH_COLUMNS)  # type: ignore[arg-type]


def _name(row: KernelMeasurement) -> str:
    name = "".join(c for c in row.kernel_name or "" if c.isprintable())
    return name[:_LONGEST_NAME] or row.kind


def _objects(words: Sequence[str]) -> np.ndarray:
    result = np.empty(len(words), dtype=object)
    result[:] = words
    return result
