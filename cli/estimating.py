"""What ``estimate`` and ``demo`` share: from options to the engine, from its result to stdout, stderr and
a status."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from gkestimator.cli.parameters import dims_of
from gkestimator.cli.progress import Progress
from gkestimator.errors import GkestimatorError, UsageError, one_line
from gkestimator.tables import format_of, render, write_bytes

__all__ = ["run_estimate"]


def run_estimate(
    models: Sequence[Path],
    failures: Sequence[tuple[Path, GkestimatorError]],
    *,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> int:
    """Estimate ``models``, write the table, say on stderr what failed, and return the exit status."""
    if not options["gpus"]:
        raise UsageError("no GPU is named: expected --gpu NAME (gkest gpus lists the names)")
    form = form or ("table" if output is None else format_of(output))
    if form == "parquet" and output is None:
        raise UsageError("--format parquet needs a file to write to: expected -o FILE.parquet")
    if output is not None:
        read = (*models, *(path for path, _ in failures), *options["gpu_specs"], *options["plugins"])
        read = (*read, *filter(None, [options["host"]]))
        _refuse_overwriting(output, read)
    options["dims"] = dims_of(options["dims"])
    rows: Sequence[Any] = ()
    messages: Sequence[str] = ()
    bad = list(failures)
    if models:
        from gkestimator.estimation import estimate_rows

        with Progress() as progress:
            result = estimate_rows(models, progress=progress, **options)
        rows, messages = result.rows, result.messages
        bad += result.failures
        if rows:
            data = render(rows, form, kernels=result.kernel_rows if options["kernels"] else None)
            if output is None:
                stream = sys.stdout.buffer  # bytes as they are: UTF-8 whatever the locale
                stream.write(data)
                stream.flush()
            else:
                write_bytes(output, data)
                click.echo(f"gkest: wrote {output}", err=True)
    for path, error in bad:
        named = any(one_line(name) in str(error) for name in (path, path.name))
        click.echo(f"gkest: error: {error if named else GkestimatorError(f'{path}: {error}')}", err=True)
    for message in messages:
        click.echo(message, err=True)
    if not bad:
        return 0
    return 1 if rows else 2


def _refuse_overwriting(output: Path, read: Iterable[Path | str]) -> None:
    """``-o model.onnx`` behind the models is a slip that would cost the model."""
    for path in read:
        try:
            same = os.path.samefile(output, path)
        except (OSError, ValueError):
            continue  # one of the two does not exist: nothing to lose
        if same:
            raise UsageError(f"-o {output}: is also read (as {path}); expected a file of its own")
