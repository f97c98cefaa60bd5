"""Hold measured kernels as training takes them, whatever file they came from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import Names, frozen
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.roofline import roofline

Progress = Callable[[str, int, int], None]
"""Called with what is worked on, how many parts are done, and of how many."""
_NAMES = tuple(KernelTable.from_kernels(()).columns)
_GEMM = tuple(name for name in _NAMES if name.startswith("gemm_"))
_CONV = tuple(name for name in _NAMES if name.startswith("conv_"))
_LAYER = tuple(name for name in _CONV if name != "conv_batch")
# Floors scatter by several percent from call to call.
_TOLD_FROM_FLOOR = 1.15
# What Kernel says of a family that has no such size.
_DEFAULTS = {
    "weight_bytes": 0.0,
    "rows": 1.0,
    "cols": 1.0,
    "inputs": 1.0,
    "workspace_bytes": 0.0,
    "sequences": 1.0,
    "again_bytes": 0.0,
    "again_window": 0.0,
}
Numbers: TypeAlias = Array | float
"""A number for every row, or one for all."""
Words: TypeAlias = Array | str
"""A text for every row, or one for all."""


def kernel_table(
    *,
    family: str,
    variant: Words,
    precision: Words,
    columns: Mapping[str, Numbers],
) -> KernelTable:
    """Return a table of one family from whole columns.

    Absent sizes take the defaults of ``Kernel``, absent shapes are NaN.
    """
    lengths = [len(column) for column in columns.values() if isinstance(column, Array)]
    count = max(lengths, default=0)
    full: dict[str, Array] = {}
    for name in _NAMES:
        value = columns.get(name, _DEFAULTS.get(name, np.nan))
        full[name] = _repeated(value, count, np.float64)
    return KernelTable(
        family=_repeated(family, count, object),
        variant=_repeated(variant, count, object),
        precision=_repeated(precision, count, object),
        columns=full,
    )


def product_table(
    family: str,
    precision: Words,
    *,
    m: Array,
    n: Array,
    k: Array,
    size: Numbers,
    batch: Numbers = 1.0,
    right_size: Numbers | None = None,
    result_size: Numbers | None = None,
    variant: Words | None = None,
) -> KernelTable:
    """Return ``batch`` matrix products (m, k) x (k, n) a row, of ``size`` bytes an element.

    The right side of family ``linear`` are weights. ``right_size`` and ``result_size``: bytes an element of the
    right side and of the result where they differ. ``variant``: the family's name by default.
    """
    if right_size is None:
        right_size = size
    if result_size is None:
        result_size = size
    right = batch * n * k * right_size
    weights = right if family == "linear" else 0.0
    return kernel_table(
        family=family,
        variant=variant if variant is not None else family,
        precision=precision,
        columns={
            "flops": 2 * batch * m * n * k,
            "read_bytes": batch * m * k * size + right,
            "write_bytes": batch * m * n * result_size,
            "weight_bytes": weights,
            "rows": batch * m * n,
            "element_bytes": result_size,
            "inputs": 2.0,
            "gemm_batch": batch,
            "gemm_m": m,
            "gemm_n": n,
            "gemm_k": k,
        },
    )


def conv_table(
    *,
    n: Array,
    c: Array,
    h: Array,
    w: Array,
    k: Array,
    r: Array,
    s: Array,
    pad_h: Array,
    pad_w: Array,
    stride_h: Array,
    stride_w: Array,
    precision: Words,
    size: Numbers,
    result_size: Numbers | None = None,
    groups: Numbers = 1.0,
    residuals: Numbers = 0.0,
    family: str = "conv",
    variant: Words = "conv",
) -> KernelTable:
    """Return 2-D convolutions of n images (c, h, w) with k filters (c / groups, r, s); ``size`` is bytes per element.

    ``result_size``: bytes an element of the result where they differ. ``residuals``: how many images of the result's
    size are read besides and added.
    """
    if result_size is None:
        result_size = size
    out_h = np.floor((h + 2 * pad_h - r) / stride_h) + 1
    out_w = np.floor((w + 2 * pad_w - s) / stride_w) + 1
    m = n * out_h * out_w
    one = np.ones_like(n)
    groups = groups * one
    depth = c / groups * r * s
    weights = k * depth * size
    written = m * k * result_size
    return kernel_table(
        family=family,
        variant=variant,
        precision=precision,
        columns={
            "flops": m * k * (2 * depth + residuals),
            "read_bytes": n * c * h * w * size + weights + residuals * written,
            "write_bytes": written,
            "weight_bytes": weights,
            "rows": m * k,
            "element_bytes": result_size * one,
            "inputs": 2.0 + residuals,
            "gemm_batch": groups,
            "gemm_m": m,
            "gemm_n": k / groups,
            "gemm_k": depth,
            "conv_batch": n,
            "conv_in_channels": c,
            "conv_out_channels": k,
            "conv_groups": groups,
            "conv_in_h": h,
            "conv_in_w": w,
            "conv_out_h": out_h,
            "conv_out_w": out_w,
            "conv_kernel_h": r,
            "conv_kernel_w": s,
            "conv_stride_h": stride_h,
            "conv_stride_w": stride_w,
            "conv_dilation_h": one,
            "conv_dilation_w": one,
        },
    )


def by_gpu(gpu: Array) -> Iterator[tuple[str, Array]]:
    """Yield each GPU in a column of names, in the order of names, with the indices of its rows."""
    names = gpu.astype(str)
    for name in np.unique(names).tolist():
        yield name, np.flatnonzero(names == name)


def rooflines_us(table: KernelTable, gpu: Array, gpus: GpuSpecs) -> Array:
    """Return the roofline of every row of ``table`` on its own GPU, microseconds."""
    bare_us = np.empty(len(table))
    for name, index in by_gpu(gpu):
        bare_us[index] = roofline(table.take(index), gpus[name]).roofline_us
    return bare_us


def feature_rows(features: str, table: KernelTable, gpu: Array, gpus: GpuSpecs) -> tuple[Array, Names]:
    """Return the float32 features (rows, features) of every row on its own GPU, and their names.

    Raises TableError without rows: then nobody can say how many features there are.
    """
    parts = []
    order = []
    names: Names = ()
    for name, index in by_gpu(gpu):
        part, names = feature_matrix(features, table.take(index), gpus[name])
        parts.append(part)
        order.append(index)
    if not parts:
        raise TableError("no rows to calculate features of")
    x = np.empty((len(table), len(names)), dtype=np.float32)
    x[np.concatenate(order)] = np.concatenate(parts)
    return x, names


def shape_hash(table: KernelTable) -> Array:
    """Return a number in [0, 1) per row from what is calculated: family, operator, precision and every size.

    Equal shapes on different GPUs, or from different frameworks, get equal numbers, so no split separates them: the
    words of a variant behind its first dot say whose kernel runs and how it scales, and do not count.
    """
    operator = np.char.partition(table.variant.astype(str), ".")[:, 0]
    words = np.char.add(np.char.add(table.family.astype(str), "/"), operator)
    return _hash(table, words, ("rows", "cols", "inputs", "element_bytes", *_GEMM, *_CONV))


def size_hash(table: KernelTable) -> Array:
    """Return numbers as :func:`shape_hash` does, but of family and sizes alone.

    Operators of a family at one size (a convolution with and without its activation, a ReLU and a sigmoid)
    take nearly the same time: a split that parts them does not leave the size out.
    """
    return _hash(table, table.family.astype(str), ("rows", "cols", "element_bytes", *_GEMM, *_CONV))


def layer_hash(table: KernelTable) -> Array:
    """Return numbers as :func:`shape_hash` does, but of what a convolution's layer is in a model: its channels, image,
    filters and steps, whatever its batch, its precision and what is fused behind it."""
    return _hash(table, table.family.astype(str), _LAYER)


def _hash(table: KernelTable, words: Array, names: Names) -> Array:
    sizes = np.nan_to_num(np.stack([table.columns[n] for n in names], axis=1), nan=-1.0)
    distinct, which = np.unique(words, return_inverse=True)
    # Hashes of bytes, not of Python objects: those differ from process to process.
    prefix = [zlib.crc32(str(w).encode()) for w in distinct]
    raw = np.ascontiguousarray(sizes).view(np.uint8).reshape(len(table), -1)
    hashes = np.empty(len(table))
    for i, start in enumerate(which):
        hashes[i] = zlib.crc32(raw[i].tobytes(), prefix[start]) / 2**32
    return hashes


@frozen
class TrainingRows:
    """Hold measured kernels: one entry per row in every array.

    ``gpu``: canonical names (str objects). ``measured_us``: what the publisher measured. ``gap_us``: the part
    of it that is no GPU time (dispatch between the timing events); ``hold_us``: GPU time below which the
    measurement does not change, because the host has not yet queued the closing event. ``beside_us``: GPU time of
    other kernels of the measured call (those that quantise its activations), as they are estimated. The GPU time is
    ``measured - gap - beside`` where that clearly exceeds ``hold``, else unknown. ``weight``: how much a row counts.
    ``grid_blocks``: recorded, or NaN. ``kernel_class``: name of the recorded kernel's tile
    (``gkestimator.kernel_models.tiles``), empty where it is not known.
    """

    table: KernelTable
    gpu: Array
    measured_us: Array
    gap_us: Array
    hold_us: Array
    weight: Array
    grid_blocks: Array
    source: Array
    kernel_class: Array
    beside_us: Array

    def __len__(self) -> int:
        return len(self.table)

    @property
    def duration_us(self) -> Array:
        """Return the GPU time in microseconds; NaN where the launch hides it (within 15 % of the floor gap +
        hold).
        """
        without_gap = self.measured_us - self.gap_us - self.beside_us
        return np.where(without_gap >= self.hidden_below_us, without_gap, np.nan)

    @property
    def hidden_below_us(self) -> Array:
        """Return the GPU time in microseconds that a measurement must show before it is told from the launch.

        That is what 15 % above the floor gap + hold leaves for the GPU.
        """
        return np.asarray(_TOLD_FROM_FLOOR * (self.gap_us + self.hold_us) - self.gap_us)

    def as_measured_us(self, duration_us: Array) -> Array:
        """Return what the publisher would have measured for kernels that take ``duration_us``."""
        return np.asarray(self.gap_us + self.beside_us + np.maximum(duration_us, self.hold_us))

    def take(self, index: Array) -> TrainingRows:
        """Return the rows that ``index`` (integers or a mask) selects."""
        columns = {name: getattr(self, name)[index] for name in _COLUMNS}
        return TrainingRows(table=self.table.take(index), **columns)

    @classmethod
    def make(
        cls,
        table: KernelTable,
        *,
        gpu: Array,
        measured_us: Array,
        source: str,
        weight: float = 1.0,
        gap_us: Numbers = 0.0,
        hold_us: Numbers = 0.0,
        beside_us: Numbers = 0.0,
        grid_blocks: Numbers = np.nan,
        kernel_class: Words = "",
    ) -> TrainingRows:
        """Return rows from columns; single numbers are repeated."""
        numbers = {"measured_us": measured_us, "gap_us": gap_us, "hold_us": hold_us}
        numbers |= {"weight": weight, "grid_blocks": grid_blocks, "beside_us": beside_us}
        words = {"gpu": gpu, "source": source, "kernel_class": kernel_class}
        columns = {name: _repeated(value, len(table), np.float64) for name, value in numbers.items()}
        columns |= {name: _repeated(value, len(table), object) for name, value in words.items()}
        return cls(table=table, **columns)

    @classmethod
    def concatenate(cls, parts: Sequence[TrainingRows]) -> TrainingRows:
        """Return all rows of ``parts``, which must not be empty, in order."""
        tables = [p.table for p in parts]
        table = KernelTable(
            family=np.concatenate([t.family for t in tables]),
            variant=np.concatenate([t.variant for t in tables]),
            precision=np.concatenate([t.precision for t in tables]),
            columns={n: np.concatenate([t.columns[n] for t in tables]) for n in tables[0].columns},
        )
        columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS}
        return cls(table=table, **columns)


_COLUMNS = tuple(field.name for field in fields(TrainingRows) if field.name != "table")


def _repeated(value: object, count: int, dtype: type) -> Array:
    """Return a column of ``count`` values of its own; a single one is repeated."""
    column: Array = np.empty(count, dtype=dtype)
    column[:] = value
    return column
