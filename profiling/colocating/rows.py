"""The co-location table of what a journal holds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gkestimator.core.records import frozen
from gkestimator.profiling.colocating.journal import Header, PairRecord, SideRecord
from gkestimator.tables import REQUIREMENTS, CoRun, Requirement, read_table

_WHOLE = 100.0
Key = tuple[str, str, str, str, "int | None", str]


@frozen
class Demands:
    """Rows of requirement ``tables``, of models that are not confined, by what they answer: those of the first table
    first."""

    tables: str
    rows: Mapping[Key, Sequence[Requirement]]


@frozen
class _Asked:
    """What a model asks for alone, in percent of the peak; None: not known."""

    sm: float | None = None
    dram: float | None = None
    l2: float | None = None


def read_demands(paths: Sequence[Path]) -> Demands:
    """The measured or estimated rows in ``paths`` (CSV, JSON, Parquet). Raises TableError."""
    rows: dict[Key, list[Requirement]] = defaultdict(list)
    for r in (r for path in paths for r in read_table(path, REQUIREMENTS)):
        if r.sm_share_pct == _WHOLE:
            rows[(r.model, r.gpu, r.runtime, r.dtype, r.batch_size, r.dims)].append(r)
    return Demands(tables=", ".join(map(str, paths)), rows=rows)


def rows_of(
    records: Iterable[PairRecord], header: Header, demands: Demands | None
) -> tuple[list[CoRun], tuple[str, ...]]:
    """Two rows for each measured pair, and a line for each model of which ``demands`` has no row.

    What a model asks of the GPU alone is copied from its row (what is null there, from that of the next table) where
    it is not confined. Confined to a share of the SMs
    the same work takes longer, so that it asks less at a time: the row's value times latency alone on the whole GPU
    (of the journal, else the row's) / latency alone at the share, and of the SMs no more than the share. Null where one
    of them is not known.
    """
    found = list(records)
    whole = _unconfined(found)
    rows: list[CoRun] = []
    missing: dict[str, None] = {}
    for record in found:
        group = "+".join(f"{s.entry_id}@{s.sm_share_pct:g}" for s in record.sides)
        for side in record.sides:
            asked = _Asked()
            if demands is not None:
                known = demands.rows.get(
                    (side.model, header.gpu, header.executor, side.dtype, side.batch_size, side.dims)
                )
                if not known:
                    missing[
                        f"{demands.tables}: no row for {side.model} on {header.gpu} ({header.executor}, {side.dtype}) "
                        f"at batch {side.batch_size}: what it asks for alone stays null"
                    ] = None
                else:
                    asked = _asked(known, side, whole.get(side.entry_id))
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
                    sm_util_mean_pct=asked.sm,
                    dram_util_mean_pct=asked.dram,
                    l2_util_mean_pct=asked.l2,
                )
            )
    return rows, tuple(missing)


def _unconfined(records: Sequence[PairRecord]) -> dict[str, float]:
    """Median latency alone on the whole GPU by entry."""
    found: dict[str, list[float]] = defaultdict(list)
    for side in (s for r in records for s in r.sides if s.sm_share_pct == _WHOLE):
        found[side.entry_id].append(side.latency_alone_ms)
    return {entry: statistics.median(values) for entry, values in found.items()}


def _asked(rows: Sequence[Requirement], side: SideRecord, whole_ms: float | None) -> _Asked:
    sm, dram, l2, latency = (
        next((v for r in rows if (v := getattr(r, name)) is not None), None)
        for name in ("sm_util_mean_pct", "dram_util_mean_pct", "l2_util_mean_pct", "latency_ms")
    )
    if side.sm_share_pct == _WHOLE:
        return _Asked(sm=sm, dram=dram, l2=l2)
    alone_ms = whole_ms if whole_ms is not None else latency
    if alone_ms is None:
        return _Asked()
    slower = alone_ms / side.latency_alone_ms
    return _Asked(
        sm=None if sm is None else min(sm * slower, side.sm_share_pct),
        dram=None if dram is None else dram * slower,
        l2=None if l2 is None else l2 * slower,
    )


def slowdowns(records: Iterable[PairRecord]) -> tuple[float, ...]:
    """Latency together / latency alone of every side."""
    return tuple(s.latency_together_ms / s.latency_alone_ms for r in records for s in r.sides)


def worst_words(records: Iterable[PairRecord]) -> str | None:
    """The model that was slowed most, and beside which; None without any."""
    each = [
        (side.latency_together_ms / side.latency_alone_ms, side, other)
        for record in records
        for side, other in (record.sides, record.sides[::-1])
    ]
    if not each:
        return None
    factor, side, other = max(each, key=lambda e: e[0])
    return f"{_words(side)} by {factor:.2f} beside {_words(other)}"


def _words(side: SideRecord) -> str:
    batch = "" if side.batch_size is None else f", batch {side.batch_size}"
    if side.sm_share_pct == _WHOLE:
        share = ""
    else:
        share = f", {side.sm_share_pct:g} % of the SMs"
    return f"{side.model} ({side.dtype}{batch}{share})"
