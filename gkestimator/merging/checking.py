"""Does the merged file give what the originals give? Both run in ONNX Runtime, on the CPU, on the same random inputs."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.errors import ModelError, UsageError
from gkestimator.graph import OperatorGraph
from gkestimator.merging.random_inputs import random_inputs
from gkestimator.onnx_io import read_model

__all__ = ["OutputCheck", "OutputDifference", "check_outputs"]

MOST_SAMPLES = 1_000_000
_KEPT_BYTES = 256 << 20
_SYMBOLIC_BATCHES = 3
_LOG_ERRORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDifference:
    """One output of one original, compared over all samples.

    ``relative_difference``: the largest over the samples of max |merged - original| / max |original|, both maxima over
    the values of one sample's output that are finite in the original. None where ``problem`` says why it has no number
    (another shape or element type, values not finite in only one of the two, an original that is zero throughout).
    ``not_finite``: values that are NaN or infinite in the original.
    ``predictions``: rows of class scores seen, None where the output has none (see :func:`check_outputs`);
    ``changed_predictions``: those whose largest score is in another place.
    """

    model: str
    output: str
    relative_difference: float | None
    problem: str
    not_finite: int
    predictions: int | None
    changed_predictions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCheck:
    """A merged model against its originals on ``samples`` random inputs of each.

    ``batch_sizes``: of each model's input. ``largest_relative_difference``: over all outputs, None where one has none.
    ``predictions``, ``changed_predictions``, ``class_changed_pct``: over all outputs with class scores; the
    percentage is None where there is none.
    """

    samples: int
    seed: int
    batch_sizes: Mapping[str, int]
    largest_relative_difference: float | None
    predictions: int
    changed_predictions: int
    class_changed_pct: float | None
    outputs: tuple[OutputDifference, ...]
