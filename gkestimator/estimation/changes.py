"""Compare two models, or two saved requirement tables, row by row: what changed, and whether that is too much.

Models are estimated by one engine under the same options, so the kernels that stand in both are known and the
interval of a change counts those alone that differ (:mod:`gkestimator.estimation.change_intervals`). A table does
not hold its kernels: the interval of its changes is not known, except between equal rows, which differ by nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen
from gkestimator.estimation.change_intervals import (
    BothKernels,
    HostPace,
    LaunchedKernels,
    both_kernels,
    change_interval_us,
)
from gkestimator.estimation.collection import rare_collection
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.model_report import kernel_shape
from gkestimator.estimation.request import ChangeLimits, EstimateRequest, Progress
from gkestimator.estimation.rows import requirement_row
from gkestimator.lowering import load_plugin
from gkestimator.tables import REQUIREMENTS, Requirement, read_table

TABLE_SUFFIXES = (".csv", ".json", ".parquet")
_MEASURED = "measured"


@frozen
class FigureChange:
    """Hold a figure before and after; None: not known. ``low`` and ``high``: 90 % interval of after minus before, None
    where that is not known."""

    before: float | None
    after: float | None
    low: float | None = None
    high: float | None = None

    @property
    def change(self) -> float | None:
        """Return after minus before."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    def percent(self, change: float | None) -> float | None:
        """Return ``change`` in percent of what was before; None where that was nothing, or is not known."""
        if change is None or self.before is None:
            return None
        if change == 0:
            return 0.0
        if self.before == 0:
            return None
        return 100 * change / self.before

    @property
    def change_pct(self) -> float | None:
        """Return the change in percent of what was before."""
        return self.percent(self.change)


@frozen
class KernelChange:
    """Hold kernels of one name and shape that are not launched as before: launches, and microseconds of all of them.

    Kernels launched equally often before and after are not counted, though they may look alike (their strides differ).
    """

    name: str
    shape: str
    launches_before: int
    launches_after: int
    before_us: float
    after_us: float

    @property
    def change_us(self) -> float:
        """Return the time that they take more."""
        return self.after_us - self.before_us


@frozen
class RowChange:
    """Hold what changed on one GPU at one batch size. ``kernels``: None where a table does not say.

    ``latency`` in ms, null where it is a lower bound (operators that nobody counted); ``memory`` in bytes
    (``mreq_bytes``); ``flops`` of the batch.
    """

    before: Requirement
    after: Requirement
    latency: FigureChange
    memory: FigureChange
    flops: FigureChange
    kernels: tuple[KernelChange, ...] | None = None

    @property
    def no_longer_fits(self) -> bool:
        """Return whether memory sufficed before and does not now."""
        before = self.before.mreq_pct
        after = self.after.mreq_pct
        return before is not None and after is not None and before <= 100 < after

    @property
    def place(self) -> str:
        """Return where this is, in words: GPU, batch size, and what else tells rows apart."""
        words = [self.after.gpu]
        if self.after.batch_size is not None:
            words.append(f"batch {self.after.batch_size}")
        if self.after.dims:
            words.append(self.after.dims)
        if self.after.sm_share_pct < 100:
            words.append(f"{self.after.sm_share_pct:g} % of the SMs")
        return ", ".join(words)


@frozen
class AllChanges:
    """Hold all changes, and the rows of tables that stand in one of them alone."""

    rows: tuple[RowChange, ...]
    only_before: tuple[Requirement, ...] = ()
    only_after: tuple[Requirement, ...] = ()

    @property
    def of_models(self) -> bool:
        """Return whether models were compared, so that kernels are known."""
        return all(row.kernels is not None for row in self.rows)


def compare_files(
    before: Path, after: Path, *, progress: Progress | None = None, **options: Any
) -> AllChanges:
    """Return what changed between two ONNX files under ``options`` (fields of :class:`EstimateRequest`), or between two
    tables, told by their suffix. Raises GkestimatorError for files that cannot be read or compared."""
    if are_tables(before, after):
        return _compared_tables(before, after)
    return _compared_models(EstimateRequest((before, after), **options), progress)


def are_tables(before: Path, after: Path) -> bool:
    """Return whether both files are tables by their suffix. Raises UsageError where one is."""
    tables = sum(path.suffix.lower() in TABLE_SUFFIXES for path in (before, after))
    if tables == 1:
        raise UsageError(f"found {before} and {after}, expected two ONNX files or two tables")
    return tables == 2


def _compared_models(request: EstimateRequest, progress: Progress | None) -> AllChanges:
    for plugin in request.plugins:
        load_plugin(str(plugin))
    with rare_collection():
        engine = Engine(request)
        outcomes = engine.run(progress)
        answers = []
        for _ in request.models:
            path, outcome = next(outcomes)
            engine.check_names()  # a misspelt name says more than what it left open
            if isinstance(outcome, GkestimatorError):
                raise _naming(path, outcome)
            answers.append(outcome)
        if len({len(rows) for rows in answers}) > 1:
            raise UsageError(
                "found a dimension with several sizes that one of the models lacks, expected one size"
            )
        # The engine forgets its kernels when it is asked for what follows the last model.
        pairs = zip(*answers, strict=True)
        return AllChanges(rows=tuple(_model_change(engine, old, new) for old, new in pairs))


def _naming(path: Path, error: GkestimatorError) -> GkestimatorError:
    """Return ``error``, which names ``path``."""
    if path.name in str(error):
        return error
    return type(error)(f"{path}: {error}")


def _model_change(engine: Engine, before: Estimated, after: Estimated) -> RowChange:
    sizes = (before.lowering.lowered.batch_size, after.lowering.lowered.batch_size)
    if None not in sizes and sizes[0] != sizes[1]:
        raise UsageError(
            f"found batch size {sizes[0]} in OLD and {sizes[1]} in NEW: expected "
            + spelled("batch_sizes", "--batch-size")
        )
    old = _launched(before)
    new = _launched(after)
    change = _row_change(_row(engine, before), _row(engine, after))
    host = HostPace(
        overhead_us=engine.host_overhead_us, range_us=engine.host_range_us, streams=engine.streams
    )
    kernels = tuple(_kernel_changes(engine, both_kernels(old, new)))
    more_ms = change.latency.change
    if more_ms is None:
        return replace(change, kernels=kernels)
    low, high = change_interval_us(old, new, host)
    copied_ms = more_ms - (after.measures.latency_ms - before.measures.latency_ms)
    # Copies of inputs and outputs are part of the change where they are asked for, and calculated without an interval.
    latency = replace(
        change.latency,
        low=min(low / 1e3 + copied_ms, more_ms),
        high=max(high / 1e3 + copied_ms, more_ms),
    )
    return replace(change, latency=latency, kernels=kernels)


def _row(engine: Engine, answer: Estimated) -> Requirement:
    """Return an answer's row under its file's stem: the folders that tell two files apart elsewhere are noise here."""
    row = requirement_row(engine, answer)
    path = answer.lowering.path
    return row if path is None else replace(row, model=path.stem)


def _launched(answer: Estimated) -> LaunchedKernels:
    lowering = answer.lowering
    return LaunchedKernels(
        program=lowering.program,
        predictions=answer.predictions,
        rows=lowering.rows,
        part=answer.sm_share_pct < 100,
    )


def _kernel_changes(engine: Engine, both: BothKernels) -> Iterator[KernelChange]:
    """Yield the kernels that differ, by name and shape; those whose time changes most come first."""
    sums: dict[tuple[str, str], np.ndarray] = {}
    for at in np.flatnonzero(both.more).tolist():
        kernel = engine.pool.kernels[int(both.rows[at])]
        label = (kernel.name, kernel_shape(kernel))
        launches = np.array([both.before[at], both.after[at]])
        told = np.concatenate([launches, launches * both.duration_us[at]])
        sums[label] = sums.get(label, np.zeros(4)) + told
    changes = []
    for (name, shape), (old, new, old_us, new_us) in sums.items():
        changes.append(
            KernelChange(
                name=name,
                shape=shape,
                launches_before=round(old),
                launches_after=round(new),
                before_us=float(old_us),
                after_us=float(new_us),
            )
        )
    yield from sorted(changes, key=lambda change: (-abs(change.change_us), change.name, change.shape))


def _row_change(before: Requirement, after: Requirement) -> RowChange:
    return RowChange(
        before=before,
        after=after,
        latency=FigureChange(before=_latency_ms(before), after=_latency_ms(after)),
        memory=FigureChange(before=_whole(before, "mreq_bytes"), after=_whole(after, "mreq_bytes")),
        flops=FigureChange(before=_whole(before, "flops"), after=_whole(after, "flops")),
    )


def _latency_ms(row: Requirement) -> float | None:
    """Return the latency; None where operators were left out, so that it is a lower bound alone."""
    if row.unknown_kernels or (row.latency_high_ms is None and row.source != _MEASURED):
        return None
    return row.latency_ms


def _whole(row: Requirement, name: str) -> int | None:
    """Return a sum over the operators; None where some of them were left out."""
    if row.unknown_kernels:
        return None
    value: int | None = getattr(row, name)
    return value


def _compared_tables(before: Path, after: Path) -> AllChanges:
    """Return the changes between rows of one key; the model's name is no part of it where each table has one model."""
    old, new = (read_table(path, REQUIREMENTS) for path in (before, after))
    key = REQUIREMENTS.key
    if all(len({row.model for row in rows}) == 1 for rows in (old, new)):
        key = tuple(name for name in key if name != "model")
    later = {_key(row, key): row for row in new}
    changes = []
    gone = []
    for row in old:
        match = later.pop(_key(row, key), None)
        if match is None:
            gone.append(row)
            continue
        changes.append(_table_change(row, match))
    if not changes:
        raise UsageError(
            f"{before} and {after}: found no row in common, expected rows with the same {', '.join(key)}"
        )
    return AllChanges(rows=tuple(changes), only_before=tuple(gone), only_after=tuple(later.values()))


def _key(row: Requirement, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in names)


def _table_change(before: Requirement, after: Requirement) -> RowChange:
    change = _row_change(before, after)
    if change.latency.change is None or replace(before, model=after.model) != after:
        return change
    return replace(change, latency=replace(change.latency, low=0.0, high=0.0))


def breaches(row: RowChange, limits: ChangeLimits) -> list[str]:
    """Return in words which limits a row passes. What is not known passes none for sure, so it counts as passed."""
    told = []
    for what, figure, limit in (
        ("latency", row.latency, limits.max_latency_pct),
        ("memory", row.memory, limits.max_memory_pct),
        ("FLOPs", row.flops, limits.max_flops_pct),
    ):
        if limit is None:
            continue
        if figure.change is None:
            told.append(f"{what} on {row.place}: the change is not known, at most {limit:+g} % is asked for")
            continue
        percent = figure.change_pct
        if percent is None:
            told.append(f"{what} on {row.place}: grew from nothing, at most {limit:+g} % is asked for")
        elif percent > limit:
            sure = _sureness(figure, limit)
            told.append(f"{what} on {row.place}: {percent:+.1f} %{sure}, at most {limit:+g} % is asked for")
    return told


def _sureness(figure: FigureChange, limit: float) -> str:
    """Return how sure it is that a figure passed its limit, where its interval is known."""
    low = figure.percent(figure.low)
    if low is None:
        return ""
    if low > limit:
        return " (over the whole interval)"
    return f" (the interval begins at {low:+.1f} %)"
