"""Kernel datasets of several runs and machines in one."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, TableError, UsageError
from gkestimator.core.limits import allowed, exceeded
from gkestimator.core.records import frozen
from gkestimator.core.texts import parse_json
from gkestimator.profiling.building.choosing import EntryKey, Rank, best_of, entries_of, entry_key, rank
from gkestimator.profiling.building.provenance import (
    beside,
    check_beside,
    data_format,
    write_dataset,
)
from gkestimator.profiling.building.sequences import (
    LoweringTable,
    lowering_table,
)
from gkestimator.profiling.type_names import Fields, Names, Paths
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement, read_table

_SUFFIXES = (".parquet", ".csv", ".json")
_MAX_BESIDE = 64 * 2**20
_GPU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,62}[A-Za-z0-9]")


@frozen
class _Group:
    """Hold the rows of one operator call in one dataset."""

    rows: tuple[KernelMeasurement, ...]
    dataset: int

    @property
    def key(self) -> EntryKey:
        return entry_key(self.rows[0])

    def rank(self) -> Rank:
        worst = max(self.rows, key=lambda r: rank(r.quality, None, None)).quality
        repeats = [r.repeats for r in self.rows if r.repeats is not None]
        counted = any(_has_counters(r) for r in self.rows)
        return rank(worst, min(repeats, default=None), _variation(self.rows), counted=counted)


def _has_counters(row: KernelMeasurement) -> bool:
    counters = (row.achieved_occupancy_pct, row.dram_util_pct, row.dram_bytes, row.l2_hit_pct)
    return any(value is not None for value in counters)


def _variation(rows: Sequence[KernelMeasurement]) -> float | None:
    """Return the mean variation of the launches, weighted by their time; None where one is not known."""
    total = sum(r.duration_us or 0.0 for r in rows)
    if total <= 0 or any(r.duration_cv is None for r in rows):
        return None
    return sum((r.duration_us or 0.0) * (r.duration_cv or 0.0) for r in rows) / total


@frozen
class DatasetMerge:
    """Say what was merged. ``kept``: operators taken of each dataset, in their order. ``identical``:
    operators that two datasets hold alike, dropped once; ``conflicts``: operators measured differently, of
    which the better is kept."""

    rows: tuple[KernelMeasurement, ...]
    table: LoweringTable
    kept: tuple[tuple[Path, int], ...]
    identical: int
    conflicts: int
    files: Paths
    notes: Names
    problems: Names

    @property
    def exit_status(self) -> int:
        """Return 1 where a dataset could not be read, else 0."""
        return 1 if self.problems else 0

    def lines(self) -> list[str]:
        """Say what happened, for people."""
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

    Operators are taken whole: one entry on one GPU under one runtime comes from one dataset. Different GPUs
    stand side by side. A dataset that cannot be read is a problem, the others are merged. Raises TableError
    where none can.
    """
    if not datasets:
        raise UsageError("no dataset to merge")
    data_format(output)
    check_beside(output)
    inputs = _Inputs(datasets)
    inputs.leave_corrected_specs(output)
    notes = inputs.notes
    best, passed = best_of(inputs.groups, lambda g: g.key, _Group.rank)
    identical = conflicts = 0
    for group in best:
        # A dataset that was merged before brings the same rows again: those are no conflict.
        others = passed.get(group.key, [])
        alike = sum(other.rows == group.rows for other in others)
        identical += alike
        conflicts += len(others) - alike
    rows = tuple(row for group in best for row in group.rows)
    counts = Counter(group.dataset for group in best)
    kept = [(path, counts[number]) for number, (path, _) in enumerate(inputs.sources)]
    for (_, count), (_, source) in zip(kept, inputs.sources, strict=True):
        source["operators_kept"] = count
    table = lowering_table(rows)
    files = write_dataset(
        output,
        rows,
        table,
        {beside(output, f".{name}.toml"): text for name, (_, text) in inputs.specs.items()},
        varying={},
        made=now().isoformat(timespec="seconds"),
        sources=[source for _, source in inputs.sources],
        problems=inputs.problems,
        notes=[*notes, f"{identical} identical duplicates dropped, {conflicts} measured differently"],
    )
    return DatasetMerge(
        rows=rows,
        table=table,
        kept=tuple(kept),
        identical=identical,
        conflicts=conflicts,
        files=files,
        notes=tuple(notes),
        problems=tuple(inputs.problems),
    )


class _Inputs:
    """Hold what goes in: the operator calls of all datasets that could be read, where each dataset is from, and the
    GPU files beside them. Raises TableError where no dataset could be read."""

    def __init__(self, datasets: Sequence[Path]) -> None:
        self.groups: list[_Group] = []
        self.sources: list[tuple[Path, Fields]] = []
        self.specs: dict[str, tuple[Path, bytes]] = {}
        self.notes: list[str] = []
        self.problems: list[str] = []
        for path in datasets:
            try:
                self._read(path)
            except GkestimatorError as e:
                self.problems.append(str(e))
        if not self.groups:
            raise TableError(self.problems[0] if self.problems else "the datasets hold no rows")

    def _read(self, path: Path) -> None:
        if path.is_dir():
            raise TableError(
                f"{path}: found a folder, expected a dataset (gkest profile build makes one of raw folders)"
            )
        if path.suffix.lower() not in _SUFFIXES:
            raise TableError(f"{path}: found the suffix {path.suffix!r}, expected {', '.join(_SUFFIXES)}")
        rows = read_table(path, KERNEL_DATASET)
        source = self._source(path, len(rows))
        number = len(self.sources)
        self.sources.append((path, source))
        self.groups += [_Group(rows=tuple(group), dataset=number) for group in entries_of(rows).values()]
        self._collect_specs(path, {row.gpu for row in rows})

    def _source(self, path: Path, rows: int) -> Fields:
        """Say what is known of a dataset that goes in; its own provenance if it is that of this file."""
        digest = _digest(path)
        source = {"kind": "dataset", "name": path.name, "sha256": digest, "rows": rows, "provenance": None}
        try:
            text = _read_beside(beside(path, ".json"))
            document = None if text is None else parse_json(text)
        except (OSError, ValueError) as e:
            self.notes.append(f"{path.name}: its provenance cannot be read: {e}")
            return source
        if not isinstance(document, dict):
            self.notes.append(f"{path.name}: no provenance beside it")
        elif document.get("sha256") != digest:
            self.notes.append(
                f"{path.name}: the provenance beside it is that of another file and is left out"
            )
        else:
            source["provenance"] = document
        return source

    def leave_corrected_specs(self, output: Path) -> None:
        """Drop the GPU files in whose places beside ``output`` others are: those may be corrected by hand."""
        for name, (origin, text) in list(self.specs.items()):
            there = beside(output, f".{name}.toml")
            if _differs(there, text):
                del self.specs[name]
                self.notes.append(
                    f"{there.name}: is there with other figures, and is kept (remove it to have that of {origin.name})"
                )

    def _collect_specs(self, path: Path, gpus: set[str]) -> None:
        """Take the GPU files beside a dataset. Of two that differ, the first is kept."""
        for gpu in sorted(filter(_GPU_NAME.fullmatch, gpus)):
            try:
                text = _read_beside(beside(path, f".{gpu}.toml"))
            except (OSError, ValueError) as e:
                self.notes.append(f"{path.name}: the specification of {gpu} cannot be read: {e}")
                continue
            if text is None:
                continue
            first, known = self.specs.setdefault(gpu, (path, text))
            if known != text:
                self.notes.append(
                    f"{path.name}: its specification of {gpu} differs from that of {first.name}, which is kept"
                )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
            if stream.tell() > allowed("table_bytes"):
                raise TableError(f"{path}: {exceeded('table_bytes', stream.tell())}")
    return digest.hexdigest()


def _read_beside(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    if path.stat().st_size > _MAX_BESIDE:
        raise ValueError(f"more than {_MAX_BESIDE:,} bytes")
    return path.read_bytes()


def _differs(path: Path, text: bytes) -> bool:
    """Return whether there is a file at ``path`` that holds something else; one that cannot be read does."""
    try:
        return path.exists() and _read_beside(path) != text
    except (OSError, ValueError):
        return True
