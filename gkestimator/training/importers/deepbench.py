"""Import DeepBench's convolutions and matrix products (baidu-research/DeepBench; folder with ``conv_forward``,
``gemm`` and ``rnn_forward``).

Milliseconds per call averaged over many calls without synchronising in between, so launches overlap execution
and no launch gap is inside. cuDNN 7.6 era. Tensors are NCHW, and on tensor cores cuDNN then converts input
and output of every convolution wider than 1x1 to NHWC and back, inside the call that is timed.
Two parts of the products are left out:

- T4, int8: 20 to 24 TOP/s, 0.7 of what dp4a gives on its CUDA cores and a sixth of its tensor cores, so the cuBLAS of
  that time did not use them; today's does.
- V100, P100 and T4, FP32: of the products above 30 GFLOP the fastest tenth starts at 90 % of a V100's peak here and at
  98 % in NeuSight's larger rows (cuBLAS 12); two eras of cuBLAS in one regressor make DeepBench's V100-SXM2 slower,
  relative to its peak, than NeuSight's V100-PCIe.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import NamedValues
from gkestimator.training.importers.deepbench_rnn import recurrent_rows
from gkestimator.training.importers.files import read_columns, translated
from gkestimator.training.rows import TrainingRows, conv_table, product_table

_GPUS = {"V100": "V100-SXM2-16GB", "P100": "P100-PCIE-16GB", "T4": "T4", "1080Ti": "GTX-1080-TI"}
_NEWER_PRODUCTS = frozenset({"V100", "P100", "T4"})  # measured with cuBLAS 12.1 in NeuSight's linear rows
_PRECISIONS = {"fp32": "fp32", "fp16_mixed": "fp16", "fp16_storage": "fp16", "int8": "int8"}
_SIZES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0}
_CONV_WEIGHT, _GEMM_WEIGHT = 10.0, 3.0  # few rows of every kernel size and stride against many of 3x3 alone


def matches(folder: Path) -> bool:
    """Return whether the folder holds DeepBench's files."""
    return (folder / "conv_forward.parquet").is_file()


def load(folder: Path) -> list[TrainingRows]:
    """Return the rows of every file (each optional but for ``conv_forward``, which names the format)."""
    names = ("n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w")
    path = folder / "conv_forward.parquet"
    data = read_columns(path, ("gpu", "dtype", "forward_ms", *names))
    gpu, precision, size = _where(path, data)
    sizes: NamedValues = {name: data[name].astype(np.float64) for name in names}
    table = conv_table(**sizes, precision=precision, size=size)
    convolutions = TrainingRows.make(
        table,
        gpu=gpu,
        measured_us=data["forward_ms"].astype(float) * 1e3,
        source="deepbench",
        weight=_CONV_WEIGHT,
    )
    rows = [convolutions]
    path = folder / "gemm.parquet"
    if path.is_file():
        rows.append(_products(path))
    path = folder / "rnn_forward.parquet"
    if path.is_file():
        rows.append(recurrent_rows(path))
    return rows


def _products(path: Path) -> TrainingRows:
    """Return the matrix products but for those that the library of that time ran unlike today's."""
    data = read_columns(path, ("gpu", "dtype", "m", "n", "k", "time_ms"))
    old = (data["gpu"] == "T4") & (data["dtype"] == "int8")
    old |= np.isin(data["gpu"], sorted(_NEWER_PRODUCTS)) & (data["dtype"] == "fp32")
    data = {name: column[~old] for name, column in data.items()}
    gpu, precision, size = _where(path, data)
    sizes = {name: data[name].astype(np.float64) for name in "mnk"}
    return TrainingRows.make(
        product_table("linear", precision, **sizes, size=size),
        gpu=gpu,
        measured_us=data["time_ms"].astype(float) * 1e3,
        source="deepbench",
        weight=_GEMM_WEIGHT,
    )


def _where(path: Path, data: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Return canonical GPU, precision and bytes per element of every row."""
    gpu = translated(path, "gpu", data["gpu"], _GPUS)
    precision = translated(path, "dtype", data["dtype"], _PRECISIONS)
    return gpu, precision, np.array([_SIZES[p] for p in precision])
