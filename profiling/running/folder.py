"""The raw folder as its one writer sees it: locked, resumed, chunks committed by renaming."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from gkestimator.core.errors import OutputError, TableError, UsageError
from gkestimator.core.records import frozen
from gkestimator.jobs.disk import lock_alone, sync, sync_folder
from gkestimator.profiling.collectors import collector_names
from gkestimator.profiling.plan import PlanEntry, SweepPlan, write_plan
from gkestimator.profiling.raw import RunInfo, chunk_folders, document_of, read_chunk, read_run
from gkestimator.profiling.records import read_records
from gkestimator.tables import write_bytes

ASIDE = ".aside-"
QUALITY_FILE = "quality.json"
_NOT_OF_THE_RUNTIME = ("gkestimator", "python", "numpy", "onnx")


@frozen
class Done:
    """One record of a committed chunk."""

    entry_id: str
    pass_name: str
    attempt: int
    status: str
    quality: str


def plan_digest(plan: SweepPlan) -> str:
    """32 hexadecimal digits of what is to be measured: runtime, seed-independent, in order; of whole models also which
    row of a table each is."""
    text = json.dumps([plan.runtime, [_digested(e) for e in plan.entries]])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _digested(entry: PlanEntry) -> list[object]:
    point = entry.model
    if point is None:
        return [entry.id, entry.counters]
    return [entry.id, entry.counters, point.name, point.batch_size, sorted(point.dims.items())]


class RawFolder:
    """Use as a context manager: the lock is held while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chunks = path / "chunks"
        self._lock: IO[str] | None = None
        self._new = False

    def __enter__(self) -> RawFolder:
        """Make the folder if need be and lock it. Raises UsageError where another run holds it."""
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path}: is a file, expected a folder for raw measurements")
        if self.path.is_dir() and not (self.path / "run.json").exists():
            own = ("lock", "plan.json", "chunks")
            strange = [p.name for p in self.path.iterdir() if p.name not in own and not _is_scrap(p)]
            if strange:
                raise UsageError(
                    f"{self.path}: holds {sorted(strange)[0]} but no run.json, expected an empty or a new folder"
                )
        try:
            self._new = not self.path.exists()
            self.chunks.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / "lock", "a+", encoding="utf-8")
        except OSError as e:
            raise OutputError(f"{self.path}: cannot be written: {e.strerror or e}") from e
        try:
            lock_alone(lock, self.path / "lock")
        except BlockingIOError as e:
            lock.seek(0)
            holder = lock.read(200).strip() or "another process"
            lock.close()
            raise UsageError(
                f"{self.path}: {holder} is measuring into it, expected a folder of its own for each run"
            ) from e
        except OutputError:
            lock.close()
            raise
        with contextlib.suppress(OSError):  # who holds it is for people; the lock itself is the kernel's
            lock.truncate(0)
            # Past the buffer: on a full disk closing would try again, and be what the user reads.
            os.write(lock.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        self._lock = lock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._new and error is not None and not (self.path / "run.json").exists():
            with contextlib.suppress(
                OSError
            ):  # nothing was begun: a wrong command leaves no empty folder behind
                self.chunks.rmdir()
                (self.path / "lock").unlink()
                self.path.rmdir()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def earlier(self) -> RunInfo | None:
        """How an earlier run went about it; None for a new folder. Raises TableError."""
        if (self.path / "run.json").exists():
            return read_run(self.path)
        return None

    def begin(self, plan: SweepPlan, info: RunInfo) -> None:
        """Write plan and run.json of a new folder, or see that an earlier run was the same. Raises UsageError naming
        what differs."""
        earlier = self.earlier()
        if earlier is None:
            write_plan(plan, self.path / "plan.json")
            text = json.dumps(document_of(info), indent=1, allow_nan=False) + "\n"
            write_bytes(self.path / "run.json", text.encode())
            return
        compared = (
            ("plan", earlier.plan_digest, info.plan_digest),
            ("executor", earlier.executor, info.executor),
            ("collector", earlier.collector, info.collector),
            ("device", _names(earlier), _names(info)),
            *(
                (n, earlier.versions.get(n, "none"), info.versions.get(n, "none"))
                for n in _libraries(earlier, info)
            ),
        )
        for what, found, wanted in compared:
            if found != wanted:
                raise UsageError(
                    f"{self.path}: was measured with {what} {found}, found {wanted}: expected the same, or a folder "
                    "of its own"
                )
        if not (self.path / "plan.json").exists():  # nothing could be built without it, and it is the same
            write_plan(plan, self.path / "plan.json")

    def clean(self) -> int:
        """Remove what a killed run left in the making; how many chunks that were."""
        left = [p for p in self.chunks.iterdir() if p.name.startswith(ASIDE)]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        for path in [p for p in self.path.iterdir() if _is_scrap(p)]:
            path.unlink(missing_ok=True)
        return len(left)

    def aside(self, name: str) -> Path:
        """A new empty folder for a chunk in the making."""
        folder = self.chunks / f"{ASIDE}{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def drop(self, folder: Path) -> None:
        """Remove a chunk in the making; nothing where it was committed."""
        shutil.rmtree(folder, ignore_errors=True)

    def commit(self, folder: Path, name: str) -> Path:
        """Flush and rename: from here on the chunk counts."""
        sync_folder(folder)
        target = self.chunks / name
        os.rename(folder, target)
        sync(self.chunks)
        return target

    def next_number(self) -> int:
        """One more than the highest number of a committed chunk."""
        numbers = [int(f.name[:6]) for f in chunk_folders(self.path) if f.name[:6].isdigit()]
        return max(numbers, default=0) + 1

    def done(self) -> Iterator[Done]:
        """The records of committed chunks. Raises TableError for a chunk that cannot be read."""
        for folder in chunk_folders(self.path):
            try:
                found = list(_done(folder))
            except TableError as e:
                raise TableError(f"{e}; remove {folder} to have its entries measured again") from e
            yield from found

    def free_bytes(self) -> int:
        """Free space where the folder lies."""
        return shutil.disk_usage(self.path).free


def _done(folder: Path) -> Iterator[Done]:
    info = read_chunk(folder)
    asked = set(info.entries)
    quality = _qualities(folder)
    for record in read_records(folder / "records.jsonl"):
        if record.entry_id in asked:
            yield Done(
                entry_id=record.entry_id,
                pass_name=info.pass_name,
                attempt=info.attempt,
                status=record.status,
                quality=quality.get(record.entry_id, "ok"),
            )


def _is_scrap(path: Path) -> bool:
    """A file that a killed run was writing aside."""
    return path.name.startswith((".run.json.", ".plan.json.")) and path.name.endswith(".tmp")


def _names(info: RunInfo) -> str:
    return ", ".join(sorted({d.name for d in info.devices}))


def _libraries(earlier: RunInfo, info: RunInfo) -> list[str]:
    """What the rows of the whole folder will name: the runtime and its libraries. Chunks know their profilers."""
    return sorted({*earlier.versions, *info.versions} - {*_NOT_OF_THE_RUNTIME, *collector_names()})


def _qualities(folder: Path) -> dict[str, str]:
    path = folder / QUALITY_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as e:
        raise TableError(f"{path}: cannot be read: {e}") from e
    if not isinstance(found, dict):
        raise TableError(f"{path}: found {type(found).__name__}, expected an object")
    return {str(k): str(v) for k, v in found.items()}
