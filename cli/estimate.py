"""``gkest estimate``."""

from __future__ import annotations

from typing import Any

import click

from gkestimator.cli.estimating import estimate_options
from gkestimator.cli.group import debug_option
from gkestimator.cli.parameters import Names


@click.command(name="estimate")
@click.argument("models", nargs=-1, required=True, metavar="MODEL.onnx...")
@estimate_options
@debug_option
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
