"""Jobs worked off over a Ray cluster: one task each; the driver alone writes cells."""

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
from gkestimator.tables import write_bytes


def run_on_ray(jobs: Sequence[CellJob]) -> Iterator[tuple[CellJob, Cells]]:
    """Yield each of ``jobs`` with its cells, as they are finished. Files that jobs read are sent along: nodes need not
    share a file system. Raises UsageError where Ray or a cluster is missing."""
    with connected() as ray:
        files = {path: ray.put(path.read_bytes()) for path in _files(jobs)}

        def sent(job: CellJob) -> list[Any]:
            return [part for path in _files([job]) for part in (str(path), files[path])]

        yield from work_on_ray(ray, jobs, _task, sent, lost_cells)


def _task(job: CellJob, *sent: Any) -> Cells:
    """On a node: ``job`` by the files ``sent`` (path, content, path, content, ...), each written once a node."""
    here = {Path(p): _kept(Path(p).name, content) for p, content in zip(sent[::2], sent[1::2], strict=True)}
    return compute(_moved(job, here))


def _kept(name: str, content: bytes) -> Path:
    digest = hashlib.sha256(content).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"gkest-compare-{os.getuid()}" / digest
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(path, content)
    return path


def _files(jobs: Sequence[CellJob]) -> list[Path]:
    """Every file that ``jobs`` read, once."""
    found: dict[Path, None] = {}
    for job in jobs:
        entries = [*job.tables, *job.settings.values(), *job.policy.options.values()]
        entries += [*job.settings["gpu_specs"], *(c.arrivals.trace for c in job.cells)]
        found |= dict.fromkeys(p for p in entries if isinstance(p, Path))
    return list(found)


def _moved(job: CellJob, here: Mapping[Path, Path]) -> CellJob:
    def moved(value: Any) -> Any:
        if isinstance(value, Path):
            return here[value]
        if isinstance(value, tuple):
            return tuple(moved(v) for v in value)
        return value

    return replace(
        job,
        tables=moved(job.tables),
        settings={name: moved(value) for name, value in job.settings.items()},
        policy=replace(job.policy, options={n: moved(v) for n, v in job.policy.options.items()}),
        cells=tuple(
            replace(c, arrivals=replace(c.arrivals, trace=moved(c.arrivals.trace))) for c in job.cells
        ),
    )
