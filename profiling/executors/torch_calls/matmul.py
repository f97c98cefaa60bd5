"""Matrix products."""

from __future__ import annotations

import math
from typing import Any

from gkestimator.lowering.patterns.match import FUSED_DOMAIN
from gkestimator.profiling.executors.torch_calls.registry import Call, Run, calling, torch_call


def turned(weight: Any) -> Any:
    """A matrix (K, N) as torch stores a Linear's: (N, K)."""
    return weight.t().contiguous()


@torch_call("MatMul")
def matmul(call: Call) -> Run:
    """Call torch.matmul; with a weight matrix F.linear, whose weight the exporter transposed."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    right = call.tensor(1)
    if right.is_weight and len(right.shape) == 2 and call.tensor(0).shape and call.is_static(1):
        call.prepare(1, turned)
        return calling(F.linear)
    return calling(torch.matmul)


@torch_call("Linear", domain=FUSED_DOMAIN)
def linear(call: Call) -> Run:
    """Call F.linear with a bias."""
    import torch.nn.functional as F  # noqa: N812

    if call.is_static(1):
        call.prepare(1, turned)
        return calling(F.linear)
    return lambda x, w, b: F.linear(x, w.t(), b)


@torch_call("Gemm")
def gemm(call: Call) -> Run:
    """Call F.linear where the right side lies as a Linear's weight (transB), else torch.addmm or torch.mm."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    alpha = call.real("alpha", 1.0)
    beta = call.real("beta", 1.0)
    left = call.flag("transA")
    right = call.flag("transB")
    biased = call.has(2)
    if right and not left and alpha == 1.0 and beta == 1.0:
        if not biased:
            return lambda a, b, _=None: F.linear(a, b)
        width = call.result_shape[1]
        extent = call.shape(2)
        if math.prod(extent) == width and extent[-1:] == (width,):
            flat = call.prepare(2, lambda c: c.reshape(-1))
            return lambda a, b, c: F.linear(a, b, flat(c))

    def product(a: Any, b: Any, c: Any = None) -> Any:
        a = a.t() if left else a
        b = b.t() if right else b
        if c is None:
            if alpha == 1.0:
                return torch.mm(a, b)
            return torch.mm(a, b) * alpha
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)

    return product


@torch_call("Einsum")
def einsum(call: Call) -> Run:
    """Call torch.einsum."""
    import torch

    equation = call.text("equation", "").replace(" ", "")
    return lambda *operands: torch.einsum(equation, *operands)
