"""``gkest init``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import deliver
from gkestimator.cli.parameters import PATH, Names, quick_option
from gkestimator.core.escaping import utf8


@gkest_command(
    "init",
    "gkest init cluster -o my-cluster.yaml",
    'gkest init workload --quick "resnet50:50rps@100ms"',
)
@click.argument("kind", type=click.Choice(("workload", "cluster", "gpu", "comparison")))
@quick_option("of a workload, in place of its template")
@click.option("-o", "--output", type=PATH, help="File to write to, which must not exist yet.")
def command(kind: str, quick: Names, output: Path | None) -> None:
    """Write a commented file to begin with: a workload, a cluster, a GPU or a comparison.

    The file is read as it is; every field is explained behind it. For example: gkest init workload --quick
    "resnet50:900rps@100ms" -o workload.yaml
    """
    from gkestimator.core.errors import UsageError
    from gkestimator.library.schemas.templating import quick_text, template_text

    if quick and kind != "workload":
        raise UsageError("--quick writes a workload alone: expected gkest init workload --quick ...")
    if output is not None and output.exists():
        raise UsageError(f"-o: {output} exists already, expected a new file")
    text = quick_text(quick) if quick else template_text(kind)
    deliver(utf8(text), output)
