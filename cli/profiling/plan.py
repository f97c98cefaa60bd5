"""``gkest profile plan``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import say, say_written
from gkestimator.cli.parameters import PATH, gpu_spec_option, names_option, options_from
from gkestimator.estimation.request import DimOptions, EstimateRequest

_LARGE = 20_000_000
"""Bytes of a plan that are worth telling."""


@gkest_command(
    "plan",
    "gkest profile plan --models models --dim sequence=128 --minutes 5 -o sweep.json",
    "gkest profile plan --cpu --runtime onnxruntime --entries 4 -o small.json",
)
@section("What to ask")
@click.option(
    "--models", "models", multiple=True, metavar="PATH", help="ONNX file, folder or pattern; repeatable."
)
@click.option(
    "--whole",
    is_flag=True,
    help="Each model as a whole, for its latency and memory, instead of its operators.",
)
@click.option(
    "--catalogue/--no-catalogue",
    default=None,
    help="Shapes of the built-in catalogue.  [default: yes; none with --whole]",
)
@click.option("--minutes", type=float, help="What the run may take.  [default: 10, or none with --entries]")
@click.option("--entries", type=int, help="At most this many entries.")
@section("How it runs")
@options_from(EstimateRequest, ("runtime",))
@click.option("--gpu", help="GPU type to be measured, where it is known (gkest gpus lists the names).")
@gpu_spec_option
@click.option("--cpu", is_flag=True, help="For a machine without a GPU, to try the chain: short calls, fp32.")
@options_from(EstimateRequest, ("bundles",))
@names_option(
    "--dtype",
    "dtypes",
    "fp32,tf32,fp16,bf16; default: all that the GPU has, fp32,fp16 with --whole.",
    none=None,
)
@options_from(EstimateRequest, ("batch_sizes",))
@options_from(DimOptions)
@click.option(
    "--counters", type=float, help="Share of entries to count under ncu.  [default: 0.15; none with --whole]"
)
@click.option("--repeats", type=int, help="What run will be given as --repeats; only says how long it takes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sampled shapes.")
@section("Output")
@click.option("--split", type=click.IntRange(1, 1000), help="Write this many plans, FILE-1ofN.json, ...")
@click.option("-o", "--output", required=True, type=PATH, help="File of the plan (JSON).")
def command(
    output: Path,
    split: int | None,
    whole: bool,
    catalogue: bool | None,
    counters: float | None,
    **options: Any,
) -> int:
    """Choose the operators, or whole models, to measure, and say how long it will take.

    The models' own operators come first, those that take most of their time at the head; then shapes of the built-in
    catalogue, spread over what makes kernels fast or slow. With --whole every model at every batch size is one entry,
    small ones and batch sizes 1, 8 and 32 first. The plan is JSON, one entry a line, most valuable first:
    read it, edit it (remove the id of an entry that you change), cut it, split it. Exit status: 0 done, 1 some models
    failed (the plan is of the rest and the catalogue), 2 nothing was left to plan or the command was wrong.
    """
    from gkestimator.cli.progress import Progress
    from gkestimator.core.errors import UsageError
    from gkestimator.profiling.plan import write_plans
    from gkestimator.profiling.sweep import PlanRequest, make_plan, make_whole_plan

    if whole and not options["models"]:
        raise UsageError("--whole plans models: name some with --models")
    for name, given in (("--catalogue", catalogue), ("--counters", counters)):
        if whole and given:
            raise UsageError(f"{name} is of operators: leave it out, or leave out --whole")
    # So that whoever finds the plan can make it again.
    made_by = shlex.join(["gkest", *sys.argv[1:]])[:500]
    request = PlanRequest(
        made_by=made_by,
        catalogue=not whole and catalogue is not False,
        counters=0.0 if whole else 0.15 if counters is None else counters,
        **options,
    )
    with Progress() as progress:
        planned = (make_whole_plan if whole else make_plan)(request, progress)
    read = (*options["models"], *options["gpu_specs"])
    written = write_plans(planned.plan, output, split, read=read)
    for path, error in planned.failures:
        text = str(error)
        say([text if path.name in text else f"{path}: {text}"], "error")
    say(planned.messages)
    for path in written:
        size = path.stat().st_size
        if size > _LARGE:
            megabytes = f" ({size / 1e6:.0f} MB)"
        else:
            megabytes = ""
        say_written(f"{path}{megabytes}")
    return 1 if planned.failures else 0
