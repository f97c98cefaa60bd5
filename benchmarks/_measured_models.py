"""Give ``measured_gpu.py`` whole models: the sizes that occur in them, and measurements judged by several bundles."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from _measured_operators import sizes_of

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.naming import find_models
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.recall import ModelSource
from gkestimator.estimation.request import EstimateRequest
from gkestimator.evaluation.api import Evaluation, evaluate
from gkestimator.evaluation.compare import summaries
from gkestimator.evaluation.compared import ComparedRow, SummaryRow
from gkestimator.evaluation.host import fit_host
from gkestimator.evaluation.matching import Matched, match_rows
from gkestimator.evaluation.truth import read_truth
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.hardware.host_profile import write_host_file
from gkestimator.tables import REQUIREMENTS, Requirement, read_table, write_table

__all__ = ["MeasuredModels", "Occurring", "read_models", "summaries_with_other_hosts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurring:
    """``sizes`` of all kernels that the rules make of the tested models; ``failures``: models of which they cannot
    tell (their rows cannot be estimated either)."""

    sizes: frozenset[float]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModels:
    """A requirement table of measured rows on one GPU, and the ONNX files of its models. ``unfold_batchnorm``: what ran
    were not the files, as the project's executors do, but the authors' models, with each BatchNorm a kernel of its own."""

    table: Path
    onnx: tuple[Path, ...]
    specs: tuple[Path, ...]
    gpu: GpuSpec
    rows: tuple[Requirement, ...]
    unfold_batchnorm: bool

    def occurring(self) -> Occurring:
        """Lower every row's model at its batch size, dimensions and dtype, as ``gkest estimate`` does."""
        truth = read_truth(self.table)
        files, _ = find_models([str(path) for path in self.onnx])
        matched, failures, _ = match_rows(
            truth, files, gpu_catalogue(self.specs), gpu=self.gpu.name, runtime="torch", dtype="auto"
        )
        sizes: set[float] = set()
        wrong = [str(failure) for failure in failures]
        for row in matched:
            try:
                sizes.update(self._sizes(row))
            except GkestimatorError as e:
                wrong.append(f"{row.name} batch {row.measurement.batch_size} {row.dtype}: {e}")
        return Occurring(sizes=frozenset(sizes), failures=tuple(wrong))

    def _sizes(self, row: Matched) -> Iterator[float]:
        engine = Engine(
            EstimateRequest(
                models=[row.path],
                gpus=[row.gpu],
                dims=dict(row.measurement.dims),
                runtime=row.runtime,
                dtype=row.dtype,
                unfold_batchnorm=self.unfold_batchnorm,
                gpu_specs=list(self.specs),
            )
        )
        for lowering in engine.lower_model(
            ModelSource(row.path, row.name), row.measurement.batch_size
        ).values():
            kernels = {id(k): k for step in lowering.graph.steps for k in step.kernels}
            yield from sizes_of(list(kernels.values())).tolist() if kernels else ()

    def judged(self, bundle: Path | None, host: Path | None) -> Evaluation:
        """What ``gkest evaluate`` says with ``bundle`` (None: the package's)."""
        return evaluate(
            self.table,
            models=list(self.onnx),
            unfold_batchnorm=self.unfold_batchnorm,
            host=host,
            bundles=[] if bundle is None else [bundle],
            gpu_specs=list(self.specs),
        )


def read_models(
    table: Path, onnx: Sequence[Path], specs: Sequence[Path], gpu: GpuSpec, *, unfold_batchnorm: bool
) -> MeasuredModels:
    """The rows of ``table``, all of ``gpu``. Raises TableError; UsageError for another GPU's rows."""
    rows = read_table(table, REQUIREMENTS)
    catalogue = gpu_catalogue(tuple(specs))
    found = {name: catalogue.resolve(name)[0].name for name in dict.fromkeys(row.gpu for row in rows)}
    others = sorted(name for name in set(found.values()) if name != gpu.name)
    if others:
        raise UsageError(f"{table}: found models on {', '.join(others)}; the operators are of {gpu.name}")
    if not rows:
        raise UsageError(f"{table}: holds no row; expected measured models")
    return MeasuredModels(
        table=table,
        onnx=tuple(onnx),
        specs=tuple(specs),
        gpu=gpu,
        rows=tuple(rows),
        unfold_batchnorm=unfold_batchnorm,
    )


def summaries_with_other_hosts(
    models: MeasuredModels, found: Evaluation, bundle: Path | None
) -> tuple[SummaryRow, ...] | None:
    """Summaries of the same rows, each model estimated with the launch overhead that the *other* models' rows tell of the
    host (``gkest evaluate --write-host`` without it); None where they do not tell it.

    What a small batch takes is set by the host, which no operator's device time tells of. Utilisations are means over the
    latency, so they hang on it too.
    """
    rows: list[ComparedRow] = []
    with tempfile.TemporaryDirectory() as folder:
        host, table = Path(folder, "host.toml"), Path(folder, "model.parquet")
        for name in dict.fromkeys(row.model for row in found.compared):
            others = [case for case in found.cases if case.model != name]
            runtimes = dict.fromkeys(case.runtime for case in others)
            try:
                fits = [fit_host([c for c in others if c.runtime == runtime]) for runtime in runtimes]
            except UsageError:
                return None
            if not fits:
                return None
            write_host_file(found.host_profile(fits), host)
            mine = [models.rows[row.row - 1] for row in found.compared if row.model == name]
            write_table(REQUIREMENTS, mine, table)
            rows += replace(models, table=table).judged(bundle, host).compared
    return summaries(rows)
