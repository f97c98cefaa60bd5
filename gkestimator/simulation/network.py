"""Describe what a request takes beyond queue and GPU: the network between clients and replicas, and the host's CPU."""

from __future__ import annotations

import bisect
import itertools
from pathlib import Path

import numpy as np

from gkestimator.core.errors import DocumentError
from gkestimator.core.records import frozen
from gkestimator.core.specfiles import read_spec
from gkestimator.documents.checking import Fields
from gkestimator.simulation.arrays import Floats

_WHAT = "file of a network's delay"
_MAX_POINTS = 1000


@frozen
class Network:
    """Hold the delay of one transfer, and what the host does for each request.

    Either ``points`` (bytes, ms), ascending in both, linear between and, beyond the last, along its last
    piece (below the first: its delay), or ``base_ms`` + bytes / ``bytes_per_s`` (None: without limit).
    ``per_request_ms`` is added for each request that is sent together. ``host_ms``: CPU time of the host for
    each request, from whichever model; the host does one at a time, in the order of arrival, before it
    routes them. ``source`` says where the figures are from.
    """

    source: str
    points: tuple[tuple[float, float], ...] = ()
    base_ms: float = 0.0
    bytes_per_s: float | None = None
    per_request_ms: float = 0.0
    host_ms: float = 0.0

    @property
    def by_bytes(self) -> bool:
        """Say whether the delay hangs on the size in bytes."""
        return bool(self.points) or self.bytes_per_s is not None

    def delay_ms(self, size_bytes: float, requests: int = 1) -> float:
        """Return the delay in ms of ``requests`` of ``size_bytes`` (0 or more) in all, sent one way."""
        return self._transfer_ms(size_bytes) + self.per_request_ms * requests

    def _transfer_ms(self, size_bytes: float) -> float:
        if not self.points:
            return self.base_ms + (0.0 if self.bytes_per_s is None else 1e3 * size_bytes / self.bytes_per_s)
        if size_bytes <= self.points[0][0]:
            return self.points[0][1]
        at = min(
            bisect.bisect_left(self.points, size_bytes, key=lambda p: p[0]),
            len(self.points) - 1,
        )
        (low, before), (high, after) = self.points[at - 1], self.points[at]
        return before + (after - before) * (size_bytes - low) / (high - low)


def work_done(came_ms: Floats, work_ms: float, *, free_ms: float = 0.0) -> Floats:
    """Return when each request is done, where ``work_ms`` is done for each and for one at a time; ``came_ms`` ascends.

    ``free_ms``: when the first may begin. A request is done at d(i) = max(a(i), d(i - 1)) + w, which is the largest of
    a(k) - k w over k up to i, plus (i + 1) w.
    """
    numbers = np.arange(len(came_ms))
    begin = np.maximum.accumulate(np.maximum(came_ms, free_ms) - numbers * work_ms)
    done: Floats = begin + (numbers + 1) * work_ms
    return done


def read_network(path: Path | str) -> Network:
    """Return the network in the TOML file at ``path`` (``examples/network.toml`` says every field).

    Raises SpecError or DocumentError naming the field.
    """
    path = Path(path)
    return network_from(Fields(read_spec(path, what=_WHAT), where=str(path), what=f"a {_WHAT}"))


def network_from(fields: Fields) -> Network:
    """Return the network in ``fields``. Raises DocumentError naming the field."""
    path = fields.where
    fields.whole("schema_version", low=1, high=1)
    source = fields.text("source")
    per_request_ms = fields.number("per_request_ms", 0.0, high=1e6)
    host_ms = fields.number("host_ms", 0.0, high=1e6)
    by_points = fields.has("points")
    by_line = fields.has("base_ms") or fields.has("bytes_per_s")
    if by_points == by_line:
        problem = "neither points nor base_ms nor bytes_per_s"
        if by_points:
            problem = "both points and a line"
        raise DocumentError(f"{path}: found {problem}, expected one of the two forms")
    if by_points:
        points = tuple(_point(entry) for entry in fields.objects("points", what="a point", limit=_MAX_POINTS))
        fields.finish()
        if len(points) < 2:
            raise DocumentError(f"{path}: points: found {len(points)}, expected at least two")
        for before, after in itertools.pairwise(points):
            if after[0] <= before[0] or after[1] < before[1]:
                raise DocumentError(
                    f"{path}: points: found {after[0]:g} bytes in {after[1]:g} ms after {before[0]:g} bytes in "
                    f"{before[1]:g} ms, expected more bytes and no less time"
                )
        return Network(source=source, points=points, per_request_ms=per_request_ms, host_ms=host_ms)
    network = Network(
        source=source,
        base_ms=fields.number("base_ms", 0.0, high=1e6),
        bytes_per_s=fields.number("bytes_per_s", None, above=True),
        per_request_ms=per_request_ms,
        host_ms=host_ms,
    )
    fields.finish()
    return network


def _point(fields: Fields) -> tuple[float, float]:
    point = fields.number("bytes"), fields.number("ms", high=1e6)
    fields.finish()
    return point
