"""``gkest train``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import debug_option

__all__ = ["command"]


@click.command(name="train")
@click.argument("datasets", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DATASET...")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new bundle."
)
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
    type=click.Path(path_type=Path),
    multiple=True,
    help="GPU file (TOML); repeatable. Files beside a dataset (DATASET.<GPU>.toml) are found.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed.")
@debug_option
def command(
    datasets: tuple[Path, ...], output: Path, base: str, gpu_specs: tuple[Path, ...], seed: int
) -> None:
    """Train an estimator bundle from kernel datasets.

    DATASET is a kernel dataset (Parquet or CSV; what "gkest profile build" writes) or a folder in a public format
    (NeuSight, DeepBench, aiconfigurator, vidur). The bundle of a kernel dataset answers for the GPUs in it: with
    measured times, with regressors where it has rows, with the base bundle elsewhere. Needs the extra "train".
    """
    from gkestimator.cli.progress import Progress
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
    click.echo(f"gkest: wrote {output}", err=True)
    click.echo(str(report))
