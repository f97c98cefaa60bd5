"""``gkest demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gkestimator.cli.estimating import estimate_options
from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import say, say_written
from gkestimator.cli.parameters import PATH
from gkestimator.core.errors import UsageError
from gkestimator.core.leftovers import scratch_folder

# What people deploy: eager PyTorch, which `estimate` assumes, waits for its host at small batches.
_DEFAULTS = {"runtime": "onnxruntime"}


@gkest_command(
    "demo",
    "gkest demo --gpu L4 --batch-size 1,8",
    "gkest demo --all try",
    context_settings={"default_map": _DEFAULTS},
)
@click.option(
    "--all", "everything", type=PATH, metavar="DIR", help="Write a folder to try every command with, no more."
)
@click.option("--dir", "folder", type=PATH, help="Keep the model in this folder.")
@estimate_options
def command(everything: Path | None, folder: Path | None, **options: Any) -> int:
    """Write ResNet-50 as an ONNX file and estimate it under ONNX Runtime.

    The graph is the real network, layer by layer; its weights are zeros, which no estimate reads. Without
    --dir the file is removed again; without --gpu and --batch-size a V100 and an H100 are asked for six batch
    sizes. --runtime torch asks about eager PyTorch.

    --all DIR estimates nothing. It writes three models (ResNet-50, MobileNetV2, MiniLM), a language model's sizes,
    a workload, a cluster and made-up measurements; a file that is there with another content is never replaced.
    """
    if everything is not None:
        return _write_everything(everything)
    from gkestimator.cli.estimating import run_estimate
    from gkestimator.onnx_io.demo import write_resnet50

    options["gpus"] = options["gpus"] or ("V100", "H100")
    options["batch_sizes"] = options["batch_sizes"] or (1, 4, 8, 16, 32, 64)
    with scratch_folder("gkest-demo") as scratch:
        path = write_resnet50(folder or scratch)
        if folder is not None:
            say_written(path)
        return run_estimate((path,), (), **options)


def _write_everything(folder: Path) -> int:
    """Write the folder, say which files are new, and return the exit status."""
    ctx = click.get_current_context()
    asked = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if asked != ["everything"]:
        raise UsageError("--all DIR only writes files: expected no other option")
    from gkestimator.library.schemas.demo_folder import write_demo_folder

    written = write_demo_folder(folder)
    if written:
        say_written(*written)
    else:
        say([f"{folder}: every file is there already"], "note")
    return 0
