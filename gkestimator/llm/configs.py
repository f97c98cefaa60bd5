"""Read a Hugging Face style ``config.json``: one function for each kind of decoder, listed in :data:`KINDS`.

Field names and defaults are those of the class of the same kind in transformers (``configuration_<kind>.py``). A new
kind is one function here and one entry. No network is ever used: the file alone says what the model is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gkestimator.core.errors import DocumentError
from gkestimator.core.naming import nearest_name
from gkestimator.core.options import spelled
from gkestimator.documents.checking import Fields, load_json
from gkestimator.llm.decoder import Decoder, Experts

_WHAT = "a language model's config.json"
# Far above any model that exists, and far below what overflows.
_MOST_LAYERS = 10_000
_MOST_WIDTH = 1_000_000
_MOST_VOCABULARY = 100_000_000
_MOST_TOKENS = 100_000_000
_PADDED_POSITIONS = 2  # OPT's table of positions begins at 2


def read_decoder(path: Path, *, like: str | None = None) -> Decoder:
    """Return the decoder that the configuration at ``path`` describes.

    ``like`` reads it as another kind of :data:`KINDS`, for a model whose own kind is unknown. Raises DocumentError in
    one line: no JSON, a field missing or out of bounds, an unknown kind, a model that is no decoder.
    """
    fields = load_json(path, what=_WHAT)
    name = path.stem
    if path.name == "config.json" and path.resolve().parent.name:
        name = path.resolve().parent.name
    nested = fields.take("text_config", None)
    if nested is not None:
        # A model of images and text: its decoder is what makes tokens.
        fields.take("model_type", None)
        fields = Fields(nested, where=f"{path}: text_config", what=_WHAT)
    return _decoder(fields, name, like)


def _decoder(fields: Fields, name: str, like: str | None) -> Decoder:
    kind = fields.text("model_type", None)
    if fields.take("is_encoder_decoder", False):
        raise fields.fail("is_encoder_decoder", "found true, expected a model of a decoder alone")
    chosen = kind if like is None else like
    reader = KINDS.get(chosen)
    if reader is None:
        raise _unknown(fields, chosen)
    sizes = reader(fields)
    return Decoder(name=name, kind=chosen, **sizes)


def _unknown(fields: Fields, kind: object) -> DocumentError:
    meant = nearest_name(kind, KINDS) if isinstance(kind, str) else ""
    option = spelled("like='llama'", "--like llama")
    return fields.fail(
        "model_type",
        f"found {kind!r}, expected one of {', '.join(sorted(KINDS))}; another decoder can be read as if it were one of "
        f"these ({option} needs {', '.join(_NEEDED)}){meant}",
    )


_NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)


def _size(fields: Fields, name: str, default: Any = ..., *, high: int = _MOST_WIDTH, low: int = 1) -> Any:
    return fields.whole(name, default, low=low, high=high)


def _usual(fields: Fields) -> dict[str, Any]:
    """Return what most kinds call by the same names."""
    width = _size(fields, "hidden_size")
    heads = _size(fields, "num_attention_heads")
    kv_heads = _size(fields, "num_key_value_heads", heads)
    return {
        "layers": _size(fields, "num_hidden_layers", high=_MOST_LAYERS),
        "width": width,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": _head_size(fields, width, heads),
        "vocabulary": _size(fields, "vocab_size", high=_MOST_VOCABULARY),
        "most_tokens": _size(fields, "max_position_embeddings", None, high=_MOST_TOKENS),
    }


def _head_size(fields: Fields, width: int, heads: int) -> int:
    given: int | None = _size(fields, "head_dim", None)
    if given is not None:
        return given
    if width % heads:
        raise fields.fail("num_attention_heads", f"found {heads}, expected a divisor of hidden_size {width}")
    return width // heads


def _gated(fields: Fields, *, tied: bool = False, activation: str = "silu") -> dict[str, Any]:
    """Return the sizes of a decoder with RMS normalisation, rotary positions and a gated feed-forward layer."""
    return {
        **_usual(fields),
        "inner": _size(fields, "intermediate_size"),
        "gated": True,
        "activation": fields.text("hidden_act", activation),
        "norm": "rms",
        "positions": "rotary",
        "tied": fields.flag("tie_word_embeddings", tied),
    }


def _llama(fields: Fields) -> dict[str, Any]:
    biased = fields.flag("attention_bias", False)
    return {
        **_gated(fields),
        "qkv_bias": biased,
        "out_bias": biased,
        "inner_bias": fields.flag("mlp_bias", False),
    }


def _windowed(
    fields: Fields, sizes: dict[str, Any], *, layers: int, window: int | None = None
) -> dict[str, Any]:
    """Return ``sizes`` with the window that the file names, else ``window``: of the layers that it lists as sliding,
    else of ``layers`` of them.
    """
    window = _size(fields, "sliding_window", window, high=_MOST_TOKENS)
    types = fields.take("layer_types", None)
    if isinstance(types, list):
        layers = types[: sizes["layers"]].count("sliding_attention")
    if window is None or not layers:
        return sizes
    return {**sizes, "window": window, "window_layers": layers}


def _mistral(fields: Fields) -> dict[str, Any]:
    sizes = _gated(fields)
    return _windowed(fields, sizes, layers=sizes["layers"])


def _mixtral(fields: Fields) -> dict[str, Any]:
    sizes = _mistral(fields)
    experts = Experts(
        count=_size(fields, "num_local_experts", 8),
        chosen=_size(fields, "num_experts_per_tok", 2),
        inner=sizes["inner"],
    )
    return {**sizes, "experts": experts}


def _qwen2(fields: Fields) -> dict[str, Any]:
    sizes = {**_gated(fields), "qkv_bias": True}
    if not fields.flag("use_sliding_window", False):
        return sizes
    # Layers from max_window_layers on have the window.
    first = _size(fields, "max_window_layers", 28, high=_MOST_LAYERS, low=0)
    return _windowed(fields, sizes, layers=max(sizes["layers"] - first, 0), window=4096)


def _qwen_experts(fields: Fields, sizes: dict[str, Any], *, shared: int) -> dict[str, Any]:
    """Return ``sizes`` with Qwen's experts; those that a step leaves dense are refused, for none was published."""
    if _size(fields, "decoder_sparse_step", 1) != 1:
        raise fields.fail("decoder_sparse_step", "expected 1: every layer has experts")
    experts = Experts(
        count=_size(fields, "num_experts"),
        chosen=_size(fields, "num_experts_per_tok"),
        inner=_size(fields, "moe_intermediate_size"),
        shared=_size(fields, "shared_expert_intermediate_size", shared, low=0),
    )
    return {**sizes, "experts": experts}


def _qwen2_moe(fields: Fields) -> dict[str, Any]:
    return _qwen_experts(fields, _qwen2(fields), shared=5632)


def _qwen3(fields: Fields) -> dict[str, Any]:
    sizes = _llama(fields)
    return {**sizes, "qk_norm": sizes["head_size"]}


def _qwen3_moe(fields: Fields) -> dict[str, Any]:
    return _qwen_experts(fields, _qwen3(fields), shared=0)


def _gemma(fields: Fields) -> dict[str, Any]:
    act = fields.text("hidden_activation", None)
    sizes = _gated(fields, tied=True, activation="gelu")
    return {**sizes, "activation": act or "gelu"}


def _gemma2(fields: Fields) -> dict[str, Any]:
    sizes = {**_gemma(fields), "norms": 4}
    # Without a list of layers, every second one has the window.
    return _windowed(fields, sizes, layers=(sizes["layers"] + 1) // 2, window=4096)


def _gemma3(fields: Fields) -> dict[str, Any]:
    sizes = {**_gemma(fields), "norms": 4}
    # One layer of each pattern sees all tokens.
    pattern = _size(fields, "sliding_window_pattern", 6, high=_MOST_LAYERS)
    whole = sizes["layers"] // pattern
    sizes = _windowed(fields, sizes, layers=sizes["layers"] - whole, window=4096)
    return {**sizes, "qk_norm": sizes["head_size"]}


def _plain(fields: Fields, **changed: Any) -> dict[str, Any]:
    """Return the sizes of a decoder with biased layer normalisation and a feed-forward layer without gate."""
    return {
        "gated": False,
        "norm": "layer",
        "norm_bias": True,
        "qkv_bias": True,
        "out_bias": True,
        "inner_bias": True,
        **changed,
    }


def _phi(fields: Fields) -> dict[str, Any]:
    return {
        **_plain(fields, parallel=True, norms=1, output_bias=True, positions="rotary"),
        **_usual(fields),
        "inner": _size(fields, "intermediate_size"),
        "activation": fields.text("hidden_act", "gelu_new"),
        "tied": fields.flag("tie_word_embeddings", False),
    }


def _phi3(fields: Fields) -> dict[str, Any]:
    sizes = {**_gated(fields), "packed": True}
    return _windowed(fields, sizes, layers=sizes["layers"])


def _gpt2(fields: Fields) -> dict[str, Any]:
    width = _size(fields, "n_embd")
    heads = _size(fields, "n_head")
    if width % heads:
        raise fields.fail("n_head", f"found {heads}, expected a divisor of n_embd {width}")
    rows = _size(fields, "n_positions", 1024, high=_MOST_TOKENS)
    inner = _size(fields, "n_inner", None)
    return _plain(
        fields,
        layers=_size(fields, "n_layer", high=_MOST_LAYERS),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        inner=inner if inner else 4 * width,
        vocabulary=_size(fields, "vocab_size", high=_MOST_VOCABULARY),
        activation=fields.text("activation_function", "gelu_new"),
        positions="learned",
        position_rows=rows,
        most_tokens=rows,
        packed=True,
        tied=fields.flag("tie_word_embeddings", True),
    )


def _gpt_neox(fields: Fields) -> dict[str, Any]:
    biased = fields.flag("attention_bias", True)
    return {
        **_plain(fields, packed=True, positions="rotary"),
        **_usual(fields),
        "parallel": fields.flag("use_parallel_residual", True),
        "qkv_bias": biased,
        "out_bias": biased,
        "inner": _size(fields, "intermediate_size"),
        "activation": fields.text("hidden_act", "gelu"),
        "tied": fields.flag("tie_word_embeddings", False),
    }


def _opt(fields: Fields) -> dict[str, Any]:
    sizes = _usual(fields)
    embedded = _size(fields, "word_embed_proj_dim", sizes["width"])
    if embedded != sizes["width"]:
        raise fields.fail("word_embed_proj_dim", f"found {embedded}, expected hidden_size {sizes['width']}")
    rows = sizes["most_tokens"] or 2048
    biased = fields.flag("enable_bias", True)
    return {
        **_plain(fields, positions="learned"),
        **sizes,
        "position_rows": rows + _PADDED_POSITIONS,
        "most_tokens": rows,
        "qkv_bias": biased,
        "out_bias": biased,
        "inner_bias": biased,
        "inner": _size(fields, "ffn_dim"),
        "activation": fields.text("activation_function", "relu"),
        "tied": fields.flag("tie_word_embeddings", True),
    }


def _falcon(fields: Fields) -> dict[str, Any]:
    grouped = fields.flag("new_decoder_architecture", False)
    alone = fields.flag("multi_query", True)
    parallel = fields.flag("parallel_attn", True)
    biased = fields.flag("bias", False)
    alibi = fields.flag("alibi", False)
    sizes = _usual(fields)
    if grouped:
        sizes["kv_heads"] = _size(fields, "num_kv_heads", sizes["heads"])
    elif alone:
        sizes["kv_heads"] = 1
    norms = 2 if grouped or not parallel else 1
    return {
        **_plain(fields, packed=True, positions="alibi" if alibi else "rotary"),
        **sizes,
        "parallel": parallel or grouped,
        "norms": _size(fields, "num_ln_in_parallel_attn", norms) if grouped else norms,
        "qkv_bias": biased,
        "out_bias": biased,
        "inner_bias": biased,
        "inner": _size(fields, "ffn_hidden_size", 4 * sizes["width"]),
        "activation": fields.text("activation", "gelu"),
        "tied": fields.flag("tie_word_embeddings", True),
    }


def _bloom(fields: Fields) -> dict[str, Any]:
    spelling = next((name for name in ("hidden_size", "n_embed") if fields.has(name)), "hidden_size")
    width = _size(fields, spelling)
    count = next((name for name in ("num_attention_heads", "n_head") if fields.has(name)), "n_head")
    depth = next((name for name in ("num_hidden_layers", "n_layer") if fields.has(name)), "n_layer")
    heads = _size(fields, count)
    if width % heads:
        raise fields.fail(count, f"found {heads}, expected a divisor of {spelling} {width}")
    return _plain(
        fields,
        layers=_size(fields, depth, high=_MOST_LAYERS),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        inner=4 * width,
        vocabulary=_size(fields, "vocab_size", high=_MOST_VOCABULARY),
        activation="gelu_new",
        positions="alibi",
        embedding_norm=True,
        packed=True,
        tied=fields.flag("tie_word_embeddings", True),
        most_tokens=_size(fields, "seq_length", None, high=_MOST_TOKENS),
    )


KINDS: Mapping[str, Callable[[Fields], dict[str, Any]]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _mistral,
        "mixtral": _mixtral,
        "qwen2": _qwen2,
        "qwen2_moe": _qwen2_moe,
        "qwen3": _qwen3,
        "qwen3_moe": _qwen3_moe,
        "gemma": _gemma,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "gemma3_text": _gemma3,
        "phi": _phi,
        "phi3": _phi3,
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "opt": _opt,
        "falcon": _falcon,
        "bloom": _bloom,
    }
)
"""Kinds of decoders, by ``model_type``: what reads the sizes of each."""
