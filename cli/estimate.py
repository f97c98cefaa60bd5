"""``gkest estimate``."""

from __future__ import annotations

from typing import Any

import click

from gkestimator.cli.estimating import estimate_options
from gkestimator.cli.group import gkest_command
from gkestimator.cli.parameters import MODELS, Names


@gkest_command(
    "estimate",
    "gkest estimate models/minilm.onnx --gpu ampere --dim sequence=64,128,512",
    "gkest estimate models --gpu T4,L4 --batch-size 1,8 --dim sequence=128 -o table.csv",
)
@click.argument("models", nargs=-1, required=True, type=MODELS, metavar="MODEL.onnx...")
@estimate_options
def command(models: Names, **options: Any) -> int:
    """Say what models need on GPUs: time, compute and memory, per model and per kernel.

    MODEL is an ONNX file, a folder (every *.onnx below it) or a quoted pattern. Weights are never read and
    may be absent. The table goes to stdout, everything else to stderr. Exit status: 0 done, 1 some inputs
    failed, 2 all did or the command was wrong.
    """
    from gkestimator.cli.estimating import run_estimate
    from gkestimator.core.naming import find_models

    paths, failures = find_models(models)
    return run_estimate(paths, failures, **options)
