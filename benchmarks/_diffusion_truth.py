"""Read ONNX Runtime's published times of Stable Diffusion 1.5 by runtime, and say which graphs an image takes.

An image of 512 x 512 is one run of the text encoder and 50 of the U-Net, both at twice the batch (for the guidance
without a prompt), and the VAE's decoder image by image. A row is the newest of its runtime; rows of other programs
(xFormers, torch.compile, ROCm) and of CUDA graphs are left out. The T4 of the table ran at 990 MHz.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from _triton_truth import Measured

MODEL = "stable_diffusion_1_5"
_STEPS = 50
_LATENTS = {"H": 64, "W": 64}
_RUNTIMES = {
    ("onnxruntime", "cuda"): "onnxruntime",
    ("onnxruntime", "tensorrt"): "onnxruntime_tensorrt",
    ("tensorrt", "default"): "tensorrt",
    ("torch", "default"): "torch",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """Hold one graph of a pipeline: how often it runs, at which batch, and what other dimensions it leaves open."""

    path: Path
    batch: int
    runs: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)


def diffusion_rows(table: pd.DataFrame) -> Iterator[Measured]:
    """Yield the rows of ``onnxruntime_readme`` that hold a whole image, the newest version of each runtime."""
    whole = table[table.table == "Stable Diffusion README"].sort_values("version")
    for (gpu, engine, provider, batch), rows in whole.groupby(["gpu", "engine", "provider", "batch"]):
        runtime = _RUNTIMES.get((engine, provider))
        if runtime is None or gpu.startswith("MI"):
            continue
        newest = rows.iloc[-1]
        if pd.isna(newest.latency_ms):
            continue
        yield Measured(
            gpu=str(gpu),
            model=MODEL,
            runtime=runtime,
            precision=str(newest.precision),
            batch=int(batch),
            frames=0,
            ms=float(newest.latency_ms),
            output_ms=0.0,
            client=False,
            container=str(newest.version),
        )


def diffusion_parts(folder: Path, runtime: str, batch: int) -> list[Part]:
    """Return what makes ``batch`` images: files as ONNX Runtime's optimiser wrote them, or as torch exported them."""
    form = "onnx" if runtime == "onnxruntime" else "plain.onnx"
    return [
        Part(path=folder / f"sd_text.{form}", batch=2 * batch),
        Part(path=folder / f"sd_unet.{form}", batch=2 * batch, runs=_STEPS, dims=_LATENTS),
        Part(path=folder / f"sd_vae.{form}", batch=1, runs=batch, dims=_LATENTS),
    ]
