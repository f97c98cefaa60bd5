"""``gkest serve``."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import say
from gkestimator.cli.parameters import (
    PATH,
    Names,
    Paths,
    gpu_spec_option,
    replan_options,
    replanning_asked,
)
from gkestimator.interference.registry import MODELS

_SECONDS = click.FloatRange(0.001, 1e6)


@gkest_command(
    "serve",
    "gkest serve plan.json --table table.csv --models models",
    "gkest serve plan.json --table table.csv --emulate --replan usher --cluster cluster.yaml",
)
@click.argument("plan", type=PATH)
@section("What to ask")
@click.option(
    "--table",
    "tables",
    type=PATH,
    multiple=True,
    required=True,
    help="Requirement table: times of batches; repeatable.",
)
@click.option("--models", type=PATH, help="Folder of the models' ONNX files, NAME.onnx.")
@section("How it runs")
@click.option("--emulate", is_flag=True, help="Wait for the table's time instead of computing; needs no GPU.")
@click.option(
    "--interference",
    type=click.Choice(tuple(MODELS)),
    default="contention",
    show_default=True,
    help="With --emulate: how replicas of one GPU slow each other.",
)
@click.option("--coefficients", type=PATH, help="Coefficients of the interference model.")
@gpu_spec_option
@click.option(
    "--drop",
    type=click.Choice(["late", "none"]),
    default="late",
    show_default=True,
    help="late: requests that cannot be on time any more are refused.",
)
@click.option(
    "--timeout-s", type=_SECONDS, default=30.0, show_default=True, help="Every request is answered by then."
)
@click.option(
    "--max-waiting", type=click.IntRange(1), help="Requests at one replica; default: by the time-out."
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads of a model; default: the cores, shared.")
@click.option(
    "--drain-s",
    type=_SECONDS,
    default=30.0,
    show_default=True,
    help="At the end: time for requests under way.",
)
@section("Where")
@click.option("--address", help="HOST:PORT of a Ray cluster, or auto; default: Ray on this machine.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where requests come in.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--token-file", type=PATH, help="Bearer token that requests must show.")
@replan_options
@click.option(
    "--option",
    "policy_pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the policy; repeatable.",
)
@section("Output")
@click.option("--requests", type=PATH, help="Log of every request: .csv.")
@click.option("--state", type=PATH, help="File of the running plan: a later call goes on with it.")
def command(
    plan: Path,
    tables: Paths,
    models: Path | None,
    emulate: bool,
    interference: str,
    coefficients: Path | None,
    gpu_specs: Paths,
    drop: str,
    timeout_s: float,
    max_waiting: int | None,
    threads: int | None,
    drain_s: float,
    address: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    replan: str,
    cluster: Path | None,
    policy: str | None,
    policy_pairs: Names,
    replan_pairs: Names,
    requests: Path | None,
    state: Path | None,
) -> int:
    """Serve the placement in PLAN (JSON of gkest schedule) over HTTP, by the V2 inference protocol, on Ray.

    Requests go to the replica with the least work; batches form whenever a GPU is free. SIGTERM and Ctrl-C end it: no
    new requests, those under way are answered. Exit status: 0 ended by SIGTERM, 130 by Ctrl-C, 2 the command or a file
    was wrong.
    """
    from gkestimator.core.outputs import by_suffix, refuse_overwriting
    from gkestimator.placement.registry import policy_options
    from gkestimator.serving.planning import PlanningSettings
    from gkestimator.serving.service import ServeSettings, serve_until_told

    read = [plan, *tables, *gpu_specs, *filter(None, [coefficients, cluster, token_file])]
    refuse_overwriting({"--requests": requests, "--state": state}, read)
    if requests is not None:
        by_suffix("--requests", requests, {".csv": "csv"})
    pair = next(iter(policy_pairs), None)
    settings = replanning_asked(replan, replan_pairs, cluster=cluster, policy=policy, option=pair)
    planning = PlanningSettings(
        tables=tuple(map(str, tables)),
        cluster=None if cluster is None else str(cluster),
        gpu_specs=tuple(map(str, gpu_specs)),
        policy=policy,
        policy_options=policy_options(policy_pairs, {}),
        replan=settings,
        emulate=emulate,
        interference=interference,
        coefficients=None if coefficients is None else str(coefficients),
    )
    service = ServeSettings(
        plan=plan,
        planning=planning,
        models=models,
        ray_address=address,
        host=host,
        port=port,
        token_file=token_file,
        requests=requests,
        state=state,
        timeout_s=timeout_s,
        drop=drop == "late",
        max_waiting=max_waiting,
        threads=threads,
    )
    ended_by = serve_until_told(service, drain_s, lambda line: say([f"gkest: {line}"]))
    return 130 if ended_by == signal.SIGINT else 0
