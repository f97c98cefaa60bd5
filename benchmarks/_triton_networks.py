"""Build networks of NVIDIA's DeepLearningExamples that Triton's published tables measure, with random weights.

Layer lists are recalled from that repository at 729963d (``PyTorch/Forecasting/TFT/modeling.py``,
``PyTorch/SpeechRecognition/Jasper/jasper/model.py``, ``PyTorch/Segmentation/nnUNet/models/unet.py``), which is not read here;
``PUBLISHED`` holds what their papers or pages say of the number of parameters. Not built: GPUNet, whose searched layer
lists are not at hand, FastPitch, whose work depends on durations that it predicts, Wide & Deep, which is TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Published:
    """Hold the number of parameters that is published of a network (None: none is), and where."""

    parameters: int | None
    source: str


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "jasper": Published(333_000_000, "arXiv 1904.03288, table 5: Jasper DR 10x5, 333 M"),
        "nnunet": Published(
            31_200_000,
            "arXiv 1904.08128 and its plans for BraTS: about 31.2 M for six levels of 32 to 320 channels",
        ),
        "tft_electricity": Published(None, "none published"),
        "tft_traffic": Published(None, "none published"),
    }
)

# The Temporal Fusion Transformer: 128 hidden units, 4 heads, a week of hours before and a day after.
_HIDDEN = 128
_HEADS = 4
_STEPS = 192
_PAST = 168
_KNOWN = 3
_QUANTILES = 3
SERIES = MappingProxyType({"tft_electricity": 369, "tft_traffic": 963})
"""How many series each data set has: the rows of the one static embedding, all that differs between the two."""


class GatedUnit(nn.Module):
    """Halve twice as many outputs by their gate."""

    def __init__(self, size: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        return functional.glu(self.linear(x))


class GatedResidual(nn.Module):
    """Apply two layers, a gate, a residual and a LayerNorm (TFT's GRN)."""

    def __init__(self, size: int, outputs: int | None = None, context: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(size, _HIDDEN)
        self.context = nn.Linear(_HIDDEN, _HIDDEN, bias=False) if context else None
        self.second = nn.Linear(_HIDDEN, _HIDDEN)
        self.gate = GatedUnit(_HIDDEN, outputs or _HIDDEN)
        self.shortcut = nn.Linear(size, outputs) if outputs else None
        self.norm: nn.Module = nn.LayerNorm(outputs or _HIDDEN, eps=1e-3)
        if outputs == 1:
            self.norm = nn.Identity()

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        y = self.first(x)
        if context is not None and self.context is not None:
            y = y + self.context(context).unsqueeze(1)
        y = self.gate(self.second(functional.elu(y)))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return self.norm(y + x)


class VariableSelection(nn.Module):
    """Weigh the embedded variables (batch, steps, variables, hidden) into one."""

    def __init__(self, variables: int, context: bool) -> None:
        super().__init__()
        self.joint = GatedResidual(_HIDDEN * variables, outputs=variables, context=context)
        self.each = nn.ModuleList(GatedResidual(_HIDDEN) for _ in range(variables))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        weights = functional.softmax(self.joint(x.flatten(-2), context), dim=-1)
        parts = [unit(x[..., i, :]) for i, unit in enumerate(self.each)]
        return torch.matmul(torch.stack(parts, dim=-1), weights.unsqueeze(-1)).squeeze(-1)


class SharedValueAttention(nn.Module):
    """Attend with one value for all heads, whose results are averaged; later steps are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.size = _HIDDEN // _HEADS
        self.linear = nn.Linear(_HIDDEN, (2 * _HEADS + 1) * self.size, bias=False)
        self.out = nn.Linear(self.size, _HIDDEN, bias=False)
        later = torch.triu(torch.full((_STEPS, _STEPS), float("-inf")), 1)
        self.register_buffer("mask", later.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        wide = _HEADS * self.size
        query, key, value = self.linear(x).split((wide, wide, self.size), dim=-1)
        query = query.view(-1, _STEPS, _HEADS, self.size).permute(0, 2, 1, 3)
        key = key.view(-1, _STEPS, _HEADS, self.size).permute(0, 2, 3, 1)
        scores = torch.matmul(query, key) * self.size**-0.5 + self.mask
        mixed = torch.matmul(functional.softmax(scores, dim=3), value.unsqueeze(1))
        return self.out(torch.mean(mixed, dim=1))


class FusionTransformer(nn.Module):
    """Forecast three quantiles of a day's hours from the week before."""

    def __init__(self, series: int) -> None:
        super().__init__()
        self.static = nn.Embedding(series, _HIDDEN)
        self.known = nn.Parameter(torch.rand(_KNOWN, _HIDDEN))
        self.known_bias = nn.Parameter(torch.zeros(_KNOWN, _HIDDEN))
        self.target = nn.Parameter(torch.rand(1, _HIDDEN))
        self.target_bias = nn.Parameter(torch.zeros(1, _HIDDEN))
        self.static_choice = VariableSelection(1, context=False)
        self.contexts = nn.ModuleList(GatedResidual(_HIDDEN) for _ in range(4))
        self.past_choice = VariableSelection(_KNOWN + 1, context=True)
        self.past = nn.LSTM(_HIDDEN, _HIDDEN, batch_first=True)
        self.future_choice = VariableSelection(_KNOWN, context=True)
        self.future = nn.LSTM(_HIDDEN, _HIDDEN, batch_first=True)
        self.gate = GatedUnit(_HIDDEN, _HIDDEN)
        self.norm = nn.LayerNorm(_HIDDEN, eps=1e-3)
        self.enrichment = GatedResidual(_HIDDEN, context=True)
        self.attention = SharedValueAttention()
        self.attention_gate = GatedUnit(_HIDDEN, _HIDDEN)
        self.attention_norm = nn.LayerNorm(_HIDDEN, eps=1e-3)
        self.positionwise = GatedResidual(_HIDDEN)
        self.last_gate = GatedUnit(_HIDDEN, _HIDDEN)
        self.last_norm = nn.LayerNorm(_HIDDEN, eps=1e-3)
        self.quantiles = nn.Linear(_HIDDEN, _QUANTILES)

    def forward(self, series: Tensor, known: Tensor, target: Tensor) -> Tensor:
        static = torch.stack([self.static(series[:, 0, 0])], dim=-2)
        known = torch.mul(known.unsqueeze(-1), self.known) + self.known_bias
        target = torch.mul(target.unsqueeze(-1), self.target) + self.target_bias
        chosen = self.static_choice(static)
        choice, enrichment, hidden, cell = [unit(chosen) for unit in self.contexts]
        past = torch.cat([known[:, :_PAST], target[:, :_PAST]], dim=-2)
        past = self.past_choice(past, choice)
        history, state = self.past(past, (hidden.unsqueeze(0), cell.unsqueeze(0)))
        future = self.future_choice(known[:, _PAST:], choice)
        outlook, _ = self.future(future, state)
        x = self.gate(torch.cat([history, outlook], dim=1))
        steps = self.norm(x + torch.cat([past, future], dim=1))
        enriched = self.enrichment(steps, enrichment)
        # Quantiles of the past are not calculated.
        x = self.attention(enriched)[:, _PAST:]
        x = self.attention_norm(self.attention_gate(x) + enriched[:, _PAST:])
        x = self.last_norm(self.last_gate(self.positionwise(x)) + steps[:, _PAST:])
        return self.quantiles(x)


# Jasper 10x5 with dense residuals: (channels, kernel) of five pairs of blocks of five layers each.
_JASPER = ((256, 11), (384, 13), (512, 17), (640, 21), (768, 25))
_MELS = 64
_LETTERS = 29


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel - 1) // 2
    conv = nn.Conv1d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm1d(outputs, eps=1e-3))


class DenseBlock(nn.Module):
    """Apply five layers; to the last one's result the projected inputs of this and all blocks before are added."""

    def __init__(self, before: list[int], outputs: int, kernel: int) -> None:
        super().__init__()
        sizes = [before[-1], *[outputs] * 5]
        self.layers = nn.ModuleList(_normed(sizes[i], outputs, kernel) for i in range(5))
        self.projections = nn.ModuleList(_normed(inputs, outputs, 1) for inputs in before)

    def forward(self, before: list[Tensor]) -> Tensor:
        x = before[-1]
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        x = self.layers[-1](x)
        for projection, earlier in zip(self.projections, before, strict=True):
            x = x + projection(earlier)
        return functional.relu(x)


class Jasper(nn.Module):
    """Return the letters' log probabilities for frames of 10 ms; masks of shorter recordings are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _normed(_MELS, 256, 11, stride=2)
        before = [256]
        blocks = []
        for channels, kernel in _JASPER:
            for _ in range(2):
                blocks.append(DenseBlock(list(before), channels, kernel))
                before.append(channels)
        self.blocks = nn.ModuleList(blocks)
        self.wide = _normed(768, 896, 29, dilation=2)
        self.last = _normed(896, 1024, 1)
        self.letters = nn.Conv1d(1024, _LETTERS, 1)

    def forward(self, mels: Tensor) -> Tensor:
        before = [functional.relu(self.first(mels))]
        for block in self.blocks:
            before.append(block(before))
        x = functional.relu(self.last(functional.relu(self.wide(before[-1]))))
        return functional.log_softmax(self.letters(x).transpose(1, 2), dim=-1)


_LEVELS = (32, 64, 128, 256, 320, 320)
_SCANS = 4
_CLASSES = 4


class ConvPair(nn.Module):
    """Apply two 3x3x3 convolutions, each with InstanceNorm and leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size, step in ((inputs, stride), (outputs, 1)):
            layers.append(nn.Conv3d(size, outputs, 3, step, 1, bias=False))
            layers.append(nn.InstanceNorm3d(outputs, affine=True))
            layers.append(nn.LeakyReLU(0.01))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UpLevel(nn.Module):
    """Double the resolution and join what the way down left."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose3d(inputs, outputs, 2, 2, bias=False)
        self.pair = ConvPair(2 * outputs, outputs, 1)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        return self.pair(torch.cat([self.up(x), skipped], dim=1))


class SegmentationNet(nn.Module):
    """Segment scans of the brain in three dimensions (nnU-Net); answers of lower levels serve training alone."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (_SCANS, *_LEVELS)
        pairs = []
        for level in range(len(_LEVELS)):
            pairs.append(ConvPair(sizes[level], sizes[level + 1], 1 if level == 0 else 2))
        self.down = nn.ModuleList(pairs)
        self.up = nn.ModuleList(UpLevel(_LEVELS[i], _LEVELS[i - 1]) for i in range(len(_LEVELS) - 1, 0, -1))
        self.answer = nn.Conv3d(_LEVELS[0], _CLASSES, 1)

    def forward(self, scans: Tensor) -> Tensor:
        skipped = [scans]
        for pair in self.down:
            skipped.append(pair(skipped[-1]))
        x = skipped.pop()
        for level in self.up:
            x = level(x, skipped.pop())
        return self.answer(x)


@dataclass(frozen=True)
class Network:
    """Hold how a network is made, its inputs for two samples and the names of their dimensions."""

    build: Callable[[], nn.Module]
    inputs: Mapping[str, Tensor]
    axes: Mapping[int, str]


def networks() -> dict[str, Network]:
    """Return all networks by the name of their file."""
    scans = {"scans": torch.rand(2, _SCANS, 128, 128, 128)}
    found = {
        "jasper": Network(Jasper, {"mels": torch.rand(2, _MELS, 202)}, {0: "N", 2: "T"}),
        "nnunet": Network(SegmentationNet, scans, {0: "N"}),
    }
    for name, series in SERIES.items():
        inputs = {
            "series": torch.zeros(2, _STEPS, 1, dtype=torch.long),
            "known": torch.rand(2, _STEPS, _KNOWN),
            "target": torch.rand(2, _STEPS, 1),
        }
        found[name] = Network(lambda series=series: FusionTransformer(series), inputs, {0: "N"})
    return found
