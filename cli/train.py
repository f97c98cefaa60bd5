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
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed.")
@debug_option
def command(datasets: tuple[Path, ...], output: Path, seed: int) -> None:
    """Train an estimator bundle from kernel datasets.

    DATASET is a kernel dataset (Parquet) or a folder in a public format (NeuSight, DeepBench, aiconfigurator,
    vidur). Needs the extra "train".
    """
    from gkestimator.cli.progress import Progress

    from gkestimator.training import train

    with Progress() as progress:
        report = train(datasets, output, seed=seed, progress=progress)
    click.echo(f"gkest: wrote {output}", err=True)
    click.echo(str(report))
