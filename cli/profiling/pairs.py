"""``gkest profile pairs``."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import say, tell
from gkestimator.cli.parameters import PATH, ParamType, Paths, gpu_spec_option, safe_csv_option
from gkestimator.cli.progress import Progress
from gkestimator.hardware.runtimes import RUNTIMES


class _Shares(ParamType):
    """Read ``100:100,20:80``: percents of the SMs of the one and the other."""

    name = "X:Y,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[float, float], ...]:
        """Return the pairs of numbers; their range is checked with the other options."""
        if isinstance(value, tuple):
            return value
        pairs = []
        # The range of a percent is checked with the other options, for the library too.
        for item in value.split(","):
            try:
                first, second = map(float, item.split(":"))
            except ValueError:
                first = second = math.nan
            if not (math.isfinite(first) and math.isfinite(second)):
                self.fail(f"found {item.strip()[:40]!r}, expected two percents such as 20:80", param, ctx)
            pairs.append((first, second))
        return tuple(pairs)


@gkest_command(
    "pairs",
    "gkest profile pairs whole.json -o pairs.csv --minutes 2",
    "gkest profile pairs whole.json -o pairs.csv --device cuda:0 --shares 50:50,20:80",
)
@click.argument("plan", type=PATH, metavar="PLAN.json")
@click.option(
    "-o",
    "--output",
    required=True,
    type=PATH,
    help="The co-location table: a name ending in .parquet or .csv.",
)
@section("How it runs")
@click.option(
    "--executor",
    type=click.Choice(sorted(RUNTIMES)),
    help="What runs the models; default: the plan's runtime.",
)
@click.option("--device", help="cpu or cuda:N; default: the first GPU, the CPU where there is none.")
@section("What to ask")
@click.option(
    "--shares",
    type=_Shares(),
    help="Percents of the SMs, the one's and the other's; default: 100:100,50:50,20:80,80:20 under MPS, else 100:100.",
)
@click.option(
    "--minutes", type=float, default=4.0, show_default=True, help="Stop in time; the same command goes on."
)
@click.option(
    "--seconds", type=float, default=1.5, show_default=True, help="How long a pair runs side by side."
)
@click.option("--pairs", type=click.IntRange(1), help="Pairs at most, each at every share; default: all.")
@click.option(
    "--mps",
    type=click.Choice(["auto", "off", "required"]),
    default="auto",
    show_default=True,
    help="NVIDIA's MPS, by a daemon of our own.",
)
@click.option(
    "--table",
    "tables",
    type=PATH,
    multiple=True,
    help="Requirement table of the models: fills what they ask for alone; repeatable, the first that knows it counts.",
)
@gpu_spec_option
@safe_csv_option
@click.option(
    "--entry-timeout",
    "entry_s",
    type=float,
    default=120.0,
    show_default=True,
    help="Seconds that preparing a model may take.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order and of the data.")
def command(plan: Path, output: Path, tables: Paths, gpu_specs: Paths, **options: Any) -> int:
    """Measure whole models side by side, two at a time; resumes what was cut off.

    PLAN.json is one that gkest profile plan --whole made. Each model of a pair runs in a process of its own, under MPS
    where it can be had, else by turns: column sharing says which. Beside the table a journal keeps every pair as it is
    measured. Exit status: 0 all measured, or the minutes are over; 1 some failed, or it had to stop; 2 nothing could be
    done.
    """
    from gkestimator.profiling.colocating.jobs import PairOptions
    from gkestimator.profiling.colocating.run import measure_pairs
    from gkestimator.profiling.plan import read_plan

    wanted = PairOptions(command=" ".join(sys.argv)[:2000], **options)
    with Progress() as progress:
        report = measure_pairs(
            read_plan(plan), output, wanted, tables=tables, gpu_specs=gpu_specs, progress=progress
        )
    tell(report.summary())
    say(report.problems, "warning")
    say((*report.messages, *report.words()))
    return report.exit_code
