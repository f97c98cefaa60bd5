"""Offer what callers use: ``evaluate`` compares a table of measurements with estimates of the same rows."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.naming import find_models
from gkestimator.core.options import taking, values_of
from gkestimator.core.records import Names, frozen
from gkestimator.estimation.request import EstimateOptions
from gkestimator.estimation.sources import load_bundles
from gkestimator.evaluation.compare import compare, summaries, unit_warning
from gkestimator.evaluation.compared import COMPARED, SUMMARIES, ComparedRow, SummaryRow
from gkestimator.evaluation.host import HostCase, HostFit, errors_words, fit_host
from gkestimator.evaluation.matching import match_rows
from gkestimator.evaluation.options import EvaluateRequest
from gkestimator.evaluation.truth import Truth, read_truth, truth_of
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.host_profile import HostProfile, load_host_file, write_host_file
from gkestimator.lowering import load_plugin
from gkestimator.tables import frame_records, to_dataframe

if TYPE_CHECKING:
    import pandas


@frozen
class Evaluation:
    """Hold measurements beside their estimates.

    ``compared`` and ``summarised`` are rows of the tables COMPARED and SUMMARIES (``rows`` and ``summary``
    the same as DataFrames), ``failures`` the errors of what could not be estimated, ``messages`` lines worth
    saying.
    """

    name: str
    compared: tuple[ComparedRow, ...]
    summarised: tuple[SummaryRow, ...]
    failures: tuple[GkestimatorError, ...]
    messages: Names
    include_copy: bool
    cases: tuple[HostCase, ...] = ()

    @property
    def rows(self) -> pandas.DataFrame:
        """Return one row per measurement that was estimated."""
        return to_dataframe(self.compared, COMPARED)

    @property
    def summary(self) -> pandas.DataFrame:
        """Return the errors of every measure, over all rows, per GPU and per model."""
        return to_dataframe(self.summarised, SUMMARIES)

    def fit_host(self) -> tuple[HostFit, ...]:
        """Fit the host, once per runtime. Raises UsageError where a runtime's rows tell nothing."""
        by_runtime: dict[str, list[HostCase]] = {}
        for case in self.cases:
            by_runtime.setdefault(case.runtime, []).append(case)
        if not by_runtime:
            raise UsageError(f"{self.name}: no row has a measured and an estimated latency: no host to fit")
        return tuple(fit_host(cases) for cases in by_runtime.values())

    def host_profile(self, fits: Sequence[HostFit]) -> HostProfile:
        """Return ``fits`` as a host profile that states where its figures are from."""
        overheads = {}
        lows = {}
        highs = {}
        rates = {}
        sources = {}
        for fit in fits:
            runtime = fit.runtime
            words = _provenance(fit, self.name)
            if fit.host_overhead_us is not None:
                overheads[runtime] = fit.host_overhead_us
                spread = _range(fit.overhead_range_us, 1.0, "us")
                sources[f"host_overhead_us.{runtime}"] = f"{words}; {fit.host_rows} rows host-bound{spread}"
            if fit.row_range_us is not None:
                lows[runtime], highs[runtime] = fit.row_range_us
                about = "of the overheads that rows wholly bound by the host ask for"
                least = "5th percentile (least of fewer than ten)"
                most = "95th percentile (largest of fewer than ten)"
                sources[f"host_low_us.{runtime}"] = f"{least} {about}"
                sources[f"host_high_us.{runtime}"] = f"{most} {about}"
            if fit.copy_bytes_per_s is not None:
                rates[runtime] = fit.copy_bytes_per_s
                spread = _range(fit.rate_range, 1e-9, "GB/s")
                sources[f"copy_bytes_per_s.{runtime}"] = f"{words}; {fit.copy_rows} rows see the copy{spread}"
        return HostProfile(
            name=f"host of {self.name}",
            note=f"fitted on {datetime.date.today().isoformat()}",
            host_overhead_us=overheads,
            host_low_us=lows,
            host_high_us=highs,
            copy_bytes_per_s=rates,
            sources=sources,
        )

    def write_host(self, path: Path | str) -> tuple[HostFit, ...]:
        """Fit the host and write its profile to ``path``. Raises UsageError (nothing told) or OutputError."""
        fits = self.fit_host()
        write_host_file(self.host_profile(fits), Path(path))
        return fits


def _provenance(fit: HostFit, name: str) -> str:
    before, after = errors_words(fit, untested="not tested: one model only")
    return (
        f"fitted by gkest evaluate to {fit.rows} rows, {fit.models} models of {name} on "
        f"{', '.join(fit.gpus[:4])}; mean latency error {before}, {after}"
    )


def _range(span: tuple[float, float] | None, factor: float, unit: str) -> str:
    if span is None:
        return ""
    return f", {span[0] * factor:.3g} to {span[1] * factor:.3g} {unit} leaving models out"


@taking(EvaluateRequest)
def evaluate(request: EvaluateRequest) -> Evaluation:
    """Compare measurements with estimates of the same models, GPUs, batch sizes and options.

    ``truth`` is a table (CSV, JSON, Parquet or a DataFrame) with ``model, batch_size, latency_ms`` and, where
    there are any, ``gpu, runtime, dtype, dims``, memory and utilisation columns of the requirement table; the
    options stand in where a column is missing. ``models`` are files or folders; a row's model is found by
    file stem, or is a path.

    ``one_process``: the batch sizes of a model were measured one after another in one process, in the order
    of the rows, without emptying the runtime's cache; memory is then estimated so (else as a fresh process
    each).

    A row that cannot be estimated is in ``failures``. Raises TableError for a truth that cannot be read,
    UsageError, SpecError or BundleError for a request that cannot be answered.

        >>> result = gkestimator.evaluate("measured.csv", models="onnx/", gpu="L4")
        >>> result.summary[["name", "measure", "n", "mean", "median", "worst"]]
    """
    table = _truth(request.truth)
    files, missing = find_models([str(m) for m in request.models])
    if missing:
        raise missing[0][1]
    for path in files:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder, expected models")
    for plugin in request.plugins:
        load_plugin(str(plugin))
    matched, failures, notes = match_rows(
        table,
        files,
        gpu_catalogue(request.gpu_specs),
        gpu=request.gpu,
        runtime=request.runtime,
        dtype=request.dtype,
    )
    # Before the first estimate: a file that cannot be read would fail every row with the same line.
    _check_files(request)
    options = values_of(request, EstimateOptions)
    compared = compare(matched, options, one_process=request.one_process, progress=request.progress)
    messages = [*table.messages, *notes, *compared.notes]
    warning = unit_warning(compared.rows)
    if warning:
        messages.append(warning)
    return Evaluation(
        name=table.path.name,
        compared=compared.rows,
        summarised=summaries(compared.rows),
        failures=(*failures, *compared.failures),
        messages=tuple(messages),
        include_copy=request.include_copy,
        cases=compared.cases,
    )


def _truth(table: Any) -> Truth:
    """Return the measurements in a file or a DataFrame. Raises TableError, or UsageError for anything else."""
    if isinstance(table, str | Path):
        return read_truth(table)
    if not hasattr(table, "to_dict") or not hasattr(table, "columns"):
        raise UsageError(f"truth is a {type(table).__name__}: expected a path or a pandas DataFrame")
    return truth_of(Path("truth"), list(frame_records(table)))


def _check_files(request: EvaluateRequest) -> None:
    """Raise for a file that the whole request names and that cannot be read: once, not for every row."""
    if request.host is not None:
        load_host_file(request.host)
    load_bundles(request.bundles)
