"""What runs on a cluster's nodes, and how a chunk travels back: its files, in memory."""

from __future__ import annotations

import platform
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
Files = dict[str, bytes]
_known: dict[str, DeviceFacts] = {}


def describe(request: Request, device: str, machine: Machine) -> tuple[MeasuringMeans | None, str | None]:
    """Return what a node measures with; or None and why it cannot, in one line."""
    try:
        return find_means(request, [device], machine), None
    except GkestimatorError as e:
        return None, f"{platform.node()}: {e}"


def measure(job: ChunkJob, machine: Machine, seconds_left: float | None) -> tuple[ChunkResult, Files | None]:
    """Measure a chunk on this node; return its result and its files, None where there is nothing to
    keep."""
    minutes = None
    if seconds_left is not None:
        minutes = seconds_left / 60
    stop = Stop(minutes)
    try:
        facts = _facts(machine, job.device)
        # A resource is given by hand: nothing keeps two kinds of GPUs from bearing one name.
        if facts.name != job.facts.name:
            line = f"{platform.node()} has {facts.name}, expected {job.facts.name} as the other nodes of its type"
            return ChunkResult(kind="device", line=line), None
        with tempfile.TemporaryDirectory(prefix="gkest-") as scratch:
            folder = Path(scratch) / "chunk"
            folder.mkdir()
            result = run_job(replace(job, facts=facts), folder, machine, stop)
            # The full disk is the node's, not that of the raw folder: others may go on.
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


def _pack(folder: Path) -> Files:
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > _MOST_BYTES:
        raise TableError(
            f"a chunk of {size:,} bytes, expected at most {_MOST_BYTES:,}; use a smaller chunk-seconds"
        )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def unpack(files: Files, folder: Path, job: ChunkJob, result: ChunkResult) -> ChunkResult:
    """Write the files of a chunk that came back into the empty ``folder``; return its result, or that it was lost,
    where it is not what was asked for."""
    try:
        for name, data in files.items():
            if Path(name).name != name:
                raise TableError(f"{job.folder_name}: {name[:60]!r} came back, expected names of files")
            (folder / name).write_bytes(data)
        recorded = [r.entry_id for r in read_records(folder / "records.jsonl")]
        same = recorded == list(read_chunk(folder).entries) and set(recorded) == set(result.statuses)
        if not same or not set(recorded) <= {e.id for e in job.entries}:
            raise TableError(f"{job.folder_name}: came back with other entries than it was given")
    except TableError as e:
        return ChunkResult(kind="lost", line=str(e))
    return result
