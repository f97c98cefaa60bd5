"""Say which rows of language models keep what is asked of them, and look for the largest batch that does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gkestimator.core.records import frozen
from gkestimator.llm.decoder import MOST_BATCH
from gkestimator.tables.llm_requirement import LlmRequirement

RowsAt = Callable[[int], Mapping[str, LlmRequirement]]
"""The rows of a batch by GPU type."""


@frozen
class Objectives:
    """Hold the objectives that a row must keep (ms; None: none)."""

    ttft_ms: float | None
    tpot_ms: float | None

    @property
    def named(self) -> bool:
        """Return whether there is one."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    def kept(self, row: LlmRequirement) -> bool:
        """Return whether ``row`` fits and keeps them by its estimates; an unknown time keeps nothing."""
        if not fits(row):
            return False
        for objective, value in ((self.ttft_ms, row.ttft_ms), (self.tpot_ms, row.tpot_ms)):
            if objective is not None and (value is None or value > objective):
                return False
        return True


def fits(row: LlmRequirement) -> bool:
    """Return whether the row's memory is known to fit."""
    return row.mreq_pct is not None and row.mreq_pct <= 100


def best_rows(rows_at: RowsAt, objectives: Objectives) -> list[LlmRequirement]:
    """Return for every GPU type the row of the largest batch that keeps the objectives; of batch 1 where none does.

    Times and memory grow with the batch: batches are doubled until none keeps the objectives, then halved into.
    """
    known: dict[int, Mapping[str, LlmRequirement]] = {}

    def row(batch: int, gpu: str) -> LlmRequirement:
        if batch not in known:
            known[batch] = rows_at(batch)
        return known[batch][gpu]

    known[1] = rows_at(1)

    def largest(gpu: str) -> int:
        return _largest(lambda batch: objectives.kept(row(batch, gpu)))

    return [row(largest(gpu), gpu) for gpu in known[1]]


def _largest(kept: Callable[[int], bool]) -> int:
    """Return the largest batch that is ``kept``, at least 1."""
    high = 2
    while high <= MOST_BATCH and kept(high // 2) and kept(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if kept(middle):
            low = middle
        else:
            high = middle
    return low
