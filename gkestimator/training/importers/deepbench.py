"""DeepBench's convolutions and matrix products (baidu-research/DeepBench; folder with ``conv_forward`` and
``gemm``).

Milliseconds per call averaged over many calls without synchronising in between, so launches overlap execution
and no launch gap is inside. cuDNN 7.6 era. T4's int8 products are left out: 20 to 24 TOP/s, 0.7 of what dp4a gives on its
CUDA cores and a sixth of its tensor cores, so the cuBLAS of that time did not use them; today's does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.errors import TableError
from gkestimator.training.importers.files import read_columns
from gkestimator.training.importers.neusight import conv_table
from gkestimator.training.rows import TrainingRows, kernel_table

__all__ = ["load", "matches"]

_GPUS = {"V100": "V100-SXM2-16GB", "P100": "P100-PCIE-16GB", "T4": "T4", "1080Ti": "GTX-1080-TI"}
_PRECISIONS = {"fp32": "fp32", "fp16_mixed": "fp16", "fp16_storage": "fp16", "int8": "int8"}
_SIZES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0}
_CONV_WEIGHT, _GEMM_WEIGHT = 10.0, 3.0  # few rows of every kernel size and stride against many of 3x3 alone


def matches(folder: Path) -> bool:
    """True for a folder that holds DeepBench's files."""
    return (folder / "conv_forward.parquet").is_file()


def load(folder: Path) -> list[TrainingRows]:
    """Rows of both files (each optional but for ``conv_forward``, which names the format)."""
    result = []
    names = ("n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w")
    path = folder / "conv_forward.parquet"
    data = read_columns(path, ("gpu", "dtype", "forward_ms", *names))
    gpu, precision, size = _where(path, data)
    table = conv_table(**{c: data[c].astype(np.float64) for c in names}, precision=precision, size=size)
    result.append(
        TrainingRows.make(
            table,
            gpu=gpu,
            measured_us=data["forward_ms"].astype(float) * 1e3,
            source="deepbench",
            weight=_CONV_WEIGHT,
        )
    )
    path = folder / "gemm.parquet"
    if path.is_file():
        data = read_columns(path, ("gpu", "dtype", "m", "n", "k", "time_ms"))
        data = {c: v[~((data["gpu"] == "T4") & (data["dtype"] == "int8"))] for c, v in data.items()}
        gpu, precision, size = _where(path, data)
        m, n, k = (data[c].astype(np.float64) for c in "mnk")
        table = kernel_table(
            family="linear",
            variant="linear",
            precision=precision,
            columns={
                "flops": 2 * m * n * k,
                "read_bytes": (m * k + n * k) * size,
                "write_bytes": m * n * size,
                "weight_bytes": n * k * size,
                "rows": m * n,
                "element_bytes": size,
                "inputs": 2.0,
                "gemm_batch": np.ones_like(m),
                "gemm_m": m,
                "gemm_n": n,
                "gemm_k": k,
            },
        )
        result.append(
            TrainingRows.make(
                table,
                gpu=gpu,
                measured_us=data["time_ms"].astype(float) * 1e3,
                source="deepbench",
                weight=_GEMM_WEIGHT,
            )
        )
    return result


def _where(path: Path, data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    for column, known in (("gpu", _GPUS), ("dtype", _PRECISIONS)):
        unknown = sorted(set(data[column]) - set(known))
        if unknown:
            raise TableError(f"{path}: {column} is {unknown[0]!r}; expected one of {', '.join(known)}")
    precision = np.array([_PRECISIONS[d] for d in data["dtype"]], dtype=object)
    gpu = np.array([_GPUS[g] for g in data["gpu"]], dtype=object)
    return gpu, precision, np.array([_SIZES[p] for p in precision])
