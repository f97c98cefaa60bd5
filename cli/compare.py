"""``gkest compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import deliver, say, tell, write_beside
from gkestimator.cli.parameters import PATH, Paths, form_option, options_from
from gkestimator.core.errors import UsageError
from gkestimator.simulation.measured.options import AgainstOptions

_REAL = "Beside a real log"
_OF_FOLDER = ("engine", "processes")


@gkest_command(
    "compare",
    "gkest compare comparison.yaml -o results",
    "gkest compare plan.json --against real.csv --table table.csv --network network.toml",
)
@click.argument("spec", type=PATH, metavar="SPEC.yaml|PLAN.json")
@click.option("-o", "--output", type=PATH, help="Folder of the comparison; --against: file of the report.")
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Who computes."
)
@click.option(
    "--processes", type=click.IntRange(1, 1024), help="Processes of this machine; default: one for each core."
)
@section(_REAL)
@click.option("--against", type=PATH, help="Log of a real server; its requests are simulated by PLAN.json.")
@click.option(
    "--table", "tables", type=PATH, multiple=True, help="Requirement table by which replicas run; repeatable."
)
@options_from(AgainstOptions)
@form_option("table", "csv", "json")
@click.option("--plot", type=PATH, help="Picture of latencies, real and simulated: .png, .svg or .pdf.")
def command(
    spec: Path,
    output: Path | None,
    engine: str,
    processes: int | None,
    against: Path | None,
    tables: Paths,
    form: str | None,
    plot: Path | None,
    **options: Any,
) -> int:
    """Compare placement policies in simulation, or a real server with the simulation of its requests.

    SPEC.yaml names tables, policies, workloads, clusters, arrivals and scales (docs/how-to/comparing.md); every
    combination is a cell, each plan is served in simulation. Cells that the folder holds already are not computed
    again. The table goes to stdout; with the pictures it is in the folder too (report.md, results.csv, results.json).

    With --against, PLAN.json is the plan that a server served: the requests of its log are simulated by that plan, and
    both are printed side by side. Exit status: 0 done, 1 where cells were refused or failed, or the picture could not
    be written, 2 the command or a file was wrong.
    """
    context = click.get_current_context()
    said = {
        name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    if against is not None:
        _refuse(said, _OF_FOLDER, "--against", "without")
        return _against_log(spec, output, against, tables, form, plot, options)
    _refuse(said, ("tables", "form", "plot", *options), "--against", "with")
    if output is None:
        raise UsageError("-o is missing, expected the folder of the comparison")
    return _comparison(spec, output, engine, processes)


def _refuse(said: set[str], names: tuple[str, ...], option: str, word: str) -> None:
    """Raise UsageError for an option that was said and has a use ``word`` (with, without) ``option`` alone."""
    flags = {"tables": "--table", "form": "--format", "gpu_specs": "--gpu-spec"}
    for name in names:
        if name in said:
            flag = flags.get(name, "--" + name.replace("_", "-"))
            raise UsageError(f"{flag} has a use {word} {option} alone")


def _comparison(spec: Path, output: Path, engine: str, processes: int | None) -> int:
    from gkestimator.cli.progress import Progress
    from gkestimator.profiling.host import usable_cores
    from gkestimator.simulation.comparing.report import write_report
    from gkestimator.simulation.comparing.run import run_comparison
    from gkestimator.simulation.comparing.spec import read_spec

    # A wrong cell is refused before any is computed.
    asked = read_spec(spec)
    with Progress() as progress:
        results = run_comparison(
            asked,
            output,
            engine=engine,
            processes=processes or usable_cores(),
            progress=progress,
        )
    report = write_report(asked, results, output)
    tell(report.text)
    say(report.words)
    return 0 if report.whole else 1


def _against_log(
    plan: Path,
    output: Path | None,
    log: Path,
    tables: Paths,
    form: str | None,
    plot: Path | None,
    options: dict[str, Any],
) -> int:
    from gkestimator.cli.progress import Progress
    from gkestimator.core.outputs import refuse_overwriting
    from gkestimator.simulation.measured.against import compare_with_log
    from gkestimator.simulation.measured.against_report import draw_against, render_against
    from gkestimator.simulation.output import forms

    if not tables:
        raise UsageError("--table is missing, expected the table by which the plan's replicas run")
    refuse_overwriting({"-o": output, "--plot": plot}, [plan, log, *tables])
    chosen = forms(form, output, plot, None)
    with Progress() as progress:
        report = compare_with_log(log, plan, tables, AgainstOptions(**options), progress=progress)
    deliver(render_against(report, chosen.report), output)
    drawn = write_beside("--plot", plot, lambda: draw_against(report, chosen.plot or "png"))
    if chosen.report == "csv" or output is not None:
        say(report.notes, "note")
    return 0 if drawn else 1
