"""Build the networks that outsiders export, with random weights: libraries' own where there are, else small real ones."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

torchvision_libraries: list[Any] = []  # a library that is collected takes its operators along


def _torchvision() -> Any:
    """Return torchvision; where its compiled operators do not fit this torch, with two of them in Python.

    PyPI's wheel of torchvision is compiled for CUDA; beside a torch for the CPU it has no compiled operators, and
    refuses to be imported. Tracing needs the two that detectors call.
    """
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define(
            "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
            "int sampling_ratio, bool aligned) -> Tensor"
        )
        library.impl("nms", lambda boxes, scores, threshold: scores.argsort(descending=True)[:100], "CPU")
        library.impl("roi_align", _empty_regions, "CPU")
        torchvision_libraries.append(library)
        import torchvision

        for module in (torchvision.ops.boxes, sys.modules["torchvision.ops.roi_align"]):
            module._assert_has_ops = _no_check
            module._has_ops = _yes
    import torchvision.models.detection

    return torchvision


def _no_check() -> None:
    """Say nothing, where torchvision would ask for compiled operators; TorchScript compiles this too."""


def _yes() -> bool:
    """Say that there are compiled operators."""
    return True


def _empty_regions(
    x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool
) -> torch.Tensor:
    """Return regions of the right shape: exporters look at nothing else."""
    return x.new_zeros(rois.shape[0], x.shape[1], height, width)


TORCHVISION = _torchvision()  # before transformers and diffusers, which import it too


def torchvision_model(name: str) -> nn.Module:
    """Return a classifier of torchvision without weights."""
    return TORCHVISION.models.get_model(name, weights=None)


def torchvision_detector(name: str) -> nn.Module:
    """Return a detector of torchvision without weights."""
    return TORCHVISION.models.get_model(name, weights=None, weights_backbone=None)


def deeplab() -> nn.Module:
    """Return DeepLabV3 on MobileNetV3; of its answers the segmentation."""
    net = TORCHVISION.models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None)
    return Picked(net, "out")


def vit_small() -> nn.Module:
    """Return a ViT-S/16."""
    return TORCHVISION.models.VisionTransformer(
        image_size=224, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536
    )


class Picked(nn.Module):
    """Return one entry of a network's dictionary."""

    def __init__(self, net: nn.Module, key: str) -> None:
        super().__init__()
        self.net = net
        self.key = key

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)[self.key]


class Unbatched(nn.Module):
    """Take one image (channels, height, width), as bytes' values from 0 to 1, and normalise it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.net(((image - self.mean) / 0.225).unsqueeze(0)).squeeze(0)


class Listed(nn.Module):
    """Give a detector its one image in a list, and return what it found as a tuple."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.net([image])[0].values())


def _convolution(inner: int, outer: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.SiLU(inplace=True)
    )


class YoloLike(nn.Module):
    """Detect in one stage: a backbone, a pyramid, heads of three scales, boxes decoded."""

    def __init__(self, width: int = 32, classes: int = 80) -> None:
        super().__init__()
        self.stem = _convolution(3, width, 2)
        sizes = [width * 2, width * 4, width * 8, width * 16]
        stages, inner = [], width
        for size in sizes:
            stages.append(
                nn.Sequential(
                    _convolution(inner, size, 2), _convolution(size, size), _convolution(size, size)
                )
            )
            inner = size
        self.stages = nn.ModuleList(stages)
        self.lateral = nn.ModuleList(nn.Conv2d(size, width * 4, 1) for size in sizes[1:])
        self.heads = nn.ModuleList(nn.Conv2d(width * 4, 4 + classes, 1) for _ in sizes[1:])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        merged, answers = None, []
        for level, lateral, head in zip(
            levels[:0:-1], list(self.lateral)[::-1], list(self.heads)[::-1], strict=True
        ):
            here = lateral(level)
            merged = (
                here
                if merged is None
                else here + functional.interpolate(merged, scale_factor=2.0, mode="nearest")
            )
            answers.append(self._decoded(head(merged)))
        return torch.cat(answers, 1)

    def _decoded(self, raw: torch.Tensor) -> torch.Tensor:
        """Return boxes as centre and size in cells, and scores."""
        rows = torch.arange(raw.shape[2], device=raw.device)
        columns = torch.arange(raw.shape[3], device=raw.device)
        grid_y, grid_x = torch.meshgrid(rows, columns, indexing="ij")
        centre = raw[:, :2].sigmoid() + torch.stack([grid_x, grid_y]).to(raw.dtype)
        boxes = torch.cat([centre, raw[:, 2:4].exp(), raw[:, 4:].sigmoid()], 1)
        return boxes.flatten(2).transpose(1, 2)


class UNet(nn.Module):
    """Segment: four levels down, four up, joined."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [width, width * 2, width * 4, width * 8]
        self.down = nn.ModuleList(_convolution(i, o) for i, o in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(o, i, 2, 2) for i, o in pairwise(sizes))
        self.join = nn.ModuleList(_convolution(2 * i, i) for i in sizes[:-1])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for level in (2, 1, 0):
            x = self.join[level](torch.cat([kept[level], self.up[level](x)], 1))
        return self.last(x)


# --- speech and recurrent -----------------------------------------------------------------------------------------


class ConformerBlock(nn.Module):
    """Mix frames by attention and by a depthwise convolution, between two half feed-forwards."""

    def __init__(self, size: int, heads: int = 4, kernel: int = 15) -> None:
        super().__init__()
        self.before, self.after = (
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.SiLU(), nn.Linear(4 * size, size))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.pointwise = nn.Conv1d(size, 2 * size, 1)
        self.depthwise = nn.Conv1d(size, size, kernel, padding=kernel // 2, groups=size)
        self.batch_norm = nn.BatchNorm1d(size)
        self.out = nn.Conv1d(size, size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.before(x)
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = functional.glu(self.pointwise(self.norms[1](x).transpose(1, 2)), 1)
        y = self.out(functional.silu(self.batch_norm(self.depthwise(y))))
        x = x + y.transpose(1, 2)
        return self.norms[2](x + 0.5 * self.after(x))


class Conformer(nn.Module):
    """Recognise speech: features thinned four times by convolutions, six blocks."""

    def __init__(self, size: int = 144, blocks: int = 6) -> None:
        super().__init__()
        self.thin = nn.Sequential(
            nn.Conv2d(1, size, 3, 2, 1), nn.ReLU(), nn.Conv2d(size, size, 3, 2, 1), nn.ReLU()
        )
        self.into = nn.Linear(size * 20, size)
        self.blocks = nn.Sequential(*(ConformerBlock(size) for _ in range(blocks)))
        self.out = nn.Linear(size, 1000)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = self.thin(features.unsqueeze(1)).transpose(1, 2).flatten(2)
        return self.out(self.blocks(self.into(x))).log_softmax(-1)


class Recurrent(nn.Module):
    """Classify a sequence by two recurrent layers in both directions."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layers = kind(64, 256, num_layers=2, bidirectional=True)
        self.out = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x)[0][-1])


class TextLines(nn.Module):
    """Read a line of text: convolutions, then a GRU over the columns (Shi et al., CRNN, 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(
            _convolution(1, 32), nn.MaxPool2d(2), _convolution(32, 64), nn.MaxPool2d(2), _convolution(64, 128)
        )
        self.read = nn.GRU(128 * 8, 256, bidirectional=True, batch_first=True)
        self.out = nn.Linear(512, 97)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        columns = self.see(lines).flatten(1, 2).transpose(1, 2)
        return self.out(self.read(columns)[0])


# --- diffusion ----------------------------------------------------------------------------------------------------


class Diffusion(nn.Module):
    """Hold a small UNet2DConditionModel."""

    def __init__(self) -> None:
        super().__init__()
        from diffusers import UNet2DConditionModel

        self.net = UNet2DConditionModel(
            sample_size=32,
            block_out_channels=(64, 128, 256),
            layers_per_block=1,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=256,
            attention_head_dim=8,
        )

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        return self.net(sample, timestep, states, return_dict=False)[0]


class VaeDecoder(nn.Module):
    """Hold the decoder of a small AutoencoderKL."""

    def __init__(self) -> None:
        super().__init__()
        from diffusers import AutoencoderKL

        self.net = AutoencoderKL(
            block_out_channels=(32, 64, 128),
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
        )
        del self.net.encoder, self.net.quant_conv

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        return self.net.decode(latent, return_dict=False)[0]
