"""Scaled dot-product attention, as an operator and as the pattern that exporters make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, Tensor
from gkestimator.profiling.executors.torch_calls.registry import (
    Call,
    Run,
    pattern_call,
    python_number,
    torch_call,
    torch_dtype,
)

__all__: list[str] = []

_ATTRIBUTES = frozenset(
    {
        "is_causal",
        "kv_num_heads",
        "q_num_heads",
        "qk_matmul_output_mode",
        "scale",
        "softcap",
        "softmax_precision",
    }
)


@pattern_call("attention")
def attention_pattern(call: Call) -> Run:
    """F.scaled_dot_product_attention with the group's scale and mask."""
    import torch.nn.functional as F  # noqa: N812

    group = _Group(call)
    scale = group.scale()
    flip = group.keys_turned()
    causal = bool(call.attribute("is_causal", 0))
    turn: Callable[[Any], Any] = _same
    if flip:  # keys made beforehand lie as projections leave them, their sizes side by side
        call.prepare(1, lambda k: k.transpose(-1, -2).contiguous())
        turn = _same if call.is_static(1) else (lambda k: k.transpose(-1, -2))
    if causal or not call.has(3):
        return lambda q, k, v, *_: F.scaled_dot_product_attention(
            q, turn(k), v, is_causal=causal, scale=scale
        )
    mask = call.tensor(3)
    drops = mask.dtype is DType.BOOL and group.drops(mask)
    kind = torch_dtype(mask.dtype if mask.dtype is DType.BOOL else call.tensor(0).dtype)
    batch = call.shape(0)[0]
    # What is laid out here, authors pass as it has to be: it is done beforehand.
    ready = call.prepare(3, lambda m: _aligned(~m if drops else m.to(kind), batch))
    return lambda q, k, v, m: F.scaled_dot_product_attention(q, turn(k), v, attn_mask=ready(m), scale=scale)


def _same(value: Any) -> Any:
    return value


def _aligned(mask: Any, batch: int) -> Any:
    """``mask`` of four dimensions at most: Swin's windows lie in a dimension of their own, (images, windows, heads, S,
    S), where queries have images x windows."""
    if mask.ndim <= 4:
        return mask
    windows = 1
    for size in mask.shape[1:-3]:
        windows *= size
    if mask.shape[0] == 1 and windows > 1:
        images = max(1, batch // windows)
    else:
        images = mask.shape[0]
    return mask.expand(images, *mask.shape[1:]).reshape(-1, *mask.shape[-3:])


class _Group:
    """The operators that the pattern replaced, seen from the two products and the softmax."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.makers = {v.name: op for op in call.group for v in op.outputs if v is not None}
        products = [op for op in call.group if op.op_type == "MatMul"]
        if len(products) != 2:
            raise call.unsupported(f"{len(products)} products in the group, expected 2")
        self.first, self.second = products

    def factor(self, op: Operator) -> float | None:
        """What a Mul or Div by a one-element constant multiplies by; None for anything else."""
        if op.op_type not in ("Mul", "Div"):
            return None
        for position in (1, 0):
            value = op.inputs[position]
            if isinstance(value, Tensor) and value.elements == 1 and value.name not in self.makers:
                if value.value is not None:
                    known = value.value
                else:
                    known = self.call.known.get(value.name)
                if known is None:
                    raise self.call.unsupported(f"the factor {value.name} has no known value")
                number = float(python_number(known))
                if op.op_type == "Mul":
                    return number
                if position == 1:
                    return 1.0 / number
        return None

    def scale(self) -> float:
        """Product of the factors on the way from queries and keys to the softmax."""
        total = 1.0
        for op in self.call.group:
            factor = self.factor(op)
            if factor is not None:
                total *= factor
        return total

    def keys_turned(self) -> bool:
        """Whether the keys that go in lie as (..., D, S), not as (..., S, D)."""
        key = self.call.tensor(1)
        value = self.first.inputs[1]
        flips = 0
        while value is not None and value.name != key.name:
            op = self.makers.get(value.name)
            if op is None:
                raise self.call.unsupported(f"{value.name} does not come from the keys")
            if op.op_type == "Transpose":
                flips += 1
            sources = [
                v for v in op.inputs if isinstance(v, Tensor) and (v.elements > 1 or v.name == key.name)
            ]
            value = sources[0] if sources else None
        return flips % 2 == 0

    def drops(self, mask: Tensor) -> bool:
        """Whether truth in ``mask`` keeps a key out: Where gives the filling value there."""
        for op in self.call.group:
            condition = op.inputs[0] if op.op_type == "Where" else None
            if condition is not None and condition.name == mask.name:
                chosen = op.inputs[1]
                return not (isinstance(chosen, Tensor) and chosen.name in self.makers)
        raise self.call.unsupported(f"no Where of the group reads the mask {mask.name}")


@torch_call("Attention")
def attention(call: Call) -> Run:
    """F.scaled_dot_product_attention; three-dimensional inputs are split into heads, caches appended first."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    unknown = sorted(set(call.op.attributes) - _ATTRIBUTES)
    if unknown:
        raise call.unsupported(f"attribute {unknown[0]}")
    if float(call.attribute("softcap", 0.0)):
        raise call.unsupported("torch's fused attention has no soft cap")
    if call.wants(3):
        raise call.unsupported("torch's fused attention does not give the scores")
    if call.has(6):
        raise call.unsupported("padded keys (nonpad_kv_seqlen)")
    causal = bool(call.attribute("is_causal", 0))
    scale = call.attribute("scale")
    flat = len(call.shape(0)) == 3
    if flat:
        q_heads = int(call.attribute("q_num_heads", 0))
    else:
        q_heads = call.shape(0)[1]
    if flat:
        kv_heads = int(call.attribute("kv_num_heads", 0))
    else:
        kv_heads = call.shape(1)[1]
    cached = call.has(4)
    masked = call.has(3)
    q_len = call.shape(0)[1 if flat else 2]
    kv_len = call.shape(1)[1 if flat else 2] + (call.shape(4)[2] if cached else 0)
    if causal and (masked or (q_len != kv_len and cached)):
        raise call.unsupported("is_causal with a mask or a cache, which one call cannot say")
    if masked and call.shape(3)[-1] != kv_len:
        raise call.unsupported(f"a mask over {call.shape(3)[-1]} of {kv_len} keys")
    present = call.wants(1) or call.wants(2)
    ready: Callable[[Any], Any] = _same
    if masked and call.tensor(3).dtype is not DType.BOOL and call.tensor(3).dtype is not call.tensor(0).dtype:
        kind = torch_dtype(call.tensor(0).dtype)
        ready = call.prepare(3, lambda m: m.to(kind))

    def heads(x: Any, count: int) -> Any:
        if flat:
            return x.unflatten(-1, (count, x.shape[-1] // count)).transpose(1, 2)
        return x

    def run(q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None, *_: Any) -> Any:
        q = heads(q, q_heads)
        k = heads(k, kv_heads)
        v = heads(v, kv_heads)
        if past_k is not None:
            k = torch.cat((past_k, k), dim=2)
            v = torch.cat((past_v, v), dim=2)
        result = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if mask is None else ready(mask),
            is_causal=causal,
            scale=scale,
            enable_gqa=q_heads != kv_heads,
        )
        if flat:
            result = result.transpose(1, 2).flatten(2)
        if present:
            return (result, k, v)
        return result

    return run
