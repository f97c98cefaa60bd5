"""Kernel datasets of several runs and machines in one."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError, TableError, UsageError
from gkestimator.core.records import frozen
from gkestimator.profiling.building.checks import EntryKey
from gkestimator.profiling.building.choosing import Rank, best_of, rank
from gkestimator.profiling.building.provenance import (
    beside,
    check_beside,
    data_format,
    dataset_counts,
    provenance,
)
from gkestimator.profiling.building.sequences import (
    LoweringTable,
    entries_of,
    lowering_document,
    lowering_table,
)
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement, read_table
from gkestimator.tables.files import json_bytes
from gkestimator.tables.reading import MAX_FILE_BYTES
from gkestimator.tables.together import write_together
from gkestimator.tables.writing import encode_csv, encode_parquet

_SUFFIXES = (".parquet", ".csv", ".json")
_MAX_BESIDE = 64 * 2**20
_GPU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,62}[A-Za-z0-9]")


@frozen
class _Group:
    """The rows of one operator call in one dataset."""

    rows: tuple[KernelMeasurement, ...]
    dataset: int

    @property
    def key(self) -> EntryKey:
        first = self.rows[0]
        return first.entry_id, first.gpu, first.runtime

    def rank(self) -> Rank:
        worst = max(self.rows, key=lambda r: rank(r.quality, None, None)).quality
        repeats = [r.repeats for r in self.rows if r.repeats is not None]
        counted = any(_has_counters(r) for r in self.rows)
        return rank(worst, min(repeats, default=None), _variation(self.rows), counted=counted)


def _has_counters(row: KernelMeasurement) -> bool:
    counters = (row.achieved_occupancy_pct, row.dram_util_pct, row.dram_bytes, row.l2_hit_pct)
    return any(value is not None for value in counters)


def _variation(rows: Sequence[KernelMeasurement]) -> float | None:
    """Mean variation of the launches, weighted by their time; None where one is not known."""
    if any(r.duration_cv is None for r in rows):
        return None
    weights = [r.duration_us or 0.0 for r in rows]
    total = sum(weights)
    if total <= 0:
        return None
    return sum(w * (r.duration_cv or 0.0) for w, r in zip(weights, rows, strict=True)) / total


@frozen
class DatasetMerge:
    """What was merged. ``kept``: operators taken of each dataset, in their order. ``identical``: operators that two
    datasets hold alike, dropped once; ``conflicts``: operators measured differently, of which the better is kept."""

    rows: tuple[KernelMeasurement, ...]
    table: LoweringTable
    kept: tuple[tuple[Path, int], ...]
    identical: int
    conflicts: int
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def exit_status(self) -> int:
        """1 where a dataset could not be read."""
        return 1 if self.problems else 0

    def lines(self) -> list[str]:
        """What happened, for people."""
        lines = [f"{path.name}: {count:,} operators kept" for path, count in self.kept]
        lines.append(
            f"{self.identical:,} identical duplicates dropped, {self.conflicts:,} measured differently: better "
            f"quality, then counters, then more repeats, then less variation kept"
        )
        return lines


def merge_datasets(
    datasets: Sequence[Path], output: Path, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> DatasetMerge:
    """Merge ``datasets`` (any version that is read; Parquet, CSV or JSON) into ``output`` (.parquet or .csv).

    Operators are taken whole: one entry on one GPU under one runtime comes from one dataset. Different GPUs stand side
    by side. A dataset that cannot be read is a problem, the others are merged. Raises TableError where none can.
    """
    if not datasets:
        raise UsageError("no dataset to merge")
    form = data_format(output)
    check_beside(output)
    groups: list[_Group] = []
    sources: list[dict[str, Any]] = []
    problems: list[str] = []
    notes: list[str] = []
    read: list[Path] = []
    specs: dict[str, tuple[Path, bytes]] = {}
    for path in datasets:
        if path.is_dir():
            problems.append(
                f"{path}: found a folder, expected a dataset (gkest profile build makes one of raw folders)"
            )
            continue
        if path.suffix.lower() not in _SUFFIXES:
            problems.append(f"{path}: found the suffix {path.suffix!r}, expected {', '.join(_SUFFIXES)}")
            continue
        try:
            rows = read_table(path, KERNEL_DATASET)
        except GkestimatorError as e:
            problems.append(str(e))
            continue
        groups += [_Group(rows=tuple(g), dataset=len(read)) for g in entries_of(rows).values()]
        sources.append(_source(path, rows, notes))
        _collect_specs(path, {r.gpu for r in rows}, specs, notes)
        read.append(path)
    if not groups:
        raise TableError(problems[0] if problems else "the datasets hold no rows")
    for name in [n for n, (_, text) in specs.items() if _differs(beside(output, f".{n}.toml"), text)]:
        there, (origin, _) = beside(output, f".{name}.toml"), specs.pop(name)
        notes.append(
            f"{there.name}: is there with other figures, and is kept (remove it to have that of {origin.name})"
        )
    best, passed = best_of(groups, lambda g: g.key, lambda g: g.rank())
    kept_of = {g.key: g for g in best}
    identical = sum(other.rows == kept_of[other.key].rows for others in passed.values() for other in others)
    rows = tuple(row for g in best for row in g.rows)
    counts = Counter(g.dataset for g in best)
    conflicts = sum(len(others) for others in passed.values()) - identical
    table = lowering_table(rows)
    data = (encode_csv if form == "csv" else encode_parquet)(KERNEL_DATASET, rows)
    for i, source in enumerate(sources):
        source["operators_kept"] = counts.get(i, 0)
    document = provenance(
        output,
        data,
        dataset_counts(rows),
        made=now().isoformat(timespec="seconds"),
        table_version=KERNEL_DATASET.version,
        sources=sources,
        problems=problems,
        notes=[*notes, f"{identical} identical duplicates dropped, {conflicts} measured differently"],
    )
    files = {
        **{beside(output, f".{name}.toml"): text for name, (_, text) in specs.items()},
        beside(output, ".lowering.json"): json_bytes(
            lowering_document(table, dataset=output.name, varying={})
        ),
        beside(output, ".json"): json_bytes(document),
        output: data,
    }
    write_together(files)
    return DatasetMerge(
        rows=rows,
        table=table,
        kept=tuple((path, counts.get(i, 0)) for i, path in enumerate(read)),
        identical=identical,
        conflicts=conflicts,
        files=tuple(reversed(files)),
        notes=tuple(notes),
        problems=tuple(problems),
    )


def _source(path: Path, rows: Sequence[KernelMeasurement], notes: list[str]) -> dict[str, Any]:
    """What is known of a dataset that goes in; its own provenance if it is that of this file."""
    digest = _digest(path)
    source: dict[str, Any] = {
        "kind": "dataset",
        "name": path.name,
        "sha256": digest,
        "rows": len(rows),
        "provenance": None,
    }
    try:
        beside_it = _read_beside(beside(path, ".json"))
        document = None if beside_it is None else json.loads(beside_it)
    except (OSError, ValueError, RecursionError) as e:
        notes.append(f"{path.name}: its provenance cannot be read: {e}")
        return source
    if not isinstance(document, dict):
        notes.append(f"{path.name}: no provenance beside it")
    elif document.get("sha256") != digest:
        notes.append(f"{path.name}: the provenance beside it is that of another file and is left out")
    else:
        source["provenance"] = document
    return source


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            found.update(block)
            if stream.tell() > MAX_FILE_BYTES:
                raise TableError(f"{path}: more than {MAX_FILE_BYTES:,} bytes")
    return found.hexdigest()


def _read_beside(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    if path.stat().st_size > _MAX_BESIDE:
        raise ValueError(f"more than {_MAX_BESIDE:,} bytes")
    return path.read_bytes()


def _differs(path: Path, text: bytes) -> bool:
    """Whether there is a file at ``path`` that holds something else; one that cannot be read does."""
    try:
        return path.exists() and _read_beside(path) != text
    except (OSError, ValueError):
        return True


def _collect_specs(
    path: Path, gpus: set[str], specs: dict[str, tuple[Path, bytes]], notes: list[str]
) -> None:
    """The GPU files beside a dataset. Of two that differ, the first is kept."""
    for gpu in sorted(g for g in gpus if _GPU_NAME.fullmatch(g)):
        try:
            text = _read_beside(beside(path, f".{gpu}.toml"))
        except (OSError, ValueError) as e:
            notes.append(f"{path.name}: the specification of {gpu} cannot be read: {e}")
            continue
        if text is None:
            continue
        before = specs.setdefault(gpu, (path, text))
        if before[1] != text:
            notes.append(
                f"{path.name}: its specification of {gpu} differs from that of {before[0].name}, which is kept"
            )
