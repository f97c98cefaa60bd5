"""Import the convolutions of TensorRT engines, layer by layer (NVIDIA/TensorRT, trt-engine-explorer; folder
``tensorrt`` with ``tensorrt_layers``): ResNet-18 on an A100, ResNet-50 on an RTX 3090, MobileNet on a TITAN RTX.

Milliseconds by TensorRT's profiler, which records events around each layer and so keeps the layers apart: they sum to 2
to 38 % more than the engine as a whole, which ran as a CUDA graph. What the engine does not explain is spread evenly
over its layers (but for those of time 0, which run nothing): 5.5 to 7.5 us a layer on the A100, 3 to 4 on the RTX 3090,
1.7 on the TITAN RTX.

The precision is that of the weights and, of FP32, the kernel's name: what has ``tf32`` in it calculates in TF32.
Left out: layers that hold more than one convolution or a pooling, and those of one pixel, which are matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.core.kernels import TENSORRT, Array, Family
from gkestimator.core.records import NamedValues
from gkestimator.training.importers.files import read_columns, translated
from gkestimator.training.rows import TrainingRows, conv_table

FILE = "tensorrt_layers.parquet"
_GPUS = {name: name for name in ("A100-PCIE-80GB", "RTX-3090", "TITAN-RTX")}
_KINDS = ("CaskConvolution", "CudaDepthwiseConvolution")
_PRECISIONS = {"Int8": "int8", "Half": "fp16", "Float": "fp32"}
_FORMAT_BYTES = {"Int8": 1.0, "FP16": 2.0, "FP32": 4.0}
_SIZES = ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w", "groups", "out_maps")
_WORDS = (
    "engine",
    "gpu",
    "layer_type",
    "weights_type",
    "tactic",
    "input_dims",
    "input_formats",
    "output_formats",
)
_WEIGHT = 20.0  # some hundred rows of three GPUs against a quarter of a million of one


def matches(folder: Path) -> bool:
    """Return whether the folder holds the engines' layers."""
    return (folder / FILE).is_file()


def load(folder: Path) -> list[TrainingRows]:
    """Return the rows of dense convolutions, then of depthwise ones."""
    path = folder / FILE
    data = read_columns(path, (*_WORDS, *_SIZES, "average_ms", "engine_median_ms"))
    data["events_us"] = events_us(data["engine"], data["average_ms"] * 1e3, data["engine_median_ms"] * 1e3)
    usable = np.isin(data["layer_type"].astype(str), _KINDS) & (data["average_ms"] > 0)
    data = {name: column[usable] for name, column in data.items()}
    data |= _images(path, data["input_dims"])
    depthwise = data["groups"] > 1
    whole = (data["h"] == data["kernel_h"]) & (data["w"] == data["kernel_w"])
    parts = []
    for chosen, family in ((~depthwise & ~whole, Family.CONV), (depthwise, Family.DEPTHWISE)):
        if chosen.any():
            parts.append(_rows(path, {name: column[chosen] for name, column in data.items()}, family))
    return parts


def events_us(engine: Array, layer_us: Array, engine_us: Array) -> Array:
    """Return, per layer, what its events cost: the engine's layers together without the engine, over those that run."""
    result = np.zeros(len(engine))
    for name in np.unique(engine.astype(str)):
        mine = engine == name
        ran = np.count_nonzero(layer_us[mine])
        result[mine] = max((layer_us[mine].sum() - engine_us[mine][0]) / ran, 0.0)
    return result


def _images(path: Path, dims: Array) -> dict[str, Array]:
    """Return the first input's sizes, and how many images are read besides (a residual)."""
    sizes = []
    for text in dims:
        first, *others = str(text).split(";")
        numbers = first.split("x")
        if len(numbers) != 4 or not all(number.isdigit() for number in numbers):
            raise TableError(
                f"{path}: input_dims is {text!r}; expected NxCxHxW, further inputs behind a semicolon"
            )
        sizes.append([*map(float, numbers), float(len(others))])
    columns = np.array(sizes).reshape(-1, 5).T
    return dict(zip("nchw", columns[:4], strict=True)) | {"residuals": columns[4]}


def _bytes(path: Path, formats: Array) -> Array:
    """Return bytes an element of the first of each row's ``formats``."""
    result = []
    for text in formats:
        known = [size for word, size in _FORMAT_BYTES.items() if word in str(text).split(";")[0].split()]
        if len(known) != 1:
            raise TableError(f"{path}: format {text!r}; expected one of {', '.join(_FORMAT_BYTES)} in it")
        result += known
    return np.array(result)


def _rows(path: Path, data: NamedValues, family: Family) -> TrainingRows:
    precision = translated(path, "weights_type", data["weights_type"], _PRECISIONS)
    in_tf32 = np.array(["tf32" in str(tactic) for tactic in data["tactic"]], dtype=bool)
    precision[in_tf32 & (precision == "fp32")] = "tf32"
    number: Mapping[str, Array] = {name: data[name].astype(np.float64) for name in _SIZES}
    added = data["residuals"] > 0
    table = conv_table(
        n=data["n"],
        c=data["c"],
        h=data["h"],
        w=data["w"],
        k=number["out_maps"],
        r=number["kernel_h"],
        s=number["kernel_w"],
        pad_h=number["pad_h"],
        pad_w=number["pad_w"],
        stride_h=number["stride_h"],
        stride_w=number["stride_w"],
        groups=number["groups"],
        residuals=data["residuals"],
        family=family,
        variant=np.where(added, f"conv.sum.{TENSORRT}", f"conv.{TENSORRT}").astype(object),
        precision=precision,
        size=_bytes(path, data["input_formats"]),
        result_size=_bytes(path, data["output_formats"]),
    )
    return TrainingRows.make(
        table,
        gpu=translated(path, "gpu", data["gpu"], _GPUS),
        measured_us=data["average_ms"] * 1e3,
        gap_us=data["events_us"],
        weight=_WEIGHT,
        source="tensorrt_layers",
    )
