"""A comparison worked off: what is missing is computed, what is there is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gkestimator import __version__
from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.jobs.store import Store
from gkestimator.simulation.comparing.cells import Cell, CellJob, jobs
from gkestimator.simulation.comparing.compute import Cells, compute, lost_cells, rows_of_tables
from gkestimator.simulation.comparing.spec import ComparisonSpec

ENGINES = ("local", "ray")


@frozen
class Compared:
    """Every cell of the comparison with its job and its result, in the spec's order. ``computed`` of them now, the
    others were there."""

    cells: tuple[tuple[CellJob, Cell, dict[str, Any]], ...]
    computed: int


def run_comparison(
    spec: ComparisonSpec,
    folder: Path,
    *,
    engine: str = "local",
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Compared:
    """Compute the cells of ``spec`` that ``folder`` does not hold yet, and read them all.

    ``engine``: ``local`` (``processes`` of this machine) or ``ray``. Each cell is kept as soon as its job is done, so
    that a run that is cut off goes on where it was. Raises UsageError (engine), TableError (a table cannot be read:
    no cell could be had), OutputError (the folder)."""
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is not known, expected one of {', '.join(ENGINES)}")
    if processes < 1:
        raise UsageError(f"processes: found {processes}, expected at least 1")
    store = Store(folder)
    whole = tuple(jobs(spec, __version__))
    total = sum(len(j.cells) for j in whole)
    there = store.finished(cell.key for job in whole for cell in job.cells)
    missing = [
        replace(job, cells=cells)
        for job in whole
        if (cells := tuple(c for c in job.cells if c.key not in there))
    ]
    for names in {frozenset(job.workload.names()) for job in missing}:
        rows_of_tables(spec.tables, names)
    done = total - sum(len(j.cells) for j in missing)
    if progress is not None:
        progress("cells", done, total)
    for job, found in _worked(missing, engine, processes):
        for key, computed in found.items():
            store.write(key, computed)
        done += len(job.cells)
        if progress is not None:
            progress(f"{job.labels['policy']} at {job.labels['rate_scale']:g}", done, total)
    results = []
    for job in whole:
        for cell in job.cells:
            result = store.read(cell.key)
            if result is None:
                raise UsageError(f"{folder}: cell {cell.key} is gone; was it removed meanwhile?")
            results.append((job, cell, result))
    return Compared(cells=tuple(results), computed=sum(len(j.cells) for j in missing))


def _worked(missing: Sequence[CellJob], engine: str, processes: int) -> Iterator[tuple[CellJob, Cells]]:
    if not missing:
        return iter(())
    if engine == "ray":
        from gkestimator.simulation.comparing.cluster import run_on_ray

        return run_on_ray(missing)
    from gkestimator.jobs.processes import work_in_processes

    return work_in_processes(missing, processes, compute, lost_cells)
