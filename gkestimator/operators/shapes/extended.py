"""Registers the shape rules of the operators outside the common families: importing this module is enough."""

from __future__ import annotations

from gkestimator.operators.shapes import (
    attention,
    detection,
    microsoft,
    microsoft_attention,
    microsoft_quantized,
    ml,
    nchwc,
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
    "microsoft",
    "microsoft_attention",
    "microsoft_quantized",
    "ml",
    "nchwc",
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
