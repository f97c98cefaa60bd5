"""Count a decoder's memory on each GPU: weights, keys and values, intermediate results; and what still fits.

Every count is a sum of sizes that follow from the decoder, so that the largest batch and the longest context agree with
a row's memory to the byte.
"""

from __future__ import annotations

from collections.abc import Callable

from gkestimator.core.records import frozen
from gkestimator.llm.decoder import MOST_BATCH, MOST_TOKENS
from gkestimator.llm.profiles import ServingEngine
from gkestimator.llm.source import DecoderSource, Lower


@frozen
class MemoryNeed:
    """Hold the bytes that one GPU needs."""

    weights: int
    cache: int
    activations: int
    context: int

    @property
    def total(self) -> int:
        """Return all of them together."""
        return self.weights + self.cache + self.activations + self.context


@frozen
class MemoryLaw:
    """Say what a decoder needs on one GPU for any batch and length.

    ``weights`` and ``context`` are bytes; ``cache_bits`` the bits of one cached element. ``visible`` is what programs
    see of the GPU's memory, None where unknown. ``lower`` lowers the passes that a source counts by.
    """

    source: DecoderSource
    engine: ServingEngine
    weights: int
    context: int
    cache_bits: int
    visible: int | None
    lower: Lower

    def need(self, batch: int, input_tokens: int, output_tokens: int) -> MemoryNeed:
        """Return the need of ``batch`` requests at the end of their answers."""
        tokens = input_tokens + output_tokens
        return MemoryNeed(
            weights=self.weights,
            cache=self.cache_bytes(batch, tokens),
            activations=self.source.activation_bytes(
                self.engine, self.lower, batch, input_tokens, output_tokens
            ),
            context=self.context,
        )

    def cache_bytes(self, batch: int, tokens: int) -> int:
        """Return the bytes of keys and values of ``batch`` sequences of ``tokens`` each, in whole pages.

        Where every step writes them anew, one layer's lie in memory twice while they are copied.
        """
        page = self.engine.page_tokens
        held = -(-tokens // page) * page
        element_bytes = self.cache_bits / 8
        one = self.source.cache_bytes(held, element_bytes)
        copied = self.source.copied_bytes(self.engine, held, element_bytes)
        return int(batch * (one + copied))

    def fits(self, batch: int, input_tokens: int, output_tokens: int) -> bool:
        """Return whether the need is at most what programs see of the memory; False where that is unknown."""
        if self.visible is None:
            return False
        return self.need(batch, input_tokens, output_tokens).total <= self.visible

    def largest_batch(self, input_tokens: int, output_tokens: int) -> int | None:
        """Return the most requests of these lengths that fit; 0 where not even one does, None where unknown."""
        if self.visible is None:
            return None
        return _most(lambda batch: self.fits(batch, input_tokens, output_tokens), MOST_BATCH)

    def longest_context(self, batch: int, output_tokens: int) -> int | None:
        """Return the most tokens of prompt and answer that fit, at least one of the prompt; 0 where none does. No more
        than the model was made for; None where that is not known of every length.
        """
        if self.visible is None or not self.source.any_length:
            return None
        longest = (self.source.most_tokens or MOST_TOKENS) - output_tokens
        most = _most(lambda prompt: self.fits(batch, prompt, output_tokens), longest)
        return most + output_tokens if most else 0


def _most(fits: Callable[[int], bool], bound: int) -> int:
    """Return the largest whole number up to ``bound`` that ``fits``: up to some number all do, beyond it none."""
    if bound < 1 or not fits(1):
        return 0
    low, high = 1, bound + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
