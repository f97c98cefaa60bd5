"""Hold what the builders of outsiders' models share: their list, what is true of a model, and torch's two exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

CLASSIC = "torch.onnx (TorchScript)"
TODAY = "torch.onnx (torch.export)"
Builder = Callable[[Path], "Truth"]
BUILDERS: dict[str, Builder] = {}


@dataclass(frozen=True)
class Truth:
    """Hold what is known of a model apart from its file.

    ``batch``: the name of the batch dimension, its number where it is fixed, null where there is none. ``dims``: what
    an estimate must be told. ``flops``: of one inference at those dimensions and a batch of one; null: not counted.
    """

    exporter: str
    batch: str | int | None
    parameters: int | None = None
    flops: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)


def outsider(name: str) -> Callable[[Builder], Builder]:
    """Return a decorator that lists a function as the builder of the model ``name``."""

    def listed(builder: Builder) -> Builder:
        BUILDERS[name] = builder
        return builder

    return listed


def export(
    module: nn.Module,
    inputs: Sequence[Any],
    path: Path,
    *,
    exporter: str,
    names: Sequence[str],
    outputs: Sequence[str] = ("output",),
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    batch: str | int | None = "batch",
    dims: Mapping[str, int] | None = None,
    counted: Sequence[Any] | None = None,
    opset: int | None = None,
    shapes: Any = None,
) -> Truth:
    """Write ``module`` and return what is true of it.

    ``dynamic``: names of open dimensions by input and axis. ``counted``: inputs whose operations are counted, those
    of the export otherwise. ``shapes``: dynamic shapes in the form of torch.export, where inputs are nested.
    """
    module = module.eval()
    counter = FlopCounterMode(display=False)
    # The forms of attention that torch picks on a CPU are ones that its counter does not know.
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        module(*(inputs if counted is None else counted))
    truth = Truth(
        exporter=exporter,
        batch=batch,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        flops=counter.get_total_flops(),
        dims=dict(dims or {}),
    )
    axes = {name: dict(named) for name, named in (dynamic or {}).items()}
    common: dict[str, Any] = {
        "input_names": list(names),
        "output_names": list(outputs),
        "opset_version": opset,
    }
    with torch.no_grad():
        if exporter == CLASSIC:
            torch.onnx.export(module, tuple(inputs), str(path), dynamo=False, dynamic_axes=axes, **common)
        else:
            if shapes is None and axes:
                shapes = tuple(_shape_of(axes.get(name)) for name in names)
                if getattr(module, "packed", False):
                    shapes = (shapes,)
            torch.onnx.export(
                module, tuple(inputs), str(path), dynamo=True, dynamic_shapes=shapes, verbose=False, **common
            )
    return truth


def _shape_of(named: Mapping[int, str] | None) -> dict[int, str] | None:
    return dict(named) if named else None


def image(batch: int = 2, size: int = 224) -> torch.Tensor:
    """Return a batch of images."""
    return torch.rand(batch, 3, size, size)


BATCHED = {"input": {0: "batch"}}


def export_images(
    module: nn.Module, path: Path, *, exporter: str, size: int = 224, opset: int | None = None
) -> Truth:
    """Write a network that takes images of one size in batches of any."""
    return export(
        module,
        [image(size=size)],
        path,
        exporter=exporter,
        names=["input"],
        dynamic=BATCHED,
        counted=[image(1, size)],
        opset=opset,
    )
