"""What every arrival process gives: the times at which requests come, in chunks, never all in memory."""

from __future__ import annotations

import abc
from collections.abc import Iterator

from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Floats


@frozen
class Chunk:
    """All requests that come from the end of the chunk before (0 for the first) up to ``end_ms``, not included.
    ``times_ms``: for each source, in order, ascending times."""

    end_ms: float
    times_ms: tuple[Floats, ...]


class Arrivals(abc.ABC):
    """A source of chunks. ``sources``: how many streams it has."""

    sources: int

    @abc.abstractmethod
    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """Chunks up to ``until_ms``: the last one's end. Called again it gives the same. A chunk holds at most
        about a million requests."""
