"""``gkest simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gkestimator.cli.group import debug_option
from gkestimator.cli.outputs import deliver, say, write_beside
from gkestimator.cli.parameters import PATH, SEED, form_option, gpu_spec_option
from gkestimator.cli.progress import Progress
from gkestimator.errors import UsageError

__all__ = ["COMPILING", "command"]

COMPILING = "gkest: note: compiling the simulator once, which may take a minute ..."

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic since click 8.5 only

_WORDS = ("poisson", "mmpp", "constant", "none")


class _Finite(click.FloatRange):
    """A range that NaN is outside of."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


class _Triple(_ParamType):
    """``3,0.2,2``: three numbers."""

    name = "X,X,X"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(float(item) for item in value.split(","))
        except ValueError:
            found = ()
        if len(found) != 3:
            self.fail(f"found {value[:60]!r}, expected three numbers separated by commas", param, ctx)
        return found


_ABOVE_0 = _Finite(min=0, min_open=True, max=1e9)
_FROM_0 = _Finite(min=0, max=1e9)


@click.command(name="simulate")
@click.argument("plan", type=PATH)
@click.option(
    "--table", "tables", type=PATH, multiple=True, required=True,
    help="Requirement table by which replicas run; repeatable.",
)  # fmt: skip
@click.option(
    "--arrivals",
    default="poisson",
    show_default=True,
    help="poisson, mmpp, constant, or the file of a trace.",
)
@click.option(
    "--bursts", type=_Triple(), metavar="FACTOR,SHARE,S",
    help="mmpp: bursts of S seconds at FACTOR times the rate, SHARE of the time.",
)  # fmt: skip
@click.option("--trace-format", help="Format of the trace; default: known by its columns.")
@click.option(
    "--streams", type=click.Choice(["auto", "names", "streams", "requests"]),
    help="How a trace's requests are dealt to models: by name, whole streams in turn, each in turn.",
)  # fmt: skip
@click.option(
    "--trace-rates", type=click.Choice(["plan", "trace"]), help="Scaled to the plan's, or as recorded."
)
@click.option("--trace-scaling", type=click.Choice(["copies", "time"]), help="How rates are scaled.")
@click.option("--trace-start-s", type=_FROM_0, help="Where in the trace to begin.")
@click.option("--trace-duration-s", type=_ABOVE_0, help="How much of the trace is used.")
@click.option("--trace-loop", is_flag=True, help="Begin the trace again at its end.")
@click.option("--duration-s", type=_ABOVE_0, help="Seconds of arrivals; default: 60, or all of a trace.")
@click.option("--warmup-s", type=_FROM_0, default=0.0, show_default=True, help="Seconds not counted.")
@click.option("--rate-scale", type=_ABOVE_0, default=1.0, show_default=True, help="Factor on all rates.")
@click.option("--max-wait-ms", type=_FROM_0, help="How long a batch may fill; default: the plan's.")
@click.option(
    "--network", default="none", show_default=True, help="none, or a file of delays by size (TOML)."
)
@click.option(
    "--service", type=click.Choice(["deterministic", "exponential", "interval"]), default="deterministic",
    show_default=True, help="interval: drawn once a model from the estimate's interval.",
)  # fmt: skip
@click.option(
    "--interference", type=click.Choice(["none", "gpulet", "igniter", "contention"]), default="contention",
    show_default=True, help="How replicas of one GPU slow each other.",
)  # fmt: skip
@click.option("--coefficients", type=PATH, help="Coefficients of the interference model.")
@click.option(
    "--copy", type=click.Choice(["none", "serial", "overlap"]), default="none", show_default=True,
    help="Moving inputs and outputs: not counted, before the batch, or beside other batches.",
)  # fmt: skip
@click.option(
    "--routing", type=click.Choice(["round-robin", "least-load"]), default="round-robin", show_default=True,
    help="Which replica takes the next batch.",
)  # fmt: skip
@click.option(
    "--drop", type=click.Choice(["none", "late"]), default="none", show_default=True,
    help="late: requests that cannot be on time any more are not served.",
)  # fmt: skip
@click.option(
    "--admission", type=click.Choice(["plan", "expected", "none"]), default="plan", show_default=True,
    help="What is let in: what the plan serves, what it expects to serve on time, or all.",
)  # fmt: skip
@click.option(
    "--replan", type=click.Choice(["none", "usher", "gpulet"]), default="none", show_default=True,
    help="The policy runs again: as rates move (usher), or every 20 s (gpulet).",
)  # fmt: skip
@click.option("--cluster", type=PATH, help="With --replan: the GPUs there are (YAML).")
@click.option("--policy", help="With --replan: who plans again; default: the plan's.")
@click.option(
    "--replan-option", "replan_pairs", multiple=True, metavar="NAME=VALUE",
    help="With --replan: headroom, threshold-rps, period-ms, load-ms, ...; repeatable.",
)  # fmt: skip
@click.option("--window-s", type=_ABOVE_0, help="Of the timeline; default: a 60th, at least 1.")
@click.option("--requests", type=PATH, help="Write every request: .csv or .parquet.")
@gpu_spec_option
@click.option("--seed", type=SEED, default=0, show_default=True)
@form_option("table", "csv", "json")
@click.option("--plot", type=PATH, help="Picture of latencies and time: .png, .svg or .pdf.")
@click.option("-o", "--output", type=PATH, help="File to write the report to, wholly or not at all.")
@debug_option
def command(
    plan: Path, tables: tuple[Path, ...], network: str, requests: Path | None,
    replan: str, cluster: Path | None, policy: str | None, replan_pairs: tuple[str, ...],
    form: str | None, plot: Path | None, output: Path | None,
    **options: Any,
) -> int:  # fmt: skip
    """Serve the placement in PLAN (JSON of gkest schedule) under arrivals, without a cluster.

    Every request is followed from its arrival through router, network, queue and GPU to its answer. The report goes
    to stdout, or with -o to the file alone. One seed, one result. Exit status: 0 done, 1 where only the picture or the
    requests could not be written, 2 the command or a file was wrong.
    """
    from gkestimator.outputs import refuse_overwriting
    from gkestimator.simulation.arrivals.replay import Replay
    from gkestimator.simulation.compiled import when_compiling
    from gkestimator.simulation.output import forms, replanned_output, simulated_output
    from gkestimator.simulation.running import FileRun, replan_files, simulate_files

    read = [plan, *tables, *options["gpu_specs"], *filter(None, [options["coefficients"], cluster])]
    read += [Path(text) for text in (options["arrivals"], network) if text not in _WORDS]
    refuse_overwriting({"-o": output, "--plot": plot, "--requests": requests}, read)
    chosen = forms(form, output, plot, requests)
    trace = {
        name.removeprefix("trace_"): value
        for name in ("trace_start_s", "trace_duration_s", "trace_loop", "trace_rates", "trace_scaling")
        if (value := options.pop(name)) not in (None, False)
    }
    for field, name in (("form", "trace_format"), ("assign", "streams")):
        if (value := options.pop(name)) is not None:
            trace[field] = value
    run = FileRun(
        replay=Replay(**trace) if trace else None,
        network=None if network == "none" else network,
        keep_requests=requests is not None,
        **options,
    )
    with when_compiling(_say_compiling), Progress() as progress:
        if replan == "none":
            _refuse(
                "--replan none",
                {"--cluster": cluster, "--policy": policy, "--replan-option": next(iter(replan_pairs), None)},
            )
            made = simulated_output(simulate_files(plan, tables, run, progress=progress), chosen)
        else:
            from gkestimator.placement.options import policy_options
            from gkestimator.simulation.replanning.settings import replanning_from

            if cluster is None:
                raise UsageError(f"--replan {replan}: --cluster is missing: the GPUs that the policy may use")
            settings = replanning_from(replan, policy_options(replan_pairs, {}, option="--replan-option"))
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


def _say_compiling() -> None:
    click.echo(COMPILING, err=True)


def _refuse(beside: str, given: dict[str, Any]) -> None:
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} {value}: has no use with {beside}")
