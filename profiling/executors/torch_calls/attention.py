"""Scaled dot-product attention, as an operator and as the pattern that exporters make of it."""

from __future__ import annotations

import math
from typing import Any

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, Tensor
from gkestimator.profiling.executors.torch_calls.registry import (
    Call,
    Change,
    Run,
    as_it_is,
    pattern_call,
    python_number,
    torch_call,
    torch_dtype,
)

_ATTRIBUTES = frozenset(
    [
        "is_causal",
        "kv_num_heads",
        "q_num_heads",
        "qk_matmul_output_mode",
        "scale",
        "softcap",
        "softmax_precision",
    ]
)


@pattern_call("attention")
def attention_pattern(call: Call) -> Run:
    """Call F.scaled_dot_product_attention with the group's scale and mask."""
    import torch.nn.functional as F  # noqa: N812

    group = _Group(call)
    scale = group.scale()
    causal = call.flag("is_causal")
    turn: Change = as_it_is
    if group.keys_turned():  # keys made beforehand lie as projections leave them, their sizes side by side
        call.prepare(1, lambda k: k.transpose(-1, -2).contiguous())
        if not call.is_static(1):
            turn = _turned
    if causal or not call.has(3):
        return lambda q, k, v, *_: F.scaled_dot_product_attention(
            q, turn(k), v, is_causal=causal, scale=scale
        )
    mask = call.tensor(3)
    truth = mask.dtype is DType.BOOL
    drops = truth and group.drops(mask)
    kind = torch_dtype(mask.dtype if truth else call.dtype)
    batch = call.shape()[0]

    def laid_out(m: Any) -> Any:
        return _aligned(~m if drops else m.to(kind), batch)

    # What is laid out here, authors pass as it has to be: it is done beforehand.
    ready = call.prepare(3, laid_out)
    return lambda q, k, v, m: F.scaled_dot_product_attention(q, turn(k), v, attn_mask=ready(m), scale=scale)


def _turned(keys: Any) -> Any:
    return keys.transpose(-1, -2)


def _aligned(mask: Any, batch: int) -> Any:
    """Return ``mask`` of four dimensions at most: Swin's windows lie in a dimension of their own, (images, windows,
    heads, S, S), where queries have images x windows."""
    if mask.ndim <= 4:
        return mask
    windows = math.prod(mask.shape[1:-3])
    images = mask.shape[0]
    if images == 1 and windows > 1:
        images = max(1, batch // windows)
    spread = mask.expand(images, *mask.shape[1:])
    return spread.reshape(-1, *mask.shape[-3:])


class _Group:
    """See the operators that the pattern replaced from the two products and the softmax."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.makers: dict[str, Operator] = {}
        for op in call.group:
            for value in op.outputs:
                if value is not None:
                    self.makers[value.name] = op
        products = [op for op in call.group if op.op_type == "MatMul"]
        if len(products) != 2:
            raise call.unsupported(f"{len(products)} products in the group, expected 2")
        self.first, self.second = products

    def factor(self, op: Operator) -> float | None:
        """Return what a Mul or Div by a one-element constant multiplies by; None for anything else."""
        if op.op_type not in ("Mul", "Div"):
            return None
        for position in (1, 0):
            value = op.inputs[position]
            if not isinstance(value, Tensor) or value.elements != 1 or value.name in self.makers:
                continue
            known = value.value
            if known is None:
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
        """Return the product of the factors on the way from queries and keys to the softmax."""
        factors = (self.factor(op) for op in self.call.group)
        return math.prod((factor for factor in factors if factor is not None), start=1.0)

    def keys_turned(self) -> bool:
        """Return True where the keys that go in lie as (..., D, S), not as (..., S, D)."""
        key = self.call.tensor(1)
        value = self.first.inputs[1]
        flips = 0
        while value is not None and value.name != key.name:
            op = self.makers.get(value.name)
            if op is None:
                raise self.call.unsupported(f"{value.name} does not come from the keys")
            if op.op_type == "Transpose":
                flips += 1
            value = self._source(op, key)
        return flips % 2 == 0

    @staticmethod
    def _source(op: Operator, key: Tensor) -> Tensor | None:
        """Return the first operand of ``op`` that is no mere number."""
        for value in op.inputs:
            if isinstance(value, Tensor) and (value.elements > 1 or value.name == key.name):
                return value
        return None

    def drops(self, mask: Tensor) -> bool:
        """Return True where truth in ``mask`` keeps a key out: Where gives the filling value there."""
        for op in self.call.group:
            if op.op_type != "Where":
                continue
            condition, chosen = op.inputs[:2]
            if condition is not None and condition.name == mask.name:
                return not (isinstance(chosen, Tensor) and chosen.name in self.makers)
        raise self.call.unsupported(f"no Where of the group reads the mask {mask.name}")


@torch_call("Attention")
def attention(call: Call) -> Run:
    """Call F.scaled_dot_product_attention; three-dimensional inputs are split into heads, caches appended first."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    _refuse_what_torch_lacks(call)
    causal = call.flag("is_causal")
    scale = call.attribute("scale")
    flat = call.rank == 3
    if flat:
        q_heads = call.whole("q_num_heads", 0)
        kv_heads = call.whole("kv_num_heads", 0)
    else:
        q_heads = call.shape()[1]
        kv_heads = call.shape(1)[1]
    _refuse_masks(call, causal, 1 if flat else 2)
    present = call.wants(1) or call.wants(2)
    ready: Change = as_it_is
    if call.has(3) and call.tensor(3).dtype not in (DType.BOOL, call.dtype):
        kind = torch_dtype(call.dtype)
        ready = call.prepare(3, lambda m: m.to(kind))

    def heads(x: Any, count: int) -> Any:
        if flat:
            size = x.shape[-1] // count
            return x.unflatten(-1, (count, size)).transpose(1, 2)
        return x

    def run(q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None, *_: Any) -> Any:
        q = heads(q, q_heads)
        k = heads(k, kv_heads)
        v = heads(v, kv_heads)
        if past_k is not None:
            k = torch.cat((past_k, k), dim=2)
            v = torch.cat((past_v, v), dim=2)
        if mask is not None:
            mask = ready(mask)
        result = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q_heads != kv_heads
        )
        if flat:
            result = result.transpose(1, 2).flatten(2)
        if present:
            return (result, k, v)
        return result

    return run


def _refuse_what_torch_lacks(call: Call) -> None:
    # An attribute that nobody here knows may change the result: refused rather than measured as something
    # else.
    unknown = sorted(set(call.op.attributes) - _ATTRIBUTES)
    if unknown:
        raise call.unsupported(f"attribute {unknown[0]}")
    if call.real("softcap", 0.0):
        raise call.unsupported("torch's fused attention has no soft cap")
    if call.wants(3):
        raise call.unsupported("torch's fused attention does not give the scores")
    if call.has(6):
        raise call.unsupported("padded keys (nonpad_kv_seqlen)")


def _refuse_masks(call: Call, causal: bool, length_at: int) -> None:
    """Refuse masks that one call cannot say. ``length_at``: the dimension of the sequence's length."""
    cached = call.has(4)
    masked = call.has(3)
    q_len = call.shape()[length_at]
    kv_len = call.shape(1)[length_at]
    if cached:
        kv_len += call.shape(4)[2]
    if causal and (masked or (q_len != kv_len and cached)):
        raise call.unsupported("is_causal with a mask or a cache, which one call cannot say")
    if masked and call.shape(3)[-1] != kv_len:
        raise call.unsupported(f"a mask over {call.shape(3)[-1]} of {kv_len} keys")
