"""Export the graphs that ONNX Runtime's own times were measured on, without weights.

Run by hand where torch, onnxscript and onnxruntime are installed (``pip install torch==2.13.0 onnx onnxscript
onnxruntime``): ``python benchmarks/export_ort_models.py .accuracy/ort_graphs``; files that are there are kept. ``--tiny`` writes BERTs of two thin layers
instead, with which the tests compare what ONNX Runtime's optimiser makes of each form.

Forms of one BERT: ``exported`` by the TorchScript exporter with ``torch.nn.LayerNorm`` (opset 13), ``dynamo`` by
torch.export (opset 18), ``nvidia`` as NVIDIA's DeepLearningExamples wrote it, whose files Triton served: bias and GELU in
one function, LayerNorm spelled out with a product for the square, ``optimised`` by ONNX Runtime's transformer optimiser.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from onnx import TensorProto
from onnxruntime.transformers import optimizer
from torch import nn

FORMS = ("exported", "dynamo", "nvidia", "optimised")
_KEPT_ELEMENTS = 1024  # larger tensors lose their values: those of shapes and scales stay
_SEQUENCE = 384
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Sizes:
    """Hold the sizes of a BERT; ``pooled``: it returns the hidden states and the pooled first one, else two answers."""

    layers: int
    hidden: int
    heads: int
    inner: int
    pooled: bool = False
    words: int = 30_528
    places: int = 512
    precisions: tuple[str, ...] = ("fp16",)
    forms: tuple[str, ...] = ("nvidia",)


# bert_dist4l and bert_dist6l: DeepLearningExamples' 4L-288D and 6L-768D; the inner size of the first is taken as four
# times its hidden size.
MODELS = {
    "bert_base": Sizes(
        layers=12,
        hidden=768,
        heads=12,
        inner=3072,
        pooled=True,
        precisions=("fp32", "fp16"),
        forms=("optimised",),
    ),
    "bert_large": Sizes(layers=24, hidden=1024, heads=16, inner=4096),
    "bert_dist6l": Sizes(layers=6, hidden=768, heads=12, inner=3072, forms=FORMS),
    "bert_dist4l": Sizes(layers=4, hidden=288, heads=12, inner=1152),
}
TINY = {
    "bert_tiny": Sizes(
        layers=2, hidden=16, heads=2, inner=32, words=16, places=16, precisions=("fp32",), forms=FORMS
    )
}


class ProductNorm(nn.Module):
    """LayerNorm as NVIDIA's BertNonFusedLayerNorm spells it out."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x - mean
        variance = variance * variance
        variance = variance.mean(-1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight * x + self.bias


def gelu(x: torch.Tensor, root: float) -> torch.Tensor:
    """Return x * 0.5 * (1 + erf(x / root))."""
    return x * 0.5 * (1.0 + torch.erf(x / root))


class Layer(nn.Module):
    """One encoder layer with attention written out."""

    def __init__(self, sizes: Sizes, nvidia: bool) -> None:
        super().__init__()
        norm = ProductNorm if nvidia else nn.LayerNorm
        hidden = sizes.hidden
        self.nvidia = nvidia
        self.heads = sizes.heads
        self.size = hidden // sizes.heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.up = nn.Linear(hidden, sizes.inner)
        self.down = nn.Linear(sizes.inner, hidden)
        self.first_norm = norm(hidden, eps=1e-12)
        self.second_norm = norm(hidden, eps=1e-12)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, heads, tokens, size)."""
        return x.view(*x.size()[:-1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query = self.split(self.query(x))
        key = self.split(self.key(x)).transpose(-1, -2)
        value = self.split(self.value(x))
        scores = torch.matmul(query, key) / math.sqrt(self.size)
        context = torch.matmul(torch.softmax(scores + mask, dim=-1), value)
        context = context.permute(0, 2, 1, 3).contiguous()
        context = context.view(*context.size()[:-2], self.heads * self.size)
        x = self.first_norm(self.dense(context) + x)
        if self.nvidia:
            wide = self.up.bias + nn.functional.linear(x, self.up.weight)
            wide = gelu(wide, 1.41421)
        else:
            wide = gelu(self.up(x), math.sqrt(2.0))
        return self.second_norm(self.down(wide) + x)


class Bert(nn.Module):
    """BERT with a question-answering head, or pooled."""

    def __init__(self, sizes: Sizes, nvidia: bool) -> None:
        super().__init__()
        norm = ProductNorm if nvidia else nn.LayerNorm
        self.words = nn.Embedding(sizes.words, sizes.hidden)
        self.places = nn.Embedding(sizes.places, sizes.hidden)
        self.types = nn.Embedding(2, sizes.hidden)
        self.norm = norm(sizes.hidden, eps=1e-12)
        self.register_buffer("positions", torch.arange(sizes.places)[None])
        self.layers = nn.ModuleList(Layer(sizes, nvidia) for _ in range(sizes.layers))
        self.pooled = sizes.pooled
        self.head = nn.Linear(sizes.hidden, sizes.hidden if sizes.pooled else 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = self.places(self.positions[:, : ids.size(1)])
        x = self.norm(self.words(ids) + places + self.types(types))
        wide = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, wide)
        if self.pooled:
            return x, torch.tanh(self.head(x[:, 0]))
        return self.head(x).split(1, dim=-1)


def export(sizes: Sizes, form: str, precision: str, path: Path) -> None:
    """Write one BERT to ``path`` as ``form``, with its weights."""
    model = Bert(sizes, nvidia=form == "nvidia").eval()
    if precision == "fp16" and form != "optimised":
        model = model.half()
    ids = torch.ones(2, min(_SEQUENCE, sizes.places), dtype=torch.long)
    arguments = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    names = {"input_names": list(_INPUTS), "output_names": ["first", "second"]}
    if form == "dynamo":
        batch = torch.export.Dim("N", min=1, max=64)
        tokens = torch.export.Dim("S", min=2, max=sizes.places)
        shapes = tuple({0: batch, 1: tokens} for _ in _INPUTS)
        torch.onnx.export(
            model,
            arguments,
            path,
            opset_version=18,
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=False,
            **names,
        )
        return
    axes = {name: {0: "N", 1: "S"} for name in _INPUTS}
    torch.onnx.export(model, arguments, path, opset_version=13, dynamic_axes=axes, dynamo=False, **names)
    if form == "optimised":
        optimised = optimizer.optimize_model(
            str(path), "bert", num_heads=sizes.heads, hidden_size=sizes.hidden, opt_level=0, use_gpu=True
        )
        if precision == "fp16":
            optimised.convert_float_to_float16()
        optimised.save_model_to_file(str(path))


def forget_weights(model: onnx.ModelProto) -> None:
    """Point the large initializers of ``model`` at a file that is not there."""
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _KEPT_ELEMENTS:
            continue
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "external_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "absent.bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--tiny", action="store_true", help="thin models with weights, float32, for the tests"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    models = TINY if options.tiny else MODELS
    torch.manual_seed(0)
    for name, sizes in models.items():
        for form in sizes.forms:
            for precision in sizes.precisions:
                target = options.folder / f"{name}.{form}.{precision}.onnx"
                if target.exists():
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    full = Path(folder) / target.name
                    export(sizes, form, precision, full)
                    if options.tiny:
                        target.write_bytes(full.read_bytes())
                    else:
                        model = onnx.load(full)
                        forget_weights(model)
                        target.write_bytes(model.SerializeToString())
                print(f"{target} {target.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
