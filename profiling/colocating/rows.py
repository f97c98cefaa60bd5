"""The co-location table of what a journal holds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gkestimator.core.records import frozen
from gkestimator.profiling.colocating.journal import Header, PairRecord, SideRecord
from gkestimator.profiling.type_names import Fields, Floats, Names
from gkestimator.tables import REQUIREMENTS, CoRun, Requirement, read_table

_WHOLE = 100.0
_DEMANDED = ("sm_util_mean_pct", "dram_util_mean_pct", "l2_util_mean_pct")
Key = tuple[str, str, str, str, "int | None", str]


@frozen
class Demands:
    """Hold rows of requirement ``tables``, of models that are not confined, by what they answer: those of the
    first table first."""

    tables: str
    rows: Mapping[Key, Sequence[Requirement]]


def read_demands(paths: Sequence[Path]) -> Demands:
    """Return the measured or estimated rows in ``paths`` (CSV, JSON, Parquet). Raises TableError."""
    rows: dict[Key, list[Requirement]] = defaultdict(list)
    for path in paths:
        for row in read_table(path, REQUIREMENTS):
            if row.sm_share_pct == _WHOLE:
                key = (row.model, row.gpu, row.runtime, row.dtype, row.batch_size, row.dims)
                rows[key].append(row)
    return Demands(tables=", ".join(map(str, paths)), rows=rows)


def rows_of(
    records: Iterable[PairRecord], header: Header, demands: Demands | None
) -> tuple[list[CoRun], Names]:
    """Return two rows for each measured pair, and a line for each model of which ``demands`` has no row.

    What a model asks of the GPU alone is copied from its row (what is null there, from that of the next
    table) where it is not confined. Confined to a share of the SMs the same work takes longer, so that it
    asks less at a time: the row's value times latency alone on the whole GPU (of the journal, else the row's)
    / latency alone at the share, and of the SMs no more than the share. Null where one of them is not known.
    """
    records = list(records)
    whole = _unconfined(records)
    rows: list[CoRun] = []
    missing: dict[str, None] = {}
    for record in records:
        group = "+".join(f"{s.entry_id}@{s.sm_share_pct:g}" for s in record.sides)
        for side in record.sides:
            asked: Fields = {}
            if demands is not None:
                known = demands.rows.get(
                    (side.model, header.gpu, header.executor, side.dtype, side.batch_size, side.dims)
                )
                if known:
                    asked = _asked(known, side, whole.get(side.entry_id))
                else:
                    line = (
                        f"{demands.tables}: no row for {side.model} on {header.gpu} ({header.executor}, {side.dtype}) "
                        f"at batch {side.batch_size}: what it asks for alone stays null"
                    )
                    missing[line] = None
            demanded: Fields = {name: asked.get(name) for name in _DEMANDED}
            rows.append(
                CoRun(
                    group=group,
                    model=side.model,
                    gpu=header.gpu,
                    runtime=header.executor,
                    dtype=side.dtype,
                    batch_size=side.batch_size,
                    dims=side.dims,
                    sm_share_pct=side.sm_share_pct,
                    sharing=header.sharing,
                    latency_alone_ms=side.latency_alone_ms,
                    latency_together_ms=side.latency_together_ms,
                    **demanded,
                )
            )
    return rows, tuple(missing)


def _unconfined(records: Sequence[PairRecord]) -> dict[str, float]:
    """Return the median latency alone on the whole GPU by entry."""
    latencies: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for side in record.sides:
            if side.sm_share_pct == _WHOLE:
                latencies[side.entry_id].append(side.latency_alone_ms)
    return {entry: statistics.median(values) for entry, values in latencies.items()}


def _asked(rows: Sequence[Requirement], side: SideRecord, whole_ms: float | None) -> Fields:
    """Return what a model asks for alone, in percent of the peak, by the names of columns; None: not known."""
    asked = {name: _first(rows, name) for name in _DEMANDED}
    if side.sm_share_pct == _WHOLE:
        return asked
    if whole_ms is None:
        whole_ms = _first(rows, "latency_ms")
    if whole_ms is None:
        return {}
    # The same bytes and FLOPs spread over more time.
    slower = whole_ms / side.latency_alone_ms
    for name, value in asked.items():
        if value is not None:
            asked[name] = value * slower
    sm = asked["sm_util_mean_pct"]
    if sm is not None:
        asked["sm_util_mean_pct"] = min(sm, side.sm_share_pct)
    return asked


def _first(rows: Sequence[Requirement], column: str) -> float | None:
    """Return the first value of a column that is not null."""
    return next((value for row in rows if (value := getattr(row, column)) is not None), None)


def slowdowns(records: Iterable[PairRecord]) -> Floats:
    """Return latency together / latency alone of every side."""
    return tuple(s.latency_together_ms / s.latency_alone_ms for r in records for s in r.sides)


def worst_words(records: Iterable[PairRecord]) -> str | None:
    """Name the model that was slowed most, and beside which; None without any."""
    worst = -1.0
    words: str | None = None
    for record in records:
        for side, other in (record.sides, record.sides[::-1]):
            factor = side.latency_together_ms / side.latency_alone_ms
            if factor > worst:
                worst = factor
                words = f"{_words(side)} by {factor:.2f} beside {_words(other)}"
    return words


def _words(side: SideRecord) -> str:
    words = [side.dtype]
    if side.batch_size is not None:
        words.append(f"batch {side.batch_size}")
    if side.sm_share_pct != _WHOLE:
        words.append(f"{side.sm_share_pct:g} % of the SMs")
    return f"{side.model} ({', '.join(words)})"
