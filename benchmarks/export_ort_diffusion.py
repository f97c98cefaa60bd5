"""Export Stable Diffusion 1.5 as ONNX Runtime's own table ran it: fp16, through its transformer optimiser, without weights.

Run by hand with torch, diffusers, transformers, onnx and onnxruntime (some minutes, 8 GiB of memory):
``python benchmarks/export_ort_diffusion.py .accuracy/ort_graphs``. Three files: the U-Net with every fusion that the
table's last line names, the VAE's decoder, and the text encoder. Weights are zeros but for one number each, which keeps
the exporter from merging equal ones; the optimiser sees none of them. ``--plain`` writes ``NAME.plain.onnx`` as well, in
float32 as torch exports it, which torch and TensorRT ran.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor2_0
from export_ort_models import forget_weights
from onnx import numpy_helper
from onnxruntime.transformers import fusion_attention_unet, fusion_utils, optimizer
from onnxruntime.transformers.fusion_options import FusionOptions
from transformers import CLIPTextConfig, CLIPTextModel

_SIDE = 16  # of the latents while tracing; the axes are symbolic
_KINDS = {"sd_unet": "unet", "sd_vae": "vae", "sd_text": "clip"}


def unet() -> torch.nn.Module:
    """Return the U-Net of Stable Diffusion 1.5."""
    model = UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
    model.set_attn_processor(AttnProcessor2_0())
    return model


def vae() -> torch.nn.Module:
    """Return its autoencoder."""
    model = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
        sample_size=512,
    )
    model.set_attn_processor(AttnProcessor2_0())
    return model


def text() -> torch.nn.Module:
    """Return its text encoder, CLIP ViT-L/14's."""
    config = CLIPTextConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        vocab_size=49_408,
    )
    config._attn_implementation = "eager"
    return CLIPTextModel(config)


class First(torch.nn.Module):
    """Call one method of a model and return its first result."""

    def __init__(self, model: torch.nn.Module, method: str) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return getattr(self.model, self.method)(*inputs, return_dict=False)[0]


def traced(name: str) -> tuple[First, tuple[torch.Tensor, ...], dict[str, dict[int, str]]]:
    """Return a model, what it is traced with, and the symbolic axes of each input."""
    latents = {0: "B", 2: "H", 3: "W"}
    if name == "sd_unet":
        sample = torch.zeros(2, 4, _SIDE, _SIDE)
        axes = {"sample": latents, "timestep": {}, "states": {0: "B"}}
        return First(unet(), "forward"), (sample, torch.ones(1), torch.zeros(2, 77, 768)), axes
    if name == "sd_vae":
        return First(vae(), "decode"), (torch.zeros(1, 4, _SIDE, _SIDE),), {"latents": latents}
    return First(text(), "forward"), (torch.ones(1, 77, dtype=torch.int32),), {"input_ids": {0: "B"}}


def export(name: str, path: Path) -> None:
    """Write one model in float32 with its weights."""
    model, arguments, axes = traced(name)
    model.eval()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters(), start=1):
            parameter.zero_().view(-1)[0] = number
        torch.onnx.export(
            model,
            arguments,
            str(path),  # a Path is taken for a stream, which holds no more than 2 GiB
            input_names=list(axes),
            output_names=["result"],
            opset_version=14,
            dynamic_axes={key: value for key, value in axes.items() if value},
            dynamo=False,
        )


def optimised(source: Path, kind: str) -> onnx.ModelProto:
    """Return the model of ``source``, whose weights are not there, with every fusion, in half precision."""
    options = FusionOptions(kind)
    if kind != "clip":
        options.enable_packed_kv = options.enable_packed_qkv = options.enable_bias_add = True
    model = onnx.load(source, load_external_data=False)
    fused = optimizer.optimize_by_fusion(model, kind, 0, 0, optimization_options=options)
    forget_weights(fused.model)  # those that fusions joined
    fused.convert_float_to_float16(keep_io_types=False)
    return fused.model


_TO_ARRAY = numpy_helper.to_array


def _zeros_where_absent(tensor: onnx.TensorProto, *_: object) -> np.ndarray:
    """Stand in for ``to_array`` of the optimiser: weights that are not there count as zeros."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return _TO_ARRAY(tensor)
    return np.zeros(tuple(tensor.dims), dtype=onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _heads(
    self: fusion_attention_unet.FusionAttentionUnet, reshape: onnx.NodeProto, is_torch2: bool = False
) -> int:
    """Stand in for ``get_num_heads``, which NumPy 2.4 refuses: it makes an int of an array of one element."""
    if is_torch2:
        parent = self.model.get_parent(reshape, 1)
        value = None
        if parent is not None and parent.op_type == "Concat" and len(parent.input) == 4:
            value = self.model.get_constant_value(parent.input[2])
    else:
        shape = self.model.get_constant_value(reshape.input[1])
        value = shape[2] if isinstance(shape, np.ndarray) and shape.shape == (4,) else None
    return 0 if value is None else int(np.asarray(value).reshape(-1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plain", action="store_true", help="write what the optimiser reads as well")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    fusion_attention_unet.FusionAttentionUnet.get_num_heads = _heads
    fusion_utils.NumpyHelper.to_array = staticmethod(_zeros_where_absent)
    numpy_helper.to_array = _zeros_where_absent
    for name, kind in _KINDS.items():
        target = options.folder / f"{name}.onnx"
        plain = options.folder / f"{name}.plain.onnx"
        if target.exists() and (plain.exists() or not options.plain):
            continue
        with tempfile.TemporaryDirectory() as folder:
            full = Path(folder) / f"{name}.onnx"
            export(name, full)
            bare = onnx.load(full, load_external_data=False)
            forget_weights(bare)
            full.write_bytes(bare.SerializeToString())
            if options.plain:
                plain.write_bytes(full.read_bytes())
            if target.exists():
                continue
            target.write_bytes(optimised(full, kind).SerializeToString())
        print(f"{target} {target.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
