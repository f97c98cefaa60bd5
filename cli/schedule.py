"""``gkest schedule``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gkestimator.cli.group import DescribedCommand, gkest_command, section
from gkestimator.cli.outputs import deliver, say, write_beside
from gkestimator.cli.parameters import PATH, SEED, Names, Paths, form_option, gpu_spec_option, quick_option
from gkestimator.cli.progress import Progress

if TYPE_CHECKING:
    from gkestimator.core.records import NamedValues

_BATCHINGS = ("early", "late")
_CREQ = ("sm-util-mean", "occupancy-max", "occupancy-mean")


class _WithPolicies(DescribedCommand):
    """Help that ends with the policies there are; none is imported for it."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The policies, third parties' too, with a line each."""
        from gkestimator.placement.registry import policy_summaries

        with formatter.section("Policies"):
            formatter.write_dl(list(policy_summaries().items()))
        super().format_epilog(ctx, formatter)


@gkest_command(
    "schedule",
    "gkest schedule table.csv --workload workload.yaml --cluster cluster.yaml -o plan.json",
    'gkest schedule table.csv --quick "resnet50:50rps@100ms" --cluster cluster.yaml',
    cls=_WithPolicies,
)
@click.argument("tables", nargs=-1, required=True, type=PATH, metavar="TABLE...")
@section("What to ask")
@click.option("--workload", type=PATH, help="Models, rates and objectives (YAML).")
@quick_option("without a file")
@click.option("--cluster", required=True, type=PATH, help="GPUs that are there or may be rented (YAML).")
@section("Policy")
@click.option("--policy", default="gkest", show_default=True, help="Who places; the policies stand below.")
@click.option(
    "--objective",
    type=click.Choice(["goodput", "cost"]),
    help="Default: cost where GPUs are rented, else goodput.",
)
@click.option(
    "--creq", type=click.Choice(_CREQ), help="Measure of compute to pack by; default: the policy's."
)
@click.option(
    "--batching",
    type=click.Choice(_BATCHINGS),
    default="early",
    show_default=True,
    help="How the plan's servers form batches: filled at the router, or of what waits once the GPU is free.",
)
@click.option("--coefficients", type=PATH, help="Coefficients of the policy's interference model.")
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
@section("What to ask")
@click.option("--runtime", help="Keep the rows of this runtime.")
@click.option("--dtype", help="Keep the rows of this dtype.")
@click.option("--dims", help="Keep the rows of these dimensions, as the table writes them.")
@gpu_spec_option
@click.option("--allow-unserved", is_flag=True, help="Leave out models that no GPU here can serve.")
@click.option("--seed", type=SEED, default=0, show_default=True)
@section("Output")
@form_option("table", "csv", "json")
@click.option("--plot", type=PATH, help="Picture of the packing: .png, .svg or .pdf.")
@click.option("-o", "--output", type=PATH, help="File to write the plan to, wholly or not at all.")
def command(
    tables: Paths,
    workload: Path | None,
    quick: Names,
    cluster: Path,
    form: str | None,
    plot: Path | None,
    output: Path | None,
    **options: Any,
) -> int:
    """Place the models of a workload on GPUs by what TABLE says they need.

    TABLE is a requirement table (CSV, JSON, Parquet), estimated or measured. The plan goes to stdout, or with -o to the
    file alone; `gkest export` takes its JSON. A model that the GPUs have no room for is part of the answer; one that no
    GPU here could serve in time is refused unless --allow-unserved. Exit status: 0 done, 1 with --allow-unserved and
    such models or where only the picture could not be written, 2 the command or a file was wrong.
    """
    from gkestimator.core.outputs import by_suffix, refuse_overwriting
    from gkestimator.placement.picture import PICTURE_SUFFIXES, check_drawable, draw
    from gkestimator.placement.registry import policy_options
    from gkestimator.placement.report import PLAN_SUFFIXES, plan_words, render_plan
    from gkestimator.placement.scheduling import UnservableError, schedule

    asked = _asked(workload, quick)
    read = (*tables, cluster, *options["gpu_specs"], *filter(None, [workload, options["coefficients"]]))
    # Before minutes of placement, not after.
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
            result = schedule(tables, asked, cluster, options=chosen, progress=progress, **options)
    except UnservableError as e:
        say([f"{line} (--allow-unserved places the others)" for line in e.lines], "error")
        return e.exit_code
    data = render_plan(result.plan, form)
    if plot is None:
        picture = None
    else:
        picture = draw(result.plan, by_suffix("--plot", plot, PICTURE_SUFFIXES))
    deliver(data, output)
    drawn = write_beside("--plot", plot, lambda: picture or b"")
    if form == "csv" or output is not None:
        say(result.plan.notes, "note")
    say(plan_words(result.plan, result.problem))
    if result.unservable or not drawn:
        return 1
    return 0


def _asked(workload: Path | None, quick: Names) -> Path | NamedValues:
    from gkestimator.core.errors import UsageError
    from gkestimator.documents.workload import quick_workload

    if (workload is None) == (not quick):
        raise UsageError("expected either --workload FILE or --quick MODEL:RATErps@SLOms")
    return workload or quick_workload(quick).document()
