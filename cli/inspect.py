"""``gkest inspect``."""

from __future__ import annotations

from typing import Any

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import say, tell
from gkestimator.cli.parameters import MODELS, Names, form_option, options_from
from gkestimator.estimation.request import DimOptions


@gkest_command(
    "inspect",
    "gkest inspect models/resnet50.onnx",
    "gkest inspect models/minilm.onnx --dim sequence=128 --format json",
)
@click.argument("models", nargs=-1, required=True, type=MODELS, metavar="MODEL.onnx...")
@options_from(DimOptions)
@form_option("table", "json")
def command(models: Names, form: str | None, dims: Any) -> int:
    """Say what is in a model file: inputs, dimensions, parameters, operators, work, and what to ask for next.

    No GPU is needed. MODEL is an ONNX file, a folder or a quoted pattern. Exit status: 0 done, 1 some files could
    not be read, 2 none could.
    """
    from gkestimator.core.errors import error_of_one
    from gkestimator.core.escaping import printable
    from gkestimator.core.naming import find_models
    from gkestimator.estimation.dimensions import DimensionsMet
    from gkestimator.estimation.inspection import inspect_model, inspection_json, inspection_lines
    from gkestimator.estimation.recall import ModelSource

    paths, failures = find_models(models)
    errors = [error for _, error in failures]
    inspections = []
    met = DimensionsMet([dims], len(paths))
    for path in paths:
        try:
            (own,) = met.combinations(ModelSource(path, path.stem))
            inspections.append((inspect_model(path, dims=own), path, own))
        except Exception as e:  # noqa: BLE001 - a defect that one model meets is called one, in its place
            errors.append(error_of_one(e))
    met.check()
    if form == "json":
        tell(inspection_json([inspection for inspection, *_ in inspections]))
    else:
        for inspection in inspections:
            for line in inspection_lines(*inspection):
                tell(printable(line))
    say(errors, "error")
    say(met.notes, "note")
    if not errors:
        return 0
    return 1 if inspections else 2
