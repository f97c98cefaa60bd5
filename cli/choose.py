"""``gkest choose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import deliver, say
from gkestimator.cli.parameters import PATH, form_option, options_from
from gkestimator.cli.progress import Progress
from gkestimator.core.escaping import utf8
from gkestimator.estimation.request import ChooseOptions, DimOptions, EstimateRequest

if TYPE_CHECKING:
    from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec
    from gkestimator.tables import Requirement


@gkest_command(
    "choose",
    "gkest choose models/resnet50.onnx --slo-ms 20 --rate 500",
    "gkest choose models/resnet50.onnx --slo-ms 20 --rate 500 --gpu T4,L4 --all",
)
@click.argument("model", type=PATH, metavar="MODEL.onnx")
@options_from(ChooseOptions)
@options_from(DimOptions)
@section("How it runs")
@options_from(EstimateRequest, but=("slo_ms", "max_batch", "sm_shares", "dims"))
@section("Output")
@click.option("--all", "everything", is_flag=True, help="List GPUs that cannot hold the load too.")
@form_option("table", "csv", "json")
@click.option("-o", "--output", type=PATH, help="File to write to, wholly or not at all.")
def command(
    model: Path,
    slo_ms: float | None,
    rate_rps: float | None,
    everything: bool,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> int:
    """Say which GPU carries a load within an objective for the least money, and how sure that is.

    All GPUs are asked unless --gpu names some. A GPU counts as sure where the load is carried even if every batch takes
    as long as the slow end of its interval says. Prices are those of the GPU files, with their month. Exit status: 0
    done, 1 where no GPU holds, 2 the command or a file was wrong.
    """
    from gkestimator.core.errors import UsageError
    from gkestimator.core.outputs import by_suffix, refuse_overwriting
    from gkestimator.hardware.gpus import ALL_GPUS, gpu_catalogue
    from gkestimator.placement.choosing import BATCH_SIZES, choose
    from gkestimator.placement.choosing_report import CHOICE_SUFFIXES, choice_words, render_choices
    from gkestimator.tables.requirement import cpu_lines

    if slo_ms is None or rate_rps is None:
        raise UsageError("the load is not said: expected --slo-ms and --rate")
    refuse_overwriting({"-o": output}, [model, *options["gpu_specs"]])
    form = form or ("table" if output is None else by_suffix("-o", output, CHOICE_SUFFIXES))
    catalogue = gpu_catalogue(options["gpu_specs"])
    asked = catalogue.expanded(options.pop("gpus") or (ALL_GPUS,))
    names = tuple(dict.fromkeys(catalogue.canonical(name) for name in asked))
    options["batch_sizes"] = options["batch_sizes"] or BATCH_SIZES
    rows, specs, reasons = _estimated(model, names, catalogue, options)
    choices = choose(rows, specs, rate_rps=rate_rps, slo_ms=slo_ms, reasons=reasons)
    holding = [choice for choice in choices if choice.gpus is not None]
    alone = cpu_lines(rows)
    if alone:
        if form == "table":
            deliver(utf8(f"{alone[0]}\n"), output)
        else:
            deliver(render_choices(choices, form), output)
            say(alone, "note")
        return 0
    shown = choices if everything or form != "table" or not holding else holding
    deliver(render_choices(shown, form), output)
    say(choice_words(choices, rate_rps=rate_rps, slo_ms=slo_ms))
    return 0 if holding else 1


def _estimated(
    model: Path, names: tuple[str, ...], catalogue: GpuCatalogue, options: dict[str, Any]
) -> tuple[list[Requirement], list[GpuSpec], dict[str, str]]:
    """Return the rows of every GPU that can be estimated, their figures, and why the others cannot."""
    from gkestimator.core.errors import UsageError
    from gkestimator.estimation import estimate_rows

    rows: list[Requirement] = []
    specs: list[GpuSpec] = []
    reasons: dict[str, str] = {}
    with Progress() as progress:
        for done, name in enumerate(names):
            progress(name, done, len(names))
            try:
                specs.append(catalogue.spec(name))
                result = estimate_rows([model], gpus=(name,), **options)
            except UsageError as e:  # a figure of this GPU is unknown
                reasons[name] = str(e)
                continue
            for _, error in result.failures:
                raise error
            rows += result.rows
    return rows, specs, reasons
