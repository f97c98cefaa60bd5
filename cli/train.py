"""``gkest train``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import deliver, say_written, tell
from gkestimator.cli.parameters import PATH, Paths


@gkest_command(
    "train",
    "gkest train kernels.parquet -o my-bundle",
    "gkest train --interference pairs.csv -o coefficients.json",
)
@click.argument("datasets", nargs=-1, type=PATH, metavar="[DATASET]...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=PATH,
    help="Folder of the new bundle; without DATASET the file of interference coefficients.",
)
@section("What to ask")
@click.option(
    "--interference",
    "pairs",
    type=PATH,
    metavar="PAIRS",
    help="Models measured side by side; fits coefficients of interference to them.",
)
@click.option(
    "--table",
    "tables",
    type=PATH,
    multiple=True,
    help="With --interference: what these models ask of the GPU alone, where PAIRS does not say; repeatable.",
)
@section("How it runs")
@click.option(
    "--base",
    default="default",
    show_default=True,
    metavar="DIR|default|none",
    help="Bundle that kernel datasets correct; none: regressors on their rows alone.",
)
@click.option(
    "--gpu-spec",
    "gpu_specs",
    type=PATH,
    multiple=True,
    help="GPU file (TOML); repeatable. Files beside a dataset (DATASET.<GPU>.toml) are found.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed.")
def command(
    datasets: Paths,
    output: Path,
    pairs: Path | None,
    tables: Paths,
    base: str,
    gpu_specs: Paths,
    seed: int,
) -> None:
    """Train an estimator bundle from kernel datasets, or coefficients of interference.

    DATASET is a kernel dataset (Parquet or CSV; what "gkest profile build" writes) or a folder in a public format
    (NeuSight, DeepBench, aiconfigurator, vidur). The bundle of a kernel dataset answers for the GPUs in it: with
    measured times, with regressors where it has rows, with the base bundle elsewhere. Needs the extra "train".

    --interference PAIRS, a co-location table (docs/reference/tables.md), fits how much models slow each other down. The
    coefficients go into the bundle, or without DATASET into the file -o; "gkest simulate" and "gkest schedule" read
    either with --coefficients.
    """
    from gkestimator.cli.progress import Progress
    from gkestimator.core.errors import UsageError

    if not datasets and pairs is None:
        raise UsageError("found neither a DATASET nor --interference PAIRS, expected one of them")
    if tables and pairs is None:
        raise UsageError("--table: found without --interference PAIRS, which it belongs to")
    fitted = None
    if pairs is not None:
        from gkestimator.interference.training import coefficients_path, train_interference

        # Before the bundle: what is wrong with the pairs is said in seconds, not after minutes.
        into = coefficients_path(output, bundle=bool(datasets), read=(pairs, *tables))
        fitted = train_interference(pairs, tables, gpu_specs=gpu_specs)
    if datasets:
        from gkestimator.training import train

        with Progress() as progress:
            report = train(
                datasets,
                output,
                seed=seed,
                progress=progress,
                base=None if base == "none" else base,
                gpu_specs=gpu_specs,
            )
        say_written(output)
        tell(report)
    if fitted is not None:
        deliver(fitted.data, into)
        tell(fitted)
