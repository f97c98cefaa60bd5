"""Jobs worked off over a Ray cluster: one task each; the driver alone writes cells."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gkestimator.errors import one_line
from gkestimator.ray_cluster import connected
from gkestimator.simulation.comparing.cells import Job
from gkestimator.simulation.comparing.compute import Cells, compute
from gkestimator.tables import write_bytes

__all__ = ["run_on_ray"]

_TRIES = 3
_AHEAD = 2  # tasks for each CPU of the cluster that wait in Ray at a time


def run_on_ray(jobs: Sequence[Job]) -> Iterator[tuple[Job, Cells]]:
    """Each of ``jobs`` with its cells, as they are finished. Files that jobs read are sent along: nodes need not
    share a file system. A task whose node or process dies is given out again, three times in all. Raises UsageError
    where Ray or a cluster is missing."""
    with connected() as ray:
        from ray.exceptions import RayError

        files = {path: ray.put(path.read_bytes()) for path in _files(jobs)}
        task = ray.remote(_task).options(num_cpus=1, max_retries=0)
        room = max(1, _AHEAD * int(ray.cluster_resources().get("CPU", 1)))
        todo = [(job, 0) for job in reversed(jobs)]
        waiting: dict[Any, tuple[Job, int]] = {}
        while todo or waiting:
            while todo and len(waiting) < room:
                job, tried = todo.pop()
                sent = task.remote(job, *(x for p in _files([job]) for x in (str(p), files[p])))
                waiting[sent] = (job, tried + 1)
            done, _ = ray.wait(list(waiting), num_returns=1)
            for reference in done:
                job, tried = waiting.pop(reference)
                try:
                    yield job, ray.get(reference)
                except RayError as e:
                    if tried < _TRIES:
                        todo.append((job, tried))
                        continue
                    reason = f"lost {tried} times on the cluster: {one_line(e, limit=200)}"
                    yield job, {c.key: {"status": "failed", "reason": reason} for c in job.cells}


def _task(job: Job, *sent: Any) -> Cells:
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


def _files(jobs: Sequence[Job]) -> list[Path]:
    """Every file that ``jobs`` read, once."""
    found: dict[Path, None] = {}
    for job in jobs:
        entries = [*job.tables, *job.settings.values(), *job.policy.options.values()]
        entries += [*job.settings["gpu_specs"], *(c.arrivals.trace for c in job.cells)]
        found |= dict.fromkeys(p for p in entries if isinstance(p, Path))
    return list(found)


def _moved(job: Job, here: Mapping[Path, Path]) -> Job:
    def moved(value: Any) -> Any:
        if isinstance(value, Path):
            return here[value]
        return tuple(moved(v) for v in value) if isinstance(value, tuple) else value

    return replace(
        job,
        tables=moved(job.tables),
        settings={name: moved(value) for name, value in job.settings.items()},
        policy=replace(job.policy, options={n: moved(v) for n, v in job.policy.options.items()}),
        cells=tuple(
            replace(c, arrivals=replace(c.arrivals, trace=moved(c.arrivals.trace))) for c in job.cells
        ),
    )
