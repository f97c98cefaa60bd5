"""Measured kernels as training takes them, whatever file they came from."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.core.records import frozen

_SCALARS = (
    "flops",
    "read_bytes",
    "write_bytes",
    "weight_bytes",
    "rows",
    "cols",
    "element_bytes",
    "inputs",
    "workspace_bytes",
)
_GEMM = ("gemm_batch", "gemm_m", "gemm_n", "gemm_k")
_CONV = tuple(
    f"conv_{name}"
    for name in (
        "batch",
        "in_channels",
        "out_channels",
        "groups",
        "in_h",
        "in_w",
        "out_h",
        "out_w",
        "kernel_h",
        "kernel_w",
        "stride_h",
        "stride_w",
        "dilation_h",
        "dilation_w",
    )
)
_TOLD_FROM_FLOOR = 1.15
_DEFAULTS = {"weight_bytes": 0.0, "rows": 1.0, "cols": 1.0, "inputs": 1.0, "workspace_bytes": 0.0}


def kernel_table(
    *,
    family: str,
    variant: np.ndarray | str,
    precision: np.ndarray | str,
    columns: Mapping[str, np.ndarray | float],
) -> KernelTable:
    """A table of one family from whole columns; absent sizes take the defaults of ``Kernel``, absent shapes
    NaN."""
    count = max((len(v) for v in columns.values() if isinstance(v, np.ndarray)), default=0)

    def words(value: np.ndarray | str) -> np.ndarray:
        result = np.empty(count, dtype=object)
        result[:] = value
        return result

    full: dict[str, np.ndarray] = {}
    for name in (*_SCALARS, *_GEMM, *_CONV):
        default = _DEFAULTS.get(name, np.nan)
        full[name] = np.broadcast_to(
            np.asarray(columns.get(name, default), dtype=np.float64), (count,)
        ).copy()
    return KernelTable(family=words(family), variant=words(variant), precision=words(precision), columns=full)


def product_table(
    family: str,
    precision: np.ndarray | str,
    *,
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    size: np.ndarray | float,
    batch: np.ndarray | float = 1.0,
) -> KernelTable:
    """Return ``batch`` matrix products (m, k) x (k, n) a row, of ``size`` bytes an element.

    The right side of family ``linear`` are weights.
    """
    right = batch * n * k * size
    weights = right if family == "linear" else 0.0
    return kernel_table(
        family=family,
        variant=family,
        precision=precision,
        columns={
            "flops": 2 * batch * m * n * k,
            "read_bytes": batch * m * k * size + right,
            "write_bytes": batch * m * n * size,
            "weight_bytes": weights,
            "rows": batch * m * n,
            "element_bytes": size,
            "inputs": 2.0,
            "gemm_batch": batch,
            "gemm_m": m,
            "gemm_n": n,
            "gemm_k": k,
        },
    )


def shape_hash(table: KernelTable) -> np.ndarray:
    """A number in [0, 1) per row from what is calculated (family, operator, precision and every size), not
    from where.

    Equal shapes on different GPUs, or from different frameworks, get equal numbers, so no split separates
    them.
    """
    words = np.char.add(np.char.add(table.family.astype(str), "/"), table.variant.astype(str))
    return _hash(table, words, ("rows", "cols", "inputs", "element_bytes", *_GEMM, *_CONV))


def size_hash(table: KernelTable) -> np.ndarray:
    """As :func:`shape_hash`, but of family and sizes alone.

    Operators of a family at one size (a convolution with and without its activation, a ReLU and a sigmoid) take nearly
    the same time: a split that parts them does not leave the size out.
    """
    return _hash(table, table.family.astype(str), ("rows", "cols", "element_bytes", *_GEMM, *_CONV))


def _hash(table: KernelTable, words: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    sizes = np.nan_to_num(np.stack([table.columns[n] for n in names], axis=1), nan=-1.0)
    distinct, which = np.unique(words, return_inverse=True)
    prefix = [zlib.crc32(str(w).encode()) for w in distinct]
    raw = np.ascontiguousarray(sizes).view(np.uint8).reshape(len(table), -1)
    return np.fromiter(
        (zlib.crc32(raw[i].tobytes(), prefix[which[i]]) / 2**32 for i in range(len(table))), float, len(table)
    )


@frozen
class TrainingRows:
    """Measured kernels: one entry per row in every array.

    ``gpu``: canonical names (str objects). ``measured_us``: what the publisher measured. ``gap_us``: the part
    of it that is no GPU time (dispatch between the timing events); ``hold_us``: GPU time below which the
    measurement does not change, because the host has not yet queued the closing event. The GPU time is
    ``measured - gap`` where that clearly exceeds ``hold``, else unknown. ``weight``: how much a row counts.
    ``grid_blocks``: recorded, or NaN. ``kernel_class``: name of the recorded kernel's tile
    (``gkestimator.kernel_models.tiles``), empty where it is not known.
    """

    table: KernelTable
    gpu: np.ndarray
    measured_us: np.ndarray
    gap_us: np.ndarray
    hold_us: np.ndarray
    weight: np.ndarray
    grid_blocks: np.ndarray
    source: np.ndarray
    kernel_class: np.ndarray

    def __len__(self) -> int:
        return len(self.table)

    @property
    def duration_us(self) -> np.ndarray:
        """GPU time in microseconds; NaN where the launch hides it (within 15 % of the floor gap + hold)."""
        return np.where(
            self.measured_us - self.gap_us >= self.hidden_below_us, self.measured_us - self.gap_us, np.nan
        )

    @property
    def hidden_below_us(self) -> np.ndarray:
        """GPU time in microseconds that a measurement must show before it is told from the launch: what 15 % above
        the floor gap + hold leaves for the GPU."""
        return np.asarray(_TOLD_FROM_FLOOR * (self.gap_us + self.hold_us) - self.gap_us)

    def as_measured_us(self, duration_us: np.ndarray) -> np.ndarray:
        """What the publisher would have measured for kernels that take ``duration_us``."""
        return np.asarray(self.gap_us + np.maximum(duration_us, self.hold_us))

    def take(self, index: np.ndarray) -> TrainingRows:
        """The rows that ``index`` (integers or a mask) selects."""
        return TrainingRows(
            table=self.table.take(index),
            gpu=self.gpu[index],
            measured_us=self.measured_us[index],
            gap_us=self.gap_us[index],
            hold_us=self.hold_us[index],
            weight=self.weight[index],
            grid_blocks=self.grid_blocks[index],
            source=self.source[index],
            kernel_class=self.kernel_class[index],
        )

    @classmethod
    def make(
        cls,
        table: KernelTable,
        *,
        gpu: np.ndarray,
        measured_us: np.ndarray,
        source: str,
        weight: float = 1.0,
        gap_us: np.ndarray | float = 0.0,
        hold_us: np.ndarray | float = 0.0,
        grid_blocks: np.ndarray | float = np.nan,
        kernel_class: np.ndarray | str = "",
    ) -> TrainingRows:
        """Rows from columns; single numbers are repeated."""
        count = len(table)

        def numbers(value: np.ndarray | float) -> np.ndarray:
            return np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)).copy()

        names = np.empty(count, dtype=object)
        names[:] = gpu
        origin = np.empty(count, dtype=object)
        origin[:] = source
        classes = np.empty(count, dtype=object)
        classes[:] = kernel_class
        return cls(
            table=table,
            gpu=names,
            measured_us=numbers(measured_us),
            gap_us=numbers(gap_us),
            hold_us=numbers(hold_us),
            weight=numbers(weight),
            grid_blocks=numbers(grid_blocks),
            source=origin,
            kernel_class=classes,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[TrainingRows]) -> TrainingRows:
        """All rows of ``parts``, which must not be empty, in order."""
        tables = [p.table for p in parts]
        table = KernelTable(
            family=np.concatenate([t.family for t in tables]),
            variant=np.concatenate([t.variant for t in tables]),
            precision=np.concatenate([t.precision for t in tables]),
            columns={n: np.concatenate([t.columns[n] for t in tables]) for n in tables[0].columns},
        )
        rest = {
            name: np.concatenate([getattr(p, name) for p in parts])
            for name in (
                "gpu",
                "measured_us",
                "gap_us",
                "hold_us",
                "weight",
                "grid_blocks",
                "source",
                "kernel_class",
            )
        }
        return cls(table=table, **rest)
