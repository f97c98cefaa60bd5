"""What runs on a cluster's nodes, and how a chunk travels back: as a tar of its folder, in memory."""

from __future__ import annotations

import io
import platform
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, TableError
from gkestimator.jobs.stopping import Stop
from gkestimator.profiling.raw import DeviceFacts, read_chunk
from gkestimator.profiling.records import read_records
from gkestimator.profiling.running.chunk import run_job
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult
from gkestimator.profiling.running.machine import Machine
from gkestimator.profiling.running.run import MeasuringMeans, Request, find_means

_MOST_BYTES = 2**30
_known: dict[str, DeviceFacts] = {}


def describe(request: Request, device: str, machine: Machine) -> tuple[MeasuringMeans | None, str | None]:
    """Return what a node measures with; or None and why it cannot, in one line."""
    try:
        return find_means(request, [device], machine), None
    except GkestimatorError as e:
        return None, f"{platform.node()}: {e}"


def measure(job: ChunkJob, machine: Machine, seconds_left: float | None) -> tuple[ChunkResult, bytes | None]:
    """Measure a chunk on this node; return its result and its folder as a tar, None where there is nothing to
    keep."""
    stop = Stop(None if seconds_left is None else seconds_left / 60)
    try:
        facts = _facts(machine, job.device)
        if facts.name != job.facts.name:
            line = f"{platform.node()} has {facts.name}, expected {job.facts.name} as the other nodes of its type"
            return ChunkResult(kind="device", line=line), None
        with tempfile.TemporaryDirectory(prefix="gkest-") as scratch:
            folder = Path(scratch) / "chunk"
            folder.mkdir()
            result = run_job(replace(job, facts=facts), folder, machine, stop)
            if result.kind == "disk":
                line = f"{platform.node()}: the disk of {tempfile.gettempdir()} is full"
                return ChunkResult(kind="device", line=line), None
            data = _pack(folder) if result.statuses else None
            return result, data
    except GkestimatorError as e:
        return ChunkResult(kind="crashed", line=f"{platform.node()}: {e}"), None


def _facts(machine: Machine, device: str) -> DeviceFacts:
    """Return the facts, asked once for each worker process: a CPU's are measured."""
    if device not in _known:
        _known[device] = machine.facts(device)
    return _known[device]


def _pack(folder: Path) -> bytes:
    size = sum(p.stat().st_size for p in folder.iterdir())
    if size > _MOST_BYTES:
        raise TableError(
            f"a chunk of {size:,} bytes, expected at most {_MOST_BYTES:,}; use a smaller chunk-seconds"
        )
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name, recursive=False)
    return out.getvalue()


def unpack(data: bytes, folder: Path, job: ChunkJob, result: ChunkResult) -> ChunkResult:
    """Unpack a chunk that came back into the empty ``folder``; return its result, or that it was lost, where
    it is not what was asked for."""
    try:
        _extract(data, folder, job)
        info = read_chunk(folder)
        ids = [r.entry_id for r in read_records(folder / "records.jsonl")]
        asked = {e.id for e in job.entries}
        if ids != list(info.entries) or set(ids) != set(result.statuses) or not set(ids) <= asked:
            raise TableError(f"{job.folder_name}: came back with other entries than it was given")
    except TableError as e:
        return ChunkResult(kind="lost", line=str(e))
    return result


def _extract(data: bytes, folder: Path, job: ChunkJob) -> None:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if not member.isreg() or Path(member.name).name != member.name:
                    raise TableError(
                        f"{job.folder_name}: {member.name[:60]!r} came back, expected plain files"
                    )
                archive.extract(member, folder, filter="data")
    except tarfile.TarError as e:
        raise TableError(f"{job.folder_name}: what came back is no whole tar: {e}") from e
