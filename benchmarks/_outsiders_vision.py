"""Write models that see: classification, detection, segmentation, diffusion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import _outsider_networks as networks
import torch
from _outsiders_shared import BATCHED, CLASSIC, TODAY, Truth, export, export_images, image, outsider

# --- vision -------------------------------------------------------------------------------------------------------


@outsider("resnet18_export")
def resnet18_export(path: Path) -> Truth:
    """Write ResNet-18 as the documentation of torch.onnx does today."""
    return export_images(networks.torchvision_model("resnet18"), path, exporter=TODAY)


@outsider("resnet18_classic")
def resnet18_classic(path: Path) -> Truth:
    """Write ResNet-18 without dynamic axes: the batch is one, for good."""
    return export(
        networks.torchvision_model("resnet18"),
        [image(1)],
        path,
        exporter=CLASSIC,
        names=["input"],
        batch=1,
        opset=13,
    )


@outsider("efficientnet_b0")
def efficientnet_b0(path: Path) -> Truth:
    """Write EfficientNet-B0."""
    return export_images(networks.torchvision_model("efficientnet_b0"), path, exporter=CLASSIC, opset=17)


@outsider("vit_small")
def vit_small(path: Path) -> Truth:
    """Write a ViT-S/16 of torchvision."""
    return export_images(networks.vit_small(), path, exporter=TODAY)


@outsider("swin_t")
def swin_t(path: Path) -> Truth:
    """Write Swin-T, whose windows are rolled."""
    return export_images(networks.torchvision_model("swin_t"), path, exporter=CLASSIC, opset=17)


@outsider("unbatched_chw")
def unbatched_chw(path: Path) -> Truth:
    """Write MobileNetV3 for one image without a batch dimension, as telephones' pipelines want it."""
    return export(
        networks.Unbatched(networks.torchvision_model("mobilenet_v3_small")),
        [torch.rand(3, 224, 224)],
        path,
        exporter=TODAY,
        names=["image"],
        batch=None,
    )


# --- detection and segmentation -----------------------------------------------------------------------------------


@outsider("fasterrcnn_mobilenet")
def fasterrcnn_mobilenet(path: Path) -> Truth:
    """Write Faster R-CNN: an image without a batch inside a list, and as many boxes as are found."""
    return export(
        networks.Listed(networks.torchvision_detector("fasterrcnn_mobilenet_v3_large_320_fpn")),
        [torch.rand(3, 320, 320)],
        path,
        exporter=CLASSIC,
        names=["image"],
        outputs=["boxes", "labels", "scores"],
        batch=None,
        opset=17,
    )


@outsider("ssdlite_mobilenet")
def ssdlite_mobilenet(path: Path) -> Truth:
    """Write SSDlite; its selection keeps as many boxes as are good."""
    return export(
        networks.Listed(networks.torchvision_detector("ssdlite320_mobilenet_v3_large")),
        [torch.rand(3, 320, 320)],
        path,
        exporter=CLASSIC,
        names=["image"],
        outputs=["boxes", "scores", "labels"],
        batch=None,
        opset=17,
    )


@outsider("yolo_like")
def yolo_like(path: Path) -> Truth:
    """Write a small one-stage detector with open batch, height and width."""
    return export(
        networks.YoloLike(),
        [image(2, 320)],
        path,
        exporter=TODAY,
        names=["images"],
        dynamic={"images": {0: "batch", 2: "height", 3: "width"}},
        dims={"height": 640, "width": 640},
        counted=[image(1, 640)],
    )


@outsider("deeplab_mobilenet")
def deeplab_mobilenet(path: Path) -> Truth:
    """Write DeepLabV3."""
    return export_images(
        networks.deeplab(),
        path,
        exporter=CLASSIC,
        size=512,
        opset=16,
    )


@outsider("unet_fp16")
def unet_fp16(path: Path) -> Truth:
    """Write a U-Net whose weights and inputs are fp16."""
    return export(
        networks.UNet().half(),
        [image(2, 256).half()],
        path,
        exporter=TODAY,
        names=["input"],
        dynamic=BATCHED,
        counted=[image(1, 256).half()],
    )


# --- diffusion ----------------------------------------------------------------------------------------------------


@outsider("diffusion_unet")
def diffusion_unet(path: Path) -> Truth:
    """Write a small UNet2DConditionModel of diffusers, with optimum's names."""
    return _diffusion(path, exporter=TODAY)


@outsider("diffusion_unet_classic")
def diffusion_unet_classic(path: Path) -> Truth:
    """Write the same network as optimum did for years."""
    return _diffusion(path, exporter=CLASSIC)


def _diffusion(path: Path, *, exporter: str) -> Truth:
    dynamic: dict[str, Mapping[int, str]] = {
        "sample": {0: "batch_size", 2: "height", 3: "width"},
        "encoder_hidden_states": {0: "batch_size", 1: "sequence_length"},
    }
    inputs = [torch.rand(2, 4, 32, 32), torch.tensor(7), torch.rand(2, 77, 256)]
    return export(
        networks.Diffusion(),
        inputs,
        path,
        exporter=exporter,
        names=["sample", "timestep", "encoder_hidden_states"],
        outputs=["out_sample"],
        dynamic=dynamic,
        batch="batch_size",
        dims={"height": 64, "width": 64, "sequence_length": 77},
        counted=[torch.rand(1, 4, 64, 64), torch.tensor(7), torch.rand(1, 77, 256)],
        opset=17 if exporter == CLASSIC else None,
    )


@outsider("vae_decoder")
def vae_decoder(path: Path) -> Truth:
    """Write the decoder of a small AutoencoderKL."""
    return export(
        networks.VaeDecoder(),
        [torch.rand(1, 4, 32, 32)],
        path,
        exporter=TODAY,
        names=["latent_sample"],
        outputs=["sample"],
        batch=1,
    )
