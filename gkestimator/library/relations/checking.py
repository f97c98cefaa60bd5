"""Hold what a check of a relation is, and what all checks look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.records import frozen
from gkestimator.estimation.api import estimate_rows
from gkestimator.library.relations.networks import NETWORKS
from gkestimator.tables import Requirement

GPUS = ("T4", "V100-SXM2-16GB", "A100-SXM4-80GB", "L4", "H100-SXM")
BATCHES = (1, 2, 3, 4, 8, 12, 16, 32, 48, 64)
ROUNDING = 1e-6


class Case(NamedTuple):
    """Hold one comparison: where it was made, and by how much it goes beyond what must hold (relative; at most 0 where
    it holds)."""

    where: str
    excess: float


class Subject:
    """Hold the estimator that is checked: bundles, GPUs and the built-in networks with their estimates.

    ``plans``: how many random plans of every policy are made. Raises BundleError for a bundle that cannot be read.
    """

    def __init__(self, bundles: tuple[Path, ...], folder: Path, *, plans: int) -> None:
        self.bundles = bundles
        self.folder = folder
        self.plans = plans
        measured = [each.gpus[0] for path in bundles for each in load_bundle(path).measured if each.gpus]
        self.gpus = tuple(dict.fromkeys((*GPUS, *measured)))

    def network(self, name: str, width: int = 2) -> Path:
        """Return the file of a built-in network."""
        return NETWORKS[name](self.folder, width)

    @cached_property
    def networks(self) -> tuple[Path, ...]:
        """Return the files of all networks at their usual width."""
        return tuple(self.network(name) for name in NETWORKS)

    def rows(self, paths: Iterable[Path], **options: Any) -> tuple[Requirement, ...]:
        """Return the estimates of ``paths`` by the bundles. Raises the error of the first that has one."""
        result = estimate_rows(tuple(paths), bundles=self.bundles, **options)
        for _, error in result.failures:
            raise error
        return result.rows

    @cached_property
    def by_batch(self) -> tuple[Requirement, ...]:
        """Return the estimates of all networks on all GPUs, by ascending batch size."""
        rows = self.rows(self.networks, gpus=self.gpus, batch_sizes=BATCHES)
        return tuple(sorted(rows, key=lambda row: (row.model, row.gpu, row.batch_size)))


@frozen
class RelationCheck:
    """Hold one relation: its ``name``, what ``holds``, and the ``cases`` that were looked at.

    A case fails where it exceeds ``allowed``; ``reason`` says why more than rounding is allowed.
    """

    name: str
    holds: str
    cases: Callable[[Subject], Iterator[Case]]
    allowed: float = ROUNDING
    reason: str = ""


def place_of(row: Requirement) -> str:
    """Return where a row is, in words."""
    return f"{row.model} {row.gpu} batch {row.batch_size}"


def never_falling(rows: Iterable[Requirement], column: str) -> Iterator[Case]:
    """Yield the neighbours of every series of rows of one model and GPU, by how much ``column`` falls."""
    for less, more in pairwise(rows):
        if (less.model, less.gpu) == (more.model, more.gpu):
            before, after = getattr(less, column), getattr(more, column)
            yield Case(where=f"{place_of(less)} -> {more.batch_size}", excess=1 - after / max(before, 1e-12))


def beyond(value: float, allowed: float) -> float:
    """Return by how much ``value`` is above ``allowed``, relative."""
    return (value - allowed) / max(abs(allowed), 1e-12)


def apart(value: float, expected: float) -> float:
    """Return how far ``value`` lies from ``expected``, relative."""
    return abs(beyond(value, expected))


def defect(where: str, error: GkestimatorError) -> Case:
    """Return the case of an answer that was refused."""
    return Case(where=f"{where}: {error}", excess=float("inf"))
