"""Shape rules of optimiser steps (ai.onnx.preview.training) and of losses."""

from __future__ import annotations

from gkestimator.dtypes import DType
from gkestimator.onnx_io.shapes.registry import ShapeContext, TensorType, ValueType, shape_rule
from gkestimator.onnx_io.shapes.support import refuse, tensor, text_attribute

__all__: list[str] = []

# tensors of state that one step updates with each weight, and all of its inputs per weight (weight, gradient, state)
_STATES = {"Adagrad": (2, 3), "Momentum": (2, 3), "Adam": (3, 4)}


@shape_rule("Adagrad", "Momentum", "Adam", domain="ai.onnx.preview.training")
def _step(ctx: ShapeContext) -> list[ValueType | None]:
    """Inputs rate, count, then the weights, their gradients and states; outputs the new weights and states."""
    updated, given = _STATES[ctx.op_type]
    weights, rest = divmod(len(ctx.types) - 2, given)
    if rest or weights < 1:
        refuse(ctx, f"{len(ctx.types)} inputs, expected 2 and a multiple of {given}")
    new: list[ValueType | None] = [tensor(ctx, 2 + i) for i in range(weights)]
    for state in range(updated - 1):
        new.extend(tensor(ctx, 2 + (2 + state) * weights + i) for i in range(weights))
    return new[: ctx.outputs]


def _reduced(ctx: ShapeContext, labels: TensorType, dtype: DType) -> TensorType:
    reduction = text_attribute(ctx, "reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        refuse(ctx, f"reduction is {reduction!r}, expected none, sum or mean")
    return TensorType(dtype, labels.shape if reduction == "none" else ())


def _labelled(ctx: ShapeContext) -> tuple[TensorType, TensorType]:
    scores, labels = tensor(ctx, 0, min_rank=2), tensor(ctx, 1)
    if labels.shape != (scores.shape[0], *scores.shape[2:]):
        refuse(ctx, f"scores are {list(scores.shape)} and labels {list(labels.shape)}")
    return scores, labels


@shape_rule("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(ctx: ShapeContext) -> list[ValueType | None]:
    scores, labels = _labelled(ctx)
    return [_reduced(ctx, labels, scores.dtype)]


@shape_rule("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(ctx: ShapeContext) -> list[ValueType | None]:
    scores, labels = _labelled(ctx)
    return [_reduced(ctx, labels, scores.dtype), scores][: ctx.outputs]
