"""Physical features of kernels on a GPU: the one function that training and prediction both call.

All sizes, times and rates enter as natural logarithms; ratios that lie in [0, 1] enter as they are. The
recipe is that of the project's study of public measurements: roofline sides, arithmetic intensity over
machine balance, bytes over L2, matrix dimensions and the power of two that divides them, waves, wave fill and
padding for five tile sizes, and the GPU's numeric specification instead of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.convolution import convolution_columns
from gkestimator.kernel_models.features.tensor import fused_attention_features, tensor_features
from gkestimator.kernel_models.features.tensor_cores import tensor_core_us
from gkestimator.kernel_models.features.transfer import transfer_conv, transfer_matrix, transfer_memory
from gkestimator.kernel_models.launch import memory_launch
from gkestimator.kernel_models.roofline import Roofline, peak_rate, roofline

TILES = ((32, 32), (64, 64), (128, 64), (128, 128), (256, 128))

ELEMENTWISE_VARIANTS = ("add", "mul", "div", "pow", "relu", "gelu", "tanh")
"""Elementwise operators with measurements of their own; the others borrow from the one that costs about the
same."""

_NEAREST = {
    "add": (
        "add sub bias bias_add weighted_sum max min where equal greater less greater_or_equal "
        "less_or_equal and or xor not"
    ),
    "relu": (
        "relu copy fill range activation thresholded_relu shrink binarizer bitwise_not bit_shift "
        "clip neg abs leaky_relu prelu threshold sign floor ceil round cast identity is_nan is_inf "
        "hard_sigmoid"
    ),
    "mul": (
        "mul bitwise_and bitwise_or bitwise_xor scale hard_swish hardswish square rope rotary "
        "rotary_embedding silu_mul swiglu"
    ),
    "div": "div reciprocal mod sqrt rsqrt softsign",
    "pow": "pow",
    "tanh": (
        "tanh sigmoid exp log erf sin cos tan atan asin acos sinh cosh asinh acosh atanh softplus "
        "elu selu celu"
    ),
    "gelu": "gelu gelu_tanh fast_gelu quick_gelu silu swish mish bias_gelu bias_split_gelu",
}
_VARIANT_OF = MappingProxyType({name: kind for kind, names in _NEAREST.items() for name in names.split()})


def elementwise_variant(variant: str) -> str | None:
    """The measured elementwise operator whose cost ``variant`` shares (itself where measured); None if
    unknown."""
    return _VARIANT_OF.get(variant)


def _power_of_two(values: np.ndarray) -> np.ndarray:
    """log2 of the largest power of two, at most 64, that divides each whole number."""
    whole = values.astype(np.int64)
    lowest = np.where(whole > 0, whole & -whole, 64)
    return np.log2(np.minimum(lowest, 64).astype(np.float64))


class _Columns:
    """Collects named columns, then stacks them once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.values: list[np.ndarray] = []

    def add(self, name: str, value: np.ndarray) -> None:
        self.names.append(name)
        self.values.append(value)

    def stack(self, count: int) -> tuple[np.ndarray, tuple[str, ...]]:
        matrix = np.empty((count, len(self.values)), dtype=np.float32)
        for j, value in enumerate(self.values):
            matrix[:, j] = value
        return matrix, tuple(self.names)


def _common(out: _Columns, table: KernelTable, gpu: GpuSpec, roof: Roofline, *, compute: bool = True) -> None:
    columns = table.columns
    total = columns["read_bytes"] + columns["write_bytes"]
    l2 = float(gpu.l2_bytes)
    tiny = 1e-4  # us: a side without work is far below every side with some
    log_memory = np.log(np.maximum(roof.memory_us, tiny))
    out.add("log_roofline", np.log(roof.roofline_us))
    out.add("log_memory", log_memory)
    if compute:  # memory-bound families leave it out: what counts as one of their FLOPs is a convention
        log_compute = np.log(np.maximum(roof.compute_us, tiny))
        out.add("log_compute", log_compute)
        out.add("log_intensity_over_balance", log_compute - log_memory)
    out.add("log_total_over_l2", np.log((total + 1) / l2))
    out.add("log_read_over_l2", np.log((columns["read_bytes"] + 1) / l2))
    out.add("log_write_over_l2", np.log((columns["write_bytes"] + 1) / l2))
    out.add("element_bytes", columns["element_bytes"])


def _specification(out: _Columns, table: KernelTable, gpu: GpuSpec, *, matrix: bool) -> None:
    count = len(table)
    precisions, inverse = np.unique(table.precision.astype(str), return_inverse=True)
    peaks = np.array([peak_rate(gpu, str(p), matrix=matrix) for p in precisions])
    vector = peak_rate(gpu, "fp32", matrix=False)
    peak = peaks[inverse] if count else np.empty(0)
    out.add("log_bandwidth", np.full(count, np.log(gpu.dram_bytes_per_s)))
    out.add("log_sms", np.full(count, np.log(gpu.sms)))
    out.add("log_cores_per_sm", np.full(count, np.log(gpu.cuda_cores_per_sm)))
    out.add("log_clock", np.full(count, np.log(gpu.boost_clock_mhz)))
    out.add("log_peak", np.log(peak))
    out.add("log_peak_over_vector", np.log(peak / vector))
    out.add("log_l2", np.full(count, np.log(float(gpu.l2_bytes))))
    out.add("compute_capability", np.full(count, gpu.compute_capability[0] + gpu.compute_capability[1] / 10))


def _gemm(out: _Columns, table: KernelTable, gpu: GpuSpec) -> None:
    columns = table.columns
    batch, m, n, k = (
        np.maximum(np.nan_to_num(columns[f"gemm_{c}"], nan=1.0), 1.0) for c in ("batch", "m", "n", "k")
    )
    out.add("log_weight_over_l2", np.log((columns["weight_bytes"] + 1) / float(gpu.l2_bytes)))
    for name, value in (("batch", batch), ("m", m), ("n", n), ("k", k)):
        out.add(f"log_{name}", np.log(value))
    for name, value in (("m", m), ("n", n), ("k", k)):
        out.add(f"align_{name}", _power_of_two(value))
    for a, b in TILES:
        tiles_m = np.ceil(m / a)
        tiles_n = np.ceil(n / b)
        waves = tiles_m * tiles_n * batch / gpu.sms
        out.add(f"log_waves_{a}x{b}", np.log(waves))
        out.add(f"fill_{a}x{b}", waves / np.ceil(waves))
        out.add(f"useful_{a}x{b}", m * n / (tiles_m * a * tiles_n * b))


def _matrix_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    out = _Columns()
    _common(out, table, gpu, roofline(table, gpu))
    _gemm(out, table, gpu)
    _specification(out, table, gpu, matrix=True)
    return out.stack(len(table))


def _matrix_half_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    matrix, names = _matrix_features(table, gpu)
    modelled = np.log(tensor_core_us(table, gpu) / roofline(table, gpu).roofline_us)
    return np.hstack([matrix, modelled.astype(np.float32)[:, None]]), (*names, "log_tensor_over_roofline")


def _conv_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    out = _Columns()
    _common(out, table, gpu, roofline(table, gpu))
    _gemm(out, table, gpu)
    columns = table.columns
    conv = {
        name: np.maximum(np.nan_to_num(columns[f"conv_{name}"], nan=1.0), 1.0)
        for name in (
            "batch",
            "in_channels",
            "out_channels",
            "groups",
            "out_h",
            "out_w",
            "kernel_h",
            "kernel_w",
            "stride_h",
            "stride_w",
            "dilation_h",
            "dilation_w",
        )
    }
    square = conv["kernel_h"] == conv["kernel_w"]
    small = square & ((conv["kernel_h"] == 3) | (conv["kernel_h"] == 5))
    dense = (conv["stride_h"] * conv["stride_w"] * conv["dilation_h"] * conv["dilation_w"] == 1) & (
        conv["groups"] == 1
    )
    out.add("kernel_area", conv["kernel_h"] * conv["kernel_w"])
    out.add("stride", conv["stride_h"] * conv["stride_w"])
    out.add("log_out_w", np.log(conv["out_w"]))
    out.add("log_images", np.log(conv["batch"]))
    out.add("log_in_channels", np.log(conv["in_channels"] / conv["groups"]))
    out.add("log_groups", np.log(conv["groups"]))
    out.add("winograd", (small & dense).astype(np.float64))
    _specification(out, table, gpu, matrix=True)
    return out.stack(len(table))


def _conv_seen_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    """Those of ``conv`` and what each algorithm would cost."""
    matrix, names = _conv_features(table, gpu)
    columns = convolution_columns(table, gpu, roofline(table, gpu))
    more = np.stack(list(columns.values()), axis=1).astype(np.float32)
    return np.hstack([matrix, more]), (*names, *columns)


_ABSOLUTE_TIMES = ("log_roofline", "log_memory", "log_compute")
_SATURATED = MappingProxyType({"log_waves": np.log(32.0), "over_l2": 3.0})


def _product_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    """Those of ``matrix`` without absolute times, and sizes only to where they stop to matter: 32 waves of
    tiles, e^3 times the L2. A product larger than any measured then looks like the largest measured ones."""
    matrix, names = _matrix_features(table, gpu)
    keep = [i for i, name in enumerate(names) if name not in _ABSOLUTE_TIMES]
    matrix = matrix[:, keep]
    names = tuple(names[i] for i in keep)
    for i, name in enumerate(names):
        for part, most in _SATURATED.items():
            if part in name:
                np.minimum(matrix[:, i], np.float32(most), out=matrix[:, i])
    return matrix, names


def _attention_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    out = _Columns()
    _common(out, table, gpu, roofline(table, gpu))
    columns = table.columns
    batch, m, n, k = (
        np.maximum(np.nan_to_num(columns[f"gemm_{c}"], nan=1.0), 1.0) for c in ("batch", "m", "n", "k")
    )
    for name, value in (("batch", batch), ("m", m), ("n", n), ("k", k)):
        out.add(f"log_{name}", np.log(value))
    out.add("align_m", _power_of_two(m))
    out.add("align_k", _power_of_two(k))
    # 1 for full attention, about 1/2 for causal: the FLOPs counted over those of two full products
    # (the softmax between them adds a few percent, which the limit cuts off).
    out.add("counted_work", np.minimum(columns["flops"] / (4 * batch * m * n * k), 1.0))
    # Key and value heads shared by query heads shrink what is read: 1 to 3 query-sized tensors.
    out.add("read_over_write", columns["read_bytes"] / np.maximum(columns["write_bytes"], 1))
    for rows in (64, 128):
        waves = np.ceil(m / rows) * batch / gpu.sms
        out.add(f"log_waves_{rows}", np.log(waves))
        out.add(f"fill_{rows}", waves / np.ceil(waves))
    _specification(out, table, gpu, matrix=True)
    return out.stack(len(table))


def _memory_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    out = _Columns()
    _common(out, table, gpu, roofline(table, gpu), compute=False)
    columns = table.columns
    cols = np.maximum(columns["cols"], 1)
    out.add("log_rows", np.log(np.maximum(columns["rows"], 1)))
    out.add("log_cols", np.log(cols))
    out.add("align_cols", _power_of_two(cols))
    out.add("inputs", columns["inputs"])
    grid, threads = memory_launch(table)
    blocks_per_sm = np.maximum(grid, 1) / gpu.sms
    resident = np.maximum(
        1.0, np.minimum(gpu.blocks_per_sm, np.floor(gpu.warps_per_sm * 32 / np.maximum(threads, 1)))
    )
    waves = blocks_per_sm / resident
    out.add("log_blocks_per_sm", np.log(blocks_per_sm))
    out.add("fill", waves / np.ceil(waves))
    out.add("log_threads", np.log(np.maximum(threads, 1)))
    _specification(out, table, gpu, matrix=False)
    return out.stack(len(table))


def _with_kinds(
    table: KernelTable, matrix: np.ndarray, names: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...]]:
    kinds = np.array([_VARIANT_OF.get(v, "add") for v in table.variant], dtype=object)
    one_hot = np.stack([(kinds == kind) for kind in ELEMENTWISE_VARIANTS], axis=1).astype(np.float32)
    if not len(table):
        one_hot = np.empty((0, len(ELEMENTWISE_VARIANTS)), dtype=np.float32)
    return np.hstack([matrix, one_hot]), names + tuple(f"is_{kind}" for kind in ELEMENTWISE_VARIANTS)


def _elementwise_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    return _with_kinds(table, *_memory_features(table, gpu))


def _transfer_elementwise(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    return _with_kinds(table, *transfer_memory(table, gpu))


def _with_rms(
    table: KernelTable, matrix: np.ndarray, names: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...]]:
    rms = np.array(["rms" in _RMS.get(v, "") for v in table.variant], dtype=np.float32).reshape(-1, 1)
    return np.hstack([matrix, rms]), (*names, "is_rms")


def _layernorm_features(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    return _with_rms(table, *_memory_features(table, gpu))


def _transfer_layernorm(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    return _with_rms(table, *transfer_memory(table, gpu))


_RMS = {
    "rms_norm": "rms",
    "rmsnorm": "rms",
    "rms": "rms",
    "rms_normalization": "rms",
    "simplified_layer_norm": "rms",
}

FeatureFunction = Callable[[KernelTable, GpuSpec], tuple[np.ndarray, tuple[str, ...]]]
FEATURE_SETS: Mapping[str, FeatureFunction] = MappingProxyType(
    {
        "matrix": _matrix_features,
        "product": _product_features,
        "matrix_half": _matrix_half_features,
        "tensor": tensor_features,
        "fused_attention": fused_attention_features,
        "conv": _conv_features,
        "conv_seen": _conv_seen_features,
        "attention": _attention_features,
        "memory": _memory_features,
        "elementwise": _elementwise_features,
        "layernorm": _layernorm_features,
        "transfer_matrix": transfer_matrix,
        "transfer_conv": transfer_conv,
        "transfer_memory": transfer_memory,
        "transfer_elementwise": _transfer_elementwise,
        "transfer_layernorm": _transfer_layernorm,
    }
)


def feature_matrix(feature_set: str, table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    """Features of ``table`` on ``gpu`` as a (rows, features) float32 matrix, with the features' names.

    ``feature_set`` is a key of :data:`FEATURE_SETS`. Every value is finite for positive sizes.
    """
    matrix, names = FEATURE_SETS[feature_set](table, gpu)
    return np.ascontiguousarray(matrix, dtype=np.float32), names
