"""Divide a decoder between the GPUs of one host (tensor parallel), and calculate what they exchange.

Each GPU holds a part of the heads and of every feed-forward layer, and the GPUs add their results twice a layer (M.
Shoeybi et al., Megatron-LM, 2019, section 3). The sum is a ring's: 2 (n - 1) / n of the data over each GPU's link, in
2 (n - 1) messages (P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms, 2009).
"""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpu_spec import GpuSpec
from gkestimator.llm.decoder import Decoder

_ELEMENT_BYTES = 2
_MESSAGE_US = 2.0
"""Of one message between two GPUs, launch included: assumed, not measured."""


def shared_between(decoder: Decoder, count: int) -> Decoder:
    """Return the part of ``decoder`` that each of ``count`` GPUs holds. Raises UsageError where it does not divide.

    Heads of keys and values that are fewer than GPUs are held by several, each by as many.
    """
    if count == 1:
        return decoder
    for what, size in (("query heads", decoder.heads), ("feed-forward elements", decoder.inner)):
        if size % count:
            raise UsageError(f"{decoder.name}: {size} {what} cannot be shared by {count} GPUs")
    if decoder.kv_heads % count and count % decoder.kv_heads:
        raise UsageError(f"{decoder.name}: {decoder.kv_heads} key heads cannot be shared by {count} GPUs")
    experts = decoder.experts
    if experts is not None:
        experts = replace(experts, inner=-(-experts.inner // count), shared=-(-experts.shared // count))
    return replace(
        decoder,
        heads=decoder.heads // count,
        kv_heads=max(decoder.kv_heads // count, 1),
        inner=decoder.inner // count,
        vocabulary=-(-decoder.vocabulary // count),
        experts=experts,
    )


def all_reduce_ms(decoder: Decoder, count: int, gpu: GpuSpec, tokens: int) -> float:
    """Return the time that ``count`` GPUs spend adding their results in a pass over ``tokens``; 0 for one GPU."""
    if count == 1:
        return 0.0
    sums = decoder.layers * (1 if decoder.parallel else 2)
    moved = 2 * (count - 1) / count * tokens * decoder.width * _ELEMENT_BYTES
    one_s = moved / gpu.link_bytes_per_s + 2 * (count - 1) * _MESSAGE_US * 1e-6
    return sums * one_s * 1e3
