"""``gkest profile run``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gkestimator.cli.group import DescribedCommand, gkest_command, section
from gkestimator.cli.outputs import say, tell
from gkestimator.cli.parameters import PATH, Names, names_option
from gkestimator.cli.progress import Progress
from gkestimator.hardware.runtimes import RUNTIMES


class _WithCollectors(DescribedCommand):
    """Show help that ends with the collectors there are."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line on each collector, third parties' too."""
        from gkestimator.profiling.collectors.registry import collector_summaries

        with formatter.section("Collectors"):
            formatter.write_dl(list(collector_summaries().items()))
        super().format_epilog(ctx, formatter)


@gkest_command(
    "run",
    "gkest profile run small.json --device cpu --collector none -o raw-cpu",
    "gkest profile run sweep.json --minutes 10 -o raw",
    cls=_WithCollectors,
)
@click.argument("plan", type=PATH, metavar="PLAN.json")
@click.option("-o", "--output", "raw", required=True, type=PATH, help="Folder for raw measurements.")
@section("How it runs")
@click.option(
    "--executor",
    type=click.Choice(sorted(RUNTIMES)),
    help="What runs operators and models; default: the plan's runtime.",
)
@click.option(
    "--collector",
    default="auto",
    show_default=True,
    help="What records the launches; the collectors stand below.",
)
@names_option(
    "--device", "devices", "cpu, cuda:N or all; default: the first GPU, the CPU where there is none."
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="This machine, or a Ray cluster (extra 'ray').",
)
@names_option(
    "--gpu-type",
    "gpu_types",
    "With --engine ray: GPU types to measure; default: all that the cluster offers.",
)
@click.option(
    "--repeats", type=click.IntRange(1, 10_000), help="Calls per operator or model; default: by its time."
)
@click.option("--warmup", type=click.IntRange(1, 10_000), help="Calls before those that count.")
@click.option("--minutes", type=float, help="Stop in time; the same command goes on later.")
@click.option(
    "--chunk-seconds", type=float, default=20.0, show_default=True, help="About how long a process measures."
)
@click.option(
    "--entry-timeout",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds that one operator may take; a whole model 3 times what the plan expects, if that is longer.",
)
@click.option(
    "--retries", type=int, default=2, show_default=True, help="How often a noisy entry is repeated."
)
@click.option(
    "--counters/--no-counters", default=True, show_default=True, help="Hardware counters under ncu."
)
@click.option("--retry-failed", is_flag=True, help="Measure again what earlier runs recorded as failed.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the data.")
def command(plan: Path, raw: Path, devices: Names, entry_timeout: float, **options: object) -> int:
    """Work a plan off under a profiler; resumes what was cut off.

    Operators run in processes that can be killed, a chunk of them at a time; RAW holds what was recorded. Whole models
    come first: their latency and memory without a profiler, then their launches. The same command again measures what
    is left. Exit status: 0 all measured, skipped with a reason, or the minutes are over;
    1 some failed, or it had to stop; 2 nothing could be done.
    """
    from gkestimator.profiling.plan import read_plan
    from gkestimator.profiling.running import Limits, RunOptions, run_plan

    wanted = RunOptions(
        devices=devices,
        limits=Limits(entry_s=entry_timeout),
        command=" ".join(sys.argv)[:2000],
        **options,  # type: ignore[arg-type]
    )
    with Progress() as progress:
        report = run_plan(read_plan(plan), raw, wanted, progress=progress)
    for part in report.parts or (report,):
        tell(part.summary())
        say(part.problems, "warning")
        say((*part.messages, *part.words()))
    return report.exit_code
