"""What is to be exported: a plan, or a requirement table that leaves one row per model."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.escaping import is_line
from gkestimator.core.naming import distinct_names, find_models
from gkestimator.core.options import spelled
from gkestimator.core.records import Names, frozen
from gkestimator.core.texts import parse_json
from gkestimator.documents import PlacementPlan, Replica, read_plan
from gkestimator.documents.checking import valid_name
from gkestimator.documents.plan import MAX_PLAN_BYTES
from gkestimator.exporting.deployment import Deployment, Instance
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec, gpu_catalogue
from gkestimator.tables import REQUIREMENTS, Requirement, TableSource, rows_in, table_label
from gkestimator.tables.candidate import CREQ_COLUMNS, without_context
from gkestimator.tables.requirement import RequirementRows

_DEFAULT_CREQ = "sm-util-mean"
_SUFFIXES = (".csv", ".json", ".parquet")
_NO_CONTEXT = "memory is reserved_bytes where mreq_bytes is null: the CUDA context is not counted"


@frozen
class TableFilter:
    """Which rows of a table are exported; None: all. The fields are the table's columns; ``gpu`` may be any
    name of the type."""

    gpu: str | None = None
    batch_size: int | None = None
    runtime: str | None = None
    dtype: str | None = None
    dims: str | None = None
    sm_share_pct: float | None = None

    def given(self) -> dict[str, object]:
        """Return the columns that are filtered, with the value asked for."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


NO_FILTER = TableFilter()


def load_deployment(
    source: Path | str | PlacementPlan | TableSource,
    *,
    creq: str | None = None,
    models: Sequence[str] = (),
    gpu_specs: Sequence[Path | str] = (),
    only: TableFilter = NO_FILTER,
    names: Sequence[str] = (),
) -> Deployment:
    """Return the plan (JSON with ``gpus``) or requirement table (CSV, JSON, Parquet) of a file or in memory.

    ``creq`` names the measure that targets give out compute by (None: the plan's own; ``sm-util-mean`` for a
    table). ``models`` are ONNX files, folders or patterns, for targets that describe inputs and outputs; a
    model is found by its name. ``only`` keeps rows of a table, and ``names`` those of some models (none:
    all). Raises DocumentError, TableError or UsageError in one line: an unknown GPU, a name that is not
    allowed, a table in which a model has several rows or none is left, a measure that the plan was not packed
    by.
    """
    if creq is not None and creq not in CREQ_COLUMNS:
        raise UsageError(f"{spelled('creq')} {creq!r}: expected one of {', '.join(CREQ_COLUMNS)}")
    label = Path("plan" if isinstance(source, PlacementPlan) else table_label(source))
    if isinstance(source, str | Path) and label.suffix.lower() not in _SUFFIXES:
        raise UsageError(
            f"{label}: found the suffix {label.suffix!r}, expected a plan (.json) or a table ({', '.join(_SUFFIXES)})"
        )
    catalogue = gpu_catalogue(gpu_specs)
    files = _model_files(models)
    plan = source if isinstance(source, PlacementPlan) else None
    if isinstance(source, str | Path) and _is_plan(label):
        plan = read_plan(label)
    if plan is None:
        rows = rows_in(source, REQUIREMENTS)
        return _from_table(label, rows, creq or _DEFAULT_CREQ, only, names, catalogue, files)
    if only.given() or names:
        options = [_option(name) for name in only.given()]
        if names:
            options.append(_option("only"))
        raise UsageError(f"{label}: found a plan; {', '.join(options)} choose rows of a table")
    return _from_plan(label, plan, creq, catalogue, files)


def _is_plan(path: Path) -> bool:
    """Return whether ``path`` is a JSON object with ``gpus``. What cannot be read as JSON here is left to the
    readers to refuse."""
    if path.suffix.lower() != ".json":
        return False
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_PLAN_BYTES:
            return False  # a table may be larger than a plan
        document = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and "gpus" in document


def _model_files(arguments: Sequence[str]) -> dict[str, str]:
    paths, failures = find_models(arguments)
    if failures:
        raise UsageError(failures[0][1])
    for file in paths:
        if not file.is_file():
            raise UsageError(
                f"{file}: found no such file, expected an ONNX file, a folder of them or a pattern"
            )
    return {name: str(file) for name, file in zip(distinct_names(paths), paths, strict=True)}


def _from_plan(
    path: Path, plan: PlacementPlan, creq: str | None, catalogue: GpuCatalogue, files: dict[str, str]
) -> Deployment:
    if plan.languages:
        raise UsageError(
            f"{path}: found language models, which no target is written for, expected other models alone"
        )
    if creq is not None and creq != plan.creq:
        raise UsageError(
            f"{path}: the plan was packed by {plan.creq}; expected {spelled('creq')} {plan.creq}, found {creq}"
        )
    specs: dict[str, GpuSpec] = {}
    instances = []
    for gpu in plan.gpus:
        spec = catalogue.spec(gpu.type)
        specs[spec.name] = spec
        instances += [_of_replica(replica, gpu.id, spec) for replica in gpu.replicas]
    if not instances:
        raise UsageError(f"{path}: the plan places no replica; nothing to export")
    return Deployment(
        origin="plan",
        source=path.name,
        creq=plan.creq,
        instances=tuple(instances),
        specs=specs,
        models=files,
        notes=plan.notes,
        plan=plan,
    )


def _of_replica(replica: Replica, gpu: str, spec: GpuSpec) -> Instance:
    size, percent = _memory(replica.mreq_bytes, replica.mreq_pct, spec)
    return Instance(
        id=replica.id,
        model=replica.model,
        gpu_id=gpu,
        gpu_type=spec.name,
        runtime=replica.runtime,
        dtype=replica.dtype,
        dims=replica.dims,
        batch_size=replica.batch_size,
        sm_share_pct=replica.sm_share_pct,
        partition=replica.partition,
        latency_ms=replica.latency_ms,
        slo_ms=replica.slo_ms,
        max_wait_ms=replica.max_wait_ms,
        goodput_rps=replica.goodput_rps,
        creq_pct=replica.creq_pct,
        mreq_bytes=size,
        mreq_pct=percent,
        throughput_rps=replica.throughput_rps,
        max_batch_size=replica.max_batch_size,
    )


def _memory(size: int | None, percent: float | None, spec: GpuSpec) -> tuple[int | None, float | None]:
    """Both, where one is known; bytes decide where both are."""
    if size is not None:
        return size, 100 * size / spec.visible_bytes()
    if percent is not None:
        return math.ceil(percent / 100 * spec.visible_bytes()), percent
    return None, None


def _from_table(
    path: Path,
    rows: RequirementRows,
    creq: str,
    only: TableFilter,
    chosen: Sequence[str],
    catalogue: GpuCatalogue,
    files: dict[str, str],
) -> Deployment:
    _check_texts(path, rows)
    known = {row.model for row in rows}
    for name in chosen:
        if name not in known:
            raise TableError(f"{path}: no row for model {name[:60]!r}, which {_option('only')} asks for")
    rows = _one_per_model(path, _filtered(path, rows, only, chosen, catalogue))
    specs = {row.gpu: catalogue.spec(row.gpu) for row in rows}
    notes: Names = ()
    if any(without_context(row) for row in rows):
        notes = (_NO_CONTEXT,)
    return Deployment(
        origin="table",
        source=path.name,
        creq=creq,
        instances=tuple(_of_row(row, CREQ_COLUMNS[creq], specs[row.gpu]) for row in rows),
        specs={spec.name: spec for spec in specs.values()},
        models=files,
        notes=notes,
        rows=rows,
    )


def _filtered(
    path: Path,
    rows: RequirementRows,
    only: TableFilter,
    chosen: Sequence[str],
    catalogue: GpuCatalogue,
) -> list[Requirement]:
    """Return the rows that a user asks for, at least one. Raises TableError."""
    wanted = only.given()
    wanted.pop("gpu", None)
    gpu = None if only.gpu is None else catalogue.spec(only.gpu).name
    left = []
    for row in rows:
        if chosen and row.model not in chosen:
            continue
        # A GPU that only the table knows was not asked for.
        if gpu is not None and catalogue.canonical(row.gpu) != gpu:
            continue
        if all(getattr(row, column) == value for column, value in wanted.items()):
            left.append(row)
    if not left:
        asked = {"gpu": gpu} if gpu is not None else {}
        options = [f"{_option(column)} {value}" for column, value in (asked | wanted).items()]
        why = ": the table is empty"
        if options:
            why = f" under {', '.join(options)}"
        raise TableError(f"{path}: no row is left{why}")
    return left


def _one_per_model(path: Path, rows: RequirementRows) -> tuple[Requirement, ...]:
    """Return ``rows``. Raises TableError where a model has several."""
    by_model: dict[str, list[Requirement]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    for model, several in by_model.items():
        if len(several) > 1:
            raise TableError(_several(path, model, several))
    return tuple(rows)


def _check_texts(path: Path, rows: RequirementRows) -> None:
    """A table's cells are any text; what is exported becomes names of files, objects and shell words."""
    for number, row in enumerate(rows, start=1):
        if not valid_name(row.model):
            raise TableError(
                f"{path}: row {number}, column model: found {row.model[:60]!r}, expected a name: at most "
                "200 letters, "
                "digits and _ . # + -, folders by single slashes"
            )
        for column in ("gpu", "runtime", "dtype", "dims"):
            text = getattr(row, column)
            if not is_line(text, 1000):
                raise TableError(
                    f"{path}: row {number}, column {column}: found {text[:60]!r}, expected a line of at most 1000 "
                    "characters"
                )


def _option(column: str) -> str:
    if column == "sm_share_pct":
        return spelled("sm_share_pct", "--sm-share")
    return spelled(column)


def _several(path: Path, model: str, rows: RequirementRows) -> str:
    choices = []
    for column in (f.name for f in fields(TableFilter)):
        values = list(dict.fromkeys(getattr(row, column) for row in rows))
        if len(values) > 1:
            shown = ", ".join("none" if v in ("", None) else str(v) for v in values[:8])
            choices.append(f"{_option(column)} ({shown}{', ...' * (len(values) > 8)})")
    return (
        f"{path}: {model} has {len(rows)} rows, expected one per model: choose with {', '.join(choices)}, "
        "or export a "
        "plan of gkest schedule"
    )


def _of_row(row: Requirement, column: str, spec: GpuSpec) -> Instance:
    held = row.mreq_bytes
    if without_context(row):
        held = row.reserved_bytes
    size, percent = _memory(held, row.mreq_pct, spec)
    return Instance(
        id=row.model,
        model=row.model,
        gpu_id=None,
        gpu_type=spec.name,
        runtime=row.runtime,
        dtype=row.dtype,
        dims=row.dims,
        batch_size=row.batch_size or 1,
        sm_share_pct=row.sm_share_pct,
        partition=None,
        latency_ms=row.latency_ms,
        slo_ms=None,
        max_wait_ms=None,
        goodput_rps=None,
        creq_pct=getattr(row, column),
        mreq_bytes=size,
        mreq_pct=percent,
    )
