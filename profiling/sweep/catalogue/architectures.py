"""Layer shapes of architectures that people run, as tables; sizes from the papers that introduced them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class ConvLayer(NamedTuple):
    """Channels in and out, kernel (height, width), stride, groups, dilation, image (height, width)."""

    c_in: int
    c_out: int
    kernel: tuple[int, int]
    stride: int
    groups: int
    dilation: int
    size: tuple[int, int]


class LinearLayer(NamedTuple):
    """Features in and out; tokens per sample."""

    k: int
    n: int
    tokens: tuple[int, ...]


def _c(
    c_in: int, c_out: int, k: int, stride: int, size: int, groups: int = 1, dilation: int = 1
) -> ConvLayer:
    return ConvLayer(c_in, c_out, (k, k), stride, groups, dilation, (size, size))


def _resnets() -> Iterator[ConvLayer]:
    """He et al. 2016: basic blocks (18, 34) and bottlenecks (50, 101, 152); Xie et al. 2017: 32 groups of 4."""
    yield _c(3, 64, 7, 2, 224)
    before = 64
    for width, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        yield _c(width, width, 3, 1, size)
        if width > 64:
            yield _c(width // 2, width, 3, 2, size * 2)
            yield _c(width // 2, width, 1, 2, size * 2)
            yield _c(width, width, 3, 2, size * 2)
        yield _c(before, width, 1, 1, size * (2 if width > 64 else 1))
        yield _c(before, 4 * width, 1, 2 if width > 64 else 1, size * (2 if width > 64 else 1))
        yield _c(width, 4 * width, 1, 1, size)
        yield _c(4 * width, width, 1, 1, size)
        yield _c(2 * width, 2 * width, 3, 1, size, groups=32)
        before = 4 * width


def _mobilenets() -> Iterator[ConvLayer]:
    """Sandler et al. 2018 (V2) and Howard et al. 2019 (V3-Large): expansion, depthwise, projection."""
    yield _c(3, 32, 3, 2, 224)
    for c_in, wide, c_out, k, stride, size in (
        (32, 32, 16, 3, 1, 112),
        (16, 96, 24, 3, 2, 112),
        (24, 144, 24, 3, 1, 56),
        (24, 144, 32, 3, 2, 56),
        (32, 192, 32, 3, 1, 28),
        (32, 192, 64, 3, 2, 28),
        (64, 384, 96, 3, 1, 14),
        (96, 576, 160, 3, 2, 14),
        (160, 960, 160, 3, 1, 7),
        (160, 960, 320, 3, 1, 7),
        (24, 72, 40, 5, 2, 56),
        (40, 120, 40, 5, 1, 28),
        (40, 240, 80, 3, 2, 28),
        (80, 184, 80, 3, 1, 14),
        (112, 672, 160, 5, 2, 14),
        (160, 960, 160, 5, 1, 7),
    ):
        yield _c(c_in, wide, 1, 1, size)
        yield _c(wide, wide, k, stride, size, groups=wide)
        yield _c(wide, c_out, 1, 1, size // stride)
    yield _c(320, 1280, 1, 1, 7)


def _efficientnets() -> Iterator[ConvLayer]:
    """Tan and Le 2019, B0 and B4's widths: expansion 6, depthwise 3 or 5."""
    for c_in, c_out, k, stride, size in (
        (16, 24, 3, 2, 112),
        (24, 40, 5, 2, 56),
        (40, 80, 3, 2, 28),
        (80, 112, 5, 1, 14),
        (112, 192, 5, 2, 14),
        (192, 320, 3, 1, 7),
        (32, 56, 5, 2, 95),
        (56, 112, 3, 2, 48),
        (112, 160, 5, 1, 24),
        (160, 272, 5, 2, 24),
        (272, 448, 3, 1, 12),
    ):
        wide = 6 * c_in
        yield _c(c_in, wide, 1, 1, size)
        yield _c(wide, wide, k, stride, size, groups=wide)
        yield _c(wide, c_out, 1, 1, -(-size // stride))
        yield ConvLayer(wide, max(1, c_in // 4), (1, 1), 1, 1, 1, (1, 1))  # squeeze and excitation


def _plain() -> Iterator[ConvLayer]:
    """VGG (2015), AlexNet (2012), DenseNet (2017), Inception v3 (2016), RegNetY-3.2GF (2020)."""
    for c_in, c_out, size in (
        (3, 64, 224),
        (64, 64, 224),
        (64, 128, 112),
        (128, 128, 112),
        (128, 256, 56),
        (256, 256, 56),
        (256, 512, 28),
        (512, 512, 28),
        (512, 512, 14),
        (192, 384, 13),
        (384, 256, 13),
        (256, 256, 13),
    ):
        yield _c(c_in, c_out, 3, 1, size)
    yield _c(3, 64, 11, 4, 224)
    yield _c(64, 192, 5, 1, 27)
    for c_in, size in ((64, 56), (224, 56), (320, 28), (512, 28), (640, 14), (1024, 14), (896, 7)):
        yield _c(c_in, 128, 1, 1, size)
        yield _c(128, 32, 3, 1, size)
    yield _c(48, 64, 5, 1, 35)
    yield _c(288, 384, 3, 2, 35)
    yield _c(80, 192, 3, 1, 73)
    for channels in (128, 160, 192):
        yield ConvLayer(channels, channels, (1, 7), 1, 1, 1, (17, 17))
        yield ConvLayer(channels, 192, (7, 1), 1, 1, 1, (17, 17))
    yield ConvLayer(384, 384, (1, 3), 1, 1, 1, (8, 8))
    yield _c(2048, 320, 1, 1, 8)
    for width, size in ((72, 56), (216, 28), (576, 14), (1512, 7)):
        yield _c(width, width, 3, 1, size, groups=width // 24)


def _transformers() -> Iterator[ConvLayer]:
    """Patches of ViT (2021) and Swin (2021); ConvNeXt (2022): 7 x 7 depthwise and 2 x 2 downsampling."""
    for patch, width, size in (
        (16, 768, 224),
        (32, 768, 224),
        (14, 1024, 224),
        (4, 96, 224),
        (16, 1024, 384),
    ):
        yield _c(3, width, patch, patch, size)
    for width, size in ((96, 56), (192, 28), (384, 14), (768, 7), (128, 56), (256, 28), (512, 14), (1024, 7)):
        yield _c(width, width, 7, 1, size, groups=width)
        if width <= 512:
            yield _c(width, 2 * width, 2, 2, size)


def _segmentation() -> Iterator[ConvLayer]:
    """U-Net (2015), DeepLab v3 (2017) with dilation, stable-diffusion's U-Net (2022)."""
    for width, size in ((64, 256), (128, 128), (256, 64), (512, 32), (1024, 16)):
        yield _c(width, width, 3, 1, size)
        yield _c(2 * width, width, 3, 1, size)
    for dilation in (6, 12, 18):
        yield _c(2048, 256, 3, 1, 33, dilation=dilation)
    yield _c(512, 512, 3, 1, 33, dilation=2)
    for width, size in ((320, 64), (640, 32), (1280, 16), (1280, 8)):
        yield _c(width, width, 3, 1, size)
        yield _c(2 * width, width, 3, 1, size)
        yield _c(width, width, 1, 1, size)


def _detection() -> Iterator[ConvLayer]:
    """A YOLO of 640 x 640 (stem, stages, neck, heads of 80 classes) and a feature pyramid of 800 x 1216."""
    yield _c(3, 32, 6, 2, 640)
    for width, size in ((32, 320), (64, 160), (128, 80), (256, 40), (512, 20)):
        yield _c(width, 2 * width if width < 512 else width, 3, 2, size)
        yield _c(width, width, 1, 1, size)
        yield _c(width, width // 2, 1, 1, size)
        yield _c(width // 2, width // 2, 3, 1, size)
    for width, size in ((128, 80), (256, 40), (512, 20)):
        yield _c(width, 255, 1, 1, size)
        yield _c(width, 80, 3, 1, size)
    for c_in, image in ((256, (200, 304)), (512, (100, 152)), (1024, (50, 76)), (2048, (25, 38))):
        yield ConvLayer(c_in, 256, (1, 1), 1, 1, 1, image)
        yield ConvLayer(256, 256, (3, 3), 1, 1, 1, image)
        yield ConvLayer(256, 720, (3, 3), 1, 1, 1, image)
        yield ConvLayer(256, 15, (1, 1), 1, 1, 1, image)


CONVOLUTIONS: Mapping[str, tuple[ConvLayer, ...]] = {
    "vision": tuple(
        dict.fromkeys(
            [*_resnets(), *_mobilenets(), *_efficientnets(), *_plain(), *_transformers(), *_segmentation()]
        )
    ),
    "detection": tuple(dict.fromkeys(_detection())),
}

TRANSPOSED = (
    (1024, 512, 2, 2, 16), (512, 256, 2, 2, 32), (256, 128, 2, 2, 64), (128, 64, 2, 2, 128), (256, 256, 2, 2, 14),
    (512, 256, 4, 2, 8), (256, 128, 4, 2, 16), (128, 64, 4, 2, 32), (64, 3, 4, 2, 64),
)  # fmt: skip
"""Transposed convolutions of U-Net, Mask R-CNN and DCGAN: channels in and out, kernel, stride, size."""

_TEXT = (1, 16, 128, 512)
_PREFILL = (1, 128, 512, 2048)
_LANGUAGE = (  # width, results, inner width, tokens
    (384, (384, 1536), 1536, _TEXT),  # MiniLM
    (768, (768, 2304, 3072), 3072, _TEXT),  # BERT-base, GPT-2
    (1024, (1024, 3072, 4096), 4096, _TEXT),  # BERT-large, GPT-2 medium, BLOOM-560m
    (2048, (2048, 512, 8192), 8192, _PREFILL),  # Llama 3.2 1B
    (4096, (4096, 1024, 11008, 14336), 11008, _PREFILL),  # Llama 2 7B, Llama 3 8B
)
_VISION = (
    (192, (197,)),
    (384, (197,)),
    (768, (50, 197, 577)),
    (1024, (197, 257)),  # ViT, DeiT, CLIP
    (96, (3136,)),
    (192, (784,)),
    (384, (196,)),
    (768, (49,)),  # Swin, ConvNeXt
)
LINEARS: Mapping[str, tuple[LinearLayer, ...]] = {
    "language": (
        *(
            LinearLayer(k, n, tokens)
            for width, outs, inner, tokens in _LANGUAGE
            for k, n in (*((width, out) for out in outs), (inner, width))
        ),
        *(LinearLayer(k, n, (1, 128)) for k, n in ((4096, 32000), (768, 50257))),
        LinearLayer(14336, 4096, (1, 512)),
    ),
    "vision": (
        *(
            LinearLayer(k, n, tokens)
            for width, tokens in _VISION
            for k, n in ((width, width), (width, 3 * width), (width, 4 * width), (4 * width, width))
        ),
        *(LinearLayer(k, 1000, (1,)) for k in (512, 768, 1024, 1280, 2048, 4096)),
        *(LinearLayer(k, 4096, (1,)) for k in (25088, 4096, 9216)),
    ),
    "detection": (
        LinearLayer(12544, 1024, (1000,)), LinearLayer(1024, 91, (1000,)), LinearLayer(256, 256, (100, 300, 900)),
        LinearLayer(256, 2048, (100, 850)), LinearLayer(2048, 256, (100, 850)),
    ),
}  # fmt: skip
"""Linear layers by field."""

ATTENTIONS = (
    ("language", 12, 12, 64, (128, 384, 512, 1024)), ("language", 16, 16, 64, (128, 512)),
    ("language", 32, 32, 128, (128, 512, 2048)), ("language", 32, 8, 128, (512, 2048)),
    ("language", 32, 8, 64, (512, 2048)), ("vision", 3, 3, 64, (197,)), ("vision", 6, 6, 64, (197,)),
    ("vision", 12, 12, 64, (50, 197, 577)), ("vision", 16, 16, 64, (197, 257)), ("vision", 3, 3, 32, (49,)),
    ("vision", 12, 12, 32, (49,)), ("vision", 8, 8, 40, (1024, 4096)), ("detection", 8, 8, 32, (100, 850)),
)  # fmt: skip
"""Attention: field, query heads, key and value heads, head size, sequence lengths."""

ACTIVATIONS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "vision": (
        (64, 112, 112), (256, 56, 56), (64, 56, 56), (512, 28, 28), (128, 28, 28), (1024, 14, 14), (256, 14, 14),
        (2048, 7, 7), (512, 7, 7), (96, 112, 112), (144, 56, 56), (192, 28, 28), (576, 14, 14), (960, 7, 7),
        (64, 224, 224), (64, 256, 256), (320, 64, 64), (1280, 16, 16), (2048, 1, 1), (96, 1, 1),
    ),
    "detection": (
        (32, 320, 320), (64, 160, 160), (128, 80, 80), (256, 40, 40), (512, 20, 20), (256, 200, 304), (85, 25200),
        (256, 100, 152),
    ),
    "language": (
        (128, 768), (512, 768), (128, 3072), (512, 3072), (512, 1024), (512, 4096), (2048, 4096), (512, 11008),
        (1, 4096), (1, 11008), (1024, 768),
    ),
}  # fmt: skip
"""Activations of one sample."""

ROWS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "language": (
        (1, 768), (128, 384), (128, 768), (512, 768), (128, 1024), (512, 1024), (512, 2048), (512, 4096),
        (2048, 4096), (1, 4096), (2048, 8192),
    ),
    "vision": (
        (197, 192), (197, 384), (197, 768), (577, 1024), (3136, 96), (784, 192), (196, 384), (49, 768), (50, 768),
    ),
    "detection": ((100, 256), (850, 256), (900, 256)),
}  # fmt: skip
"""Rows per sample and the width that normalisations run along."""

VOCABULARIES = (
    (30522, 768),
    (50257, 768),
    (30522, 1024),
    (250880, 1024),
    (32000, 4096),
    (128256, 2048),
    (512, 768),
)
"""Embedding tables: entries and width."""
