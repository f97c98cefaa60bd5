"""Kernels: the work a GPU is given, before anyone says how long it takes.

``lowering`` produces a :class:`KernelGraph`; ``features``, ``launch`` and the regressors read a :class:`KernelTable`,
the same kernels as columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.records import frozen

Array: TypeAlias = np.ndarray
"""Numbers, one per kernel unless said otherwise."""
Arrays: TypeAlias = Mapping[str, np.ndarray]
"""Arrays by name."""


INDEXED = ".indexed"
"""Ends the variant of element-wise kernels that divide their index to find an operand's place; the number of dimensions
that they divide by follows."""


def plain_variant(variant: str) -> str:
    """Return ``variant`` without its indexed dimensions."""
    return variant.partition(INDEXED)[0]


def is_listed(variant: str, variants: Collection[str]) -> bool:
    """Return whether ``variant`` is among ``variants``, itself or by its ending (:data:`ENDING`)."""
    return variant in variants or any(v.startswith(ENDING) and variant.endswith(v) for v in variants)


class Family(StrEnum):
    """Name what kind of kernel it is; regressors, features and launch geometry are chosen by it."""

    LINEAR = "linear"  # one GEMM: (m, k) x (k, n), usually against a weight
    BMM = "bmm"  # batched GEMM of activations
    CONV = "conv"  # convolution, dense or grouped, as implicit GEMM / Winograd
    DEPTHWISE = "depthwise"  # convolution with one input channel per group
    CONV_TRANSPOSE = "conv_transpose"
    ATTENTION = "attention"  # fused scaled dot-product attention
    DECODE = "decode"  # the same of few queries on a cache, cut along the keys
    RNN = "rnn"  # a cuDNN recurrent layer
    ELEMENTWISE = "elementwise"
    SOFTMAX = "softmax"  # softmax, log-softmax, hardmax along one axis
    LAYERNORM = "layernorm"  # layer, RMS, group, instance normalisation: statistics over rows
    BATCHNORM = "batchnorm"  # inference: scale and shift per channel
    POOLING = "pooling"
    REDUCTION = "reduction"  # sums, maxima, norms, arg-reductions
    COPY = "copy"  # transpose, concat, slice, pad, expand, cast, tile
    GATHER = "gather"  # gather, embedding
    SCATTER = "scatter"
    SCAN = "scan"  # cumulative sums
    SORT = "sort"  # top-k, unique, non-zero, non-max suppression
    RESAMPLE = "resample"  # resize, grid sample, RoI align
    FFT = "fft"
    RANDOM = "random"
    QUANTIZE = "quantize"
    HOST = "host"  # runs on the CPU (strings, images, trees): no GPU kernel

    __hash__ = str.__hash__  # as DType's: kernels are hashed by the thousand


LIBRARY_FAMILIES = frozenset(
    {Family.LINEAR, Family.BMM, Family.CONV, Family.DEPTHWISE, Family.CONV_TRANSPOSE, Family.ATTENTION}
)
"""Kernels of libraries: those of a runtime that brings its own say its name in the last word of their variant."""
TENSORRT = "tensorrt"
"""The last word of the variant of such kernels of TensorRT."""
ENDING = "."
"""Begins what stands for every variant that ends so, in lists of variants: ``.tensorrt``."""
DECODE = "decode"
"""First word of the variant of a decoding attention; the words below follow it, joined by dots."""
WINDOW = "window"
"""Only a window of the last keys is seen."""
BYTE_CACHE = "byte_cache"
"""Keys and values are stored in one byte each (fp8 or int8), and widened when they are read."""
UNCUT = "uncut"
"""The keys are not cut into parts: each query head has one block, which walks over all of them."""
WARM_CACHE = "warm_cache"
"""The kernel runs again and again, so that what fits stays in L2 from the last run. Benchmarks do so; in a model the
weights of the layers in between push the cache out."""


@frozen
class GemmShape:
    """``batch`` products of (m, k) x (k, n). Convolutions: the implicit GEMM of ONE group, ``batch`` = groups."""

    batch: int
    m: int
    n: int
    k: int


@frozen
class ConvShape:
    """A 1-, 2- or 3-D convolution; heights stand for the product of all but the last spatial dimension."""

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    in_h: int
    in_w: int
    out_h: int
    out_w: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int


@frozen
class Kernel:
    """One kernel launch: exact counts, no GPU in them yet.

    ``name`` is what ``--kernels`` prints (``linear``, ``elementwise.add``); ``variant`` the operator inside its
    family (``add``, ``relu``, ``max_pool``; exact keys for features). ``read_bytes`` and ``write_bytes`` are
    the compulsory traffic (each operand once), ``weight_bytes`` the part of ``read_bytes`` that is weights.
    ``flops`` counts a multiply-add as two. ``rows`` x ``cols``: independent rows of the reduced or normalised
    extent (elementwise and copies: rows = output elements, cols = 1, but for copies that fetch more from L2
    than they read: how many times). ``element_bytes`` is the size of one output element, ``inputs`` the number
    of tensor operands read. ``workspace_bytes`` is scratch memory held during the launch. ``sequences``: of
    attention, the samples that attend to themselves alone (the rest of ``gemm.batch`` are heads). ``again_bytes`` are
    read besides where no cache holds what is read repeatedly (operands that are broadcast), and ``again_window`` the
    bytes touched between one such reading and the next. ``permits`` are the wider precisions that the runtime may take
    instead of ``precision`` where that is faster.
    """

    name: str
    family: Family
    variant: str
    precision: Precision
    flops: int
    read_bytes: int
    write_bytes: int
    weight_bytes: int = 0
    rows: int = 1
    cols: int = 1
    element_bytes: float = 4.0
    inputs: int = 1
    gemm: GemmShape | None = None
    conv: ConvShape | None = None
    workspace_bytes: int = 0
    sequences: int = 1
    again_bytes: int = 0
    again_window: int = 0
    permits: tuple[Precision, ...] = ()


@frozen
class Step:
    """One call of the runtime: the operator (or fused pattern) it stands for and the kernels it launches.

    ``reads`` and ``writes`` name storages (``writes`` with their bytes): what liveness is computed from. A storage
    written under a name that is already live is written in place. ``host_calls`` counts framework calls (each costs
    the runtime profile's launch overhead). ``unknown`` marks an operator no rule covers (only with
    ``allow_unknown``): its kernels are missing, so every sum is a lower bound. ``holds`` are storages that it does not
    touch but that are freed after it at the earliest (what the host program still refers to).
    """

    name: str
    op_type: str
    kernels: tuple[Kernel, ...]
    reads: tuple[str, ...]
    writes: tuple[tuple[str, int], ...]
    host_calls: int
    repeat: int = 1
    unknown: bool = False
    holds: tuple[str, ...] = ()


@frozen
class KernelGraph:
    """A lowered model. Storages: ``weights``, ``inputs`` and ``outputs`` with their bytes, the rest in the steps.

    Two graphs whose ``wiring`` is one object (not None) agree in everything but kernels and bytes: the same steps
    touch the same storages (what liveness may be cached by). ``groups``: the names of all operators that a step stands
    for, by its own, where they are several (a fused group). ``unfused``: what stayed a kernel of its own though users
    may expect it in a group, with the reason: how often.
    """

    name: str
    runtime: str
    dtype: str
    steps: tuple[Step, ...]
    weights: Mapping[str, int]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    unknown_operators: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)  # pattern name -> how often it was recognised
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    wiring: object = field(default=None, compare=False, repr=False)
    unfused: Mapping[tuple[str, str], int] = field(default_factory=dict, compare=False, repr=False)


_GEMM = tuple(f.name for f in fields(GemmShape))
_CONV = tuple(f.name for f in fields(ConvShape))
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
    "sequences",
    "again_bytes",
    "again_window",
)
_PRECISION_BITS = {
    Precision.FP64: 64,
    Precision.FP32: 32,
    Precision.TF32: 32,
    Precision.FP16: 16,
    Precision.BF16: 16,
    Precision.FP8: 8,
    Precision.INT8: 8,
    Precision.W8A16: 16,
    Precision.W4A16: 16,
}


def _permits(kernels: Sequence[Kernel]) -> Array | None:
    """Return what each of ``kernels`` permits, None where none permits anything."""
    if not any(kernel.permits for kernel in kernels):
        return None
    column = np.empty(len(kernels), dtype=object)
    for place, kernel in enumerate(kernels):
        column[place] = kernel.permits
    return column


@frozen
class KernelTable:
    """Hold kernels as columns (float64 arrays of one length; NaN where a kernel has no such shape).

    ``columns`` holds the scalar fields of :class:`Kernel` under their names, ``gemm_batch, gemm_m, gemm_n, gemm_k``
    and ``conv_<field of ConvShape>``. ``family``, ``variant`` and ``precision`` are arrays of str objects, ``permits``
    one of tuples of precisions (None: no kernel has any).
    """

    family: Array
    variant: Array
    precision: Array
    columns: Arrays
    permits: Array | None = None

    def __len__(self) -> int:
        return len(self.family)

    @classmethod
    def from_kernels(cls, kernels: Sequence[Kernel]) -> KernelTable:
        """Return ``kernels`` as columns, in their order."""
        count = len(kernels)
        columns = {}
        for name in _SCALARS:
            columns[name] = np.fromiter((getattr(k, name) for k in kernels), dtype=np.float64, count=count)
        for prefix, names in (("gemm", _GEMM), ("conv", _CONV)):
            block = np.full((len(names), count), np.nan)
            for i, kernel in enumerate(kernels):
                shape = getattr(kernel, prefix)
                if shape is not None:
                    block[:, i] = [getattr(shape, name) for name in names]
            for name, column in zip(names, block, strict=True):
                columns[f"{prefix}_{name}"] = column
        return cls(
            family=np.array([k.family.value for k in kernels], dtype=object),
            variant=np.array([k.variant for k in kernels], dtype=object),
            precision=np.array([k.precision.value for k in kernels], dtype=object),
            columns=columns,
            permits=_permits(kernels),
        )

    def take(self, index: Array) -> KernelTable:
        """Return the rows that ``index`` (integers or a mask) selects."""
        return KernelTable(
            family=self.family[index],
            variant=self.variant[index],
            precision=self.precision[index],
            columns={name: column[index] for name, column in self.columns.items()},
            permits=None if self.permits is None else self.permits[index],
        )

    def widened(self, precision: Precision) -> KernelTable:
        """Return the same kernels calculating in ``precision``, wider than theirs: operands of their precision take
        that of ``precision`` in memory, and so do results that are not as wide already.
        """
        bits = np.array([_PRECISION_BITS[name] for name in self.precision.tolist()], dtype=np.float64)
        ratio = _PRECISION_BITS[precision] / bits
        columns = dict(self.columns)
        size = np.maximum(columns["element_bytes"], _PRECISION_BITS[precision] / 8)
        columns["write_bytes"] = columns["write_bytes"] * size / np.maximum(columns["element_bytes"], 1e-3)
        columns["element_bytes"] = size
        for name in ("read_bytes", "weight_bytes"):
            columns[name] = columns[name] * ratio
        words = np.empty(len(self), dtype=object)
        words[:] = precision.value
        return replace(self, precision=words, columns=columns)

    def placed(self, index: Array, rows: KernelTable) -> KernelTable:
        """Return this table with ``rows`` in the places of ``index``."""
        precision = self.precision.copy()
        precision[index] = rows.precision
        columns = {name: column.copy() for name, column in self.columns.items()}
        for name, column in columns.items():
            column[index] = rows.columns[name]
        return replace(self, precision=precision, columns=columns)

    @property
    def total_bytes(self) -> Array:
        """Return the bytes read and written."""
        return np.asarray(self.columns["read_bytes"] + self.columns["write_bytes"])

    @property
    def outputs(self) -> Array:
        """Return the number of output elements."""
        element_bytes = np.maximum(self.columns["element_bytes"], 1e-3)
        return np.asarray(self.columns["write_bytes"] / element_bytes)

    def has_word(self, word: str) -> Array:
        """Return the mask of the rows whose variant (words joined by dots) holds ``word``."""
        variants, which = np.unique(self.variant.astype(str), return_inverse=True)
        held = np.array([word in variant.split(".") for variant in variants], dtype=bool)
        return np.asarray(held[which])

    def is_listed(self, variants: Collection[str]) -> Array:
        """Return the mask of the rows whose variant is among ``variants`` (:func:`is_listed`)."""
        known, which = np.unique(self.variant.astype(str), return_inverse=True)
        listed = np.array([is_listed(variant, variants) for variant in known], dtype=bool)
        return np.asarray(listed[which])

    def size(self, name: str) -> Array:
        """Return a column of sizes, each at least 1; 1 where a kernel has no such shape."""
        column = np.nan_to_num(self.columns[name], nan=1.0)
        return np.asarray(np.maximum(column, 1.0))

    def gemm_sizes(self) -> tuple[Array, Array, Array, Array]:
        """Return batch, m, n and k of the matrix products, each at least 1."""
        return self.size("gemm_batch"), self.size("gemm_m"), self.size("gemm_n"), self.size("gemm_k")

    def unmeasured_vectors(self) -> Array:
        """Return the mask of matrices times vectors of which nothing was measured: batches, and single precision."""
        columns = self.columns
        thin = np.minimum(columns["gemm_m"], columns["gemm_n"]) == 1
        batched = (self.family == Family.BMM) & (columns["gemm_batch"] > 1)
        single = (self.family == Family.LINEAR) & np.isin(self.precision, ("fp32", "tf32"))
        return np.asarray(thin & (batched | single))

    def is_of(self, families: Iterable[Family]) -> Array:
        """Return the mask of the rows whose family is among ``families``."""
        return np.isin(self.family.astype(str), [family.value for family in families])

    def by_family(self) -> Iterator[tuple[Family, Array]]:
        """Yield each family with the mask of its rows."""
        for family in np.unique(self.family.astype(str)):
            yield Family(family), self.family == family

    def by_precision(self) -> Iterator[tuple[str, Array]]:
        """Yield each precision with the places of its rows."""
        for precision in np.unique(self.precision.astype(str)):
            yield str(precision), np.flatnonzero(self.precision == precision)
