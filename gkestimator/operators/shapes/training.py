"""Shape rules of optimiser steps (ai.onnx.preview.training) and of losses."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import Outputs, refuse, tensor, text_attribute
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule

__all__: list[str] = []

# per weight: the tensors that one step updates, and all of its inputs (weight, gradient, states)
_STATES = {"Adagrad": (2, 3), "Momentum": (2, 3), "Adam": (3, 4)}


@shape_rule("Adagrad", "Momentum", "Adam", domain="ai.onnx.preview.training")
def _step(ctx: ShapeContext) -> Outputs:
    """Inputs: rate, count, the weights, their gradients, their states; outputs: new weights and states."""
    updated, given = _STATES[ctx.op_type]
    weights, rest = divmod(len(ctx.types) - 2, given)
    if rest or weights < 1:
        refuse(ctx, f"{len(ctx.types)} inputs, expected 2 and a multiple of {given}")
    new = [tensor(ctx, 2 + i) for i in range(weights)]
    for state in range(updated - 1):
        new.extend(tensor(ctx, 2 + (2 + state) * weights + i) for i in range(weights))
    return new[: ctx.outputs]


@shape_rule("Gradient", domain="ai.onnx.preview.training")
def _gradient(ctx: ShapeContext) -> Outputs:
    """One gradient for each of the first inputs, those that ``xs`` names."""
    names = ctx.attributes.get("xs") or ()
    return [tensor(ctx, i) for i in range(len(names))][: ctx.outputs]


def _reduced(ctx: ShapeContext, labels: TensorType, dtype: DType) -> TensorType:
    reduction = text_attribute(ctx, "reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        refuse(ctx, f"reduction is {reduction!r}, expected none, sum or mean")
    return TensorType(dtype, labels.shape if reduction == "none" else ())


def _labelled(ctx: ShapeContext) -> tuple[TensorType, TensorType]:
    scores = tensor(ctx, 0, min_rank=2)
    labels = tensor(ctx, 1)
    if labels.shape != (scores.shape[0], *scores.shape[2:]):
        refuse(ctx, f"scores are {list(scores.shape)} and labels {list(labels.shape)}")
    return scores, labels


@shape_rule("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(ctx: ShapeContext) -> Outputs:
    scores, labels = _labelled(ctx)
    return [_reduced(ctx, labels, scores.dtype)]


@shape_rule("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(ctx: ShapeContext) -> Outputs:
    scores, labels = _labelled(ctx)
    return [_reduced(ctx, labels, scores.dtype), scores][: ctx.outputs]
