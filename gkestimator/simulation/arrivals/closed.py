"""Let clients wait for their answers: each sends its next request when the answer to its last one came."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.simulation.arrays import Wholes
from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.system import System

_PREFIX = "closed:"
_MOST_CLIENTS = 1_000_000


def clients_of(kind: str | Path) -> int | None:
    """Return how many clients ``closed:N`` asks for; None where ``kind`` is something else. Raises UsageError."""
    text = str(kind)
    if not text.startswith(_PREFIX):
        return None
    number = text.removeprefix(_PREFIX)
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= _MOST_CLIENTS):
        raise UsageError(f"arrivals {text}: found {number!r} clients, expected 1 to {_MOST_CLIENTS:,}")
    return int(number)


class ClosedArrivals(Arrivals):
    """Bring the first request of each client, all at 0; the simulator brings the others, as answers come.

    ``clients``: how many there are of each source. The system's sources must be ``closed`` (:func:`closed_loop`).
    """

    closed = True

    def __init__(self, clients: Wholes) -> None:
        self.clients = clients
        self.sources = len(clients)

    @property
    def note(self) -> str:
        """Return what a reader of a report must know of these arrivals."""
        counts = " and ".join(map(str, sorted(set(self.clients))))
        return f"{counts} clients of each model or application wait for their answers: no rate has any use"

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """Yield the one chunk that there is."""
        yield Chunk(end_ms=until_ms, times_ms=tuple(np.zeros(count) for count in self.clients))


def closed_loop(system: System) -> System:
    """Return ``system`` with clients that wait at every source; whoever comes is let in."""
    sources = [dataclasses.replace(source, closed=True, admit=1.0) for source in system.sources]
    return dataclasses.replace(system, sources=tuple(sources))
