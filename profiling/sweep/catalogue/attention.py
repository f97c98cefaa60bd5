"""Fused scaled dot-product attention: one call in torch; onnxruntime launches the pieces unless a file holds its
own MultiHeadAttention."""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.architectures import ATTENTIONS
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, item, operator, x
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler

_OPSET = 23  # the first with Attention


def attention(
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    size: int,
    *,
    causal: bool,
    masked: bool = False,
) -> Fragment:
    """(batch, heads, queries, size) against (batch, kv_heads, keys, size)."""
    kv = (batch, kv_heads, keys, size)
    return operator(
        "Attention",
        x(batch, heads, queries, size),
        x(*kv),
        x(*kv),
        *([x(1, 1, queries, keys)] if masked else []),
        attributes={"is_causal": 1} if causal else {},
        opset=_OPSET,
    )


def real() -> Iterator[CatalogueItem]:
    """Heads and lengths of known architectures, with the masks that their fields use."""
    for source, heads, kv_heads, size, lengths in ATTENTIONS:
        causal = source == "language" and heads != 16
        for length in lengths:
            for batch in (1, 8, 32):
                yield item(attention(batch, heads, kv_heads, length, length, size, causal=causal), source)
            yield item(attention(4, heads, kv_heads, length, length, size, causal=False, masked=True), source)
        if source == "language":  # one new token against a cache
            for keys in (128, 1024, 4096):
                yield item(attention(8, heads, kv_heads, 1, keys, size, causal=False), source)
    for keys in (77, 4096):  # text against images
        yield item(attention(2, 8, 8, 4096, keys, 40, causal=False), "vision")


def corners() -> Iterator[CatalogueItem]:
    """One token, odd lengths, small and large heads, long sequences."""
    for batch, heads, queries, keys, size in (
        (1, 1, 1, 1, 64),
        (1, 1, 7, 7, 16),
        (1, 1, 8192, 8192, 64),
        (128, 12, 16, 16, 64),
        (2, 5, 513, 513, 72),
        (1, 16, 1, 8192, 128),
        (4, 4, 1000, 77, 96),
        (1, 2, 2048, 2048, 256),
        (3, 7, 31, 129, 40),
    ):
        for causal in (False, True):
            if not causal or queries == keys:
                yield item(attention(batch, heads, heads, queries, keys, size, causal=causal), "corner")


def sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Heads of 32, 64, 80, 128; one in three causal, one in four with fewer key heads."""
    sizes = (32, 64, 64, 80, 128)
    picked = sampler.pick(count, sizes)
    for n, (batch, heads, length) in enumerate(sampler.sizes(count, ((1, 64), (1, 32), (8, 4096)))):
        if n % 4 == 0 and heads % 4 == 0:
            kv = heads // 4
        else:
            kv = heads
        yield item(
            attention(batch, heads, kv, length, length, sizes[picked[n]], causal=n % 3 == 0), "sampled"
        )
