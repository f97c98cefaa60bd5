"""Raw folders to a kernel dataset, its provenance, its lowering table and a report."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, TableError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.profiling.building.checks import Check, EntryKey, check_rows
from gkestimator.profiling.building.choosing import Rank, best_of, rank
from gkestimator.profiling.building.describing import Description, describe
from gkestimator.profiling.building.devices import DeviceNames
from gkestimator.profiling.building.entries import MeasuredEntry
from gkestimator.profiling.building.folders import Progress, read_folders, why_nothing
from gkestimator.profiling.building.problems import Problems
from gkestimator.profiling.building.provenance import (
    beside,
    check_beside,
    data_format,
    dataset_counts,
    provenance,
    source_of_raw,
)
from gkestimator.profiling.building.reading import RawContents
from gkestimator.profiling.building.rows import rows_of
from gkestimator.profiling.building.sequences import LoweringTable, lowering_document, lowering_table
from gkestimator.profiling.building.tools import Tools, default_tools
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement
from gkestimator.tables.files import json_bytes
from gkestimator.tables.together import write_together
from gkestimator.tables.writing import encode_csv, encode_parquet

_TABLE = "gkest profile table makes the table of whole models"


@frozen
class BuildResult:
    """What was built. ``files``: all that was written, the dataset first. ``problems``: what could not be used, one
    line each (the exit status is 1 if there are any); ``notes``: what else is worth saying."""

    rows: tuple[KernelMeasurement, ...]
    descriptions: Mapping[EntryKey, Description]
    table: LoweringTable
    checks: tuple[Check, ...]
    contents: tuple[RawContents, ...]
    gpus: Mapping[str, GpuSpec]
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    varying: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """0: everything was used; 1: a part could not be."""
        if self.problems or any(c.bad and c.count for c in self.checks):
            return 1
        return 0


def build_dataset(
    raws: Sequence[Path],
    output: Path,
    *,
    gpu_specs: Sequence[Path] = (),
    progress: Progress | None = None,
    tools: Tools | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> BuildResult:
    """Build the dataset ``output`` (.parquet or .csv) of the raw folders at ``raws``.

    Beside it are written ``<stem>.json`` (provenance), ``<stem>.lowering.json`` and, for every GPU type that the
    catalogue does not know, ``<stem>.<GPU>.toml``; one that is there, with figures corrected by hand, is used. A part
    of a folder that cannot be read is a problem; the rest is built. Raises UsageError for arguments, TableError where
    nothing was measured, OutputError where nothing can be written.
    """
    tools = tools or default_tools()
    form = data_format(output)
    check_beside(output)
    problems = Problems()
    names = DeviceNames(
        gpu_specs,
        known_gpu=tools.known_gpu,
        gpu_toml=tools.gpu_toml,
        place=lambda name: beside(output, f".{name}.toml"),
    )
    contents = read_folders(raws, tools, problems, progress)
    chosen, descriptions, duplicates = _choose(contents, names, problems, progress)
    if not chosen:
        raise TableError(_nothing(raws, contents, problems))
    rows, checks = check_rows(
        rows_of(chosen),
        descriptions,
        duplicates=duplicates,
        unjoined=_sum(c.unjoined for c in contents),
        launches=sum(c.launches for c in contents),
        without_launches=[entry for c in contents for entry in c.silent],
    )
    if not rows:
        raise TableError(f"{output}: every row breaks the table's rules: {checks[4].line()}")
    table = lowering_table(rows)
    varying = {key: why for c in contents for key, why in c.unstable.items()}
    notes = (*names.notes, *_notes(contents), *names.made_notes())
    encode = encode_csv if form == "csv" else encode_parquet
    data = encode(KERNEL_DATASET, rows)
    document = provenance(
        output,
        data,
        dataset_counts(rows),
        made=now().isoformat(timespec="seconds"),
        table_version=KERNEL_DATASET.version,
        sources=[source_of_raw(c) for c in contents],
        checks=checks,
        problems=problems.all(),
        notes=notes,
    )
    files = {
        **names.made_files(),
        beside(output, ".lowering.json"): json_bytes(
            lowering_document(table, dataset=output.name, varying=varying)
        ),
        beside(output, ".json"): json_bytes(document),
        output: data,
    }
    write_together(files)
    return BuildResult(
        rows=tuple(rows),
        descriptions=descriptions,
        table=table,
        checks=tuple(checks),
        contents=tuple(contents),
        gpus={gpu.name: gpu for _, _, gpu in chosen},
        files=tuple(reversed(files)),
        notes=notes,
        problems=problems.all(),
        varying=varying,
    )


def _choose(
    contents: Sequence[RawContents], names: DeviceNames, problems: Problems, progress: Progress | None
) -> tuple[
    list[tuple[MeasuredEntry, Description, GpuSpec]], dict[EntryKey, Description], dict[EntryKey, int]
]:
    """The best measurement of every operator on every GPU type, what is known of it, and how many were passed over."""
    found: list[tuple[MeasuredEntry, GpuSpec]] = []
    for measured in (m for c in contents for m in c.measured):
        try:
            found.append((measured, names.spec(measured.chunk.device)))
        except GkestimatorError as e:
            problems.of_entry(measured.origin, str(e), measured.entry.id)

    def key(one: tuple[MeasuredEntry, GpuSpec]) -> EntryKey:
        return one[0].entry.id, one[1].name, one[0].chunk.executor

    def ranked(one: tuple[MeasuredEntry, GpuSpec]) -> Rank:
        counted = any(launch.counters for launch in one[0].launches)
        return rank(one[0].quality, one[0].repeats, one[0].cv, counted=counted)

    best, passed = best_of(found, key, ranked)
    descriptions: dict[EntryKey, Description] = {}
    chosen = []
    for done, (measured, gpu) in enumerate(best):
        if progress is not None and done % 64 == 0:
            progress("lowering", done, len(best))
        description = describe(measured.entry, measured.chunk.executor, gpu)
        descriptions[key((measured, gpu))] = description
        chosen.append((measured, description, gpu))
    return chosen, descriptions, {_as_key(k): len(others) for k, others in passed.items()}


def _as_key(key: Hashable) -> EntryKey:
    assert isinstance(key, tuple), "keys are made by _choose"
    return key[0], key[1], key[2]


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for reason, n in each.items():
            total[reason] = total.get(reason, 0) + n
    return total


def _nothing(raws: Sequence[Path], contents: Sequence[RawContents], problems: Problems) -> str:
    """Why there is no dataset, in one line."""
    listed = ", ".join(str(r) for r in raws)
    if contents and not any(c.planned for c in contents) and any(c.others for c in contents):
        return f"{listed}: whole models alone, no operator; {_TABLE}"
    return why_nothing(raws, contents, problems, made="nothing to build", of="operator")


def _notes(contents: Sequence[RawContents]) -> list[str]:
    notes: list[str] = []
    for c in contents:
        notes += c.remarks.all()
        if c.others:
            notes.append(f"{c.path.name}: {c.others} whole models left out; {_TABLE}")
        if c.not_measured:
            failed = sum(n.status == "failed" for n in c.not_measured)
            skipped = len(c.not_measured) - failed
            notes.append(
                f"{c.path.name}: {failed} attempts failed, {skipped} operators were skipped (first: "
                f"{c.not_measured[0].entry_id}: {c.not_measured[0].reason})"
            )
        if c.unreached or c.unfinished:
            notes.append(
                f"{c.path.name}: {c.unreached} of {c.planned} planned operators not measured yet"
                f"{f', {c.unfinished} unfinished chunks' if c.unfinished else ''}; gkest profile run goes on with them"
            )
    return notes
