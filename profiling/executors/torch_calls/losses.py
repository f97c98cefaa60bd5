"""Losses."""

from __future__ import annotations

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call

__all__: list[str] = []


@torch_call("NegativeLogLikelihoodLoss")
def nll_loss(call: Call) -> Run:
    """F.nll_loss."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    reduction = str(call.attribute("reduction", "mean"))
    ignore = int(call.attribute("ignore_index", -100))
    target = call.prepare(1, lambda t: t.to(torch.int64))
    return lambda x, t, w=None: F.nll_loss(x, target(t), w, reduction=reduction, ignore_index=ignore)


@torch_call("SoftmaxCrossEntropyLoss")
def cross_entropy(call: Call) -> Run:
    """F.log_softmax, then F.nll_loss: what F.cross_entropy is."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    reduction = str(call.attribute("reduction", "mean"))
    ignore = int(call.attribute("ignore_index", -100))
    target = call.prepare(1, lambda t: t.to(torch.int64))
    both = call.wants(1)

    def run(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor | None = None) -> object:
        scores = F.log_softmax(x, 1)
        loss = F.nll_loss(scores, target(t), w, reduction=reduction, ignore_index=ignore)
        if both:
            return (loss, scores)
        return loss

    return run
