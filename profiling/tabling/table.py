"""Raw folders to the requirement table of the whole models that they measured, and its provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from gkestimator.core.errors import TableError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.jobs.stopping import Progress
from gkestimator.profiling.building.choosing import Rank, best_of, rank
from gkestimator.profiling.building.contents import Problems, RawContents, Tools
from gkestimator.profiling.building.devices import DeviceNames
from gkestimator.profiling.building.entries import Measured, MeasuredEntry, MeasuredLatency
from gkestimator.profiling.building.folders import read_folders, why_nothing
from gkestimator.profiling.building.provenance import (
    beside,
    check_beside,
    counted,
    data_format,
    provenance,
    source_of_raw,
)
from gkestimator.profiling.tabling.row import MeasuredModel, measured_row, work_of
from gkestimator.profiling.type_names import Fields, Names, Paths
from gkestimator.tables import REQUIREMENTS, Requirement, render
from gkestimator.tables.files import json_bytes
from gkestimator.tables.together import write_together

FORMS = ("csv", "json", "parquet")
# What follows the table's stem in the name of its provenance.
PROVENANCE = ".provenance.json"
_Key = tuple[str, str, str]


@frozen
class TableResult:
    """Say what was made. ``files``: all that was written, the table first. ``gpu_files``: specifications of the
    rows' GPUs that the catalogue does not know (given, or beside the table). ``problems``: what could not be
    used, one line each (the exit status is 1 if there are any); ``notes``: what else is worth saying."""

    rows: tuple[Requirement, ...]
    files: Paths
    gpu_files: Paths
    notes: Names
    problems: Names

    @property
    def exit_status(self) -> int:
        """Return 0: everything was used; 1: a part could not be."""
        return 1 if self.problems else 0


def build_table(
    raws: Sequence[Path],
    output: Path,
    *,
    gpu_specs: Sequence[Path] = (),
    progress: Progress | None = None,
    tools: Tools | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> TableResult:
    """Write the requirement table ``output`` (.csv, .json or .parquet) of the whole models in the raw folders
    at ``raws``: a row per model, GPU, runtime, dtype, batch size and dimensions, from the best attempt.

    Beside it are written ``<stem>.provenance.json`` and, for every GPU type that the catalogue does not know,
    ``<stem>.<GPU>.toml``. A model with a timeline and no latency has no row, and is a problem; one with a
    latency and no timeline has a row without launches. Raises UsageError for arguments, TableError where no
    whole model was measured, OutputError where nothing can be written.
    """
    tools = tools or Tools()
    form = data_format(output, FORMS)
    check_beside(output, PROVENANCE)
    problems = Problems()
    names = DeviceNames(output, gpu_specs, known_gpu=tools.known_gpu, gpu_toml=tools.gpu_toml)
    contents = read_folders(raws, tools, problems, progress, whole=True)
    chosen, passed = _choose(contents, names, problems, progress)
    if not chosen:
        raise TableError(_nothing(raws, contents, problems))
    rows, chosen = _rows(chosen, problems)
    notes = (*names.notes, *_notes(contents, passed), *_work_notes(chosen), *names.made_notes())
    data = render(rows, form)
    document = provenance(
        output,
        data,
        _counts(rows, chosen),
        made=now().isoformat(timespec="seconds"),
        sources=[source_of_raw(c) for c in contents],
        table_version=REQUIREMENTS.version,
        problems=problems.all(),
        notes=notes,
    )
    files = {
        **names.made_files(),
        beside(output, PROVENANCE): json_bytes(document),
        output: data,
    }
    write_together(files)
    gpus = dict.fromkeys(row.gpu for row in rows)
    named = [beside(output, f".{gpu}.toml") for gpu in gpus]
    return TableResult(
        rows=tuple(rows),
        files=tuple(reversed(files)),
        gpu_files=(*gpu_specs, *(path for path in named if path.is_file())),
        notes=notes,
        problems=problems.all(),
    )


def _choose(
    contents: Sequence[RawContents], names: DeviceNames, problems: Problems, progress: Progress | None
) -> tuple[list[MeasuredModel], int]:
    """Return the best latency of every model on every GPU type with the timeline that fits it best, and how
    many latencies were passed over."""
    latencies: list[tuple[MeasuredLatency, GpuSpec]] = []
    timelines: dict[_Key, list[MeasuredEntry]] = {}
    for latency in chain.from_iterable(c.latencies for c in contents):
        gpu = names.spec_of(latency, problems)
        if gpu is not None:
            latencies.append((latency, gpu))
    known = {_key(latency, gpu) for latency, gpu in latencies}
    for timeline in chain.from_iterable(c.measured for c in contents):
        gpu = names.spec_of(timeline, problems)
        if gpu is None:
            continue
        timelines.setdefault(_key(timeline, gpu), []).append(timeline)
        if _key(timeline, gpu) not in known:
            problems.of_entry(timeline.origin, "a timeline without a latency: no row", timeline.entry.id)
    best, passed = best_of(latencies, lambda one: _key(*one), lambda one: _latency_rank(one[0]))
    chosen = []
    for done, (latency, gpu) in enumerate(best):
        if progress is not None:
            progress("tabling", done, len(best))
        chosen.append(
            MeasuredModel(
                latency=latency,
                timeline=_timeline(latency, timelines.get(_key(latency, gpu), ())),
                gpu=gpu,
                work=work_of(latency.entry, latency.chunk.executor, gpu),
            )
        )
    return chosen, sum(len(others) for others in passed.values())


def _key(measured: Measured, gpu: GpuSpec) -> _Key:
    return measured.entry.id, gpu.name, measured.chunk.executor


def _latency_rank(latency: MeasuredLatency) -> Rank:
    return rank(latency.quality, len(latency.latency_us), latency.cv)


def _timeline(latency: MeasuredLatency, timelines: Sequence[MeasuredEntry]) -> MeasuredEntry | None:
    """Return the timeline of the same run if there is one (the same libraries choose the same kernels), then
    the best."""
    return min(
        timelines,
        key=lambda t: (t.run is not latency.run, t.calls > 1, rank(t.quality, t.repeats, t.cv)),
        default=None,
    )


def _rows(
    chosen: Sequence[MeasuredModel], problems: Problems
) -> tuple[list[Requirement], list[MeasuredModel]]:
    """Return one row for each question that the table can be asked, and what each is of."""
    by_key: dict[Hashable, tuple[Requirement, MeasuredModel]] = {}
    for model in chosen:
        row = measured_row(model)
        key = tuple(getattr(row, name) for name in REQUIREMENTS.key)
        if key in by_key:
            problems.of_entry(
                model.latency.origin,
                f"another model that is {row.model} at batch {row.batch_size} in {row.dtype} too; expected one model "
                "of a name, the first is kept",
                model.latency.entry.id,
            )
        else:
            by_key[key] = row, model
    return [row for row, _ in by_key.values()], [model for _, model in by_key.values()]


def _counts(rows: Sequence[Requirement], chosen: Sequence[MeasuredModel]) -> Fields:
    """Return what the table holds, for its provenance."""
    return {
        "rows": len(rows),
        "models": len({row.model for row in rows}),
        **counted(rows, gpus="gpu", runtimes="runtime", dtypes="dtype"),
        "with_launches": sum(row.kernels is not None for row in rows),
        "with_memory": sum(row.memory_source == "measured" for row in rows),
        **counted([model.latency for model in chosen], quality="quality"),
    }


def _nothing(raws: Sequence[Path], contents: Sequence[RawContents], problems: Problems) -> str:
    """Say in one line why there is no table."""
    if not problems and not any(c.planned for c in contents):
        return (
            f"{', '.join(map(str, raws))}: no whole model in its plan; gkest profile plan --whole plans them"
        )
    return why_nothing(raws, contents, problems, made="no whole model to make a row of", of="whole model")


def _notes(contents: Sequence[RawContents], passed: int) -> list[str]:
    notes: list[str] = []
    for c in contents:
        notes += c.remarks.all()
        if c.not_measured:
            first = c.not_measured[0]
            notes.append(
                f"{c.path.name}: {len(c.not_measured)} attempts at whole models failed or were skipped (first: "
                f"{first.entry_id}: {first.reason})"
            )
        if c.unstable:
            first_id, why = next(iter(c.unstable.items()))
            notes.append(
                f"{c.path.name}: {len(c.unstable)} whole models launched different kernels from call to call "
                f"({first_id}: {why}); their use is the mean of the calls"
            )
        if c.unreached:
            notes.append(
                f"{c.path.name}: {c.unreached} of {c.planned} planned whole models have no latency yet; "
                "gkest profile run goes on with them"
            )
    if passed:
        notes.append(f"{passed} further attempts were passed over for better ones")
    return notes


def _work_notes(chosen: Sequence[MeasuredModel]) -> list[str]:
    lacking = [m for m in chosen if m.work.problem is not None]
    if not lacking:
        return []
    first = lacking[0]
    return [
        f"work and tensors of {len(lacking)} rows not known (first: {first.latency.entry.id}: {first.work.problem})"
    ]


def summary_words(result: TableResult) -> str:
    """Say in one line: rows, models, GPUs, and what was measured besides latency."""
    rows = result.rows
    by_gpu = Counter(row.gpu for row in rows)
    gpus = ", ".join(f"{name} ({count:,})" for name, count in by_gpu.items())
    return (
        f"{len(rows):,} rows of {len({r.model for r in rows}):,} models on {gpus}: "
        f"{_with(rows, 'kernels'):,} with launches, {_with(rows, 'sm_util_mean_pct'):,} with SM utilisation, "
        f"{_with(rows, 'reserved_bytes'):,} with reserved memory, {_with(rows, 'mreq_bytes'):,} with all memory; "
        f"{sum(bool(r.warnings) for r in rows):,} with a warning"
    )


def _with(rows: Sequence[Requirement], column: str) -> int:
    return sum(getattr(row, column) is not None for row in rows)


def _unfolds(row: Requirement) -> bool:
    traits = RUNTIMES.get(row.runtime)
    return traits is not None and traits.unfolds_batchnorm


def closing_words(result: TableResult) -> Names:
    """Say how to compare the table with estimates: as what ran, which is the file's operators as they are."""
    table = result.files[0]
    specs = "".join(f" --gpu-spec {f}" for f in result.gpu_files)
    line = f"Beside estimates: gkest evaluate --truth {table} --models DIR{specs}"
    if any(map(_unfolds, result.rows)):
        line += " --no-unfold-batchnorm  (convolutions ran as in the files, BatchNorms folded into them)"
    return (line,)
