"""Give ``measured_gpu.py`` models side by side: what ``gkest train --interference`` makes of the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from _measured_models import MeasuredModels

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.naming import find_models
from gkestimator.estimation import estimate_rows
from gkestimator.evaluation.matching import match_rows
from gkestimator.evaluation.truth import truth_of
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.interference.pairs import DEMANDS
from gkestimator.interference.training import train_interference
from gkestimator.tables import COLOCATION, REQUIREMENTS, CoRun, Requirement, read_table, write_table

__all__ = ["fitted_to_pairs", "read_groups"]


def read_groups(pairs: Path, models: MeasuredModels) -> tuple[CoRun, ...]:
    """The rows of the co-location table, all of the models' GPU. Raises TableError; UsageError for another GPU's."""
    runs = tuple(read_table(pairs, COLOCATION))
    catalogue = gpu_catalogue(models.specs)
    found = {catalogue.resolve(name)[0].name for name in dict.fromkeys(run.gpu for run in runs)}
    others = sorted(found - {models.gpu.name})
    if others:
        raise UsageError(
            f"{pairs}: found models on {', '.join(others)}; the operators are of {models.gpu.name}"
        )
    return runs


def fitted_to_pairs(
    pairs: Path, runs: Sequence[CoRun], models: MeasuredModels, bundle: Path | None, folder: Path
) -> str:
    """Errors of every law of interference with models left out, in words. What a model asks of the GPU alone is the
    pairs' own where they have it (``gkest profile pairs --table``), else ``bundle``'s estimate: nobody counts what whole
    models do to DRAM and L2. Raises GkestimatorError where nothing can be fitted."""
    if all(getattr(run, name) is not None for run in runs for name in DEMANDS):
        return f"{train_interference(pairs, gpu_specs=models.specs)}\n\ndemands: as measured"
    table = folder / "demands.parquet"
    write_table(REQUIREMENTS, _demands(runs, models, bundle), table)
    report = train_interference(pairs, [table], gpu_specs=models.specs)
    by = "the package's bundle" if bundle is None else "the bundle of all operators"
    return f"{report}\n\ndemands that the pairs do not name: estimated by {by}"


def _demands(runs: Sequence[CoRun], models: MeasuredModels, bundle: Path | None) -> list[Requirement]:
    """Estimates of the models of ``runs``, each alone at the share that it ran at."""
    asked = {
        (r.model, r.gpu, r.runtime, r.dtype, r.batch_size, r.dims or "", r.sm_share_pct): r.latency_alone_ms
        for r in runs
    }
    names = ("model", "gpu", "runtime", "dtype", "batch_size", "dims", "sm_share_pct")
    truth = truth_of(
        Path("pairs"),
        [{**dict(zip(names, key, strict=True)), "latency_ms": alone} for key, alone in asked.items()],
    )
    files, _ = find_models([str(path) for path in models.onnx])
    matched, failures, _ = match_rows(
        truth, files, gpu_catalogue(models.specs), gpu=None, runtime="torch", dtype="auto"
    )
    found: list[Requirement] = []
    for row in matched:
        at = row.measurement
        result = estimate_rows(
            [row.path],
            gpus=[row.gpu],
            batch_sizes=None if at.batch_size is None else [at.batch_size],
            dims=dict(at.dims),
            runtime=row.runtime,
            dtype=row.dtype,
            sm_shares=[at.sm_share_pct],
            unfold_batchnorm=models.unfold_batchnorm,
            bundles=[] if bundle is None else [bundle],
            gpu_specs=list(models.specs),
        )
        failures += [failure for _, failure in result.failures]
        found += [replace(one, model=at.model, dtype=row.dtype) for one in result.rows]
    if failures:
        raise GkestimatorError(f"demands of the pairs: {failures[0]}")
    return found
