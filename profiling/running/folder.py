"""The raw folder as its one writer sees it: locked, resumed, chunks committed by renaming."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.records import frozen
from gkestimator.core.texts import parse_json
from gkestimator.jobs.disk import held, is_disk_full
from gkestimator.jobs.store import ChunkStore
from gkestimator.profiling.collectors import collector_names
from gkestimator.profiling.plan import PlanEntry, SweepPlan, write_plan
from gkestimator.profiling.raw import RunInfo, chunk_folders, document_of, read_chunk, read_run
from gkestimator.profiling.records import read_records
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult
from gkestimator.profiling.type_names import Texts
from gkestimator.tables import write_bytes
from gkestimator.tables.files import output_errors

QUALITY_FILE = "quality.json"
_NOT_OF_THE_RUNTIME = ("gkestimator", "python", "numpy", "onnx")


@frozen
class Done:
    """Name one record of a committed chunk, and what became of it."""

    entry_id: str
    pass_name: str
    attempt: int
    status: str
    quality: str


def plan_digest(plan: SweepPlan) -> str:
    """Return 32 hexadecimal digits of what is to be measured: runtime, seed-independent, in order; of whole
    models also which row of a table each is."""
    text = json.dumps([plan.runtime, [_digested(e) for e in plan.entries]])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _digested(entry: PlanEntry) -> list[object]:
    point = entry.model
    if point is None:
        return [entry.id, entry.counters]
    return [entry.id, entry.counters, point.name, point.batch_size, sorted(point.dims.items())]


class RawFolder:
    """Write a raw folder. A context manager: the lock is held while it is open. ``chunks``: its finished chunks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chunks = ChunkStore(path / "chunks")
        self._lock = contextlib.ExitStack()
        self._new = False

    def __enter__(self) -> Self:
        """Make the folder if need be and lock it. Raises UsageError where another run holds it."""
        self._refuse_strange()
        with output_errors(self.path):
            self._new = not self.path.exists()
            self.chunks.path.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(held(self.path / "lock", self.path))
        return self

    def _refuse_strange(self) -> None:
        """Raise UsageError for what is there and is no raw folder."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UsageError(f"{self.path}: is a file, expected a folder for raw measurements")
        # A home or project folder given by mistake is not written into.
        names = {p.name for p in self.path.iterdir()}
        strange = sorted(names - {"lock", "plan.json", "chunks"} - set(_scraps(self.path)))
        if strange and "run.json" not in names:
            raise UsageError(
                f"{self.path}: holds {strange[0]} but no run.json, expected an empty or a new folder"
            )

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._lock.close()
        if self._new and error is not None and not (self.path / "run.json").exists():
            # Nothing was begun: a wrong command leaves no empty folder behind.
            with contextlib.suppress(OSError):
                self.chunks.path.rmdir()
                self.path.rmdir()

    def earlier(self) -> RunInfo | None:
        """Return how an earlier run went about it; None for a new folder. Raises TableError."""
        if (self.path / "run.json").exists():
            return read_run(self.path)
        return None

    def begin(self, plan: SweepPlan, info: RunInfo) -> None:
        """Write plan and run.json of a new folder, or see that an earlier run was the same. Raises UsageError
        naming what differs."""
        earlier = self.earlier()
        if earlier is None:
            write_plan(plan, self.path / "plan.json")
            text = json.dumps(document_of(info), indent=1, allow_nan=False) + "\n"
            write_bytes(self.path / "run.json", text.encode())
            return
        before = _compared(earlier)
        now = _compared(info)
        for what in dict.fromkeys((*before, *now)):
            was = before.get(what, "none")
            wanted = now.get(what, "none")
            if was != wanted:
                raise UsageError(
                    f"{self.path}: was measured with {what} {was}, found {wanted}: expected the same, or a folder of "
                    "its own"
                )
        if not (self.path / "plan.json").exists():  # nothing could be built without it, and it is the same
            write_plan(plan, self.path / "plan.json")

    def clean(self) -> int:
        """Remove what a killed run left in the making; return how many chunks that were."""
        for name in _scraps(self.path):
            (self.path / name).unlink(missing_ok=True)
        return self.chunks.clean()

    def keep(self, job: ChunkJob, fill: Callable[[Path], ChunkResult]) -> ChunkResult:
        """Have ``fill`` make the chunk of ``job`` in an empty folder, and commit it where its result has records. A
        full disk is a result, too."""
        try:
            with self.chunks.making(job.folder_name) as folder:
                result = fill(folder)
                if result.statuses:
                    self.chunks.commit(folder)
                return result
        except OSError as e:
            if is_disk_full(e):
                return ChunkResult(kind="disk")
            raise

    def next_number(self) -> int:
        """Return one more than the highest number of a committed chunk."""
        # Numbers only grow, so that folders sort in the order of measuring.
        numbers = [int(f.name[:6]) for f in chunk_folders(self.path) if f.name[:6].isdigit()]
        return max(numbers, default=0) + 1

    def done(self) -> Iterator[Done]:
        """Yield the records of committed chunks. Raises TableError for a chunk that cannot be read."""
        for folder in chunk_folders(self.path):
            try:
                records = list(_done(folder))
            except TableError as e:
                raise TableError(f"{e}; remove {folder} to have its entries measured again") from e
            yield from records

    def has_room(self, least_mb: float) -> bool:
        """Return whether at least so much is free where the folder lies."""
        return shutil.disk_usage(self.path).free >= least_mb * 2**20


def _done(folder: Path) -> Iterator[Done]:
    info = read_chunk(folder)
    quality = _qualities(folder)
    for record in read_records(folder / "records.jsonl"):
        if record.entry_id in info.entries:
            yield Done(
                entry_id=record.entry_id,
                pass_name=info.pass_name,
                attempt=info.attempt,
                status=record.status,
                quality=quality.get(record.entry_id, "ok"),
            )


def _scraps(path: Path) -> list[str]:
    """Return the names of files that a killed run was writing aside."""
    return [p.name for what in ("run", "plan") for p in path.glob(f".{what}.json.*.tmp")]


def _compared(info: RunInfo) -> Texts:
    """Return what all runs into a folder have in common: what the rows of the whole folder will name. Of
    versions those of the runtime and its libraries; chunks know their profilers."""
    others = {*_NOT_OF_THE_RUNTIME, *collector_names()}
    return {
        "plan": info.plan_digest,
        "executor": info.executor,
        "collector": info.collector,
        "device": ", ".join(sorted({d.name for d in info.devices})),
        **{name: info.versions[name] for name in sorted(info.versions.keys() - others)},
    }


def _qualities(folder: Path) -> Texts:
    path = folder / QUALITY_FILE
    try:
        qualities = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise TableError(f"{path}: cannot be read: {e}") from e
    if not isinstance(qualities, dict):
        raise TableError(f"{path}: found {type(qualities).__name__}, expected an object")
    return {str(k): str(v) for k, v in qualities.items()}
