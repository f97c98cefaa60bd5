"""``gkest demo``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from gkestimator.cli.estimating import estimate_options
from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import say_written
from gkestimator.cli.parameters import PATH

# What people deploy: eager PyTorch, which `estimate` assumes, waits for its host at small batches.
_DEFAULTS = {"runtime": "onnxruntime"}


@gkest_command(
    "demo",
    "gkest demo",
    "gkest demo --dir . --gpu L4 --batch-size 1,8",
    context_settings={"default_map": _DEFAULTS},
)
@click.option("--dir", "folder", type=PATH, help="Keep the model in this folder.")
@estimate_options
def command(folder: Path | None, **options: Any) -> int:
    """Write ResNet-50 as an ONNX file and estimate it under ONNX Runtime.

    The graph is the real network, layer by layer; its weights are zeros, which no estimate reads. Without
    --dir the file is removed again; without --gpu and --batch-size a V100 and an H100 are asked for six batch
    sizes. --runtime torch asks about eager PyTorch.
    """
    from gkestimator.cli.estimating import run_estimate
    from gkestimator.onnx_io.demo import write_resnet50

    options["gpus"] = options["gpus"] or ("V100", "H100")
    options["batch_sizes"] = options["batch_sizes"] or (1, 4, 8, 16, 32, 64)
    with tempfile.TemporaryDirectory(prefix="gkest-demo-") as scratch:
        path = write_resnet50(folder or Path(scratch))
        if folder is not None:
            say_written(path)
        return run_estimate((path,), (), **options)
