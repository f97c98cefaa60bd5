"""Hold what the caller of a merge may say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from gkestimator.core.option_kinds import File, Flag, Many, Number, Text, Word
from gkestimator.core.options import REQUIRED, Option, Value, variant
from gkestimator.estimation.request import (
    ASK,
    MAX_BATCH_SIZE,
    DimOptions,
    Dims,
    EstimateRequest,
    OnePath,
    Paths,
    Wholes,
)
from gkestimator.hardware.runtimes import runtime_with

PRICES = ("latency", "gpu")
MOST_MODELS = 64
_EACH = Many(item=Number(low=1, high=MAX_BATCH_SIZE, whole=True), least=1, commas=True, repeats=True)


@dataclass(kw_only=True)
class MergeOptions:
    """Hold the options of a merge. Raises UsageError.

    ``omega``: USHER takes 0.4. ``group_distance``: DBSCAN's epsilon on the share of the smaller operator
    graph that the larger one lacks, by graph edit distance
    (:attr:`gkestimator.merging.grouping.EditDistance.changed`; of 28 exported graphs, members of a family are
    at most 0.041 apart, others at least 0.088; ResNet-18 and -34, the smallest of theirs, 0.076).
    ``batch_sizes`` are for the price and the timeline alone.
    """

    gpu: Value[str] = Option(
        "V100", Text(), "GPU type that times are estimated for; for a plan, the plan's.", section=ASK
    )
    runtime: Value[str] = variant(
        EstimateRequest,
        "runtime",
        default="onnxruntime",
        help="Framework that runs the file; for a plan, the plan's.",
    )
    provider: Value[str | None] = variant(EstimateRequest, "provider")
    dtype: Value[str] = variant(EstimateRequest, "dtype", help="As in an estimate; for a plan, the plan's.")
    batch_sizes: Wholes = variant(
        EstimateRequest,
        "batch_sizes",
        kind=_EACH,
        help="Batch size that times are estimated for: one, or one for each model; default: as exported.",
    )
    dims: Dims = variant(DimOptions, "dims", help="Number for a symbolic dimension, in the merged file too.")
    omega: Value[float] = Option(
        0.4,
        Number(low=0, high=1, above=True),
        "Least similarity of two weights that are merged: share of their values that both hold as one block.",
    )
    tolerance: Value[float] = Option(1e-7, Number(low=0, high=1), "Weights are equal up to this difference.")
    tau_ms: Value[float] = Option(
        0.001,
        Number(low=0, high=math.inf),
        "Most by which the estimated starts of merged operators differ, each within its own model; inf: any.",
        unit="ms",
    )
    group_distance: Value[float] = Option(
        0.08,
        Number(low=0, high=1),
        "Share of an operator graph that the other lacks, up to which two models are of one architecture.",
    )
    price: Value[str] = Option(
        "latency",
        Word(PRICES),
        "Time that a merge must shorten: latency (host included), or that of the GPU's kernels.",
    )
    always: Value[bool] = Option(False, Flag(), "Merge also what is not expected to save time.")
    bundles: Paths = variant(EstimateRequest, "bundles")
    gpu_specs: Paths = variant(EstimateRequest, "gpu_specs")

    def __post_init__(self) -> None:
        """Name the runtime that the provider makes of the one given. Raises UsageError for one that it lacks."""
        vars(self).update(runtime=runtime_with(self.runtime, self.provider), provider=None)


@dataclass
class MergeRequest(MergeOptions):
    """Hold what is merged into which file. ``progress(step, done, total)`` is called as steps begin."""

    models: Paths = Option(
        REQUIRED, Many(item=File()), "ONNX files, 2 to 64; one may stand twice.", flag=None
    )
    output: OnePath = Option(
        None, File(), "ONNX file to write, wholly or not at all; without it the report alone.", flag=None
    )
    _: KW_ONLY
    samples: Value[int | None] = Option(
        None,
        Number(low=0, high=10_000, whole=True),
        "Random inputs on which originals and merged file are compared in ONNX Runtime (CPU); default: none, "
        "with a report of the command 4.",
    )
    progress: Callable[[str, int, int], None] | None = None
