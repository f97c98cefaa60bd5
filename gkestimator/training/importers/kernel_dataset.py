"""The project's own kernel dataset (Parquet or CSV; DESIGN section 5): what ``gkest profile build`` writes.

One row per kernel launch, grouped to operator calls by :mod:`gkestimator.training.calls`. Here, without a base bundle
to share time out by, only calls train that are one kernel by the rules, or as many launches of the same families. Of
rows without a fragment (version 1), only single-kernel operators do (``kernels_in_op`` 1 or null): of several kernels
the shape does not say which did what. Durations are GPU time, so there is no launch gap in them.
"""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.tiles import recorded_tile
from gkestimator.tables import KernelMeasurement
from gkestimator.training.rows import TrainingRows

_BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0}
_VARIANT = {"gelu": "gelu", "layernormalization": "layer_norm", "rmsnormalization": "rms_norm"}
_MOST = 2**31
Shapes = list[tuple[int, ...]]


def matches(path: Path) -> bool:
    """True for a Parquet or CSV file, or a folder that directly holds Parquet files."""
    if path.is_dir():
        return any(path.glob("*.parquet"))
    return path.suffix.lower() in (".parquet", ".csv")


def dataset_files(path: Path) -> list[Path]:
    """The files at ``path``: itself, or the Parquet files directly in the folder."""
    if path.is_dir():
        return sorted(path.glob("*.parquet"))
    return [path]


def specification_files(path: Path) -> list[Path]:
    """GPU specifications that lie beside a dataset: ``<its name>.<GPU>.toml``."""
    return sorted(
        found
        for file in dataset_files(path)
        for found in file.parent.glob(f"{glob.escape(file.stem)}.*.toml")
    )


def load(path: Path) -> list[TrainingRows]:
    """Rows of the file or files with quality ``ok`` and a duration."""
    from gkestimator.training.calls import read_calls, sure_labels

    found = sure_labels(read_calls(path, gpu_catalogue(specification_files(path))).calls)
    if not found:
        return []
    return [
        TrainingRows.make(
            KernelTable.from_kernels([label.kernel for label in found]),
            gpu=np.array([label.call.gpu for label in found], dtype=object),
            measured_us=np.array([label.duration_us for label in found]),
            source="dataset",
            grid_blocks=np.array([_product(label.main.grid) for label in found]),
            kernel_class=np.array([_class(label.main) for label in found], dtype=object),
        )
    ]


def _class(row: KernelMeasurement) -> str:
    threads = _product(row.block)
    if not row.kernel_name or math.isnan(threads):
        return ""
    return recorded_tile(row.kernel_name, int(threads), convolution=row.family == Family.CONV)


def _product(grid: str | None) -> float:
    try:
        return float(math.prod(int(v) for v in (grid or "?").split(",")))
    except ValueError:
        return float("nan")


def kernel_of_row(row: KernelMeasurement, where: str) -> Kernel | None:
    """The row as a kernel; None for families whose size the operator's inputs do not give, and for rows that leave
    bytes or FLOPs open: without them there is no roofline to compare the time with.
    """
    try:
        shapes: Shapes = [tuple(int(v) for v in shape) for shape in json.loads(row.input_shapes)]
        attributes = json.loads(row.attributes) if row.attributes else {}
        family = Family(row.family)
        precision = Precision(row.dtype)
    except (ValueError, TypeError, RecursionError) as e:
        raise TableError(f"{where}: family, dtype, shapes or attributes cannot be understood: {e}") from e
    if not isinstance(attributes, dict) or any(not 0 <= v < _MOST for shape in shapes for v in shape):
        raise TableError(
            f"{where}: expected attributes as a JSON object and dimensions from 0 to {_MOST - 1}"
        )
    read = row.input_bytes
    weight = row.weight_bytes
    written = row.output_bytes
    flops = row.flops
    build = _SIZES.get(family)
    if build is None or not shapes or read is None or weight is None or written is None or flops is None:
        return None
    if read + weight <= 0 or written <= 0:
        return None
    try:
        sizes = build(shapes, attributes, written / _BYTES[precision.value])
    except (IndexError, KeyError, ZeroDivisionError, TypeError, ValueError, OverflowError) as e:
        raise TableError(f"{where}: inputs {row.input_shapes[:80]} do not fit a {family.value} kernel") from e
    operator = row.op_type.lower()
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
    a = shapes[0]
    b = shapes[1]
    if attributes.get("transA"):
        k = a[-2]
    else:
        k = a[-1]
    if attributes.get("transB"):
        n = b[-2]
    else:
        n = b[-1]
    if len(b) > 2:
        batch = math.prod(b[:-2])
    else:
        batch = 1
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
    return {"rows": round(outputs), "inputs": max(1, sum(1 for s in shapes if math.prod(s) > 1))}


def _rows(shapes: Shapes, attributes: dict[str, Any], outputs: float) -> dict[str, Any]:
    axis = int(attributes.get("axis", -1))
    shape = shapes[0]
    axis = axis + len(shape) if axis < 0 else axis
    cols = math.prod(shape[axis:])
    return {"rows": round(outputs / cols), "cols": cols}


_SIZES: dict[Family, Callable[[Shapes, dict[str, Any], float], dict[str, Any]]] = {
    Family.LINEAR: _gemm,
    Family.BMM: _gemm,
    Family.CONV: _conv,
    Family.ELEMENTWISE: _elementwise,
    Family.SOFTMAX: _rows,
    Family.LAYERNORM: _rows,
}
