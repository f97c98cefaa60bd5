"""Import Alibaba's TensorRT convolutions on a V100 (lightweight-neural-architecture-search; folder ``alibaba`` with
``tensorrt_conv_v100``): 247,432 single convolutions in FP32, FP16 and INT8, with or without a fused sum.

Milliseconds in steps of 0.1024 us: means of ten times of a clock with steps of 1.024 us, as TensorRT's per-layer
profiler has. So a time is the sum over the layers of a small engine, and each layer brings what its timing events
cost: the shortest of all take 7 us, and small half-precision convolutions about 9 or about 28 us, seldom 18. That
reads as one or three layers, of which two bring the image into another layout and back. How many layers a time holds
is not said, so only one layer's events are taken off (:data:`EVENTS_US`); copies between layouts are part of the
convolution that needed them.

What the precisions ran as shows in the largest times: FP16 reaches 0.93 of the tensor cores, INT8 0.99 of four-way dot
products on the CUDA cores (dp4a; a V100 has no tensor cores for integers). Bound by memory, INT8 takes 0.77 of FP32
(median of dense layers) and 0.99 (depthwise), where a quarter of the bytes would give 0.25: the images outside the
kernel stay in four bytes an element.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.core.kernels import TENSORRT, Array, Family
from gkestimator.kernel_models.roofline import KERNEL_LATENCY_US
from gkestimator.training.importers.files import read_columns, translated
from gkestimator.training.rows import TrainingRows, conv_table

FILE = "tensorrt_conv_v100.parquet"
EVENTS_US = 7.0 - KERNEL_LATENCY_US
"""What the events around one layer cost: the shortest of all times (6.96 us) without what the shortest kernel takes.
Whole engines under a CUDA graph say 5.5 to 7.5 us of an A100's layers (:mod:`.tensorrt_layers`)."""
_GPUS = {"V100-SXM2-16GB": "V100-SXM2-16GB"}
_BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0}
_NUMBERS = ("batch", "in_channels", "out_channels", "h", "w", "kernel", "stride", "groups", "latency_ms")
_FLAGS = ("depthwise", "elementwise_fused")


def matches(folder: Path) -> bool:
    """Return whether the folder holds Alibaba's convolutions."""
    return (folder / FILE).is_file()


def load(folder: Path) -> list[TrainingRows]:
    """Return the rows, depthwise convolutions after the others."""
    path = folder / FILE
    data = read_columns(path, ("gpu", "precision", *_NUMBERS, *_FLAGS))
    depthwise = data["depthwise"].astype(bool)
    parts = []
    for chosen, family in ((~depthwise, Family.CONV), (depthwise, Family.DEPTHWISE)):
        if chosen.any():
            parts.append(_rows(path, {name: column[chosen] for name, column in data.items()}, family))
    return parts


def _rows(path: Path, data: Mapping[str, Array], family: Family) -> TrainingRows:
    number = {name: data[name].astype(np.float64) for name in _NUMBERS}
    if (number["latency_ms"] <= 0).any():
        raise TableError(f"{path}: latency_ms is not positive; expected failed shapes to be left out")
    precision = translated(path, "precision", data["precision"], {name: name for name in _BYTES})
    padding = np.floor(number["kernel"] / 2)
    added = data["elementwise_fused"].astype(bool)
    table = conv_table(
        n=number["batch"],
        c=number["in_channels"],
        h=number["h"],
        w=number["w"],
        k=number["out_channels"],
        r=number["kernel"],
        s=number["kernel"],
        pad_h=padding,
        pad_w=padding,
        stride_h=number["stride"],
        stride_w=number["stride"],
        groups=number["groups"],
        residuals=added.astype(np.float64),
        family=family,
        variant=np.where(added, f"conv.sum.{TENSORRT}", f"conv.{TENSORRT}").astype(object),
        precision=precision,
        size=np.array([_BYTES[p] for p in precision]),
    )
    return TrainingRows.make(
        table,
        gpu=translated(path, "gpu", data["gpu"], _GPUS),
        measured_us=number["latency_ms"] * 1e3,
        gap_us=EVENTS_US,
        source="alibaba",
    )
