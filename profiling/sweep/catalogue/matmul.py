"""Matrix products: linear layers with and without bias, batched products of activations."""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, operator, weight, x
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table
from gkestimator.profiling.type_names import Ints

BATCHES = (1, 8, 32, 128)


def linear(m: int, k: int, n: int, *, bias: bool) -> Fragment:
    """Return (m, k) x (k, n): with a bias Gemm and a transposed weight, as exporters write nn.Linear, else MatMul."""
    if not bias:
        return operator("MatMul", x(m, k), weight(k, n))
    return operator("Gemm", x(m, k), weight(n, k), weight(n), transB=1)


def _batched(outer: Ints, m: int, k: int, n: int) -> Fragment:
    return operator("MatMul", x(*outer, m, k), x(*outer, k, n))


def real() -> Iterator[CatalogueItem]:
    """Yield layers of known architectures at several batches of tokens."""
    for source, layers in table("linear").items():
        for k, n, tokens in layers:
            # Batches of tokens are rows of one product: equal numbers of them are measured once.
            rows = sorted({batch * count for batch in BATCHES for count in tokens})
            for number, m in enumerate(rows):
                yield CatalogueItem(linear(m, k, n, bias=number % 2 == 0), source)


def corners() -> Iterator[Fragment]:
    """Yield one row, one column, short and long sums, odd and prime sizes, large squares."""
    for m, k, n in table("linear", "corners"):
        yield linear(m, k, n, bias=False)
        yield linear(m, k, n, bias=True)


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield rows 1 to 32,768, widths 8 to 16,384; one in four with a bias."""
    for number, (m, k, n) in enumerate(sampler.sizes(count, table("linear", "between"))):
        yield linear(m, k, n, bias=number % 4 == 0)


def _scores_and_sums(batch: int, heads: int, queries: int, length: int, size: int) -> Iterator[Fragment]:
    """Yield both products of attention, as models that are not fused launch them."""
    yield _batched((batch, heads), queries, size, length)
    yield _batched((batch, heads), queries, length, size)


def batched_real() -> Iterator[CatalogueItem]:
    """Yield attention's products over whole sequences, and of one new token against a cache."""
    for source, rows in table("attention").items():
        for heads, _, size, lengths in rows:
            for length in lengths:
                for batch in (1, 8, 32):
                    for fragment in _scores_and_sums(batch, heads, length, length, size):
                        yield CatalogueItem(fragment, source)
    for heads, size, length in table("product", "cached"):
        for batch in (1, 16):
            for fragment in _scores_and_sums(batch, heads, 1, length, size):
                yield CatalogueItem(fragment, "language")


def batched_corners() -> Iterator[Fragment]:
    """Yield tiny products, many and few of them, odd sizes, vectors."""
    for batch, m, k, n in table("product", "corners"):
        yield _batched((batch,), m, k, n)


def batched_sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield 1 to 2,048 products, sides 1 to 2,048."""
    for batch, m, k, n in sampler.sizes(count, table("product", "between")):
        yield _batched((batch,), m, k, n)
