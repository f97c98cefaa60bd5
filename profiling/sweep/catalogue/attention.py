"""Fused scaled dot-product attention: one call in torch; onnxruntime launches the pieces unless a file holds its
own MultiHeadAttention."""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, operator, x
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table

_OPSET = 23  # the first with Attention


def attention(
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    size: int,
    *,
    causal: bool = False,
    masked: bool = False,
) -> Fragment:
    """Return (batch, heads, queries, size) against (batch, kv_heads, keys, size)."""
    kv = (batch, kv_heads, keys, size)
    operands = [x(batch, heads, queries, size), x(*kv), x(*kv)]
    if masked:
        operands.append(x(1, 1, queries, keys))
    if causal:
        return operator("Attention", *operands, is_causal=1, opset=_OPSET)
    return operator("Attention", *operands, opset=_OPSET)


def real() -> Iterator[CatalogueItem]:
    """Yield heads and lengths of known architectures, with the masks that their fields use."""
    for source, rows in table("attention").items():
        for heads, kv_heads, size, lengths in rows:
            causal = source == "language" and heads != 16
            for n in lengths:
                for batch in (1, 8, 32):
                    yield CatalogueItem(attention(batch, heads, kv_heads, n, n, size, causal=causal), source)
                yield CatalogueItem(attention(4, heads, kv_heads, n, n, size, masked=True), source)
            if source == "language":  # one new token against a cache
                for keys in (128, 1024, 4096):
                    yield CatalogueItem(attention(8, heads, kv_heads, 1, keys, size), source)
    for keys in (77, 4096):  # text against images
        yield CatalogueItem(attention(2, 8, 8, 4096, keys, 40), "vision")


def corners() -> Iterator[Fragment]:
    """Yield one token, odd lengths, small and large heads, long sequences."""
    for batch, heads, queries, keys, size in table("attention", "corners"):
        yield attention(batch, heads, heads, queries, keys, size)
        if queries == keys:
            yield attention(batch, heads, heads, queries, keys, size, causal=True)


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield heads of 32, 64, 80, 128; one in three causal, one in four with fewer key heads."""
    sizes = (32, 64, 64, 80, 128)
    picked = sampler.pick(count, sizes)
    for n, (batch, heads, length) in enumerate(sampler.sizes(count, table("attention", "between"))):
        grouped = n % 4 == 0 and heads % 4 == 0
        kv_heads = heads // 4 if grouped else heads
        yield attention(batch, heads, kv_heads, length, length, picked[n], causal=n % 3 == 0)
