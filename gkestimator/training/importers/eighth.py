"""Import aiconfigurator's linear layers in 8 bits: ``gemm_fp8`` and ``gemm_int8``.

Milliseconds of a framework's call. What it launches beside the product, to quantise the activations, is inside and is
taken off as it is estimated (``beside_us``), because a lowering launches it as a kernel of its own. Frameworks differ
by half and more on one shape, so the framework is part of the variant and nothing is averaged over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.operators.quantise import QUANTIZE_FLOPS
from gkestimator.training.importers.files import read_columns
from gkestimator.training.rows import TrainingRows, by_gpu, kernel_table, product_table

_HALF = 2.0
_BYTE = 1.0
_FRAMEWORKS = {"TRTLLM": "tensorrt_llm", "VLLM": "vllm", "SGLang": "sglang"}
# The activations' part of a call whose product is short for its rows: more than that the estimate of it is wrong.
_MOST_BESIDE = 0.5


@frozen
class _Scheme:
    """Hold how a published type calculates: the variant's last word, the precision, and whether the call quantises its
    activations. ``own``: the framework's kernel is one of its own, so that the variant names it."""

    scaling: str
    precision: Precision
    quantises: bool
    own: bool = True


_DYNAMIC = _Scheme(scaling="", precision=Precision.FP8, quantises=True)
_STATIC = _Scheme(scaling=".static", precision=Precision.FP8, quantises=False)
_BLOCKS = _Scheme(scaling=".blocks", precision=Precision.FP8, quantises=True)
_SMOOTH = _Scheme(scaling="", precision=Precision.INT8, quantises=False, own=False)
_INT8 = _Scheme(scaling="", precision=Precision.INT8, quantises=True)
_WEIGHTS = _Scheme(scaling="", precision=Precision.W8A16, quantises=False)
# TensorRT-LLM's fp8_static takes as long as its fp8 (ratio 0.99), so it quantises as well. SGLang's is bound by one
# byte an activation where activations dominate (L40S, n up to 128: 1.7 bytes at the bandwidth), so it does not.
# What SGLang calls int8_wo is int8 x int8 behind quantising operators.
_SCHEMES: Mapping[tuple[str, str], _Scheme] = {
    ("fp8", "TRTLLM"): _DYNAMIC,
    ("fp8", "VLLM"): _DYNAMIC,
    ("fp8", "SGLang"): _DYNAMIC,
    ("fp8_static", "TRTLLM"): _DYNAMIC,
    ("fp8_static", "SGLang"): _STATIC,
    ("fp8_block", "TRTLLM"): _BLOCKS,
    ("fp8_block", "SGLang"): _BLOCKS,
    ("sq", "TRTLLM"): _SMOOTH,
    ("int8_wo", "TRTLLM"): _WEIGHTS,
    ("int8_wo", "SGLang"): _INT8,
}


def load_eighth(folder: Path) -> list[TrainingRows]:
    """Return the rows of ``gemm_fp8`` and ``gemm_int8``, as far as ``folder`` holds them.

    Calls without a CUDA graph are left out: their times are the host's (vLLM's fp8_block, 55 us and more).
    """
    parts = []
    for name in ("gemm_fp8", "gemm_int8"):
        path = folder / f"{name}.parquet"
        if path.is_file():
            parts += _products(path, graphs=name == "gemm_fp8")
    return parts


def _products(path: Path, *, graphs: bool) -> list[TrainingRows]:
    names = ["gpu", "framework", "gemm_dtype", "m", "n", "k", "latency_ms"]
    if graphs:
        names.append("cuda_graph")
    data = read_columns(path, names)
    usable = np.ones(len(data["gpu"]), dtype=bool)
    if graphs:
        usable = data["cuda_graph"].astype(bool)
    kinds = np.char.add(np.char.add(data["gemm_dtype"].astype(str), "|"), data["framework"].astype(str))
    parts = []
    for (dtype, framework), scheme in _SCHEMES.items():
        index = np.flatnonzero(usable & (kinds == f"{dtype}|{framework}"))
        if len(index):
            columns = {name: data[name][index] for name in names}
            parts.append(_of_scheme(columns, scheme, _FRAMEWORKS[framework]))
    return parts


def _of_scheme(columns: Mapping[str, Array], scheme: _Scheme, framework: str) -> TrainingRows:
    gpu = columns["gpu"].astype(object)
    m, n, k = (columns[name].astype(np.float64) for name in ("m", "n", "k"))
    measured_us = columns["latency_ms"].astype(np.float64) * 1e3
    beside_us = np.zeros(len(m))
    if scheme.quantises:
        beside_us = np.minimum(quantising_us(gpu, m * k, scheme.precision), _MOST_BESIDE * measured_us)
    activation = _BYTE
    operator = "scaled"
    if scheme.precision is Precision.W8A16:
        activation = _HALF
        operator = "weight_only"
    variant = operator
    if scheme.own:
        variant = f"{operator}.{framework}{scheme.scaling}"
    table = product_table(
        "linear",
        scheme.precision.value,
        m=m,
        n=n,
        k=k,
        size=activation,
        right_size=_BYTE,
        result_size=_HALF,
        variant=variant,
    )
    return TrainingRows.make(
        table, gpu=gpu, measured_us=measured_us, beside_us=beside_us, source="aiconfigurator"
    )


def quantising_us(gpu: Array, elements: Array, precision: Precision) -> Array:
    """Return the estimated microseconds of the kernel that quantises ``elements`` half floats to 8 bits on ``gpu``."""
    table = quantising_table(elements, precision)
    catalogue = gpu_catalogue()
    result = np.empty(len(elements))
    for name, index in by_gpu(gpu):
        spec, _ = catalogue.resolve(name)
        result[index] = analytical_duration_us(table.take(index), spec)
    return result


def quantising_table(elements: Array, precision: Precision) -> KernelTable:
    """Return the kernels that quantise ``elements`` half floats to 8 bits, as a lowering launches them."""
    return kernel_table(
        family="quantize",
        variant="quantize",
        precision=precision.value,
        columns={
            "flops": QUANTIZE_FLOPS * elements,
            "read_bytes": _HALF * elements,
            "write_bytes": _BYTE * elements,
            "rows": elements,
            "element_bytes": _BYTE,
        },
    )
