"""Work jobs off over a Ray cluster: one task each; the driver alone writes cells."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gkestimator.jobs.ray_cluster import connected, work_on_ray
from gkestimator.simulation.comparing.cells import CellJob
from gkestimator.simulation.comparing.compute import Cells, compute, lost_cells
from gkestimator.simulation.comparing.reading import with_files
from gkestimator.tables import write_bytes


def run_on_ray(jobs: Sequence[CellJob]) -> Iterator[tuple[CellJob, Cells]]:
    """Yield each of ``jobs`` with its cells, as they are finished.

    Files that jobs read are sent along: nodes need not share a file system. Raises UsageError where Ray or a
    cluster is missing.
    """
    with connected() as ray:
        files = {path: ray.put(path.read_bytes()) for path in _files(jobs)}

        def sent(job: CellJob) -> list[Any]:
            parts: list[Any] = []
            for path in _files([job]):
                parts += [str(path), files[path]]
            return parts

        yield from work_on_ray(ray, jobs, _task, sent, lost_cells)


def _task(job: CellJob, *sent: Any) -> Cells:
    """Compute ``job`` on a node by the files ``sent`` (path, content, path, content, ...), each written once a node."""
    here = {}
    for path, content in zip(map(Path, sent[::2]), sent[1::2], strict=True):
        here[path] = _stored(path.name, content)
    return compute(_moved(job, here))


def _stored(name: str, content: bytes) -> Path:
    digest = hashlib.sha256(content).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"gkest-compare-{os.getuid()}" / digest
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(path, content)
    return path


def _files(jobs: Sequence[CellJob]) -> list[Path]:
    """Return every file that ``jobs`` read, once."""
    paths: dict[Path, None] = {}
    for job in jobs:
        entries = [*job.tables, *job.settings.values(), *job.policy.options.values()]
        entries += [*job.settings["gpu_specs"], *(c.arrivals.trace for c in job.cells)]
        paths |= dict.fromkeys(p for p in entries if isinstance(p, Path))
    return list(paths)


def _moved(job: CellJob, here: Mapping[Path, Path]) -> CellJob:
    """Return ``job`` with the files of this node."""
    cells = []
    for cell in job.cells:
        arrivals = replace(cell.arrivals, trace=with_files(cell.arrivals.trace, here))
        cells.append(replace(cell, arrivals=arrivals))
    return replace(
        job,
        tables=with_files(job.tables, here),
        settings=with_files(job.settings, here),
        policy=replace(job.policy, options=with_files(job.policy.options, here)),
        cells=tuple(cells),
    )
