"""Matrix products: linear layers with and without bias, batched products of activations."""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.architectures import ATTENTIONS, LINEARS
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, item, operator, weight, x
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler

BATCHES = (1, 8, 32, 128)


def linear(m: int, k: int, n: int, *, bias: bool) -> Fragment:
    """(m, k) x (k, n): Gemm with a transposed weight and bias, as exporters write nn.Linear; MatMul without one."""
    if not bias:
        return operator("MatMul", x(m, k), weight(k, n))
    return operator("Gemm", x(m, k), weight(n, k), weight(n), attributes={"transB": 1})


def _batched(outer: tuple[int, ...], m: int, k: int, n: int) -> Fragment:
    return operator("MatMul", x(*outer, m, k), x(*outer, k, n))


def real() -> Iterator[CatalogueItem]:
    """Layers of known architectures at several batches of tokens."""
    for source, layers in LINEARS.items():
        for layer in layers:
            rows = sorted({batch * tokens for batch in BATCHES for tokens in layer.tokens})
            for number, m in enumerate(rows):
                yield item(linear(m, layer.k, layer.n, bias=number % 2 == 0), source)


def corners() -> Iterator[CatalogueItem]:
    """One row, one column, short and long sums, odd and prime sizes, large squares."""
    for m, k, n in (
        (1, 1, 1),
        (1, 16, 1),
        (1, 4096, 1),
        (4096, 1, 1),
        (1, 1, 4096),
        (4096, 1, 4096),
        (1, 4096, 4096),
        (4096, 4096, 1),
        (7, 7, 7),
        (7, 513, 7),
        (513, 513, 513),
        (511, 1023, 257),
        (1000, 1000, 1000),
        (127, 8191, 129),
        (16, 16, 16),
        (16, 65536, 16),
        (65536, 16, 16),
        (16, 16, 65536),
        (32, 100000, 32),
        (256, 256, 256),
        (1024, 1024, 1024),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (3, 768, 30522),
        (17, 4097, 4095),
        (2, 14336, 4096),
        (5, 4096, 11008),
        (128, 50257, 768),
        (131072, 64, 64),
    ):
        yield item(linear(m, k, n, bias=False), "corner")
        yield item(linear(m, k, n, bias=True), "corner")


def sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Rows 1 to 32,768, widths 8 to 16,384; one in four with a bias."""
    for number, (m, k, n) in enumerate(sampler.sizes(count, ((1, 32768), (8, 16384), (8, 16384)))):
        yield item(linear(m, k, n, bias=number % 4 == 0), "sampled")


def batched_real() -> Iterator[CatalogueItem]:
    """Both products of attention, as models that are not fused launch them."""
    for source, heads, _, size, lengths in ATTENTIONS:
        for length in lengths:
            for batch in (1, 8, 32):
                yield item(_batched((batch, heads), length, size, length), source)
                yield item(_batched((batch, heads), length, length, size), source)
    for heads, size, length in (
        (12, 64, 512),
        (32, 128, 1024),
        (32, 128, 4096),
    ):  # one new token against a cache
        for batch in (1, 16):
            yield item(_batched((batch, heads), 1, size, length), "language")
            yield item(_batched((batch, heads), 1, length, size), "language")


def batched_corners() -> Iterator[CatalogueItem]:
    """Tiny products, many and few of them, odd sizes, vectors."""
    for batch, m, k, n in (
        (1, 1, 1, 1),
        (4096, 1, 64, 1),
        (4096, 4, 4, 4),
        (2, 7, 7, 7),
        (3, 513, 65, 511),
        (1, 2048, 2048, 2048),
        (64, 1, 128, 128),
        (64, 128, 1, 128),
        (64, 128, 128, 1),
        (1024, 49, 32, 49),
        (65536, 8, 8, 8),
        (7, 1000, 1000, 1000),
        (2, 4096, 64, 4096),
        (512, 197, 197, 64),
        (100, 31, 127, 61),
    ):
        yield item(_batched((batch,), m, k, n), "corner")


def batched_sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """1 to 2,048 products, sides 1 to 2,048."""
    ranges = ((1, 2048), (1, 2048), (8, 2048), (1, 2048))
    for batch, m, k, n in sampler.sizes(count, ranges):
        yield item(_batched((batch,), m, k, n), "sampled")
