"""Find the files of a kernel dataset, and turn one of its rows into a kernel of ours."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable
from pathlib import Path

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel
from gkestimator.core.records import NamedValues
from gkestimator.core.texts import parse_json
from gkestimator.tables import KernelMeasurement

_BYTES = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "w8a16": 2.0,
    "w4a16": 2.0,
}
_VARIANT = {"gelu": "gelu", "layernormalization": "layer_norm", "rmsnormalization": "rms_norm"}
# No dimension of a tensor is longer; products of larger ones would leave 64 bits.
_MOST = 2**31
Shapes = list[tuple[int, ...]]


def dataset_files(path: Path) -> list[Path]:
    """Return the files at ``path``: itself, or the Parquet files directly in the folder."""
    if path.is_dir():
        return sorted(path.glob("*.parquet"))
    return [path]


def specification_files(path: Path) -> list[Path]:
    """Return the GPU specifications that lie beside a dataset: ``<its name>.<GPU>.toml``."""
    beside: list[Path] = []
    for file in dataset_files(path):
        beside += file.parent.glob(f"{glob.escape(file.stem)}.*.toml")
    return sorted(beside)


def blocks_of(text: str | None) -> float:
    """Return the product of a grid or block ``x,y,z``; NaN where it is not told."""
    try:
        if text:
            return float(math.prod(int(v) for v in text.split(",")))
        return math.nan
    except ValueError:
        return math.nan


def kernel_of_row(row: KernelMeasurement, where: str) -> Kernel | None:
    """Return the row as a kernel; None for families whose size the operator's inputs do not give.

    None too for rows that leave bytes or FLOPs open: without them there is no roofline to compare the time with.
    Raises TableError, which names ``where``.
    """
    family, precision, shapes, attributes = _parsed(row, where)
    build = _SIZES.get(family)
    read = row.input_bytes
    weight = row.weight_bytes
    written = row.output_bytes
    if build is None or not shapes or read is None or weight is None or not written or row.flops is None:
        return None
    if read + weight <= 0 or written < 0:
        return None
    try:
        element_bytes = _BYTES[precision.value]
        sizes = build(shapes, attributes, written / element_bytes)
    except (IndexError, KeyError, ZeroDivisionError, TypeError, ValueError, OverflowError) as e:
        raise TableError(f"{where}: inputs {row.input_shapes[:80]} do not fit a {family.value} kernel") from e
    operator = row.op_type.lower()
    return Kernel(
        name=f"{family.value}.{operator}",
        family=family,
        variant=_VARIANT.get(operator, operator),
        precision=precision,
        flops=row.flops,
        read_bytes=read + weight,
        write_bytes=written,
        weight_bytes=weight,
        element_bytes=element_bytes,
        **sizes,
    )


def _parsed(row: KernelMeasurement, where: str) -> tuple[Family, Precision, Shapes, NamedValues]:
    """Return family, precision, shapes and attributes out of the row's texts. Raises TableError."""
    try:
        family = Family(row.family)
        precision = Precision(row.dtype)
        shapes: Shapes = [tuple(int(v) for v in shape) for shape in parse_json(row.input_shapes)]
        attributes = parse_json(row.attributes) if row.attributes else {}
    except (ValueError, TypeError, OverflowError) as e:
        raise TableError(f"{where}: family, dtype, shapes or attributes cannot be understood: {e}") from e
    dimensions = [v for shape in shapes for v in shape]
    if not isinstance(attributes, dict) or any(not 0 <= v < _MOST for v in dimensions):
        raise TableError(
            f"{where}: expected attributes as a JSON object and dimensions from 0 to {_MOST - 1}"
        )
    return family, precision, shapes, attributes


def _gemm(shapes: Shapes, attributes: NamedValues, outputs: float) -> NamedValues:
    a = shapes[0]
    b = shapes[1]
    k = a[-2] if attributes.get("transA") else a[-1]
    n = b[-2] if attributes.get("transB") else b[-1]
    batch = math.prod(b[:-2])
    return {
        "gemm": GemmShape(batch=batch, m=max(1, round(outputs / (batch * n))), n=n, k=k),
        "inputs": 2,
        "rows": round(outputs),
    }


def _conv(shapes: Shapes, attributes: NamedValues, outputs: float) -> NamedValues:
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


def _elementwise(shapes: Shapes, attributes: NamedValues, outputs: float) -> NamedValues:
    tensors = [shape for shape in shapes if math.prod(shape) > 1]  # a scalar is no tensor to read
    return {"rows": round(outputs), "inputs": max(1, len(tensors))}


def _rows(shapes: Shapes, attributes: NamedValues, outputs: float) -> NamedValues:
    shape = shapes[0]
    axis = int(attributes.get("axis", -1))
    if axis < 0:
        axis += len(shape)
    cols = math.prod(shape[axis:])
    return {"rows": round(outputs / cols), "cols": cols}


_SIZES: dict[Family, Callable[[Shapes, NamedValues, float], NamedValues]] = {
    Family.LINEAR: _gemm,
    Family.BMM: _gemm,
    Family.CONV: _conv,
    Family.ELEMENTWISE: _elementwise,
    Family.SOFTMAX: _rows,
    Family.LAYERNORM: _rows,
}
