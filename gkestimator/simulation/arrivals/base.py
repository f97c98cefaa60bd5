"""Say what every arrival process gives: the times at which requests come, in chunks, never all in memory."""

from __future__ import annotations

import abc
from collections.abc import Iterator

from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Floats


@frozen
class Chunk:
    """Hold all requests that come from the end of the chunk before (0 for the first) up to ``end_ms``, not
    included.

    ``times_ms``: for each source, in order, ascending times.
    """

    end_ms: float
    times_ms: tuple[Floats, ...]


class Arrivals(abc.ABC):
    """Give chunks of requests. ``sources``: how many streams there are. ``closed``: clients wait for their answers."""

    sources: int
    closed = False

    @abc.abstractmethod
    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """Yield chunks up to ``until_ms``, the last one's end; called again, the same.

        A chunk holds at most about a million requests.
        """
