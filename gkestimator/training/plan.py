"""List the regressors that a bundle holds: the family and precisions of each, its features and its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np

from gkestimator.bundles.models import WIDEST
from gkestimator.core.kernels import TENSORRT, Array
from gkestimator.core.records import Names, frozen
from gkestimator.kernel_models.features.recurrent import SEEN_RISING, UNSEEN_RISING
from gkestimator.kernel_models.regressors import MEMBERS
from gkestimator.training.rows import TrainingRows

_TREES = {"gradient_boosting": 100, "xgboost": 200, "lightgbm": 200}
_MORE_TREES = {"xgboost": 300, "lightgbm": 300}  # where the library chooses kernels
_MOST_TREES = {"xgboost": 450, "lightgbm": 450}  # where libraries have rules of their own, or GPUs are many
_TREES_FOR_FEW_ROWS = {"gradient_boosting": 200, "lightgbm": 150}
# Enough where bytes explain nearly all.
_FEW_TREES = {"gradient_boosting": 80, "xgboost": 100, "lightgbm": 100}
# Memory-bound kernels follow the anchor closely; half of what the other chips say beyond it did best on chips
# left out (benchmarks/transfer.py).
_HALF_WAY = 0.5
_TRANSFER_TREES = {"xgboost": 100, "lightgbm": 100}
RISING_MEMBERS = ("xgboost", "lightgbm")
"""Members that can be bound to rise along a feature."""
_WIDE = ("tf32", "fp16", "bf16")


Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Families with a precision."""


@frozen
class ModelPlan:
    """Hold one regressor: trained on ``trains`` (family, precision) pairs, and answering ``covers`` besides.

    Pairs that are covered but not trained on count as outside the training range. ``rows`` is how many rows
    tree members see at most (a deterministic sample, even over GPUs and sizes).

    ``scope``: ``seen`` answers on GPUs whose chip it was trained on, ``unseen`` on every other. ``folds``:
    what out-of-fold predictions leave out together, a ``shape`` on every GPU, a convolution's ``layer`` at every
    batch and precision, or every board of one chip (``gpu``); they give the stack's weights and the intervals.
    ``anchor``: the time that the target log(time / anchor) is relative to
    (``gkestimator.kernel_models.anchors.ANCHORS``). ``members``: those that may take
    part. ``loss``: what XGBoost and LightGBM minimise; ``absolute`` follows the typical row where a few
    stray. ``shrink`` multiplies the stack's weights: below 1 it holds estimates closer to the anchor than the
    few chips in training suggest. ``rising``: features along which log(time / anchor) may only rise; XGBoost and
    LightGBM alone can promise that. ``variants``: those that it trains on, and answers before others that cover them
    do (:func:`~gkestimator.core.kernels.is_listed`); none are all but a library's own. ``sources``: those that it
    trains on; none are all. ``widest`` limits the 90 % half-widths of log(time), where whole networks say more of their
    kernels than the few chips whose kernels were measured alone.
    """

    name: str
    features: str
    trains: Pairs
    covers: Pairs = ()
    rows: int = 15_000
    estimators: Mapping[str, int] = field(default_factory=lambda: dict(_TREES))
    scope: Literal["seen", "unseen"] = "seen"
    folds: Literal["shape", "layer", "gpu"] = "shape"
    anchor: str = "roofline"
    members: Names = MEMBERS
    loss: Literal["squared", "absolute"] = "squared"
    shrink: float = 1.0
    widest: float = WIDEST
    rising: Names = ()
    variants: Names = ()
    sources: Names = ()

    def __post_init__(self) -> None:
        if self.rising and not set(self.members) <= set(RISING_MEMBERS):
            raise ValueError(f"plan {self.name}: only {', '.join(RISING_MEMBERS)} can be bound to rise")
        if self.rising and self.loss != "squared":
            raise ValueError(f"plan {self.name}: LightGBM is bound to rise by squared errors alone")

    def mask(self, rows: TrainingRows) -> Array:
        """Return the mask of ``rows`` that this regressor trains on."""
        table = rows.table
        pairs = np.char.add(np.char.add(table.family.astype(str), "/"), table.precision.astype(str))
        mine = np.isin(pairs, [f"{f}/{p}" for f, p in self.trains])
        if self.variants:
            mine &= table.is_listed(self.variants)
        else:
            mine &= ~table.has_word(TENSORRT)
        if self.sources:
            mine &= np.isin(rows.source.astype(str), self.sources)
        return np.asarray(mine)


Plans: TypeAlias = "tuple[ModelPlan, ...]"


def _pairs(family: str, precisions: Names) -> Pairs:
    return tuple((family, p) for p in precisions)


_ON_TENSOR_CORES = _pairs("linear", ("fp16", "bf16"))
_AS_ON_TENSOR_CORES = (
    *_pairs("linear", ("tf32",)),
    *_pairs("bmm", _WIDE),
)


def _unseen(
    family: str,
    features: str,
    trains: Pairs,
    covers: Pairs = (),
    *,
    rows: int,
    shrink: float = 1.0,
) -> ModelPlan:
    return ModelPlan(
        name=f"{family}_unseen",
        features=features,
        trains=trains,
        covers=covers,
        rows=rows,
        estimators=_TRANSFER_TREES,
        scope="unseen",
        folds="gpu",
        anchor="attainable",
        members=("xgboost", "lightgbm"),
        shrink=shrink,
    )


_FP8 = {
    "": ("scaled", "scaled.sglang.static"),
    "_vllm": ("scaled.vllm",),
    "_sglang": ("scaled.sglang",),
    "_tensorrt_llm": ("scaled.tensorrt_llm",),
    "_blocks": ("scaled.sglang.blocks", "scaled.tensorrt_llm.blocks"),
}

_INT8 = {"": ("scaled", "linear"), "_sglang": ("scaled.sglang",)}


def _eighth(
    name: str, precision: str, *, also: Names = (), kinds: Mapping[str, Names] | None = None
) -> Plans:
    """Return the regressors of products in 8 bits: one for GPUs that were not measured, and one for each of ``kinds``
    (variants by the ending of its name) on those that were; the first also answers other variants."""
    trains = _pairs("linear", (precision,))
    covers = (*_pairs("linear", also), *_pairs("bmm", (precision, *also)), *_pairs("conv", (precision,)))
    plans = []
    for ending, variants in (kinds or {"": ()}).items():
        seen = ModelPlan(
            name=f"gemm_{name}{ending}",
            features="eighth",
            anchor="tensor",
            trains=trains,
            covers=covers,
            variants=variants,
            rows=40_000,
            members=("xgboost", "lightgbm"),
            estimators=_MORE_TREES,
        )
        plans.append(seen)
    unseen = ModelPlan(
        name=f"gemm_{name}_unseen",
        scope="unseen",
        folds="gpu",
        features="eighth_tensor",
        anchor="tensor",
        trains=trains,
        covers=covers,
        rows=24_000,
        members=("lasso", "xgboost", "lightgbm"),
        estimators=_TRANSFER_TREES,
    )
    return (*plans, unseen)


_OF_TENSORRT = (f".{TENSORRT}",)


def _tensorrt(name: str, family: str, precision: str, *, also: Names = ()) -> ModelPlan:
    """Return the regressor of TensorRT's convolutions of one precision, on the chip that they were measured on."""
    return ModelPlan(
        name=f"tensorrt_{name}",
        features="tensorrt_conv",
        anchor="convolution" if family == "conv" else "roofline",
        folds="layer",
        trains=_pairs(family, (precision,)),
        covers=_pairs(family, also),
        variants=_OF_TENSORRT,
        sources=("alibaba",),
        rows=80_000,
        members=("xgboost", "lightgbm"),
        estimators={"xgboost": 600, "lightgbm": 600} if family == "conv" else _MORE_TREES,
    )


TENSORRT_PLANS: Plans = (
    _tensorrt("conv", "conv", "fp32", also=("tf32",)),
    _tensorrt("conv_half", "conv", "fp16", also=("bf16",)),
    _tensorrt("conv_int8", "conv", "int8"),
    _tensorrt("depthwise", "depthwise", "fp32", also=("tf32",)),
    _tensorrt("depthwise_half", "depthwise", "fp16", also=("bf16",)),
    _tensorrt("depthwise_int8", "depthwise", "int8"),
    # Engines alone: the single convolutions hold copies between layouts, which an engine needs once in many layers, and
    # made every GPU that was left out worse (docs/accuracy/tensorrt-kernels.md).
    ModelPlan(
        name="tensorrt_conv_unseen",
        scope="unseen",
        folds="gpu",
        features="tensor",
        anchor="tensorrt_convolution",
        trains=_pairs("conv", ("fp32", "tf32", "fp16", "int8")),
        covers=_pairs("conv", ("bf16", "fp8")),
        variants=_OF_TENSORRT,
        sources=("tensorrt_layers",),
        members=("xgboost", "lightgbm"),
        estimators={"xgboost": 60, "lightgbm": 60},
    ),
)
"""Regressors of what TensorRT ran, learned from measurements of its own."""

PLAN: Plans = (
    ModelPlan(
        name="linear",
        features="product",
        trains=(("linear", "fp32"),),
        rows=40_000,
        estimators=_MORE_TREES,
        members=("xgboost", "lightgbm"),
        loss="absolute",
    ),
    ModelPlan(
        name="bmm",
        features="product",
        trains=(("bmm", "fp32"),),
        rows=60_000,
        estimators=_MORE_TREES,
        members=("xgboost", "lightgbm"),
        loss="absolute",
    ),
    ModelPlan(
        name="conv",
        features="conv_seen",
        trains=(("conv", "fp32"),),
        rows=30_000,
        estimators=_MORE_TREES,
        members=("kernel_ridge", "xgboost", "lightgbm"),
    ),
    # Few rows, each of a kernel size of its own, on V100, T4 and P100: only there does it answer.
    ModelPlan(
        name="conv_half",
        features="conv_seen",
        trains=(("conv", "fp16"),),
        covers=(("conv", "bf16"),),
        anchor="half_convolution",
        estimators=_TREES_FOR_FEW_ROWS,
        members=("kernel_ridge", "gradient_boosting", "lightgbm"),
    ),
    # Half precision apart: A40 and H100 have half-precision rows alone, which must not make them known in FP32.
    ModelPlan(
        name="elementwise",
        estimators=_FEW_TREES,
        features="elementwise",
        trains=_pairs("elementwise", ("fp32",)),
        covers=_pairs("elementwise", ("tf32",)),
        rows=60_000,
    ),
    ModelPlan(
        name="elementwise_half",
        estimators=_FEW_TREES,
        features="elementwise",
        anchor="attainable",  # boards of one chip differ by ECC in their memory: A40 and RTX 3090 by an eighth
        members=("xgboost", "lightgbm"),  # the others run away beyond the sizes measured
        trains=_pairs("elementwise", ("fp16", "bf16")),
        covers=_pairs("elementwise", ("int8", "fp8")),
    ),
    ModelPlan(
        name="softmax",
        features="memory",
        trains=_pairs("softmax", ("fp32",)),
        covers=_pairs("softmax", ("fp16", "bf16")),
    ),
    ModelPlan(
        name="layernorm",
        features="layernorm",
        anchor="attainable",
        trains=_pairs("layernorm", ("fp32",)),
        covers=_pairs("layernorm", ("fp16", "bf16")),
    ),
    # Anywhere else the anchor, which whole networks in both layouts were held against, is worth more than what cuDNN 7
    # did on three older chips: nine tenths of that are left out.
    ModelPlan(
        name="conv_half_unseen",
        scope="unseen",
        folds="gpu",
        features="tensor",
        anchor="half_convolution",
        trains=(("conv", "fp16"),),
        covers=(("conv", "bf16"), ("conv", "tf32")),
        members=("xgboost", "lightgbm"),
        estimators={"xgboost": 60, "lightgbm": 60},
        shrink=0.1,
        widest=0.25,
    ),
    # Tensor-core efficiency learned on matrix products carries over to integer convolutions as implicit ones.
    ModelPlan(
        name="gemm_half",
        features="matrix_half",
        anchor="tensor",
        trains=_ON_TENSOR_CORES,
        covers=_AS_ON_TENSOR_CORES,
        rows=80_000,
        members=("xgboost", "lightgbm"),  # the others earned no weight
        estimators=_MOST_TREES,
    ),
    ModelPlan(
        name="gemm_half_unseen",
        scope="unseen",
        folds="gpu",
        features="tensor",
        anchor="tensor",
        trains=_ON_TENSOR_CORES,
        covers=_AS_ON_TENSOR_CORES,
        rows=24_000,
        members=("lasso", "xgboost", "lightgbm"),
        estimators={"xgboost": 60, "lightgbm": 60},
    ),
    *_eighth("fp8", "fp8", kinds=_FP8),
    *_eighth("int8", "int8", kinds=_INT8),
    *_eighth("weight_only", "w8a16", also=("w4a16",)),
    ModelPlan(
        name="attention",
        features="attention",
        anchor="fused_attention",
        trains=_pairs("attention", ("bf16",)),
        covers=_pairs("attention", ("fp32", "tf32", "fp16")),
        rows=24_000,
        members=("xgboost", "lightgbm"),
        estimators=_MORE_TREES,
    ),
    ModelPlan(
        name="attention_unseen",
        scope="unseen",
        folds="gpu",
        features="fused_attention",
        anchor="fused_attention",
        trains=_pairs("attention", ("bf16",)),
        covers=_pairs("attention", ("fp32", "tf32", "fp16")),
        members=("lasso", "xgboost", "lightgbm"),
        estimators={"xgboost": 60, "lightgbm": 60},
    ),
    # Only bf16 was measured; fp16 is as fast on the same units and moves as many bytes, so it counts as trained.
    ModelPlan(
        name="decode",
        features="decode",
        anchor="decode",
        trains=_pairs("decode", ("bf16", "fp16")),
        covers=_pairs("decode", ("fp32", "tf32")),
        rows=120_000,
        members=("xgboost", "lightgbm"),
        estimators=_MOST_TREES,
    ),
    ModelPlan(
        name="decode_unseen",
        scope="unseen",
        folds="gpu",
        features="decode_unseen",
        anchor="decode",
        trains=_pairs("decode", ("bf16", "fp16")),
        covers=_pairs("decode", ("fp32", "tf32")),
        rows=60_000,
        members=("lasso", "xgboost", "lightgbm"),
        estimators=_TRANSFER_TREES,
        loss="absolute",
        shrink=0.75,  # what libraries choose on one chip carries over in part
    ),
    # GPUs that were not measured: what the GPU sustains by its specification is the anchor, features mean the
    # same on every GPU, and weights come from predictions of chips left out, so that only what carries over
    # moves the estimate away from the anchor.
    _unseen("linear", "transfer_matrix", _pairs("linear", ("fp32",)), rows=16_000),
    _unseen("bmm", "transfer_matrix", _pairs("bmm", ("fp32",)), rows=16_000),
    _unseen("conv", "transfer_conv", _pairs("conv", ("fp32",)), rows=16_000),
    _unseen(
        "elementwise",
        "transfer_elementwise",
        _pairs("elementwise", ("fp32",)),
        _pairs("elementwise", ("tf32",)),
        rows=8_000,
        shrink=_HALF_WAY,
    ),
    _unseen(
        "elementwise_half",
        "transfer_elementwise",
        _pairs("elementwise", ("fp16", "bf16")),
        _pairs("elementwise", ("int8", "fp8")),
        rows=6_000,
        shrink=_HALF_WAY,
    ),
    _unseen(
        "softmax",
        "transfer_memory",
        _pairs("softmax", ("fp32",)),
        _pairs("softmax", ("fp16", "bf16")),
        rows=6_000,
        shrink=_HALF_WAY,
    ),
    _unseen(
        "layernorm",
        "transfer_layernorm",
        _pairs("layernorm", ("fp32",)),
        _pairs("layernorm", ("fp16", "bf16")),
        rows=6_000,
        shrink=_HALF_WAY,
    ),
    # Few rows (DeepBench's): both are bound to rise with the layer, so that noise between two sizes is not learned.
    ModelPlan(
        name="rnn",
        features="recurrent",
        anchor="recurrent_rising",
        trains=_pairs("rnn", ("fp32", "fp16")),
        covers=_pairs("rnn", ("tf32", "bf16")),
        members=RISING_MEMBERS,
        estimators={"xgboost": 150, "lightgbm": 150},
        rising=SEEN_RISING,
    ),
    ModelPlan(
        name="rnn_unseen",
        scope="unseen",
        folds="gpu",
        features="transfer_recurrent",
        anchor="recurrent",
        trains=_pairs("rnn", ("fp32", "fp16")),
        covers=_pairs("rnn", ("tf32", "bf16")),
        members=RISING_MEMBERS,
        estimators={"xgboost": 100, "lightgbm": 100},
        rising=UNSEEN_RISING,
    ),
    *TENSORRT_PLANS,
)
PLANS: Mapping[str, ModelPlan] = MappingProxyType({p.name: p for p in PLAN})
