"""``gkest diff``."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import deliver, say
from gkestimator.cli.parameters import PATH, form_option, options_from
from gkestimator.cli.progress import Progress
from gkestimator.estimation.request import ChangeLimits, EstimateRequest

# A status of its own: a pipeline tells "too slow" from "could not be estimated".
OVER_A_LIMIT = 3
_NOT_OFFERED = ("slo_ms", "max_batch", "sm_shares")


@gkest_command(
    "diff",
    "gkest diff models/resnet50.onnx models/mobilenet_v2.onnx --gpu L4",
    "gkest diff yesterday.csv table.csv --max-latency-pct 5 --format markdown",
)
@click.argument("before", type=PATH, metavar="OLD")
@click.argument("after", type=PATH, metavar="NEW")
@section("Limits")
@options_from(ChangeLimits)
@section("How it runs")
@options_from(EstimateRequest, but=_NOT_OFFERED)
@section("Output")
@form_option("table", "json", "markdown")
@click.option("-o", "--output", type=PATH, help="File to write to, wholly or not at all.")
def command(
    before: Path,
    after: Path,
    max_latency_pct: float | None,
    max_memory_pct: float | None,
    max_flops_pct: float | None,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> int:
    """Say what changed between two models, or two saved tables: latency, memory, FLOPs, kernels.

    OLD and NEW are ONNX files, estimated under the same options, or requirement tables (.csv, .json, .parquet). The
    interval of a change counts only kernels that differ. Exit status: 0 done, 2 the command or a file was wrong, 3 a
    limit is passed, or whether it is cannot be known.
    """
    from gkestimator.core.errors import UsageError
    from gkestimator.core.outputs import by_suffix, refuse_overwriting
    from gkestimator.estimation.changes import are_tables, compare_files
    from gkestimator.estimation.changes_report import (
        CHANGE_SUFFIXES,
        all_breaches,
        change_words,
        render_changes,
    )

    refuse_overwriting({"-o": output}, [before, after, *options["gpu_specs"], *options["plugins"]])
    form = form or ("table" if output is None else by_suffix("-o", output, CHANGE_SUFFIXES))
    if are_tables(before, after):
        flag = _first_flag(options)
        if flag is not None:
            raise UsageError(f"{flag} is for models: {before} and {after} are tables")
    elif not options["gpus"]:
        raise UsageError("no GPU is named: expected --gpu NAME (gkest gpus lists the names)")
    limits = ChangeLimits(
        max_latency_pct=max_latency_pct, max_memory_pct=max_memory_pct, max_flops_pct=max_flops_pct
    )
    with Progress() as progress:
        comparison = compare_files(before, after, progress=progress, **options)
    deliver(render_changes(comparison, limits, form), output)
    say(change_words(comparison, limits))
    return OVER_A_LIMIT if all_breaches(comparison, limits) else 0


def _first_flag(names: Container[str]) -> str | None:
    """Return the spelling of an option among ``names`` that was written on the command line; None: none was."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return parameter.opts[0]
    return None
