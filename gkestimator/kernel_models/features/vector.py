"""Calculate physical features of kernels on a GPU: the one function that training and prediction both call.

All sizes, times and rates enter as natural logarithms; ratios that lie in [0, 1] enter as they are. The
recipe is that of the project's study of public measurements: roofline sides, arithmetic intensity over
machine balance, bytes over L2, matrix dimensions and the power of two that divides them, waves, wave fill and
padding for five tile sizes, and the GPU's numeric specification instead of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from gkestimator.core.kernels import Array, KernelTable, plain_variant
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.columns import LEAST_US, FeatureColumns, Features, fill, joined
from gkestimator.kernel_models.features.convolution import convolution_columns
from gkestimator.kernel_models.features.decode import decode_columns
from gkestimator.kernel_models.features.recurrent import recurrent_features, recurrent_transfer
from gkestimator.kernel_models.features.tensor import fused_attention_features, tensor_features
from gkestimator.kernel_models.features.tensor_cores import tensor_core_us
from gkestimator.kernel_models.features.tensorrt import shape_columns
from gkestimator.kernel_models.features.transfer import transfer_conv, transfer_matrix, transfer_memory
from gkestimator.kernel_models.launch import memory_launch
from gkestimator.kernel_models.roofline import peak_rate, roofline
from gkestimator.kernel_models.tiles import pieces

TILES = ((32, 32), (64, 64), (128, 64), (128, 128), (256, 128))

ELEMENTWISE_VARIANTS = ("add", "mul", "div", "pow", "relu", "gelu", "tanh")
"""Elementwise operators with measurements of their own; the others borrow from the one that costs about the
same."""

_NEAREST = {
    "add": (
        "add addcmul sub bias bias_add weighted_sum max min where equal greater less greater_or_equal "
        "less_or_equal and or xor not pointwise"
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
    """Return the measured elementwise operator whose cost ``variant`` shares (itself where measured); None if
    unknown."""
    return _VARIANT_OF.get(plain_variant(variant))


def _common(table: KernelTable, gpu: GpuSpec, *, compute: bool = True) -> FeatureColumns:
    out = FeatureColumns()
    columns = table.columns
    roof = roofline(table, gpu)
    log_memory = np.log(np.maximum(roof.memory_us, LEAST_US))
    out.add_logs(roofline=roof.roofline_us)
    out["log_memory"] = log_memory
    if compute:  # memory-bound families leave it out: what counts as one of their FLOPs is a convention
        log_compute = np.log(np.maximum(roof.compute_us, LEAST_US))
        out["log_compute"] = log_compute
        out["log_intensity_over_balance"] = log_compute - log_memory
    out.add_logs(
        total_over_l2=(table.total_bytes + 1) / gpu.l2_bytes,
        read_over_l2=(columns["read_bytes"] + 1) / gpu.l2_bytes,
        write_over_l2=(columns["write_bytes"] + 1) / gpu.l2_bytes,
    )
    out["element_bytes"] = columns["element_bytes"]
    return out


def _with_specification(out: FeatureColumns, table: KernelTable, gpu: GpuSpec, *, matrix: bool) -> Features:
    """Return the matrix of ``out`` and, behind it, the GPU's specification."""
    major, minor = gpu.compute_capability
    peak = np.empty(len(table))
    for precision, rows in table.by_precision():
        peak[rows] = peak_rate(gpu, precision, matrix=matrix)
    out.add_logs(
        bandwidth=gpu.dram_bytes_per_s,
        sms=gpu.sms,
        cores_per_sm=gpu.cuda_cores_per_sm,
        clock=gpu.boost_clock_mhz,
        peak=peak,
        peak_over_vector=peak / peak_rate(gpu, "fp32", matrix=False),
        l2=gpu.l2_bytes,
    )
    out["compute_capability"] = major + minor / 10
    return out.matrix(len(table))


def _products(table: KernelTable, gpu: GpuSpec) -> FeatureColumns:
    out = _common(table, gpu)
    batch, m, n, k = table.gemm_sizes()
    out.add_logs(
        weight_over_l2=(table.columns["weight_bytes"] + 1) / gpu.l2_bytes, batch=batch, m=m, n=n, k=k
    )
    out.add_alignments(m=m, n=n, k=k)
    out.add_tiles(table, gpu, TILES)
    return out


def _matrix_features(table: KernelTable, gpu: GpuSpec) -> Features:
    return _with_specification(_products(table, gpu), table, gpu, matrix=True)


def _matrix_half_features(table: KernelTable, gpu: GpuSpec) -> Features:
    modelled = np.log(tensor_core_us(table, gpu) / roofline(table, gpu).roofline_us)
    return joined(_matrix_features(table, gpu), (modelled[:, None], ("log_tensor_over_roofline",)))


def _conv_features(table: KernelTable, gpu: GpuSpec) -> Features:
    out = _products(table, gpu)
    dilation = table.size("conv_dilation_h") * table.size("conv_dilation_w")
    simple = out.add_window(table)
    out.add_logs(groups=table.size("conv_groups"))
    out["winograd"] = simple & (dilation == 1)
    return _with_specification(out, table, gpu, matrix=True)


def _conv_seen_features(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return those of ``conv`` and what each algorithm would cost."""
    costs = convolution_columns(table, gpu, roofline(table, gpu))
    return joined(_conv_features(table, gpu), costs.matrix(len(table)))


def _tensorrt_conv_features(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return those of ``conv_seen`` and what decides between TensorRT's kernels."""
    return joined(_conv_seen_features(table, gpu), shape_columns(table, gpu).matrix(len(table)))


EIGHTH_WORDS = ("tensorrt_llm", "vllm", "sglang", "static", "blocks")
"""What the words behind a variant's first dot may say of a product in 8 bits (``scaled.sglang.static``): whose kernel
runs, and how it scales: by scales fixed beforehand, by blocks of 128 x 128; else by token or tensor."""


def _with_framework(base: FeatureFunction) -> FeatureFunction:
    """Return the features of ``base`` and one column per word of the variants of products in 8 bits."""

    def features(table: KernelTable, gpu: GpuSpec) -> Features:
        words = [str(variant).split(".")[1:] for variant in table.variant]
        said = np.array([[word in of_row for word in EIGHTH_WORDS] for of_row in words], dtype=bool)
        names = tuple(f"is_{word}" for word in EIGHTH_WORDS)
        return joined(base(table, gpu), (said.reshape(len(table), len(names)), names))

    return features


_ABSOLUTE_TIMES = ("log_roofline", "log_memory", "log_compute")
_SATURATED = MappingProxyType({"log_waves": np.log(32.0), "over_l2": 3.0})


def _product_features(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return those of ``matrix`` without absolute times, and sizes only to where they stop to matter: 32 waves of
    tiles, e^3 times the L2. A product larger than any measured then looks like the largest measured ones."""
    matrix, names = _matrix_features(table, gpu)
    keep = [i for i, name in enumerate(names) if name not in _ABSOLUTE_TIMES]
    matrix = matrix[:, keep]
    names = tuple(names[i] for i in keep)
    for i, name in enumerate(names):
        for part, most in _SATURATED.items():
            if part in name:
                matrix[:, i] = np.minimum(matrix[:, i], np.float32(most))
    return matrix, names


def _attention_features(table: KernelTable, gpu: GpuSpec) -> Features:
    out = _common(table, gpu)
    columns = table.columns
    batch, m, n, k = table.gemm_sizes()
    out.add_logs(batch=batch, m=m, n=n, k=k)
    out.add_alignments(m=m, k=k)
    # 1 for full attention, about 1/2 for causal: the FLOPs counted over those of two full products
    # (the softmax between them adds a few percent, which the limit cuts off).
    out["counted_work"] = np.minimum(columns["flops"] / (4 * batch * m * n * k), 1.0)
    # Key and value heads shared by query heads shrink what is read: 1 to 3 query-sized tensors.
    out["read_over_write"] = columns["read_bytes"] / np.maximum(columns["write_bytes"], 1)
    for rows in (64, 128):
        out.add_waves(pieces(m, rows) * batch / gpu.sms, f"_{rows}")
    return _with_specification(out, table, gpu, matrix=True)


def _decode_features(table: KernelTable, gpu: GpuSpec) -> Features:
    return _with_specification(decode_columns(table, gpu), table, gpu, matrix=True)


def _decode_unseen_features(table: KernelTable, gpu: GpuSpec) -> Features:
    return decode_columns(table, gpu).matrix(len(table))


def _memory_features(table: KernelTable, gpu: GpuSpec) -> Features:
    out = _common(table, gpu, compute=False)
    columns = table.columns
    cols = np.maximum(columns["cols"], 1)
    out.add_logs(rows=np.maximum(columns["rows"], 1), cols=cols)
    out.add_alignments(cols=cols)
    out["inputs"] = columns["inputs"]
    grid, threads = memory_launch(table)
    threads = np.maximum(threads, 1)
    per_sm = np.maximum(grid, 1) / gpu.sms
    resident = np.minimum(gpu.blocks_per_sm, np.floor(gpu.warps_per_sm * 32 / threads))
    out.add_logs(blocks_per_sm=per_sm)
    out["fill"] = fill(per_sm / np.maximum(1.0, resident))
    out.add_logs(threads=threads)
    return _with_specification(out, table, gpu, matrix=False)


def _one_hot(kinds: Array) -> Features:
    names = tuple(f"is_{kind}" for kind in ELEMENTWISE_VARIANTS)
    return kinds[:, None] == np.array(ELEMENTWISE_VARIANTS, dtype=object), names


def _with_kinds(base: FeatureFunction) -> FeatureFunction:
    """Return the features of ``base`` and one column per measured elementwise operator."""

    def features(table: KernelTable, gpu: GpuSpec) -> Features:
        kinds = np.array([elementwise_variant(v) or "add" for v in table.variant], dtype=object)
        return joined(base(table, gpu), _one_hot(kinds))

    return features


def _with_rms(base: FeatureFunction) -> FeatureFunction:
    """Return the features of ``base`` and whether the normalisation is of root mean squares."""

    def features(table: KernelTable, gpu: GpuSpec) -> Features:
        rms = np.array([v in _RMS for v in table.variant], dtype=bool)
        return joined(base(table, gpu), (rms[:, None], ("is_rms",)))

    return features


_RMS = frozenset({"rms_norm", "rmsnorm", "rms", "rms_normalization", "simplified_layer_norm"})

FeatureFunction = Callable[[KernelTable, GpuSpec], Features]
FEATURE_SETS: Mapping[str, FeatureFunction] = MappingProxyType(
    {
        "matrix": _matrix_features,
        "product": _product_features,
        "matrix_half": _matrix_half_features,
        "tensor": tensor_features,
        "eighth": _with_framework(_matrix_half_features),
        "eighth_tensor": _with_framework(tensor_features),
        "fused_attention": fused_attention_features,
        "conv": _conv_features,
        "conv_seen": _conv_seen_features,
        "tensorrt_conv": _tensorrt_conv_features,
        "attention": _attention_features,
        "decode": _decode_features,
        "decode_unseen": _decode_unseen_features,
        "memory": _memory_features,
        "elementwise": _with_kinds(_memory_features),
        "layernorm": _with_rms(_memory_features),
        "transfer_matrix": transfer_matrix,
        "transfer_conv": transfer_conv,
        "transfer_memory": transfer_memory,
        "transfer_elementwise": _with_kinds(transfer_memory),
        "transfer_layernorm": _with_rms(transfer_memory),
        "recurrent": recurrent_features,
        "transfer_recurrent": recurrent_transfer,
    }
)


def feature_matrix(feature_set: str, table: KernelTable, gpu: GpuSpec) -> Features:
    """Return the features of ``table`` on ``gpu`` as a (rows, features) float32 matrix, with the features' names.

    ``feature_set`` is a key of :data:`FEATURE_SETS`. Every value is finite for positive sizes.
    """
    matrix, names = FEATURE_SETS[feature_set](table, gpu)
    return np.ascontiguousarray(matrix, dtype=np.float32), names
