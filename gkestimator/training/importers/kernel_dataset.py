"""The project's own kernel dataset (Parquet; DESIGN section 5): what ``gkest profile build`` writes.

One row per kernel launch. Only single-kernel operators train (``kernels_in_op`` 1 or null): of several
kernels the shape does not say which did what. Durations are GPU time, so there is no launch gap in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.dtypes import Precision
from gkestimator.errors import TableError
from gkestimator.gpus import gpu_catalogue
from gkestimator.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.training.importers.files import read_columns
from gkestimator.training.rows import TrainingRows

__all__ = ["load", "matches"]

_COLUMNS = (
    "schema_version",
    "entry_id",
    "gpu",
    "op_type",
    "attributes",
    "dtype",
    "input_shapes",
    "weight_bytes",
    "input_bytes",
    "output_bytes",
    "flops",
    "kernels_in_op",
    "family",
    "grid",
    "duration_us",
    "quality",
)
_BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0}
_VARIANT = {"gelu": "gelu", "layernormalization": "layer_norm", "rmsnormalization": "rms_norm"}
Shapes = list[tuple[int, ...]]


def matches(path: Path) -> bool:
    """True for a Parquet file, or a folder that directly holds some."""
    if path.is_dir():
        return any(path.glob("*.parquet"))
    return path.suffix == ".parquet"


def load(path: Path) -> list[TrainingRows]:
    """Rows of the file or files with quality ``ok`` and a duration."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    return [part for file in files for part in [_load(file)] if part is not None]


def _load(path: Path) -> TrainingRows | None:
    data = read_columns(path, _COLUMNS)
    catalogue = gpu_catalogue()
    names = {str(g): catalogue.resolve(str(g))[0].name for g in dict.fromkeys(data["gpu"])}
    kernels: list[Kernel] = []
    chosen: list[int] = []
    grids: list[float] = []
    for i in range(len(data["gpu"])):
        single = data["kernels_in_op"][i]
        if (
            data["quality"][i] != "ok"
            or not _positive(data["duration_us"][i])
            or (single is not None and single > 1)
        ):
            continue
        where = f"{path}: row {i + 1}"
        kernel = _kernel({name: data[name][i] for name in _COLUMNS}, where)
        if kernel is not None:
            kernels.append(kernel)
            chosen.append(i)
            grids.append(_product(data["grid"][i]))
    if not kernels:
        return None
    index = np.array(chosen)
    gpu = np.array([names[str(g)] for g in data["gpu"][index]], dtype=object)
    return TrainingRows.make(
        KernelTable.from_kernels(kernels),
        gpu=gpu,
        measured_us=data["duration_us"][index].astype(float),
        source="dataset",
        grid_blocks=np.array(grids),
    )


def _positive(value: Any) -> bool:
    return value is not None and np.isfinite(float(value)) and float(value) > 0


def _product(grid: Any) -> float:
    try:
        return float(np.prod([int(v) for v in str(grid).split(",")]))
    except ValueError:
        return float("nan")


def _kernel(row: dict[str, Any], where: str) -> Kernel | None:
    """The row as a kernel; None for families whose size the operator's inputs do not give."""
    try:
        shapes: Shapes = [tuple(int(v) for v in shape) for shape in json.loads(row["input_shapes"])]
        attributes = json.loads(row["attributes"]) if row["attributes"] else {}
        family, precision = Family(row["family"]), Precision(row["dtype"])
        read, written = int(row["input_bytes"] or 0), int(row["output_bytes"] or 0)
        weight, flops = int(row["weight_bytes"] or 0), int(row["flops"] or 0)
    except (ValueError, TypeError) as e:
        raise TableError(f"{where}: family, dtype, shapes or sizes cannot be understood: {e}") from e
    build = _SIZES.get(family)
    if build is None or not shapes or read + weight <= 0 or written <= 0:
        return None
    try:
        sizes = build(shapes, attributes, written / _BYTES[precision.value])
    except (IndexError, KeyError, ZeroDivisionError, TypeError, ValueError) as e:
        raise TableError(f"{where}: inputs {row['input_shapes']} do not fit a {family.value} kernel") from e
    operator = str(row["op_type"]).lower()
    return Kernel(
        name=f"{family.value}.{operator}",
        family=family,
        variant=_VARIANT.get(operator, operator),
        precision=precision,
        flops=flops,
        read_bytes=read + weight,
        write_bytes=written,
        weight_bytes=weight,
        element_bytes=_BYTES[precision.value],
        **sizes,
    )


def _gemm(shapes: Shapes, attributes: dict[str, Any], outputs: float) -> dict[str, Any]:
    a, b = shapes[0], shapes[1]
    k = a[-2] if attributes.get("transA") else a[-1]
    n = b[-2] if attributes.get("transB") else b[-1]
    batch = int(np.prod(b[:-2])) if len(b) > 2 else 1
    return {
        "gemm": GemmShape(batch=batch, m=max(1, round(outputs / (batch * n))), n=n, k=k),
        "inputs": 2,
        "rows": round(outputs),
    }


def _conv(shapes: Shapes, attributes: dict[str, Any], outputs: float) -> dict[str, Any]:
    (n, c, h, w), (k, depth, r, s) = shapes[0], shapes[1]
    groups = int(attributes.get("group", 1))
    stride = [int(v) for v in attributes.get("strides", (1, 1))]
    dilation = [int(v) for v in attributes.get("dilations", (1, 1))]
    pads = [int(v) for v in attributes.get("pads", (0, 0, 0, 0))]
    out_h = (h + pads[0] + pads[2] - dilation[0] * (r - 1) - 1) // stride[0] + 1
    out_w = (w + pads[1] + pads[3] - dilation[1] * (s - 1) - 1) // stride[1] + 1
    return {
        "gemm": GemmShape(batch=groups, m=n * out_h * out_w, n=k // groups, k=depth * r * s),
        "inputs": 2,
        "rows": round(outputs),
        "conv": ConvShape(
            batch=n,
            in_channels=c,
            out_channels=k,
            groups=groups,
            in_h=h,
            in_w=w,
            out_h=out_h,
            out_w=out_w,
            kernel_h=r,
            kernel_w=s,
            stride_h=stride[0],
            stride_w=stride[1],
            dilation_h=dilation[0],
            dilation_w=dilation[1],
        ),
    }


def _elementwise(shapes: Shapes, attributes: dict[str, Any], outputs: float) -> dict[str, Any]:
    return {"rows": round(outputs), "inputs": max(1, sum(1 for s in shapes if int(np.prod(s)) > 1))}


def _rows(shapes: Shapes, attributes: dict[str, Any], outputs: float) -> dict[str, Any]:
    axis = int(attributes.get("axis", -1))
    shape = shapes[0]
    axis = axis + len(shape) if axis < 0 else axis
    cols = int(np.prod(shape[axis:]))
    return {"rows": round(outputs / cols), "cols": cols}


_SIZES: dict[Family, Callable[[Shapes, dict[str, Any], float], dict[str, Any]]] = {
    Family.LINEAR: _gemm,
    Family.BMM: _gemm,
    Family.CONV: _conv,
    Family.ELEMENTWISE: _elementwise,
    Family.SOFTMAX: _rows,
    Family.LAYERNORM: _rows,
}
