"""Measured co-locations from files: slowdowns, with what each model asks of the GPU when it runs alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError, TableError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuCatalogue, gpu_catalogue
from gkestimator.interference.contention import Contention
from gkestimator.tables import REQUIREMENTS, Requirement, read_table
from gkestimator.tables.colocation import COLOCATION, CoRun
from gkestimator.tables.reading import parquet_records

DEMANDS = ("sm_util_mean_pct", "dram_util_mean_pct", "l2_util_mean_pct")
_NEEDED = DEMANDS[0]
"""Without counters nobody measures the other two: then the fit knows nothing of them, and says so."""
# Runs side by side may come out a little faster than alone by noise; half the time is a mistake in the columns.
_LEAST_SLOWDOWN = 0.5
# Beyond it the units are mixed up; sixteen side by side seldom pass sixteen.
_MOST_SLOWDOWN = 1000.0
# A counter may pass the peak of a data sheet a little.
_MOST_DEMAND_PCT = 120.0
_MOST_IN_GROUP = 16


@frozen
class MeasuredSlowdown:
    """Hold one slowdown that was measured. ``own`` and ``others``: :class:`Contention`'s features of the
    model, and their sums over those beside it (FEATURES numbers each); ``models`` of the group, its own
    first. ``known``: DRAM and L2 demand are, of all of them."""

    group: str
    gpu: str
    models: tuple[str, ...]
    slowdown: float
    own: tuple[float, ...]
    others: tuple[float, ...]
    known: bool = True


@frozen
class _Side:
    where: str
    run: CoRun


def read_pairs(
    path: Path, tables: Sequence[Path] = (), *, gpu_specs: Sequence[Path | str] = ()
) -> tuple[MeasuredSlowdown, ...]:
    """Return every slowdown in the co-location table at ``path`` (CSV, JSON, Parquet), or in what
    ``measure_gpu.py coloc`` writes (Parquet), in the order of the file. What models ask of the GPU alone is
    the file's where it has it, else that of their row in the requirement ``tables``.

    Raises TableError naming file, row and column: a broken table, a group of one or on two GPUs, models that
    took turns, a latency of 0, times that are no slowdown, a share of 0, a model without its row, SM
    utilisation that is null in both, a demand above the peak."""
    catalogue = gpu_catalogue(gpu_specs)
    sides = _coloc(path) if _is_coloc(path) else _ours(path)
    groups: dict[str, list[_Side]] = defaultdict(list)
    for side in sides:
        groups[side.run.group].append(side)
    known = _Rows(tables, catalogue)
    slowdowns: list[MeasuredSlowdown] = []
    for name, members in groups.items():
        slowdowns.extend(_of_group(name, members, known, catalogue))
    if not slowdowns:
        raise TableError(f"{path}: found no measured slowdown, expected at least one row with both latencies")
    return tuple(slowdowns)


def _ours(path: Path) -> list[_Side]:
    sides = []
    for number, run in enumerate(read_table(path, COLOCATION), start=1):
        where = f"{path}: row {number}"
        if run.sharing not in (None, "mps"):
            raise _in_turns(f"{where}, column sharing", run.sharing)
        sides.append(_Side(where=where, run=run))
    return sides


def _in_turns(where: str, found: object) -> TableError:
    return TableError(
        f"{where}: found {found!r}, expected mps (models that take turns do not run side by side)"
    )


def _is_coloc(path: Path) -> bool:
    if path.suffix.lower() != ".parquet":
        return False
    return any("slowdown_same_share" in row for row in islice(parquet_records(path), 1))


def _coloc(path: Path) -> list[_Side]:
    """Return the pairs in a part that ``measure_gpu.py coloc`` wrote: side A of a pair, then B. A pair of
    which one side broke off is left out: nobody knows for how long the other had company."""
    pairs: list[list[tuple[str, Mapping[str, Any]]]] = []
    for number, row in enumerate(parquet_records(path), start=1):
        if row.get("kind") != "pair":
            continue
        where = f"{path}: row {number}"
        if row.get("mode") != "mps":
            raise _in_turns(f"{where}, column mode", row.get("mode"))
        if row.get("side") == "A" or not pairs:  # numbers of pairs start again where a run was resumed
            pairs.append([])
        pairs[-1].append((where, row))
    times = ("p50_ms", "alone_same_share_p50_ms")
    complete = []
    for group, sides in enumerate(pairs, start=1):
        if len(sides) == 2 and all(row.get(name) is not None for _, row in sides for name in times):
            complete += [_Side(where=where, run=_run(where, str(group), row)) for where, row in sides]
    return complete


def _run(where: str, group: str, row: Mapping[str, Any]) -> CoRun:
    cells: dict[str, Any] = {
        "group": group,
        **{n: row.get(n) for n in ("model", "gpu", "runtime", "dtype", "batch_size", "sm_share_pct")},
        "latency_alone_ms": row["alone_same_share_p50_ms"],
        "latency_together_ms": row["p50_ms"],
    }
    for name, value in cells.items():
        problem = COLOCATION.by_name[name].problem(value)
        if problem:
            raise TableError(f"{where}, column {name}: {problem}")
    return COLOCATION.build(cells)


class _Rows:
    """Hold requirement rows by what they answer."""

    def __init__(self, tables: Sequence[Path], catalogue: GpuCatalogue) -> None:
        self.tables = ", ".join(str(t) for t in tables)
        self._rows: dict[tuple[object, ...], list[Requirement]] = defaultdict(list)
        names: dict[str, str] = {}
        for table in tables:
            for row in read_table(table, REQUIREMENTS):
                if row.gpu not in names:
                    names[row.gpu] = catalogue.resolve(row.gpu)[0].name
                key = (row.model, names[row.gpu], row.runtime, row.dtype, row.batch_size, row.sm_share_pct)
                self._rows[key].append(row)

    def of(self, side: _Side, gpu: str) -> Requirement:
        """Return the row of ``side`` on ``gpu``, with the demands that the pair's own row has; DRAM and L2
        demand are null where nobody knows them. Raises TableError."""
        run = side.run
        given = {name: getattr(run, name) for name in DEMANDS if getattr(run, name) is not None}
        if len(given) == len(DEMANDS) or (_NEEDED in given and not self.tables):
            return replace(_bare(run, gpu), **given)
        what = (
            f"{run.model} on {gpu} ({run.runtime}, {run.dtype}) at batch {run.batch_size}, "
            f"{run.sm_share_pct:g} % of the SMs"
        )
        if not self.tables:
            raise TableError(
                f"{side.where}, column {_NEEDED}: found nothing, expected a number or a table of its models"
            )
        key = (run.model, gpu, run.runtime, run.dtype, run.batch_size, run.sm_share_pct)
        rows = [row for row in self._rows[key] if run.dims in (None, row.dims)]
        if not rows and _NEEDED in given:
            return replace(_bare(run, gpu), **given)
        if len(rows) != 1:
            how = " (column dims chooses)" if rows else ""
            raise TableError(
                f"{side.where}: found {len(rows)} rows for {what} in {self.tables}, expected one{how}"
            )
        row = replace(rows[0], **given)
        if row.sm_util_mean_pct is None:
            raise TableError(
                f"{side.where}: {_NEEDED} is null for {what} in {self.tables}, expected a number"
            )
        return row


def _bare(run: CoRun, gpu: str) -> Requirement:
    return Requirement(
        model=run.model,
        gpu=gpu,
        runtime=run.runtime,
        dtype=run.dtype,
        batch_size=run.batch_size,
        sm_share_pct=run.sm_share_pct,
        source="measured",
        occupancy_source="measured",
        memory_source=None,
    )


def _of_group(
    name: str, members: Sequence[_Side], known: _Rows, catalogue: GpuCatalogue
) -> Iterable[MeasuredSlowdown]:
    first = members[0]
    if not 2 <= len(members) <= _MOST_IN_GROUP:
        raise TableError(
            f"{first.where}, column group: found {len(members)} row{'s' * (len(members) > 1)} of group {name!r}, "
            f"expected 2 to {_MOST_IN_GROUP}"
        )
    gpu = _gpu(first, catalogue)
    for side in members[1:]:
        if _gpu(side, catalogue) != gpu:
            raise TableError(
                f"{side.where}, column gpu: found {side.run.gpu!r}, expected {first.run.gpu!r} as in the rest of group "
                f"{name!r}"
            )
    law = Contention()
    features = [law.features(_possible(known.of(side, gpu), side)) for side in members]
    for i, side in enumerate(members):
        alone = side.run.latency_alone_ms
        together = side.run.latency_together_ms
        if alone <= 0:
            raise TableError(f"{side.where}, column latency_alone_ms: found {alone:g}, expected more than 0")
        if together is None:
            continue
        if together < _LEAST_SLOWDOWN * alone:
            raise TableError(
                f"{side.where}, column latency_together_ms: found {together:g}, expected no less than "
                f"{_LEAST_SLOWDOWN:g} times latency_alone_ms ({alone:g})"
            )
        if together > _MOST_SLOWDOWN * alone:
            raise TableError(
                f"{side.where}, column latency_together_ms: found {together:g}, expected at most {_MOST_SLOWDOWN:g} "
                f"times latency_alone_ms ({alone:g})"
            )
        beside = [f for j, f in enumerate(features) if j != i]
        yield MeasuredSlowdown(
            group=name,
            gpu=gpu,
            models=(side.run.model, *(s.run.model for s in members if s is not side)),
            slowdown=together / alone,
            own=features[i],
            others=tuple(sum(column) for column in zip(*beside, strict=True)),
            known=all(f[5] > 0 and f[6] > 0 for f in features),
        )


def _possible(row: Requirement, side: _Side) -> Requirement:
    """Return ``row``, where something of a GPU is asked, and no more than there is. Raises TableError."""
    if row.sm_share_pct <= 0:
        raise TableError(f"{side.where}, column sm_share_pct: found 0, expected more than 0")
    for name in DEMANDS:
        demand = getattr(row, name)
        if demand is not None and demand > _MOST_DEMAND_PCT:
            raise TableError(
                f"{side.where}: {name} of {row.model}: found {demand:g}, expected percent of the peak, at most "
                f"{_MOST_DEMAND_PCT:g}"
            )
    return row


def _gpu(side: _Side, catalogue: GpuCatalogue) -> str:
    try:
        return catalogue.resolve(side.run.gpu)[0].name
    except GkestimatorError as e:
        raise TableError(f"{side.where}, column gpu: {e}") from e
