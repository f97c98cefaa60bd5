"""Export decoders with three exporters, without weights, for ``decoders_exported.py``.

Run by hand where torch and transformers are installed (``pip install torch==2.13.0 transformers onnxscript``):
``python benchmarks/export_decoders.py FOLDER``; files that are there are kept. Exporters: ``dynamo`` (torch.export),
``classic`` (TorchScript), and ``genai``, the model builder of ONNX Runtime GenAI, with ``--genai PATH`` to the folder
``onnxruntime_genai/models`` of its wheel (0.18; unpacked is enough). Weights are random; all give the scores of the
last token alone, as our passes do. ``--tiny`` writes the thin Llama of the tests instead.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto
from tokenizers import Tokenizer, models
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast

Config = dict[str, Any]

_LLAMA: Config = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
MODELS: dict[str, Config] = {
    # Published sizes; Llama 3.2 1B (16 layers) and Qwen3 0.6B (28) are cut to 8.
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
    },
    "pythia-160m": {
        "model_type": "gpt_neox",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 50304,
        "max_position_embeddings": 2048,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
    },
    "llama-3.2-1b": _LLAMA,
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    },
}
TINY: dict[str, Config] = {
    "llama-tiny": {
        **_LLAMA,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 192,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
}
_BUILT_BY_GENAI = ("llama", "qwen3")
_KEPT_ELEMENTS = 1024  # larger tensors lose their values: those of shapes and scales stay


class Step(nn.Module):
    """Take tokens, a mask, and keys and values of before; return the last scores and all keys and values."""

    def __init__(self, net: nn.Module, layers: int) -> None:
        super().__init__()
        self.net = net
        self.layers = layers

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, past: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        cache = DynamicCache()
        for layer in range(self.layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        answer = self.net(
            input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        kept = [tensor for layer in answer.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return answer.logits, *kept


class Flat(nn.Module):
    """Take the same as arguments of their own, which TorchScript wants."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return self.step(tokens, mask, past)


def built(config: Config, *, eager: bool) -> nn.Module:
    """Return the model of a configuration in half precision; ``eager``: attention as operators of its own."""
    known = dict(config)
    settings = AutoConfig.for_model(known.pop("model_type"), **known)
    if eager:
        settings._attn_implementation = "eager"
    torch.set_default_dtype(torch.float16)
    try:
        net = AutoModelForCausalLM.from_config(settings).eval().half()
    finally:
        torch.set_default_dtype(torch.float32)
    for parameter in net.parameters():
        if parameter.dim() == 1:
            # Normalisations begin with ones: exporters would merge those that read the same tokens.
            torch.nn.init.normal_(parameter)
    return net


def export_torch(config: Config, exporter: str, path: Path) -> None:
    """Write a decoder by one of torch's exporters, named as optimum names inputs."""
    net = built(config, eager=exporter == "classic")
    layers = net.config.num_hidden_layers
    heads = getattr(net.config, "num_key_value_heads", None) or net.config.num_attention_heads
    size = getattr(net.config, "head_dim", None) or net.config.hidden_size // net.config.num_attention_heads
    names = [f"past_key_values.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    past = tuple(torch.rand(2, heads, 16, size, dtype=torch.float16) for _ in names)
    first = (torch.randint(0, 100, (2, 8)), torch.ones(2, 24, dtype=torch.int64))
    options: dict[str, Any] = {
        "input_names": ["input_ids", "attention_mask", *names],
        "output_names": ["logits", *(name.replace("past_key_values", "present") for name in names)],
    }
    tokens = {0: "batch", 1: "sequence"}
    mask = {0: "batch", 1: "total"}
    cached = {0: "batch", 2: "past"}
    step = Step(net, layers).eval()
    if exporter == "dynamo":
        shapes = (tokens, mask, tuple(dict(cached) for _ in names))
        torch.onnx.export(step, (*first, past), path, dynamo=True, dynamic_shapes=shapes, **options)
    else:
        axes = {"input_ids": tokens, "attention_mask": mask, **dict.fromkeys(names, cached)}
        torch.onnx.export(
            Flat(step),
            (*first, *past),
            str(path),
            dynamo=False,
            dynamic_axes=axes,
            opset_version=17,
            **options,
        )


def export_genai(config: Config, builder: Path, path: Path) -> None:
    """Write a decoder by the builder in the folder ``builder``, for CUDA in fp16."""
    folder = path.parent
    net = built(config, eager=False)
    net.save_pretrained(folder / "hf")
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    special = {"unk_token": "<unk>", "eos_token": "b", "pad_token": "b"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder / "hf")
    net.generation_config.eos_token_id = 1
    net.generation_config.save_pretrained(folder / "hf")
    script = builder / "builder.py"
    arguments = ["-m", "decoder", "-i", folder / "hf", "-o", folder / "made", "-c", folder / "cache"]
    arguments += ["-p", "fp16", "-e", "cuda", "--extra_options", "prune_lm_head=true"]
    subprocess.run([sys.executable, script, *map(str, arguments)], check=True)
    shutil.move(folder / "made" / "model.onnx", path)


def without_weights(path: Path) -> onnx.ModelProto:
    """Return the graph of a file whose large weights point at a file that is not there."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _KEPT_ELEMENTS and tensor.data_location != TensorProto.EXTERNAL:
            continue
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "external_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "absent.bin"
    # Stacks of source lines: most of torch.export's file.
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--genai", type=Path, help="folder onnxruntime_genai/models")
    parser.add_argument("--tiny", action="store_true", help="the thin decoder of the tests")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for name, config in (TINY if options.tiny else MODELS).items():
        (options.folder / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n")
        exporters = ["dynamo", "classic"]
        if options.genai is not None and config["model_type"] in _BUILT_BY_GENAI:
            exporters.append("genai")
        for exporter in exporters:
            target = options.folder / f"{name}.{exporter}.onnx"
            if target.exists():
                continue
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                made = Path(folder) / "model.onnx"
                if exporter == "genai":
                    export_genai(config, options.genai, made)
                else:
                    export_torch(config, exporter, made)
                onnx.save(without_weights(made), target)
            print(target)


if __name__ == "__main__":
    main()
