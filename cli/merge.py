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
from click.core import ParameterSource

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import say, say_written, to_stdout
from gkestimator.cli.parameters import MODELS, PATH, Names, form_option, options_from
from gkestimator.cli.progress import Progress
from gkestimator.core.errors import UsageError
from gkestimator.core.options import option_of
from gkestimator.merging.options import MergeOptions, MergeRequest

_OF_A_PLAN = ("gpu", "runtime", "provider", "dtype", "batch_sizes", "dims")


@gkest_command(
    "merge",
    "gkest merge models/minilm.onnx models/minilm.onnx --dim sequence=128",
    "gkest merge models/resnet50.onnx models/mobilenet_v2.onnx -o merged.onnx",
)
@click.argument("models", nargs=-1, required=True, type=MODELS, metavar="MODEL.onnx...")
@section("What to ask")
@click.option("--plan", type=PATH, help="Placement (JSON of gkest schedule): merge what it puts on one GPU.")
@section("How it runs")
@options_from(MergeOptions)
@section("Output")
@click.option(
    "--report", "wanted", is_flag=True, help="Report to stdout: what was merged, and what it should save."
)
@options_from(MergeRequest, ("samples",))
@form_option("table", "json", "markdown", help="Of the report. Default: table.")
@click.option(
    "-o", "--output", type=PATH, help="ONNX file to write; with --plan a folder. Without: the report alone."
)
def command(
    models: Names,
    plan: Path | None,
    wanted: bool,
    samples: int | None,
    form: str | None,
    output: Path | None,
    **given: Any,
) -> int:
    """Merge the operator graphs of models that share a GPU and weights into one ONNX file (USHER's OG-Merger).

    Blocks of weights that the models have in common are multiplied once, by all their inputs; inputs and outputs keep
    their names behind the model's (bert/input_ids). Models of different architectures stand side by side. A merge is
    kept only where the estimator expects it to pay. Exit status: 0 done, even where nothing was merged (said on
    stderr); 1 with --plan, where some GPUs' models could not be merged; 2 the command or a file was wrong.
    """
    from gkestimator.core.outputs import refuse_overwriting
    from gkestimator.merging.merge import merge_sources
    from gkestimator.merging.output import planned_output, render_report
    from gkestimator.merging.planned import merge_plan
    from gkestimator.merging.sources import files_of, sources_of

    shown = wanted or form is not None or output is None
    runs = samples if samples is not None else 4 if shown else 0
    options = MergeOptions(**given)
    files = files_of(models)
    status = 0
    with _ended_in_order(), Progress() as progress:
        if plan is None:
            refuse_overwriting({"-o": output}, [*files, *options.gpu_specs])
            result = merge_sources(
                sources_of(files, options), options, output, samples=runs, progress=progress
            )
            data = render_report(result.report, form or "table")
            words = result.report.words()
            written = result.files
        else:
            _refuse_what_a_plan_says()
            planned = merge_plan(plan, files, output, options, samples=runs, progress=progress)
            data, words = planned_output(planned, form or "table")
            written = planned.files
            say([f"{chosen.gpus[0]}: {error}" for chosen, error in planned.failures], "error")
            if planned.failures:
                status = 1 if planned.results else 2
    if shown and status != 2:
        to_stdout(data)
    for path in written:
        say_written(path)
    say(words)
    return status


def _refuse_what_a_plan_says() -> None:
    context = click.get_current_context()
    for name in _OF_A_PLAN:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            flag = option_of(MergeOptions, name).flag
            raise UsageError(f"{flag}: has no use with --plan, which says it of every replica")


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
