"""Say what an estimate asks of a decoder, whether a configuration or an ONNX file describes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Protocol, TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, OperatorGraph
from gkestimator.core.kernels import KernelGraph
from gkestimator.core.records import frozen
from gkestimator.hardware.gpu_spec import GpuSpec
from gkestimator.llm.decoder import Decoder
from gkestimator.llm.parts import Pass, decoder_parts
from gkestimator.llm.profiles import ServingEngine
from gkestimator.llm.sharing import all_reduce_ms, shared_between
from gkestimator.llm.weights import weight_bytes
from gkestimator.onnx_io.fragment_models import fragment_graph

Lower: TypeAlias = Callable[[Pass], KernelGraph]
"""Lower a pass for the GPU and the type of numbers in question."""

_MOST_OPERATORS = 1_000_000  # of a part
_SCORE_BYTES = 4  # scores of the next token are made wide before one is drawn
_HALF_BYTES = 2


class DecoderSource(Protocol):
    """Answer what an estimate asks of a decoder.

    ``name`` names it in rows; ``most_tokens`` is the longest context that it was made for, None where unknown.
    ``any_length`` says that memory is known for every length without lowering a pass for it.
    """

    @property
    def name(self) -> str: ...

    @property
    def most_tokens(self) -> int | None: ...

    @property
    def any_length(self) -> bool: ...

    def shared(self, count: int) -> DecoderSource:
        """Return the part that each of ``count`` GPUs holds. Raises UsageError where it does not divide."""
        ...

    def pass_graph(self, run: Pass) -> OperatorGraph:
        """Return the operators of a forward pass."""
        ...

    def cache_type(self, activations: DType, asked: DType | None) -> DType:
        """Return the element type of keys and values. Raises UsageError for one that cannot be had."""
        ...

    def weight_bytes(self, dtype: str, lower: Lower) -> int:
        """Return the bytes of all weights under a word for numbers."""
        ...

    def cache_bytes(self, tokens: int, element_bytes: float) -> float:
        """Return the bytes of the cache of one sequence of ``tokens``."""
        ...

    def copied_bytes(self, engine: ServingEngine, tokens: int, element_bytes: float) -> float:
        """Return the bytes of that cache that lie in memory twice while a step writes it anew."""
        ...

    def activation_bytes(
        self, engine: ServingEngine, lower: Lower, batch: int, input_tokens: int, output_tokens: int
    ) -> int:
        """Return the bytes of intermediate results at the widest place of a request's passes."""
        ...

    def exchange_ms(self, count: int, gpu: GpuSpec, tokens: int) -> float:
        """Return the time that ``count`` GPUs spend exchanging results in a pass over ``tokens``."""
        ...

    def notes(self, engine: ServingEngine) -> Iterator[str]:
        """Yield what to know about rows under ``engine``."""
        ...


@frozen
class ConfiguredDecoder:
    """Answer for a decoder that a configuration describes; ``whole`` is all of it where GPUs share it."""

    decoder: Decoder
    whole: Decoder

    any_length = True

    @property
    def name(self) -> str:
        """Return the decoder's name."""
        return self.decoder.name

    @property
    def most_tokens(self) -> int | None:
        """Return the longest context that it was made for."""
        return self.decoder.most_tokens

    def shared(self, count: int) -> ConfiguredDecoder:
        """Return the part that each of ``count`` GPUs holds. Raises UsageError where it does not divide."""
        return ConfiguredDecoder(decoder=shared_between(self.whole, count), whole=self.whole)

    def pass_graph(self, run: Pass) -> OperatorGraph:
        """Return the operators of a forward pass."""
        return pass_graph(self.decoder, run)

    def cache_type(self, activations: DType, asked: DType | None) -> DType:
        """Return what was asked for, else the activations' type."""
        return asked or activations

    def weight_bytes(self, dtype: str, lower: Lower) -> int:
        """Return the bytes of all weights, by their closed form."""
        return weight_bytes(self.decoder, dtype)

    def cache_bytes(self, tokens: int, element_bytes: float) -> float:
        """Return the bytes of the cache of one sequence of ``tokens``."""
        return self.decoder.cache_bytes(tokens, element_bytes)

    def copied_bytes(self, engine: ServingEngine, tokens: int, element_bytes: float) -> float:
        """Return one layer's bytes: each layer's keys and values are freed once they are written anew."""
        if engine.paged:
            return 0.0
        return self.cache_bytes(tokens, element_bytes) / self.decoder.layers

    def activation_bytes(
        self, engine: ServingEngine, lower: Lower, batch: int, input_tokens: int, output_tokens: int
    ) -> int:
        """Return the bytes of intermediate results at the widest place of a prompt's pass, or of the last layer.

        Counted in tokens' vectors that live at once (elements of 2 bytes): x and its normal form, then queries, keys
        and values, then the feed-forward layer's; engines that fuse keep its two first products in one.
        """
        tokens = batch * input_tokens
        if engine.chunk_tokens:
            tokens = max(batch, min(tokens, engine.chunk_tokens))
        d = self.decoder
        projected = d.query_width + 2 * d.cache_width
        attending = 2 * d.width + projected + d.query_width
        feeding = 2 * d.width + _fed_elements(d, fused=engine.fused)
        widest = tokens * max(attending, feeding) * _HALF_BYTES
        last = batch * (2 * d.width * _HALF_BYTES + d.vocabulary * (_HALF_BYTES + _SCORE_BYTES))
        return max(widest, last + tokens * d.width * _HALF_BYTES)

    def exchange_ms(self, count: int, gpu: GpuSpec, tokens: int) -> float:
        """Return the time that ``count`` GPUs spend adding their results in a pass over ``tokens``."""
        return all_reduce_ms(self.whole, count, gpu, tokens)

    def notes(self, engine: ServingEngine) -> Iterator[str]:
        """Yield what is assumed of experts."""
        if self.decoder.experts is not None:
            yield "each expert is taken as equally likely"


def configured(decoder: Decoder) -> ConfiguredDecoder:
    """Return the source for a decoder that one GPU holds."""
    return ConfiguredDecoder(decoder=decoder, whole=decoder)


def _fed_elements(decoder: Decoder, *, fused: bool) -> int:
    """Return the elements of a token that the feed-forward layer holds at once."""
    d = decoder
    alive = 1 + d.gated  # first products
    alive += 1 if fused else 1 + d.gated  # what the activation makes of them
    if d.experts is None:
        return alive * d.inner
    mixed = d.experts
    return mixed.chosen * (alive * mixed.inner + d.width) + alive * mixed.shared


def pass_graph(decoder: Decoder, run: Pass) -> OperatorGraph:
    """Return the graph of a forward pass, whose operators run as often as there are layers like theirs."""
    parts = list(decoder_parts(decoder, run))
    graphs = [fragment_graph(part.fragment) for part in parts]
    operators: list[Operator] = []
    weights: dict[str, int] = {}
    for at, (part, graph) in enumerate(zip(parts, graphs, strict=True)):
        # Signatures tell operators of one graph apart: those of two parts must not meet.
        first = at * _MOST_OPERATORS
        for op in graph.operators:
            signature = None if op.signature is None else first + op.signature
            operators.append(replace(op, repeat=part.times, signature=signature))
        weights |= graph.weights
    return replace(
        graphs[0],
        name=decoder.name,
        operators=tuple(operators),
        inputs=tuple(chain.from_iterable(graph.inputs for graph in graphs)),
        # What one part hands to the next is no output: the weights behind it may be narrowed.
        outputs=tuple(
            chain.from_iterable(
                graph.outputs[part.handed_on :] for part, graph in zip(parts, graphs, strict=True)
            )
        ),
        weights=weights,
        batch_size=run.batch,
        structure=None,
    )
