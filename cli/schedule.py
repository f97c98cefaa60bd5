"""``gkest schedule``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gkestimator.cli.group import debug_option
from gkestimator.cli.progress import Progress
from gkestimator.errors import GkestimatorError

__all__ = ["command"]

_PATH = click.Path(path_type=Path)
_CREQ = ("sm-util-mean", "occupancy-max", "occupancy-mean")


class _WithPolicies(click.Command):
    """Help that ends with the policies there are; none is imported for it."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The policies, third parties' too, with a line each."""
        from gkestimator.placement.registry import policy_summaries

        with formatter.section("Policies"):
            formatter.write_dl(list(policy_summaries().items()))


@click.command(name="schedule", cls=_WithPolicies)
@click.argument("tables", nargs=-1, required=True, type=_PATH, metavar="TABLE...")
@click.option("--workload", required=True, type=_PATH, help="Models, rates and objectives (YAML).")
@click.option("--cluster", required=True, type=_PATH, help="GPUs that are there or may be rented (YAML).")
@click.option("--policy", default="gkest", show_default=True, help="Who places; the policies stand below.")
@click.option(
    "--objective",
    type=click.Choice(["goodput", "cost"]),
    help="Default: cost where GPUs are rented, else goodput.",
)
@click.option(
    "--creq", type=click.Choice(_CREQ), help="Measure of compute to pack by; default: the policy's."
)
@click.option("--coefficients", type=_PATH, help="Coefficients of the policy's interference model.")
@click.option("--no-heavy", is_flag=True, help="usher: no interleaving of C-heavy and M-heavy models.")
@click.option("--no-division", is_flag=True, help="usher: all models in one group.")
@click.option("--no-sort", is_flag=True, help="usher: replicas in the order of the workload.")
@click.option(
    "--option",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other option of the policy; repeatable.",
)
@click.option("--runtime", help="Keep the rows of this runtime.")
@click.option("--dtype", help="Keep the rows of this dtype.")
@click.option("--dims", help="Keep the rows of these dimensions, as the table writes them.")
@click.option("--gpu-spec", "gpu_specs", type=_PATH, multiple=True, help="GPU file (TOML); repeatable.")
@click.option("--allow-unserved", is_flag=True, help="Leave out models that no GPU here can serve.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    help="Default: by suffix of -o, else table.",
)
@click.option("--plot", type=_PATH, help="Picture of the packing: .png, .svg or .pdf.")
@click.option("-o", "--output", type=_PATH, help="File to write the plan to, wholly or not at all.")
@debug_option
def command(
    tables: tuple[Path, ...], workload: Path, cluster: Path, form: str | None, plot: Path | None, output: Path | None,
    **options: Any,
) -> int:  # fmt: skip
    """Place the models of a workload on GPUs by what TABLE says they need.

    TABLE is a requirement table (CSV, JSON, Parquet), estimated or measured. The plan goes to stdout, or with -o to the
    file alone; `gkest export` takes its JSON. A model that the GPUs have no room for is part of the answer; one that no
    GPU here could serve in time is refused unless --allow-unserved. Exit status: 0 done, 1 with --allow-unserved and
    such models or where only the picture could not be written, 2 the command or a file was wrong.
    """
    from gkestimator.outputs import by_suffix, refuse_overwriting
    from gkestimator.placement.options import policy_options
    from gkestimator.placement.picture import PICTURE_SUFFIXES, check_drawable, draw
    from gkestimator.placement.report import PLAN_SUFFIXES, plan_words, render_plan
    from gkestimator.placement.scheduling import UnservableError, schedule
    from gkestimator.tables import write_bytes

    read = (*tables, workload, cluster, *options["gpu_specs"], *filter(None, [options["coefficients"]]))
    refuse_overwriting({"-o": output, "--plot": plot}, read)
    form = form or ("table" if output is None else by_suffix("-o", output, PLAN_SUFFIXES))
    if plot is not None:
        by_suffix("--plot", plot, PICTURE_SUFFIXES)
        check_drawable()
    flags = ("no_heavy", "no_division", "no_sort")
    given = {name: options.pop(name) or None for name in (*flags, "coefficients")}
    try:
        chosen = policy_options(options.pop("pairs"), given)
        with Progress() as progress:
            result = schedule(tables, workload, cluster, options=chosen, progress=progress, **options)
    except UnservableError as e:
        for line in e.lines:
            click.echo(f"gkest: error: {line} (--allow-unserved places the others)", err=True)
        return e.exit_code
    data = render_plan(result.plan, form)
    picture = None if plot is None else draw(result.plan, by_suffix("--plot", plot, PICTURE_SUFFIXES))
    if output is None:
        stream = sys.stdout.buffer  # bytes as they are: UTF-8 whatever the locale
        stream.write(data)
        stream.flush()
    else:
        write_bytes(output, data)
        click.echo(f"gkest: wrote {output}", err=True)
    partly = bool(result.unservable)
    if plot is not None and picture is not None:
        try:
            write_bytes(plot, picture)
        except GkestimatorError as e:  # the plan stands
            click.echo(f"gkest: error: --plot: {e}", err=True)
            partly = True
        else:
            click.echo(f"gkest: wrote {plot}", err=True)
    if form == "csv" or output is not None:
        for note in result.plan.notes:
            click.echo(f"gkest: note: {note}", err=True)
    for line in plan_words(result.plan, result.problem):
        click.echo(line, err=True)
    return 1 if partly else 0
