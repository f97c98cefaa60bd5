"""``gkest merge``."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gkestimator.cli.group import debug_option
from gkestimator.cli.parameters import DIM, EACH, dims_of
from gkestimator.cli.progress import Progress
from gkestimator.errors import UsageError
from gkestimator.merging.options import PRICES, MergeOptions

__all__ = ["command"]

_PATH = click.Path(path_type=Path)
_USUAL = MergeOptions()
_OF_A_PLAN = {
    "gpu": "--gpu",
    "runtime": "--runtime",
    "dtype": "--dtype",
    "batch_sizes": "--batch-size",
    "dims": "--dim",
}


@click.command(name="merge")
@click.argument("models", nargs=-1, required=True, metavar="MODEL.onnx...")
@click.option("--plan", type=_PATH, help="Placement (JSON of gkest schedule): merge what it puts on one GPU.")
@click.option(
    "--gpu", help=f"GPU type that times are estimated for. Default: {_USUAL.gpu}; with --plan, the plan's."
)
@click.option("--runtime", help=f"onnxruntime or torch. Default: {_USUAL.runtime}; with --plan, the plan's.")
@click.option("--dtype", help=f"As in an estimate. Default: {_USUAL.dtype}; with --plan, the plan's.")
@click.option(
    "--batch-size", "batch_sizes", type=EACH,
    help="Batch size that times are estimated for: one, or one for each model; default: as exported.",
)  # fmt: skip
@click.option(
    "--dim", "dims", type=DIM, multiple=True,
    help="Number for a symbolic dimension, in the merged file too; repeatable.",
)  # fmt: skip
@click.option(
    "--omega",
    type=float,
    default=_USUAL.omega,
    show_default=True,
    help="Least similarity of two weights that are merged: share of their values that both hold as one block.",
)
@click.option(
    "--tolerance", type=float, default=_USUAL.tolerance, show_default=True,
    help="Weights are equal up to this difference.",
)  # fmt: skip
@click.option(
    "--tau-ms", type=float, default=_USUAL.tau_ms, show_default=True,
    help="Most by which the estimated starts of merged operators differ, each within its own model; inf: any.",
)  # fmt: skip
@click.option(
    "--group-distance", type=float, default=_USUAL.group_distance, show_default=True,
    help="Share of an operator graph that the other lacks, up to which two models are of one architecture.",
)  # fmt: skip
@click.option(
    "--price", type=click.Choice(PRICES), default=_USUAL.price, show_default=True,
    help="Time that a merge must shorten: latency (host included), or that of the GPU's kernels.",
)  # fmt: skip
@click.option("--always", is_flag=True, help="Merge also what is not expected to save time.")
@click.option(
    "--report", "wanted", is_flag=True, help="Report to stdout: what was merged, and what it should save."
)
@click.option(
    "--samples", type=click.IntRange(0, 10_000),
    help="Random inputs on which originals and merged file are compared in ONNX Runtime (CPU); default: 4 with a "
    "report, else 0.",
)  # fmt: skip
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "markdown"]),
    help="Of the report. Default: table.",
)
@click.option("--bundle", "bundles", type=_PATH, multiple=True, help="Estimator bundle; repeatable.")
@click.option("--gpu-spec", "gpu_specs", type=_PATH, multiple=True, help="GPU file (TOML); repeatable.")
@click.option(
    "-o", "--output", type=_PATH, help="ONNX file to write; with --plan a folder. Without: the report alone."
)
@debug_option
def command(
    models: tuple[str, ...], plan: Path | None, wanted: bool, samples: int | None, form: str | None,
    output: Path | None, **given: Any,
) -> int:  # fmt: skip
    """Merge the operator graphs of models that share a GPU and weights into one ONNX file (USHER's OG-Merger).

    Blocks of weights that the models have in common are multiplied once, by all their inputs; inputs and outputs keep
    their names behind the model's (bert/input_ids). Models of different architectures stand side by side. A merge is
    kept only where the estimator expects it to pay. Exit status: 0 done, even where nothing was merged (said on
    stderr); 1 with --plan, where some GPUs' models could not be merged; 2 the command or a file was wrong.
    """
    from gkestimator.merging.merge import merge_sources
    from gkestimator.merging.output import planned_output, render_report
    from gkestimator.merging.planned import merge_plan
    from gkestimator.merging.sources import files_of, sources_of
    from gkestimator.outputs import refuse_overwriting

    shown = wanted or form is not None or output is None
    runs = samples if samples is not None else 4 if shown else 0
    given["dims"] = dims_of(given["dims"])
    options = MergeOptions(**{name: value for name, value in given.items() if value not in (None, {})})
    files = files_of(models)
    status = 0
    with _ended_in_order(), Progress() as progress:
        if plan is None:
            refuse_overwriting({"-o": output}, [*files, *options.gpu_specs])
            result = merge_sources(
                sources_of(files, options), options, output, samples=runs, progress=progress
            )
            data, words, written = (
                render_report(result.report, form or "table"),
                result.report.words(),
                result.files,
            )
        else:
            for name, option in _OF_A_PLAN.items():
                if given[name] not in (None, {}):
                    raise UsageError(f"{option}: has no use with --plan, which says it of every replica")
            found = merge_plan(plan, files, output, options, samples=runs, progress=progress)
            data, words = planned_output(found, form or "table")
            written = found.files
            for chosen, error in found.failures:
                click.echo(f"gkest: error: {chosen.gpus[0]}: {error}", err=True)
            if found.failures:
                status = 1 if found.results else 2
    if shown and status != 2:
        stream = sys.stdout.buffer  # bytes as they are: UTF-8 whatever the locale
        stream.write(data)
        stream.flush()
    for path in written:
        click.echo(f"gkest: wrote {path}", err=True)
    for line in words:
        click.echo(line, err=True)
    return status


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends the command as an error does, so that files written aside or for the comparison are taken away.

    Left as it is where somebody handles or ignores it already.
    """
    which = signal.SIGTERM
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(which) is not signal.SIG_DFL:
        yield
        return
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        sys.exit(128 + number)

    signal.signal(which, end)
    try:
        yield
    finally:
        signal.signal(which, signal.SIG_DFL)
        if came:  # again: a library that is being imported makes an ImportError of it
            sys.exit(128 + came[0])
