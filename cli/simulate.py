"""``gkest simulate``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import deliver, say, write_beside
from gkestimator.cli.parameters import (
    PATH,
    Names,
    Paths,
    form_option,
    options_from,
    replan_options,
    replanning_asked,
)
from gkestimator.cli.progress import Progress
from gkestimator.core.errors import UsageError
from gkestimator.simulation.run_options import SimulateOptions

COMPILING = "gkest: note: compiling the simulator once, which may take a minute ..."

_WORDS = ("poisson", "mmpp", "constant", "none")


@gkest_command(
    "simulate",
    "gkest simulate plan.json --table table.csv -o served.json",
    "gkest simulate plan.json --table table.csv --arrivals mmpp --seed 1",
)
@click.argument("plan", type=PATH)
@section("What to ask")
@click.option(
    "--table",
    "tables",
    type=PATH,
    multiple=True,
    required=True,
    help="Requirement table by which replicas run; repeatable.",
)
@section("How it runs")
@options_from(SimulateOptions)
@replan_options
@section("Output")
@click.option("--requests", type=PATH, help="Write every request: .csv or .parquet.")
@form_option("table", "csv", "json")
@click.option("--plot", type=PATH, help="Picture of latencies and time: .png, .svg or .pdf.")
@click.option("-o", "--output", type=PATH, help="File to write the report to, wholly or not at all.")
def command(
    plan: Path,
    tables: Paths,
    requests: Path | None,
    replan: str,
    cluster: Path | None,
    policy: str | None,
    replan_pairs: Names,
    form: str | None,
    plot: Path | None,
    output: Path | None,
    **options: Any,
) -> int:
    """Serve the placement in PLAN (JSON of gkest schedule) under arrivals, without a cluster.

    Every request is followed from its arrival through router, network, queue and GPU to its answer. The report goes
    to stdout, or with -o to the file alone. One seed, one result. Exit status: 0 done, 1 where only the picture or the
    requests could not be written, 2 the command or a file was wrong.
    """
    from gkestimator.core.compiled import when_compiling
    from gkestimator.core.outputs import refuse_overwriting
    from gkestimator.simulation.output import forms, replanned_output, simulated_output
    from gkestimator.simulation.running import FileRun, replan_files, simulate_files

    read = [plan, *tables, *options["gpu_specs"], *filter(None, [options["coefficients"], cluster])]
    read += [Path(text) for text in (options["arrivals"], options["network"]) if text not in _WORDS]
    # Before the simulation, not after.
    refuse_overwriting({"-o": output, "--plot": plot, "--requests": requests}, read)
    chosen = forms(form, output, plot, requests)
    settings = replanning_asked(replan, replan_pairs, cluster=cluster, policy=policy)
    run = FileRun(keep_requests=requests is not None, **options)
    with when_compiling(partial(say, (COMPILING,))), Progress() as progress:
        if settings is None:
            made = simulated_output(simulate_files(plan, tables, run, progress=progress), chosen)
        else:
            if cluster is None:
                raise UsageError(f"--replan {replan}: --cluster is missing: the GPUs that the policy may use")
            made = replanned_output(
                replan_files(plan, tables, cluster, settings, run, policy=policy, progress=progress), chosen
            )
    deliver(made.data, output)
    drawn = write_beside("--plot", plot, made.plot)
    listed = write_beside("--requests", requests, made.requests)
    if chosen.report == "csv" or output is not None:
        say(made.notes, "note")
    say(made.words)
    return 0 if drawn and listed else 1
