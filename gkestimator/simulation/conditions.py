"""Hold the conditions under which plans are served in simulation: the same for every plan of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypedDict, Unpack

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.interference.contention import unanswerable
from gkestimator.interference.registry import interference_between
from gkestimator.simulation.arrays import Names
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.building import build_system
from gkestimator.simulation.network import read_network
from gkestimator.simulation.options import Options
from gkestimator.simulation.system import System
from gkestimator.tables import REQUIREMENTS, Requirement, TableSource, rows_in, table_label

Progress: TypeAlias = Callable[[str, int, int], None]
"""What is told how far a run is: what is done, how much of it, and of how much."""


class BuildConditions(TypedDict, total=False):
    """Hold what a system is built by, as in :func:`gkestimator.simulation.building.build_system`."""

    max_wait_ms: float | None
    admission: str
    gpu_specs: Sequence[Path | str]
    table: str


class Conditions(BuildConditions, total=False):
    """Hold the files of coefficients and delays too (None: the interference model's own; no network)."""

    coefficients: Path | str | None
    network: Path | str | None


def system_builder(
    rows: Iterable[Requirement],
    options: Options,
    specs: Sequence[GpuSpec],
    *,
    joined: bool = False,
    coefficients: Path | str | None = None,
    network: Path | str | None = None,
    **conditions: Unpack[BuildConditions],
) -> Callable[[PlacementPlan], System]:
    """Return what builds the system of a plan; interference and network are read here, once for all plans.

    ``specs``: the GPU types that replicas may slow each other down on. Raises UsageError, DocumentError or
    SpecError.
    """
    law = interference_between(options.interference, coefficients, specs)
    wired = None
    if network is not None:
        wired = read_network(network)

    def build(plan: PlacementPlan) -> System:
        return build_system(
            plan,
            rows,
            interference=law,
            network=wired,
            copy=options.copy,
            batching=options.batching,
            joined=joined,
            **conditions,
        )

    return build


def answerable(
    options: Options, rows: Iterable[Requirement], coefficients: Path | str | None
) -> tuple[Options, Names]:
    """Return ``options`` without interference where contention has no column to answer by (a table measured on a
    CPU), and a note that says so; else ``options`` as they are."""
    note = None
    if coefficients is None:
        note = unanswerable(options.interference, rows)
    if note is None:
        return options, ()
    return replace(options, interference="none"), (note,)


def check_streams(arrivals: Arrivals, expected: int, name: str, of_what: str) -> None:
    """Raise UsageError where ``arrivals`` has not ``expected`` streams: one for each source ``of_what``."""
    if arrivals.sources != expected:
        raise UsageError(
            f"{name}: found {arrivals.sources} streams, expected {expected}: one for each model and application of "
            f"{of_what}"
        )


def rows_of_models(
    tables: Sequence[TableSource], models: Iterable[str], progress: Progress | None = None
) -> list[Requirement]:
    """Return the rows of ``models`` in requirement tables. Raises UsageError without a table, TableError."""
    if not tables:
        raise UsageError("no requirement table is named: expected at least one")
    names = frozenset(models)
    rows: list[Requirement] = []
    for number, table in enumerate(tables):
        if progress is not None:
            progress(f"reading {Path(table_label(table)).name}", number, len(tables))
        rows += rows_in(table, REQUIREMENTS, where={"model": names})
    return rows
