"""Which regressors a bundle holds: the family and precisions of each, its features and its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

from gkestimator.kernels import KernelTable
from gkestimator.regressors import MEMBERS

__all__ = ["PLAN", "PLANS", "ModelPlan"]

_TREES = {"gradient_boosting": 100, "xgboost": 200, "lightgbm": 200}
_MORE_TREES = {"gradient_boosting": 150, "xgboost": 300, "lightgbm": 300}  # where the library chooses kernels
_TREES_FOR_FEW_ROWS = {"gradient_boosting": 200, "lightgbm": 150}
_FEW_TREES = {
    "gradient_boosting": 80,
    "xgboost": 100,
    "lightgbm": 100,
}  # enough where bytes explain nearly all
_REDUCED = ("tf32", "fp16", "bf16", "fp8", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One regressor: trained on ``trains`` (family, precision) pairs, and answering ``covers`` besides.

    Pairs that are covered but not trained on count as outside the training range. ``rows`` is how many rows
    tree members see at most (a deterministic sample, even over GPUs and sizes).

    ``scope``: ``seen`` answers on GPUs whose chip it was trained on, ``unseen`` on every other. ``folds``:
    what out-of-fold predictions leave out together, a ``shape`` on every GPU or every board of one chip
    (``gpu``); they give the stack's weights and the intervals. ``anchor``: the time that the target
    log(time / anchor) is relative to (``gkestimator.anchors.ANCHORS``). ``members``: those that may take part.
    ``loss``: what XGBoost and LightGBM minimise; ``absolute`` follows the typical row where a few stray.
    """

    name: str
    features: str
    trains: tuple[tuple[str, str], ...]
    covers: tuple[tuple[str, str], ...] = ()
    rows: int = 15_000
    estimators: Mapping[str, int] = field(default_factory=lambda: dict(_TREES))
    scope: Literal["seen", "unseen"] = "seen"
    folds: Literal["shape", "gpu"] = "shape"
    anchor: str = "roofline"
    members: tuple[str, ...] = MEMBERS
    loss: Literal["squared", "absolute"] = "squared"

    def mask(self, table: KernelTable) -> np.ndarray:
        """Rows of ``table`` that this regressor trains on."""
        pairs = np.char.add(np.char.add(table.family.astype(str), "/"), table.precision.astype(str))
        return np.isin(pairs, [f"{f}/{p}" for f, p in self.trains])


def _pairs(family: str, precisions: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((family, p) for p in precisions)


PLAN: tuple[ModelPlan, ...] = (
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
        rows=100_000,
        estimators=_MORE_TREES,
        members=("xgboost", "lightgbm"),
        loss="absolute",
    ),
    ModelPlan(
        name="conv", features="conv_seen", trains=(("conv", "fp32"),), rows=30_000, estimators=_MORE_TREES
    ),
    # Few rows, each of a kernel size of its own, on V100, T4 and P100: only there does it answer.
    ModelPlan(
        name="conv_half",
        features="conv_seen",
        trains=(("conv", "fp16"),),
        covers=(("conv", "bf16"),),
        anchor="convolution",
        estimators=_TREES_FOR_FEW_ROWS,
        members=("kernel_ridge", "gradient_boosting", "lightgbm"),
    ),
    ModelPlan(
        name="elementwise",
        estimators=_FEW_TREES,
        features="elementwise",
        trains=_pairs("elementwise", ("fp32", "fp16", "bf16")),
        covers=_pairs("elementwise", ("tf32", "int8", "fp8")),
        rows=60_000,
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
        trains=_pairs("layernorm", ("fp32", "fp16", "bf16")),
    ),
    # Tensor-core efficiency learned on matrix products carries over to convolutions as implicit ones.
    ModelPlan(
        name="gemm_half",
        features="matrix",
        trains=_pairs("linear", ("fp16", "bf16", "int8")),
        covers=(*_pairs("linear", ("tf32", "fp8")), *_pairs("bmm", _REDUCED), *_pairs("conv", _REDUCED)),
        rows=24_000,
    ),
    ModelPlan(
        name="attention",
        features="attention",
        trains=_pairs("attention", ("bf16",)),
        covers=_pairs("attention", ("fp32", "tf32", "fp16")),
    ),
)
PLANS: Mapping[str, ModelPlan] = MappingProxyType({p.name: p for p in PLAN})
