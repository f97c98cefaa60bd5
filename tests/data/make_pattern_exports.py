"""Writes tests/data/pattern_exports: single torch modules as both of torch's exporters write them.

Run by hand with torch installed (``python tests/data/make_pattern_exports.py``); the files are committed, a
few kilobytes each, so that the tests need no torch. ``*.script.onnx`` come from the TorchScript exporter at
opset 14 (which has no LayerNormalization), ``*.dynamo.onnx`` from the newer one at opset 18.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """F.scaled_dot_product_attention of projections of one tensor, optionally causal or with a mask."""

    def __init__(self, *, causal: bool = False, masked: bool = False) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.causal = causal
        self.masked = masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).reshape(2, 8, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mask = x[:, None, :, :8] if self.masked else None
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)


class MergedAttention(Attention):
    """Attention whose heads are put side by side again, as every transformer does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).transpose(1, 2).reshape(2, 8, 16)


class TransposedLinear(nn.Module):
    """A linear layer over the other axis, as mixers do."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x.transpose(1, 2))


def used_norm(channels: int) -> nn.BatchNorm2d:
    """A BatchNorm with a shift: the optimisers drop the bias that a fresh one would fold into."""
    norm = nn.BatchNorm2d(channels)
    nn.init.constant_(norm.bias, 0.5)
    return norm


class QuickGelu(nn.Module):
    """CLIP's activation, python arithmetic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class LlamaNorm(nn.Module):
    """RMSNorm as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class After(nn.Module):
    """A module between two others, so that neither end of the group is an end of the graph."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.abs(self.inner(torch.relu(x)))


ROWS = torch.randn(2, 8, 16)
IMAGE = torch.randn(2, 8, 6, 6)
MODULES = {
    "gelu": (nn.GELU(), ROWS),
    "gelu_tanh": (nn.GELU(approximate="tanh"), ROWS),
    "silu": (nn.SiLU(), ROWS),
    "quick_gelu": (QuickGelu(), ROWS),
    "hardswish": (nn.Hardswish(), ROWS),
    "mish": (nn.Mish(), ROWS),
    "layer_norm": (nn.LayerNorm(16), ROWS),
    "layer_norm_plain": (nn.LayerNorm(16, elementwise_affine=False), ROWS),
    "layer_norm_two_axes": (nn.LayerNorm((8, 16)), ROWS),
    "llama_norm": (LlamaNorm(), ROWS),
    "rms_norm": (nn.RMSNorm(16), ROWS),
    "group_norm": (nn.GroupNorm(4, 8), IMAGE),
    "group_norm_plain": (nn.GroupNorm(4, 8, affine=False), IMAGE),
    "linear": (nn.Linear(16, 32), ROWS),
    "attention": (Attention(), ROWS),
    "attention_causal": (Attention(causal=True), ROWS),
    "attention_masked": (Attention(masked=True), ROWS),
    "linear_transposed": (TransposedLinear(), ROWS),
    "attention_merged": (MergedAttention(), ROWS),
    "conv_plain_norm_relu": (nn.Sequential(nn.Conv2d(8, 8, 3, bias=False), used_norm(8), nn.ReLU()), IMAGE),
    "conv_norm_relu": (nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), IMAGE),
}


def strip(path: Path) -> None:
    """Take out what says where the file was made: stack traces, source paths, names of python scopes."""
    model = onnx.load(path)
    graph = model.graph
    for part in (
        model,
        graph,
        *graph.node,
        *graph.value_info,
        *graph.input,
        *graph.output,
        *graph.initializer,
    ):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    onnx.save(model, path)


def main() -> int:
    """Export every module with both exporters."""
    folder = Path(__file__).parent / "pattern_exports"
    folder.mkdir(exist_ok=True)
    for name, (module, example) in MODULES.items():
        wrapped = After(module).eval()
        for dynamo, opset, kind in ((False, 14, "script"), (True, 18, "dynamo")):
            path = folder / f"{name}.{kind}.onnx"
            try:
                torch.onnx.export(
                    wrapped, (example,), str(path), opset_version=opset, dynamo=dynamo, external_data=False
                )
            except Exception as error:  # noqa: BLE001  (an exporter may lack an operator; say so, go on)
                print(f"{path.name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            strip(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
