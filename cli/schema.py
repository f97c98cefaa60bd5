"""``gkest schema``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import deliver
from gkestimator.cli.parameters import PATH
from gkestimator.core.escaping import utf8


@gkest_command(
    "schema",
    "gkest schema",
    "gkest schema workload",
)
@click.argument("name", required=False)
@click.option("-o", "--output", type=PATH, help="File to write to, wholly or not at all.")
def command(name: str | None, output: Path | None) -> None:
    """Print the JSON Schema (draft 2020-12) of the kind of document NAME, or the kinds there are.

    Editors complete and check files by it; the package holds the same files in gkestimator/library/schemas/published.
    """
    from gkestimator.library.schemas.registry import KINDS, schema_text

    if name is None:
        width = max(map(len, KINDS))
        text = "".join(f"{kind:<{width}}  {document.summary}\n" for kind, document in KINDS.items())
    else:
        text = schema_text(name)
    deliver(utf8(text), output)
