"""Make the measured lowering of a GPU from labelled calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gkestimator.bundles.measured_lowering import LAUNCH_COLUMNS, MOST_CALLS, MeasuredLowering, signatures
from gkestimator.core.escaping import printable
from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.tables import KernelMeasurement
from gkestimator.training.calls import Label
from gkestimator.training.dataset_rows import blocks_of

REPEATABLE = 0.03
"""Least 90 % half-width of log(time) of a call that was measured: what clocks and neighbours change from one day to the
next at least. Judged; ``duration_cv`` only tells of repeats that follow each other."""
_ARRANGED = 0.3
_ARRANGEMENTS = frozenset(
    {
        Family.ATTENTION,
        Family.COPY,
        Family.DECODE,
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
# Templates of CUTLASS have names of kilobytes; their beginning tells them apart.
_LONGEST_NAME = 200


def build_lowering(labels: Sequence[Label]) -> MeasuredLowering | None:
    """Return one call per distinct kernel and runtime, or None without labels that own their launches.

    Its time is the geometric mean of its times, its launches are those of the call nearest to that.
    """
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
        nearest, duration_us, half_width = _middle(group)
        chosen.append(nearest)
        duration.append(duration_us)
        width.append(half_width)
    rows: list[KernelMeasurement] = []
    values = []
    for label in chosen:
        rows += label.rows
        values += [_columns(row, label.duration_us) for row in label.rows]
    columns = np.array(values)
    starts = np.cumsum([0, *(len(label.rows) for label in chosen)])
    return MeasuredLowering(
        table=KernelTable.from_kernels([label.kernel for label in chosen]),
        runtime=_objects([label.call.runtime for label in chosen]),
        duration_us=np.array(duration),
        width=np.array(width),
        first=starts.astype(np.int64),
        kind=_objects([row.kind for row in rows]),
        name=_objects([_name(row) for row in rows]),
        columns={name: columns[:, j] for j, name in enumerate(LAUNCH_COLUMNS)},
    )


def _middle(group: Sequence[Label]) -> tuple[Label, float, float]:
    """Return the label nearest to the geometric mean of the times, that mean, and the half-width of its log."""
    logs = np.log([label.duration_us for label in group])
    middle = float(logs.mean())
    nearest = group[int(np.argmin(np.abs(logs - middle)))]
    least = REPEATABLE
    if nearest.kernel.family in _ARRANGEMENTS:
        least = _ARRANGED
    spread = math.hypot(float(logs.std()), _cv(nearest.rows))
    return nearest, math.exp(middle), min(5.0, max(least, _NORMAL_90 * spread))


def _cv(rows: Sequence[KernelMeasurement]) -> float:
    """Return the coefficient of variation of the launches' sum, their errors taken as independent."""
    total = sum(row.duration_us or 0.0 for row in rows)
    spread = math.hypot(*((row.duration_us or 0.0) * (row.duration_cv or 0.0) for row in rows))
    return spread / total


def _columns(row: KernelMeasurement, total_us: float) -> tuple[float, ...]:
    static = row.static_smem_bytes
    dynamic = row.dynamic_smem_bytes
    shared = None
    if static is not None and dynamic is not None:
        shared = static + dynamic
    values = {
        "share": (row.duration_us or 0.0) / total_us,
        "grid_blocks": blocks_of(row.grid),
        "block_threads": blocks_of(row.block),
        "registers_per_thread": row.registers_per_thread,
        "shared_bytes": shared,
        "occupancy_pct": row.achieved_occupancy_pct,
    }
    columns = []
    for name in LAUNCH_COLUMNS:
        value = values[name]
        columns.append(math.nan if value is None else float(value))
    return tuple(columns)


def _name(row: KernelMeasurement) -> str:
    return printable(row.kernel_name or "")[:_LONGEST_NAME] or row.kind


def _objects(words: Sequence[str]) -> Array:
    result = np.empty(len(words), dtype=object)
    result[:] = words
    return result
