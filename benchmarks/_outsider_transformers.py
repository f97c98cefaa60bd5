"""Build transformers with random weights, and their single steps with keys and values of before as plain tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, WhisperConfig, WhisperModel


class Answer(nn.Module):
    """Return one field of the answer of a model of transformers, without a cache."""

    packed = True  # torch.export sees one argument: the tuple of inputs

    def __init__(self, net: nn.Module, field: str, names: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.net = net
        self.field = field
        self.names = names
        self.options = options

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        named = dict(zip(self.names, inputs, strict=True))
        return getattr(self.net(**named, **self.options), self.field)


MASKED = ("input_ids", "attention_mask")
SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}


def whisper() -> WhisperModel:
    """Return Whisper in the size of `tiny`."""
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    return WhisperModel(WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=4, **heads)).eval()


def whisper_encoder() -> nn.Module:
    """Return the encoder of Whisper."""
    return Answer(whisper().get_encoder(), "last_hidden_state", ("input_features",))


def wav2vec2() -> nn.Module:
    """Return wav2vec 2.0 for CTC with six layers."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    return Answer(Wav2Vec2ForCTC(Wav2Vec2Config(**SIZES)), "logits", ("input_values",))


def bert() -> nn.Module:
    """Return a BERT of six layers."""
    from transformers import BertConfig, BertModel

    return Answer(BertModel(BertConfig(**SIZES), add_pooling_layer=False), "last_hidden_state", MASKED)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=384, n_layer=6, n_head=6)).eval()


def gpt2() -> nn.Module:
    """Return a GPT-2 without past."""
    return Answer(_gpt2(), "logits", ("input_ids",), use_cache=False)


def gpt2_step() -> Cached:
    """Return one step of a GPT-2."""
    return Cached(_gpt2(), layers=6, heads=6, size=64)


def _llama(*, hidden: int, layers: int, heads: int, groups: int, inner: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        intermediate_size=inner,
        vocab_size=32_000,
    )
    return LlamaForCausalLM(config).eval()


def llama() -> nn.Module:
    """Return a Llama of 0.1 billion parameters without past."""
    net = _llama(hidden=768, layers=8, heads=12, groups=4, inner=2048)
    return Answer(net, "logits", MASKED, use_cache=False)


def llama_step() -> Cached:
    """Return one step of a Llama of 0.5 billion parameters in fp16."""
    net = _llama(hidden=2048, layers=8, heads=32, groups=4, inner=5632).half()
    return Cached(net, layers=8, heads=4, size=64, dtype=torch.float16)


def t5_encoder() -> nn.Module:
    """Return the encoder of T5 small."""
    from transformers import T5Config, T5EncoderModel

    return Answer(T5EncoderModel(T5Config(num_layers=6, d_model=512)), "last_hidden_state", MASKED)


def clip() -> nn.Module:
    """Return a small CLIP; its answer is how well each image fits each text."""
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config={**SIZES, "num_hidden_layers": 4},
        vision_config={**SIZES, "num_hidden_layers": 6, "patch_size": 16},
        projection_dim=256,
    )
    return Answer(CLIPModel(config), "logits_per_image", ("input_ids", "pixel_values", "attention_mask"))


class Cached(nn.Module):
    """Take one token and the keys and values of those before it; return the logits and all keys and values."""

    masked = True
    extra: tuple[str, ...] = ()

    def __init__(
        self, net: nn.Module, *, layers: int, heads: int, size: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.net = net
        self.layers = layers
        self.shape = (heads, size)
        self.dtype = dtype

    @property
    def past_names(self) -> list[str]:
        """Return the names that optimum gives to keys and values."""
        return [
            f"past_key_values.{layer}.{part}" for layer in range(self.layers) for part in ("key", "value")
        ]

    def past(self, batch: int, length: int) -> list[torch.Tensor]:
        """Return keys and values of ``length`` tokens."""
        heads, size = self.shape
        return [torch.rand(batch, heads, length, size, dtype=self.dtype) for _ in self.past_names]

    def inputs(self, batch: int, past: int) -> list[torch.Tensor]:
        """Return a token a sequence, the mask, keys and values."""
        mask = torch.ones(batch, past + 1, dtype=torch.int64)
        return [torch.randint(0, 1000, (batch, 1)), mask, *self.past(batch, past)]

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = _cache(past)
        answer = self.net(input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True)
        return answer.logits, *_tensors(answer.past_key_values)


class WhisperStep(Cached):
    """Take one token, what the encoder made of the speech, and the decoder's keys and values."""

    masked = False
    extra = ("encoder_hidden_states",)

    def __init__(self) -> None:
        super().__init__(whisper(), layers=4, heads=6, size=64)

    def inputs(self, batch: int, past: int) -> list[torch.Tensor]:
        """Return a token a sequence, the encoder's states, keys and values."""
        return [torch.randint(0, 1000, (batch, 1)), torch.rand(batch, 1500, 384), *self.past(batch, past)]

    def forward(
        self, tokens: torch.Tensor, states: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = EncoderDecoderCache(_cache(past), DynamicCache())
        decoder = self.net.get_decoder()
        answer = decoder(
            input_ids=tokens, encoder_hidden_states=states, past_key_values=cache, use_cache=True
        )
        logits = answer.last_hidden_state @ decoder.embed_tokens.weight.T
        return logits, *_tensors(answer.past_key_values.self_attention_cache)


def _cache(past: tuple[torch.Tensor, ...]) -> DynamicCache:
    cache = DynamicCache()
    for layer, (key, value) in enumerate(zip(past[::2], past[1::2], strict=True)):
        cache.update(key, value, layer)
    return cache


def _tensors(cache: DynamicCache) -> list[torch.Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
