"""Do what ``estimate`` and ``demo`` share: from options to the engine, from its result to stdout, stderr and
a status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gkestimator.cli.group import OUTPUT, section
from gkestimator.cli.outputs import deliver, forms_of, say, write_beside
from gkestimator.cli.parameters import PATH, Names, form_option, options_from
from gkestimator.cli.progress import Progress
from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.core.outputs import refuse_overwriting
from gkestimator.estimation.api import ANSWER_FORMS
from gkestimator.estimation.request import EstimateRequest
from gkestimator.tables import FORMATS, render
from gkestimator.tables.requirement import cpu_lines

if TYPE_CHECKING:
    from gkestimator.estimation.api import EstimateResult

_FOR_PEOPLE = ("table", "markdown")  # they say themselves which models run on the CPU alone
# Documents of kernels and timelines, for other programs' eyes.
TRACE_FORMATS = tuple(form for form in ANSWER_FORMS if form != "html")
F = TypeVar("F", bound=Callable[..., Any])


def estimate_options(function: F) -> F:
    """Give a command the options of an estimate and of its output."""
    # Decorators apply from the last to the first, so this is help's order backwards.
    for decorator in (
        click.option("-o", "--output", type=PATH, help="File to write to, wholly or not at all."),
        form_option(*FORMATS, *TRACE_FORMATS),
        click.option(
            "--plot", type=PATH, help="Picture of the table to write beside it: .png, .svg or .pdf."
        ),
        click.option("--report", type=PATH, help="HTML page with pictures to write beside the table."),
        click.option("--kernels", is_flag=True, help="List every kernel."),
        section(OUTPUT),
        options_from(EstimateRequest),
        section("How it runs"),
    ):
        function = decorator(function)
    return function


def _forms(form: str, report: Path | None) -> list[str]:
    """Return the documents of whole answers that are asked for."""
    forms = [form] if form in TRACE_FORMATS else []
    if report is not None:
        forms.append("html")
    return forms


def _document(result: EstimateResult, form: str, *, kernels: bool) -> bytes:
    """Return the table, or the document of whole answers, as ``form``."""
    document = result.documents.get(form)
    if document is not None:
        return document
    if kernels:
        return render(result.rows, form, kernels=result.kernel_rows)
    return render(result.rows, form)


def _picture(result: EstimateResult, form: str) -> bytes:
    """Return the picture of the table."""
    from gkestimator.reporting.requirements_picture import draw_requirements

    return draw_requirements(result.rows, form, kernels=result.kernel_rows)


def _naming_its_file(path: Path, error: GkestimatorError) -> GkestimatorError:
    """Return ``error``, with the model's path before it where it names no file itself."""
    if any(one_line(name) in str(error) for name in (path, path.name)):
        return error
    # what is found after reading is behind the model's name, which the path repeats
    named = GkestimatorError(f"{path}: {str(error).removeprefix(f'{path.stem}: ')}")
    named.__cause__ = error
    return named


def default_gpus() -> Names:
    """Return the GPUs that are taken where none is named, and say so."""
    from gkestimator.hardware.gpus import DEFAULT_GPUS

    named = ", ".join(DEFAULT_GPUS)
    say([f"no GPU is named: estimating for {named}; --gpu names others (or all, ampere)"], "note")
    return DEFAULT_GPUS


def run_estimate(
    models: Sequence[Path],
    failures: Sequence[tuple[Path, GkestimatorError]],
    *,
    form: str | None,
    output: Path | None,
    kernels: bool = False,
    plot: Path | None = None,
    report: Path | None = None,
    **options: Any,
) -> int:
    """Estimate ``models``, write the table, say on stderr what failed, and return the exit status."""
    options["gpus"] = options["gpus"] or default_gpus()
    form, shape = forms_of(form, output, plot)
    read = [*models, *(path for path, _ in failures), *options["gpu_specs"], *options["plugins"]]
    refuse_overwriting(
        {"-o": output, "--plot": plot, "--report": report}, [*read, *filter(None, [options["host"]])]
    )
    rows: Sequence[Any] = ()
    messages: Sequence[str] = ()
    drawn = True
    bad = list(failures)
    if models:
        from gkestimator.estimation import estimate_rows

        with Progress() as progress:
            result = estimate_rows(
                models,
                progress=progress,
                forms=_forms(form, report),
                kernels=kernels or plot is not None,
                **options,
            )
        rows = result.rows
        messages = result.messages
        bad += result.failures
        if form not in _FOR_PEOPLE:
            say(cpu_lines(rows), "note")
        if rows:
            deliver(_document(result, form, kernels=kernels), output)
            drawn = write_beside("--plot", plot, lambda: _picture(result, shape))
        if report is not None and "html" in result.documents:
            page = result.documents["html"]
            drawn = write_beside("--report", report, lambda: page) and drawn
    say([_naming_its_file(path, error) for path, error in bad], "error")
    say(messages)
    if drawn and not bad:
        return 0
    return 1 if rows else 2
