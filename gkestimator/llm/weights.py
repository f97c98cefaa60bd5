"""Count the bytes of a decoder's weights, those of linear layers in the format that a word for numbers asks for."""

from __future__ import annotations

from gkestimator.llm.decoder import Decoder
from gkestimator.operators.narrow import NARROW_FORMATS

_HALF_BYTES = 2


def weight_bytes(decoder: Decoder, dtype: str) -> int:
    """Return the bytes of all weights. ``dtype``: ``fp16``, ``bf16``, or a key of ``NARROW_FORMATS``, which narrows the
    linear layers of all layers and leaves embeddings, norms, biases, the router and the last layer in half precision.
    """
    everything = decoder.parameters * _HALF_BYTES
    narrow = NARROW_FORMATS.get(dtype)
    if narrow is None:
        return everything
    saved = 0
    for k, n, times in _linear_layers(decoder):
        groups = 1 if narrow.group is None else -(-k // narrow.group)
        stored = narrow.weights.nbytes(k * n) + narrow.scale.nbytes(groups * n)
        saved += times * (k * n * _HALF_BYTES - stored)
    return everything - saved


def _linear_layers(decoder: Decoder) -> list[tuple[int, int, int]]:
    """Return the linear layers inside the decoder's layers: elements in, elements out, and how many there are."""
    d = decoder
    attention = [(d.width, d.query_width + 2 * d.cache_width), (d.query_width, d.width)]
    layers = [(k, n, d.layers) for k, n in attention]
    sparse = d.expert_layers
    fed = [(d.inner, 1, d.layers - sparse)]
    if d.experts is not None:
        fed += [(d.experts.inner, d.experts.count, sparse), (d.experts.shared, 1, sparse)]
    for inner, count, times in fed:
        if inner and times:
            layers.append((d.width, inner * (2 if d.gated else 1), count * times))
            layers.append((inner, d.width, count * times))
    return layers
