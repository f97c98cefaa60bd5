"""Losses."""

from __future__ import annotations

from typing import Any

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call

__all__: list[str] = []


def _loss(call: Call) -> Run:
    """Return F.nll_loss with the attributes of ``call`` over scores, targets and weights."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    reduction = call.text("reduction", "mean")
    ignore = call.whole("ignore_index", -100)
    target = call.prepare(1, lambda t: t.to(torch.int64))
    return lambda x, t, w=None: F.nll_loss(x, target(t), w, reduction=reduction, ignore_index=ignore)


@torch_call("NegativeLogLikelihoodLoss")
def nll_loss(call: Call) -> Run:
    """Call F.nll_loss."""
    return _loss(call)


@torch_call("SoftmaxCrossEntropyLoss")
def cross_entropy(call: Call) -> Run:
    """Call F.log_softmax, then F.nll_loss: what F.cross_entropy is."""
    import torch.nn.functional as F  # noqa: N812

    loss = _loss(call)
    both = call.wants(1)

    def run(x: Any, t: Any, w: Any = None) -> Any:
        scores = F.log_softmax(x, 1)
        if both:
            return (loss(scores, t, w), scores)
        return loss(scores, t, w)

    return run
