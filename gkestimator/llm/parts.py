"""Write a decoder's operators for one forward pass: what comes before its layers, each kind of layer, what comes after.

Layers that are alike are written once and run as often as there are of them, so that a decoder of 80 layers costs no
more to estimate than one of 12. Two forms exist: ``composed``, the operators that eager PyTorch runs for the modules
of transformers (``modeling_<kind>.py``), and ``fused``, the kernels that ONNX Runtime's exported decoders and engines
with a paged cache share: one for a normalisation with its addition, one that turns queries and keys, one that appends
to the cache, one for attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment
from gkestimator.core.records import frozen
from gkestimator.llm.building import MS, PartBuilder
from gkestimator.llm.decoder import Decoder
from gkestimator.onnx_io.fragment_models import element_type

_EPSILON = 1e-5
_QK_NORM_INPUT = 14  # of GroupQueryAttention: the scale of its queries' normalisation, then that of the keys'
# Classes of transformers/activations.py that are formulas, not calls of one kernel.
_WRITTEN_OUT = frozenset({"gelu_new", "gelu_fast"})
_NORMS_AROUND = 4  # before and behind attention and feed-forward layer


@frozen
class Pass:
    """Hold one forward pass: ``batch`` sequences, ``tokens`` new ones of each, behind ``past`` tokens in the cache.

    ``fused`` chooses the form; ``merged``: the two first products of a gated feed-forward layer are one. ``cache`` is
    the element type of keys and values. ``in_place``: new ones are written behind the past ones, whatever the operators
    of a file say. ``every_score``: the last layer gives the scores of all tokens, not of the last one alone.
    """

    batch: int
    tokens: int
    past: int
    dtype: DType
    cache: DType
    fused: bool
    merged: bool = False
    in_place: bool = False
    every_score: bool = False

    @property
    def is_step(self) -> bool:
        """Return whether this is a decoding step."""
        return self.past > 0


@frozen
class Part:
    """Hold a part of the pass and how many times it runs. ``handed_on``: how many of its first outputs the next part
    takes; the others are the model's own.
    """

    fragment: Fragment
    times: int
    handed_on: int


def decoder_parts(decoder: Decoder, run: Pass) -> Iterator[Part]:
    """Yield the parts of a forward pass in the order in which they run; layers that are alike are one part."""
    yield Part(fragment=_embedding(decoder, run), times=1, handed_on=1)
    sparse = decoder.expert_layers
    handed_on = 2 if _adds_first(decoder, run) else 1
    for window, count in decoder.spans():
        # Dense layers and layers with a window do not meet in any kind that is read here.
        dense = min(decoder.layers - sparse, count)
        for is_dense, times in ((True, dense), (False, count - dense)):
            if times:
                yield Part(
                    fragment=_layer(decoder, run, window, dense=is_dense), times=times, handed_on=handed_on
                )
    yield Part(fragment=_head(decoder, run), times=1, handed_on=0)


def _embedding(decoder: Decoder, run: Pass) -> Fragment:
    part = PartBuilder("embedding.", run.dtype)
    ids = part.activation("ids", (run.batch, run.tokens), DType.INT64)
    x = part.node("Gather", (part.weight("tokens", decoder.vocabulary, decoder.width), ids))
    if decoder.positions == "learned":
        places = part.activation("places", (1, run.tokens), DType.INT64)
        table = part.weight("positions", decoder.position_rows, decoder.width)
        x = part.node("Add", (x, part.node("Gather", (table, places))))
    if decoder.embedding_norm:
        x = _normalised(part, decoder, run, x, "norm")
    return part.fragment((x,), "embedding")


def _head(decoder: Decoder, run: Pass) -> Fragment:
    """Return the last normalisation and the scores of the next token: of each sequence's last token alone."""
    part = PartBuilder("head.", run.dtype)
    x = part.activation("x", (run.batch, run.tokens, decoder.width))
    last = x
    if run.tokens > 1 and not run.every_score:
        bounds = (part.axes(run.tokens - 1), part.axes(run.tokens), part.axes(1))
        last = part.node("Slice", (x, *bounds))
    normal = _normalised(part, decoder, run, last, "norm")
    scores = part.linear(normal, "output", (decoder.width, decoder.vocabulary), bias=decoder.output_bias)
    return part.fragment((scores,), "head")


def _adds_first(decoder: Decoder, run: Pass) -> bool:
    """Return whether layers begin with the addition that ends the layer before."""
    return run.fused and not decoder.parallel and decoder.norms != _NORMS_AROUND


def _layer(decoder: Decoder, run: Pass, window: int, *, dense: bool) -> Fragment:
    kind = f"layer{window}{'d' if dense else 'e'}."
    part = PartBuilder(kind, run.dtype)
    x = part.activation("x", (run.batch, run.tokens, decoder.width))
    adds_first = _adds_first(decoder, run)
    if adds_first:
        # The sum that ends the layer before is one kernel with this normalisation. The first layer has no sum before
        # it and the head has one, so that as many are counted as run.
        fed = part.activation("fed", (run.batch, run.tokens, decoder.width))
        x, normal = _added(part, decoder, run, (x, fed), "input_norm")
    else:
        normal = _normalised(part, decoder, run, x, "input_norm")
    attended, kept = _attention(part, decoder, run, normal, window)
    if decoder.norms == _NORMS_AROUND:
        attended = _normalised(part, decoder, run, attended, "attention_norm")
    if decoder.parallel:
        second = normal if decoder.norms == 1 else _normalised(part, decoder, run, x, "second_norm")
        fed = _feed_forward(part, decoder, run, second, dense=dense)
        out = part.node("Add", (part.node("Add", (attended, fed)), x))
        return part.fragment((out, *kept), "decoder_layer")
    middle, second = _added(part, decoder, run, (x, attended), "second_norm")
    fed = _feed_forward(part, decoder, run, second, dense=dense)
    if adds_first:
        return part.fragment((middle, fed, *kept), "decoder_layer")
    if decoder.norms == _NORMS_AROUND:
        fed = _normalised(part, decoder, run, fed, "fed_norm")
    out = part.node("Add", (middle, fed))
    return part.fragment((out, *kept), "decoder_layer")


def _normalised(part: PartBuilder, decoder: Decoder, run: Pass, x: str, name: str, size: int = 0) -> str:
    """Return ``x`` normalised over its last ``size`` elements (0: a token's vector)."""
    width = size or decoder.width
    scale = part.weight(f"{name}.scale", width)
    if decoder.norm == "rms" and not run.fused:
        return _root_mean_square(part, x, scale)
    if decoder.norm == "rms":
        return part.node("SimplifiedLayerNormalization", (x, scale), axis=-1, epsilon=_EPSILON)
    inputs = [x, scale]
    if decoder.norm_bias:
        inputs.append(part.weight(f"{name}.bias", width))
    return part.node("LayerNormalization", inputs, axis=-1, epsilon=_EPSILON)


def _root_mean_square(part: PartBuilder, x: str, scale: str) -> str:
    """Return ``x`` normalised by its root mean square, operator by operator, as ``LlamaRMSNorm`` and its like are
    written.
    """
    wide = part.node("Cast", (x,), to=element_type(DType.FLOAT))
    squares = part.node("Pow", (wide, part.constant("two", (2.0,), DType.FLOAT)))
    mean = part.node("ReduceMean", (squares, part.axes(-1)), keepdims=1)
    shifted = part.node("Add", (mean, part.constant("epsilon", (_EPSILON,), DType.FLOAT)))
    factor = part.node("Reciprocal", (part.node("Sqrt", (shifted,)),))
    normal = part.node("Cast", (part.node("Mul", (wide, factor)),), to=element_type(part.dtype))
    return part.node("Mul", (normal, scale))


def _added(
    part: PartBuilder, decoder: Decoder, run: Pass, terms: tuple[str, str], name: str
) -> tuple[str, str]:
    """Return the sum of two terms, and the sum normalised; one kernel where the form is fused."""
    if not run.fused or decoder.norms == _NORMS_AROUND:
        total = part.node("Add", terms)
        return total, _normalised(part, decoder, run, total, name)
    scale = part.weight(f"{name}.scale", decoder.width)
    op_type = "SkipSimplifiedLayerNormalization" if decoder.norm == "rms" else "SkipLayerNormalization"
    inputs = [*terms, scale]
    if decoder.norm == "layer" and decoder.norm_bias:
        inputs.append(part.weight(f"{name}.bias", decoder.width))
    names = part.nodes(op_type, inputs, domain=MS, outputs=4, epsilon=_EPSILON)
    return names[3], names[0]


def _attention(
    part: PartBuilder, decoder: Decoder, run: Pass, x: str, window: int
) -> tuple[str, tuple[str, ...]]:
    """Return the output of attention, and the keys and values that are kept."""
    if run.fused:
        return _fused_attention(part, decoder, run, x, window)
    queries, keys, values = _projected(part, decoder, run, x)
    if decoder.positions == "rotary":
        queries = _turned(part, decoder, run, queries, "queries")
        keys = _turned(part, decoder, run, keys, "keys")
    keys = _behind(part, decoder, run, keys, "past_keys")
    values = _behind(part, decoder, run, values, "past_values")
    causal = 0 if run.is_step else 1
    attended = part.node("Attention", (queries, keys, values), is_causal=causal)
    rows = part.node("Transpose", (attended,), perm=(0, 2, 1, 3))
    flat = part.node("Reshape", (rows, part.axes(run.batch, run.tokens, decoder.query_width)))
    out = part.linear(flat, "out", (decoder.query_width, decoder.width), bias=decoder.out_bias)
    return out, (keys, values)


def _projected(part: PartBuilder, decoder: Decoder, run: Pass, x: str) -> tuple[str, str, str]:
    """Return queries, keys and values, each (batch, heads, tokens, head size)."""
    widths = (decoder.query_width, decoder.cache_width, decoder.cache_width)
    names = ("queries", "keys", "values")
    if decoder.packed:
        packed = part.linear(x, "projected", (decoder.width, sum(widths)), bias=decoder.qkv_bias)
        parts = part.nodes("Split", (packed, part.axes(*widths)), outputs=3, axis=-1)
    else:
        parts = tuple(
            part.linear(x, name, (decoder.width, width), bias=decoder.qkv_bias)
            for name, width in zip(names, widths, strict=True)
        )
    heads = (decoder.heads, decoder.kv_heads, decoder.kv_heads)
    placed = []
    for name, value, count in zip(names, parts, heads, strict=True):
        split = part.node("Reshape", (value, part.axes(run.batch, run.tokens, count, decoder.head_size)))
        if decoder.qk_norm and name != "values":
            split = _normalised(part, decoder, run, split, f"{name}_norm", decoder.qk_norm)
        placed.append(part.node("Transpose", (split,), perm=(0, 2, 1, 3)))
    return placed[0], placed[1], placed[2]


def _turned(part: PartBuilder, decoder: Decoder, run: Pass, x: str, name: str) -> str:
    """Return ``x`` turned by its positions, as ``apply_rotary_pos_emb`` writes it: x cos + rotate_half(x) sin. Where a
    part of each head is turned, the rest is put behind it again.
    """
    size = 2 * int(decoder.head_size * decoder.rotary_share / 2)
    if not size:
        return x
    rest = None
    if size < decoder.head_size:
        ends = [part.axes(0), part.axes(size), part.axes(decoder.head_size), part.axes(3)]
        rest = part.node("Slice", (x, ends[1], ends[2], ends[3]))
        x = part.node("Slice", (x, ends[0], ends[1], ends[3]))
    half = size // 2
    cosine = part.activation("cosine", (1, 1, run.tokens, size))
    sine = part.activation("sine", (1, 1, run.tokens, size))
    bounds = [part.axes(0), part.axes(half), part.axes(size), part.axes(3)]
    first = part.node("Slice", (x, bounds[0], bounds[1], bounds[3]))
    second = part.node("Slice", (x, bounds[1], bounds[2], bounds[3]))
    rotated = part.node("Concat", (part.node("Neg", (second,)), first), axis=-1)
    straight = part.node("Mul", (x, cosine))
    turned = part.node("Add", (straight, part.node("Mul", (rotated, sine))))
    return turned if rest is None else part.node("Concat", (turned, rest), axis=-1)


def _behind(part: PartBuilder, decoder: Decoder, run: Pass, x: str, name: str) -> str:
    """Return ``x`` behind the tokens in the cache, in new memory, as transformers' DynamicLayer does it, behind no
    tokens too.
    """
    past = part.activation(name, (run.batch, decoder.kv_heads, run.past, decoder.head_size))
    return part.node("Concat", (past, x), axis=2)


def _fused_attention(
    part: PartBuilder, decoder: Decoder, run: Pass, x: str, window: int
) -> tuple[str, tuple[str, ...]]:
    """Return attention by one product for queries, keys and values, and one call that turns, appends and attends."""
    widths = (decoder.query_width, decoder.cache_width, decoder.cache_width)
    packed = part.linear(x, "projected", (decoder.width, sum(widths)), bias=decoder.qkv_bias)
    operands: tuple[str, ...] = (packed, "", "")
    if decoder.qk_norm:
        queries, keys, values = part.nodes("Split", (packed, part.axes(*widths)), outputs=3, axis=-1)
        operands = (queries, keys, values)
    held = (run.batch, decoder.kv_heads, run.past + run.tokens, decoder.head_size)
    past = [part.activation(f"past_{name}", held, run.cache) for name in ("keys", "values")]
    lengths = part.activation("lengths", (run.batch,), DType.INT32)
    total = part.constant("total", (run.past + run.tokens,), DType.INT32)
    rotary = decoder.positions == "rotary"
    inputs = [*operands, *past, lengths, total]
    if rotary:
        table = (run.past + run.tokens, decoder.head_size // 2)
        inputs += [part.activation("cosines", table), part.activation("sines", table)]
    if decoder.qk_norm:
        inputs += [""] * (_QK_NORM_INPUT - len(inputs))
        inputs += [part.weight(f"{name}_norm.scale", decoder.qk_norm) for name in ("queries", "keys")]
    attended, *kept = part.nodes(
        "GroupQueryAttention",
        inputs,
        domain=MS,
        outputs=3,
        num_heads=decoder.heads,
        kv_num_heads=decoder.kv_heads,
        do_rotary=int(rotary),
        local_window_size=window or -1,
    )
    out = part.linear(attended, "out", (decoder.query_width, decoder.width), bias=decoder.out_bias)
    return out, tuple(kept)


def _feed_forward(part: PartBuilder, decoder: Decoder, run: Pass, x: str, *, dense: bool) -> str:
    mixed = decoder.experts
    if dense or mixed is None:
        return _product_of(part, decoder, run, x, "feed", decoder.inner)
    routed = part.linear(x, "router", (decoder.width, mixed.count), bias=False)
    firsts = (2 if decoder.gated else 1) * mixed.inner
    flat = part.node("Reshape", (routed, part.axes(run.batch * run.tokens, mixed.count)))
    out = part.node(
        "MoE",
        (
            x,
            flat,
            part.weight("experts.first", mixed.count, decoder.width, firsts),
            "",
            part.weight("experts.second", mixed.count, mixed.inner, decoder.width),
        ),
        domain=MS,
        k=mixed.chosen,
        activation_type="swiglu" if decoder.gated else "gelu",
        swiglu_fusion=int(decoder.gated),
    )
    if mixed.shared:
        common = _product_of(part, decoder, run, x, "shared", mixed.shared)
        out = part.node("Add", (out, common))
    return out


def _product_of(part: PartBuilder, decoder: Decoder, run: Pass, x: str, name: str, inner: int) -> str:
    """Return one feed-forward layer of width ``inner``."""
    sizes = (decoder.width, inner)
    if decoder.gated and run.merged:
        both = part.linear(x, f"{name}.first", (decoder.width, 2 * inner), bias=decoder.inner_bias)
        gate, up = part.nodes("Split", (both, part.axes(inner, inner)), outputs=2, axis=-1)
        active = part.node("Mul", (_activated(part, decoder, run, gate), up))
    elif decoder.gated:
        gate = part.linear(x, f"{name}.gate", sizes, bias=decoder.inner_bias)
        up = part.linear(x, f"{name}.up", sizes, bias=decoder.inner_bias)
        active = part.node("Mul", (_activated(part, decoder, run, gate), up))
    else:
        first = part.linear(x, f"{name}.first", sizes, bias=decoder.inner_bias)
        active = _activated(part, decoder, run, first)
    return part.linear(active, f"{name}.second", (inner, decoder.width), bias=decoder.inner_bias)


def _activated(part: PartBuilder, decoder: Decoder, run: Pass, x: str) -> str:
    """Return the activation of ``x``."""
    if decoder.activation == "relu":
        return part.node("Relu", (x,))
    if decoder.activation in ("silu", "swish"):
        return part.node("Mul", (x, part.node("Sigmoid", (x,))))
    if decoder.activation in _WRITTEN_OUT and not run.fused:
        return _written_out_gelu(part, x)
    tanh = decoder.activation != "gelu"
    return part.node("Gelu", (x,), approximate="tanh" if tanh else "none")


def _written_out_gelu(part: PartBuilder, x: str) -> str:
    """Return GELU as ``NewGELUActivation`` writes it: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    half = part.node("Mul", (x, part.constant("half", (0.5,))))
    cube = part.node("Pow", (x, part.constant("three", (3.0,))))
    bent = part.node("Add", (x, part.node("Mul", (cube, part.constant("bend", (0.044715,))))))
    bow = part.node("Tanh", (part.node("Mul", (bent, part.constant("slope", (math.sqrt(2 / math.pi),)))),))
    return part.node("Mul", (half, part.node("Add", (bow, part.constant("one", (1.0,))))))
