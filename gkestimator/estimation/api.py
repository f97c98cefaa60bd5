"""Answer callers: ``estimate_rows`` (rows, failures, closing words) and ``estimate`` (a pandas DataFrame)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.options import taking
from gkestimator.core.records import Names, frozen
from gkestimator.estimation.request import EstimateRequest, Progress
from gkestimator.tables import KernelRow, Requirement

if TYPE_CHECKING:
    import pandas as pd


ANSWER_FORMS = {
    "html": ("gkestimator.estimation.model_report", "ModelsPage"),
    "perfetto": ("gkestimator.estimation.traces", "ChromeTrace"),
    "model-explorer": ("gkestimator.estimation.traces", "NodeData"),
}
"""Documents of whole answers, kernels and timelines included: where each is made."""


def _answer_form(form: str) -> Any:
    """Return what gathers answers for a document: it has ``add(engine, answer)`` and ``page(messages)``."""
    module, name = ANSWER_FORMS[form]
    return getattr(import_module(module), name)()


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
    return _answered(EstimateRequest(tuple(dict.fromkeys(models)), **options), kernels, progress, forms)


def _answered(
    request: EstimateRequest, kernels: bool, progress: Progress | None, forms: Sequence[str] = ()
) -> EstimateResult:
    from gkestimator.estimation.collection import rare_collection
    from gkestimator.estimation.engine import Engine
    from gkestimator.estimation.maxbatch import largest_batches
    from gkestimator.estimation.rows import kernel_rows, requirement_row
    from gkestimator.estimation.words import closing_words
    from gkestimator.lowering import load_plugin

    for plugin in request.plugins:
        load_plugin(str(plugin))
    rows: list[Requirement] = []
    launches: list[KernelRow] = []
    failures: list[tuple[Path, GkestimatorError]] = []
    documents = {form: _answer_form(form) for form in forms}
    with rare_collection():
        engine = Engine(request)
        if request.max_batch:
            rows, failures = largest_batches(engine, progress)
        else:
            for path, outcome in engine.run(progress):
                if isinstance(outcome, GkestimatorError):
                    failures.append((path, outcome))
                    continue
                for answer in outcome:
                    rows.append(requirement_row(engine, answer))
                    if kernels:
                        launches.extend(kernel_rows(engine, answer))
                    for document in documents.values():
                        document.add(engine, answer)
    words = closing_words(
        rows,
        engine.targets,
        slo_ms=request.slo_ms,
        host_overhead_source=engine.host_overhead_source,
        host_range_us=engine.host_range_us,
        searched=request.max_batch and request.batch_sizes is None,
    )
    notes = [note for note in (engine.left_out_note, engine.host_note, *engine.dims_met.notes) if note]
    messages = (*notes, *words)
    pages: dict[str, bytes] = {}
    if rows:
        pages = {form: document.page(messages) for form, document in documents.items()}
    return EstimateResult(
        rows=tuple(rows),
        kernel_rows=tuple(launches),
        failures=tuple(failures),
        messages=messages,
        documents=pages,
    )


@taking(EstimateRequest)
def estimate(request: EstimateRequest) -> pd.DataFrame:
    """Return the requirement table of one or several ONNX files as a pandas DataFrame, one row per
    combination.

    One value may stand for a list of one, and NumPy's numbers for Python's. Unknown values are missing (NA),
    never 0. Raises the first model's GkestimatorError instead of leaving a model out.

        >>> table = gkestimator.estimate("resnet50.onnx", ["V100", "H100"], [1, 8, 64], runtime="onnxruntime")
        >>> table[["gpu", "batch_size", "latency_ms", "mreq_bytes", "warnings"]]
    """
    from gkestimator.tables import to_dataframe

    distinct = replace(request, models=tuple(dict.fromkeys(request.models)))
    result = _answered(distinct, kernels=False, progress=None)
    if result.failures:
        raise result.failures[0][1]
    return to_dataframe(result.rows)
