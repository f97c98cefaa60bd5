"""The interface of an interference model: numbers of replicas and GPUs, and a law over them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.tables import Requirement
from gkestimator.tables.candidate import Candidate

# Numbers that an interference model may keep for a replica at one batch size, and for a GPU.
FEATURES = 8
TERMS = 8


class Interference(abc.ABC):
    """Say how much batches that run on one GPU at the same time slow each other down.

    While the set of running batches does not change, a batch with features f advances at 1 / s of its speed
    alone, s = ``slowdown(code, f, sum of the others' features, number of others, terms of the GPU)``, at
    least 1 (:mod:`gkestimator.interference.laws`, which the engine compiles)."""

    name: ClassVar[str]
    code: ClassVar[int]
    # Columns of the requirement table without which it has no answer of its own.
    needs: ClassVar[tuple[str, ...]] = ()
    # Columns that it uses where they are known.
    optional: ClassVar[tuple[str, ...]] = ()
    # What a reader of its results must know.
    notes: tuple[str, ...] = ()

    @classmethod
    @abc.abstractmethod
    def made(cls, coefficients: Path | None, gpus: Sequence[GpuSpec]) -> Self:
        """Return the model with the coefficients in a file (None: its own), for these GPU types. Raises
        UsageError (it takes none; a GPU type is missing from them), DocumentError or SpecError (a field of
        the file)."""

    @abc.abstractmethod
    def features(self, row: Requirement) -> tuple[float, ...]:
        """Return FEATURES numbers of a replica that runs as ``row`` says. Raises UsageError naming a column
        that is null."""

    @abc.abstractmethod
    def terms(self, gpu: GpuSpec) -> tuple[float, ...]:
        """Return TERMS numbers of a GPU type."""


def known(law: Interference, row: Requirement, column: str) -> float:
    """Return the number in ``column`` of ``row``. Raises UsageError where it is null, naming model and
    column."""
    number = getattr(row, column)
    if number is None:
        raise UsageError(
            f"interference {law.name} needs {column}, which is null for {row.model} on {row.gpu} at batch "
            f"{row.batch_size}; expected a number, or interference none"
        )
    return float(number)


def padded(length: int, *numbers: float) -> tuple[float, ...]:
    """Return ``numbers``, and zeros up to ``length`` of them."""
    return (*numbers, *(0.0,) * (length - len(numbers)))


def alone_candidate(row: Requirement) -> Candidate:
    """Return ``row`` as the placement policies' formulas take it. Raises UsageError: its latency is null or
    0."""
    if not row.latency_ms:
        raise UsageError(
            f"latency_ms is {'null' if row.latency_ms is None else 0} for {row.model} on {row.gpu} at batch "
            f"{row.batch_size}, expected a number above 0"
        )
    return Candidate(
        row=row,
        latency_ms=row.latency_ms,
        throughput_rps=row.throughput_rps or 1e3 * (row.batch_size or 1) / row.latency_ms,
        creq_pct=None,
        memory_pct=None,
        memory_bytes=None,
    )
