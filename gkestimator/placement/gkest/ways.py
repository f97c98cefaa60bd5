"""One way to run a model: a batch size and an SM share on a GPU type, as packing sees it."""

from __future__ import annotations

from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.tables.candidate import Candidate


@frozen
class Way:
    """Hold one candidate of one model, with what packing asks of it. ``demand_pct`` is the SM demand while it
    runs (None: unknown, it must have its GPU, or its turn, to itself); ``share_pct`` below 100: confined.
    ``memory_pct`` is 0 where it is unknown: what is not known cannot be checked."""

    number: int
    model: int
    type: int
    candidate: Candidate
    capacity_rps: float
    latency_ms: float
    demand_pct: float | None
    creq_pct: float | None
    dram_pct: float | None
    memory_pct: float
    share_pct: float
    batch: int

    @property
    def width(self) -> float:
        """Return the upper end of its latency's interval over the latency."""
        return self.candidate.latency_high_ms / self.latency_ms

    @property
    def part(self) -> float:
        """Return the part of a GPU's compute that it holds while it runs without a pause."""
        if self.share_pct < 100:
            return self.share_pct / 100
        if self.demand_pct is None:
            return 1.0
        return max(self.demand_pct, 1e-3) / 100


Ways: TypeAlias = list[Way]
