"""Raw folders to a kernel dataset, its provenance, its lowering table and a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import TableError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.jobs.stopping import Progress
from gkestimator.profiling.building.checks import Check, check_rows
from gkestimator.profiling.building.choosing import EntryKey, Rank, best_of, rank
from gkestimator.profiling.building.contents import Problems, RawContents, Tools
from gkestimator.profiling.building.describing import Description, describe
from gkestimator.profiling.building.devices import DeviceNames
from gkestimator.profiling.building.entries import MeasuredEntry
from gkestimator.profiling.building.folders import read_folders, why_nothing
from gkestimator.profiling.building.provenance import (
    check_beside,
    data_format,
    source_of_raw,
    write_dataset,
)
from gkestimator.profiling.building.rows import rows_of
from gkestimator.profiling.building.sequences import LoweringTable, lowering_table
from gkestimator.profiling.type_names import Names, Paths, TextByName
from gkestimator.tables import KernelMeasurement

_TABLE = "gkest profile table makes the table of whole models"


@frozen
class BuildResult:
    """Say what was built. ``files``: all that was written, the dataset first. ``problems``: what could not be
    used, one line each (the exit status is 1 if there are any); ``notes``: what else is worth saying."""

    rows: tuple[KernelMeasurement, ...]
    descriptions: Mapping[EntryKey, Description]
    table: LoweringTable
    checks: tuple[Check, ...]
    contents: tuple[RawContents, ...]
    gpus: Mapping[str, GpuSpec]
    files: Paths
    notes: Names
    problems: Names
    varying: TextByName = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """Return 0: everything was used; 1: a part could not be."""
        return int(bool(self.problems) or any(c.bad and c.count for c in self.checks))


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

    Beside it are written ``<stem>.json`` (provenance), ``<stem>.lowering.json`` and, for every GPU type that
    the catalogue does not know, ``<stem>.<GPU>.toml``; one that is there, with figures corrected by hand, is
    used. A part of a folder that cannot be read is a problem; the rest is built. Raises UsageError for
    arguments, TableError where nothing was measured, OutputError where nothing can be written.
    """
    tools = tools or Tools()
    data_format(output)
    check_beside(output)
    problems = Problems()
    names = DeviceNames(output, gpu_specs, known_gpu=tools.known_gpu, gpu_toml=tools.gpu_toml)
    contents = read_folders(raws, tools, problems, progress)
    chosen, duplicates = _choose(contents, names, problems, progress)
    if not chosen:
        raise TableError(_nothing(raws, contents, problems))
    descriptions = {_key(measured, gpu): description for measured, description, gpu in chosen}
    rows, checks = check_rows(
        rows_of(chosen),
        descriptions,
        duplicates=duplicates,
        unjoined=sum((c.unjoined for c in contents), Counter[str]()),
        launches=sum(c.launches for c in contents),
        without_launches=[entry for c in contents for entry in c.silent],
    )
    if not rows:
        raise TableError(f"{output}: every row breaks the table's rules: {checks[4].line()}")
    table = lowering_table(rows)
    varying = {key: why for c in contents for key, why in c.unstable.items()}
    notes = (*names.notes, *_notes(contents), *names.made_notes())
    files = write_dataset(
        output,
        rows,
        table,
        names.made_files(),
        varying=varying,
        made=now().isoformat(timespec="seconds"),
        sources=[source_of_raw(c) for c in contents],
        checks=checks,
        problems=problems.all(),
        notes=notes,
    )
    return BuildResult(
        rows=tuple(rows),
        descriptions=descriptions,
        table=table,
        checks=tuple(checks),
        contents=tuple(contents),
        gpus={gpu.name: gpu for _, _, gpu in chosen},
        files=files,
        notes=notes,
        problems=problems.all(),
        varying=varying,
    )


def _choose(
    contents: Sequence[RawContents], names: DeviceNames, problems: Problems, progress: Progress | None
) -> tuple[list[tuple[MeasuredEntry, Description, GpuSpec]], dict[EntryKey, int]]:
    """Return the best measurement of every operator on every GPU type with what is known of it, and how many were
    passed over."""
    candidates: list[tuple[MeasuredEntry, GpuSpec]] = []
    for content in contents:
        for measured in content.measured:
            spec = names.spec_of(measured, problems)
            if spec is not None:
                candidates.append((measured, spec))
    best, passed = best_of(candidates, lambda c: _key(*c), lambda c: _ranked(c[0]))
    chosen = []
    for done, (measured, gpu) in enumerate(best):
        if progress is not None and done % 64 == 0:
            progress("lowering", done, len(best))
        chosen.append((measured, describe(measured.entry, measured.chunk.executor, gpu), gpu))
    return chosen, {key: len(others) for key, others in passed.items()}


def _key(measured: MeasuredEntry, gpu: GpuSpec) -> EntryKey:
    return measured.entry.id, gpu.name, measured.chunk.executor


def _ranked(measured: MeasuredEntry) -> Rank:
    counted = any(launch.counters for launch in measured.launches)
    return rank(measured.quality, measured.repeats, measured.cv, counted=counted)


def _nothing(raws: Sequence[Path], contents: Sequence[RawContents], problems: Problems) -> str:
    """Say in one line why there is no dataset."""
    if not any(c.planned for c in contents) and any(c.others for c in contents):
        return f"{', '.join(map(str, raws))}: whole models alone, no operator; {_TABLE}"
    return why_nothing(raws, contents, problems, made="nothing to build", of="operator")


def _notes(contents: Sequence[RawContents]) -> list[str]:
    notes: list[str] = []
    for c in contents:
        name = c.path.name
        notes += c.remarks.all()
        if c.others:
            notes.append(f"{name}: {c.others} whole models left out; {_TABLE}")
        if c.not_measured:
            first = c.not_measured[0]
            failed = sum(n.status == "failed" for n in c.not_measured)
            notes.append(
                f"{name}: {failed} attempts failed, {len(c.not_measured) - failed} operators were skipped (first: "
                f"{first.entry_id}: {first.reason})"
            )
        if c.unreached or c.unfinished:
            unfinished = f", {c.unfinished} unfinished chunks" if c.unfinished else ""
            notes.append(
                f"{name}: {c.unreached} of {c.planned} planned operators not measured yet{unfinished}; gkest profile "
                "run goes on with them"
            )
    return notes
