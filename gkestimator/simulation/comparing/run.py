"""Work a comparison off: compute what is missing, keep what is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gkestimator import __version__
from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.jobs.disk import held
from gkestimator.jobs.store import Store
from gkestimator.simulation.arrays import ValuesByName
from gkestimator.simulation.comparing.cells import Cell, CellJob, jobs
from gkestimator.simulation.comparing.compute import Cells, compute, lost_cells, rows_of_tables
from gkestimator.simulation.comparing.spec import ComparisonSpec
from gkestimator.simulation.conditions import Progress
from gkestimator.simulation.options import check_known

ENGINES = ("local", "ray")


@frozen
class Compared:
    """Hold every cell of the comparison with its job and its result, in the spec's order.

    ``computed`` of them were computed now, the others were there.
    """

    cells: tuple[tuple[CellJob, Cell, ValuesByName], ...]
    computed: int


def run_comparison(
    spec: ComparisonSpec,
    folder: Path,
    *,
    engine: str = "local",
    processes: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> Compared:
    """Compute the cells of ``spec`` that ``folder`` does not hold yet, and read them all.

    ``engine``: ``local`` (``processes`` of this machine) or ``ray``. Each cell is kept as soon as its job is
    done, so that a run that is cut off goes on where it was. Raises UsageError (engine, another command at work
    in the folder), TableError (a table cannot be read: no cell could be had), OutputError (the folder).
    """
    check_known("engine", engine, ENGINES)
    if processes < 1:
        raise UsageError(f"processes: found {processes}, expected at least 1")
    store = Store(folder)
    with held(folder / "lock", folder):
        return _compared(spec, store, engine, processes, progress)


def _compared(
    spec: ComparisonSpec, store: Store, engine: str, processes: int, progress: Progress
) -> Compared:
    every = list(jobs(spec, __version__))
    whole = [(job, cell) for job in every for cell in job.cells]
    there = store.finished(cell.key for _, cell in whole)
    missing = _missing(every, there)
    for names in {frozenset(job.workload.names()) for job in missing}:
        rows_of_tables(spec.tables, names)
    computed = sum(len(job.cells) for job in missing)
    done = len(whole) - computed
    progress("cells", done, len(whole))
    for job, results in _worked(missing, engine, processes):
        for key, result in results.items():
            store.write(key, result)
        done += len(job.cells)
        progress(f"{job.labels['policy']} at {job.labels['rate_scale']:g}", done, len(whole))
    cells = []
    for job, cell in whole:
        stored = store.read(cell.key)
        if stored is None:
            raise UsageError(f"{store.folder}: cell {cell.key} is gone; was it removed meanwhile?")
        cells.append((job, cell, stored))
    return Compared(cells=tuple(cells), computed=computed)


def _missing(every: Sequence[CellJob], there: Collection[str]) -> list[CellJob]:
    """Return the jobs that have cells to compute, with these alone."""
    missing = []
    for job in every:
        cells = tuple(cell for cell in job.cells if cell.key not in there)
        if cells:
            missing.append(replace(job, cells=cells))
    return missing


def _worked(missing: Sequence[CellJob], engine: str, processes: int) -> Iterator[tuple[CellJob, Cells]]:
    if not missing:
        return iter(())
    if engine == "ray":
        from gkestimator.simulation.comparing.cluster import run_on_ray

        return run_on_ray(missing)
    from gkestimator.jobs.processes import work_in_processes

    return work_in_processes(missing, processes, compute, lost_cells)
