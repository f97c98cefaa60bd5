"""Registers the shape rules of the operators outside the common families: importing this module is enough."""

from __future__ import annotations

from gkestimator.onnx_io.shapes import (
    attention,
    detection,
    ml,
    normalization,
    quantize,
    random,
    rearrange,
    resample,
    rnn,
    sequence,
    signal,
    strings,
    training,
    windows,
)

__all__ = [
    "attention",
    "detection",
    "ml",
    "normalization",
    "quantize",
    "random",
    "rearrange",
    "resample",
    "rnn",
    "sequence",
    "signal",
    "strings",
    "training",
    "windows",
]
