"""Answer callers: rows, failures, closing words, and what else is gathered of every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gkestimator.core.errors import GkestimatorError, ModelError
from gkestimator.core.records import Names, frozen
from gkestimator.estimation.request import EstimateRequest, Progress
from gkestimator.tables import KernelRow, Requirement

if TYPE_CHECKING:
    from gkestimator.estimation.engine import Engine, Estimated


ANSWER_FORMS = {
    "html": ("gkestimator.estimation.model_report", "ModelsPage"),
    "perfetto": ("gkestimator.estimation.traces", "ChromeTrace"),
    "model-explorer": ("gkestimator.estimation.traces", "NodeData"),
}
"""Documents of whole answers, kernels and timelines included: where each is made."""


_MOST_REMARKS = 12


class Gatherer(Protocol):
    """Take answers in, one by one, while the engine that made them still holds their kernels."""

    def add(self, engine: Engine, answer: Estimated) -> None:
        """Take in one answer."""


def _answer_form(form: str) -> Any:
    """Return the gatherer that makes a document: it has ``page(messages)``."""
    module, name = ANSWER_FORMS[form]
    return getattr(import_module(module), name)()


class KernelListing:
    """Gather the rows of the kernel listing, and a few lines on what stays unfused."""

    def __init__(self) -> None:
        self.rows: list[KernelRow] = []
        self._remarks: dict[str, None] = {}

    @property
    def remarks(self) -> Names:
        """Return the lines, each once: they are the same on every GPU of a runtime and for every batch."""
        return tuple(self._remarks)[:_MOST_REMARKS]

    def add(self, engine: Engine, answer: Estimated) -> None:
        """Take in the kernels of one answer."""
        from gkestimator.estimation.remarks import unfused_lines
        from gkestimator.estimation.rows import kernel_rows

        self.rows += kernel_rows(engine, answer)
        self._remarks.update(dict.fromkeys(unfused_lines(answer.lowering.graph)))


@frozen
class EstimateResult:
    """Hold rows of the good models, the errors of the bad ones, closing lines in words, and the documents asked
    for besides.
    """

    rows: tuple[Requirement, ...]
    kernel_rows: tuple[KernelRow, ...]
    failures: tuple[tuple[Path, GkestimatorError], ...]
    messages: Names
    documents: Mapping[str, bytes] = field(default_factory=dict)


def estimate_rows(
    models: Sequence[Path],
    *,
    kernels: bool = False,
    forms: Sequence[str] = (),
    progress: Progress | None = None,
    **options: Any,
) -> EstimateResult:
    """Estimate ``models`` under ``options``, the other fields of :class:`EstimateRequest`.

    A model that cannot be estimated does not stop the others: it is in ``failures``. Raises UsageError,
    SpecError or BundleError when the request itself cannot be answered. ``kernels``: with a row for every
    kernel; ``forms``: documents of all answers to make besides,
    of :data:`ANSWER_FORMS`. ``progress(name, done, total)`` is called per model.
    """
    request = EstimateRequest(tuple(dict.fromkeys(models)), **options)
    documents = {form: _answer_form(form) for form in forms}
    listing = KernelListing()
    gatherers = [*documents.values(), *([listing] if kernels else [])]
    result = answered(request, gatherers, progress=progress)
    pages: dict[str, bytes] = {}
    if result.rows:
        pages = {form: document.page(result.messages) for form, document in documents.items()}
    messages = (*listing.remarks, *result.messages)
    return replace(result, kernel_rows=tuple(listing.rows), messages=messages, documents=pages)


def answered(
    request: EstimateRequest, gatherers: Sequence[Gatherer] = (), *, progress: Progress | None = None
) -> EstimateResult:
    """Return the rows of ``request``; every answer is handed to the ``gatherers``, but for those of ``max_batch``.

    Raises what :func:`estimate_rows` raises.
    """
    from gkestimator.estimation.collection import rare_collection
    from gkestimator.estimation.engine import Engine
    from gkestimator.estimation.maxbatch import largest_batches
    from gkestimator.estimation.rows import requirement_row, with_falls_said
    from gkestimator.estimation.words import closing_words
    from gkestimator.lowering import load_plugin

    for plugin in request.plugins:
        load_plugin(str(plugin))
    rows: list[Requirement] = []
    failures: list[tuple[Path, GkestimatorError]] = []
    with rare_collection():
        engine = Engine(request)
        if request.max_batch:
            rows, failures = largest_batches(engine, progress)
        else:
            for path, outcome in engine.run(progress):
                if isinstance(outcome, GkestimatorError):
                    failures.append((path, outcome))
                    continue
                try:
                    own = [requirement_row(engine, answer) for answer in outcome]
                except ModelError as e:
                    failures.append((path, e))
                    continue
                rows += with_falls_said(own)
                for answer in outcome:
                    for gatherer in gatherers:
                        gatherer.add(engine, answer)
    words = closing_words(
        rows,
        engine.targets,
        slo_ms=request.slo_ms,
        host_overhead_source=engine.host_overhead_source,
        host_range_us=engine.host_range_us,
        searched=request.max_batch and request.batch_sizes is None,
    )
    notes = [note for note in (engine.left_out_note, engine.host_note, engine.version_note) if note]
    notes += [*engine.dims_met.notes, *engine.inputs_met.notes]
    return EstimateResult(
        rows=tuple(rows), kernel_rows=(), failures=tuple(failures), messages=(*notes, *words)
    )
