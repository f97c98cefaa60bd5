"""What one replica of each of very many ways serves on time, near enough to sort changes out, and a quick bound.

The evaluator is asked for servers of a few dimensions alone (batch, objective over latency, how the latency grows with
the batch, width of the interval, replicas), each once; what a way serves is read off between them. So a thousand models
cost as many questions as fifty.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache
from statistics import NormalDist

import numpy as np

from gkestimator.placement.gkest.ways import Way
from gkestimator.placement.late import late_on_time
from gkestimator.placement.problem import FloatByIndex, Floats, PlacementModel
from gkestimator.placement.queueing import Server, interval_sigmas, on_time
from gkestimator.tables.candidate import Candidate

# The grid: objective over latency, latency of one request over that of the batch, upper end of the interval over the
# latency, replicas.
_SLACKS = np.geomspace(1.0, 50.0, 15)
_FIRSTS = (0.03, 0.08, 0.16, 0.3, 0.45, 0.6, 0.8, 1.0)
_WIDTHS = (1.0, 1.1, 1.3, 1.6, 2.1, 3.0, 4.5)
_POOLS = (1, 2, 4, 10, 64)
_STEP = math.log(float(_SLACKS[1]))
_Z90 = 1.6448536269514722
_LOAD = 0.95  # of capacity that is asked for
_GRID_MARGIN = 1.04  # the evaluator looks for the admitted load on a grid
_MOST_LOAD = 1.6  # of capacity that the evaluator lets in
# Equally likely points of the interval, as the evaluator has them.
_POINTS = np.array([NormalDist().inv_cdf((i + 0.5) / 12) for i in range(12)])


@cache
def _part_of_capacity(
    batch: int, slack: int, first: int, width: int, pool: int, batching: str
) -> tuple[float, float]:
    """Return the parts of its capacity that a server serves on time and admits; the arguments but ``batch`` and
    ``batching`` are numbers of the grid."""
    if batch > 1:
        batches: tuple[int, ...] = (1, batch)
        latencies: tuple[float, ...] = (_FIRSTS[first], 1.0)
    else:
        batches = (1,)
        latencies = (1.0,)
    server = Server(batch_size=batch, batches=batches, latencies_ms=latencies, count=_POOLS[pool])
    capacity = server.count * server.capacity_rps
    sigma = math.log(_WIDTHS[width]) / _Z90
    law = late_on_time if batching == "late" else on_time
    answer = law([server], _LOAD * capacity, float(_SLACKS[slack]), sigma=sigma)
    admitted = max(answer.admitted_rps, answer.rate_rps, 1e-12)
    return answer.rate_rps / capacity, admitted / capacity


class ManyRates:
    """Read off what the ways of ``models`` serve."""

    def __init__(self) -> None:
        self._shapes: dict[int, tuple[int, int]] = {}

    def parts(self, way: Way, model: PlacementModel, slowdown: float, width: float) -> tuple[float, float]:
        """Return the parts of its capacity (with ``slowdown``) that one replica of ``way`` serves on time and admits,
        where as many are there as the model's rate needs; ``width`` is that of the widest interval in use."""
        slack = model.slo_ms / (way.latency_ms * slowdown)
        if slack < 1:
            return (1e-6, 1e-6)
        shape = self._shapes.get(way.number)
        if shape is None:
            shape = self._shapes[way.number] = _shape(way, model)
        first, pool = shape
        place = min(math.log(slack) / _STEP, len(_SLACKS) - 1.001)
        at = int(place)
        rest = place - at
        wide = _nearest(_WIDTHS, max(width, 1.0))
        low = _part_of_capacity(way.batch, at, first, wide, pool, model.batching)
        high = _part_of_capacity(way.batch, at + 1, first, wide, pool, model.batching)
        return (low[0] + rest * (high[0] - low[0]), low[1] + rest * (high[1] - low[1]))


def _shape(way: Way, model: PlacementModel) -> tuple[int, int]:
    """Return the numbers in the grid of what does not change with the slowdown."""
    candidate = way.candidate
    group = model.on(candidate.gpu, sm_share_pct=candidate.sm_share_pct)
    first = min(c.latency_ms for c in group) / way.latency_ms
    replicas = max(1, math.ceil(model.rate_rps / way.capacity_rps))
    return _nearest(_FIRSTS, max(first, 1e-3)), _nearest(_POOLS, replicas)


def _nearest(grid: Floats, value: float) -> int:
    """Return the number of the point of ``grid`` that is nearest to ``value`` by its ratio."""
    at = bisect_left(grid, value)
    if at == 0:
        return 0
    if at == len(grid) or value * value < grid[at - 1] * grid[at]:
        return at - 1
    return at


def quick_bounds(model: PlacementModel, group: tuple[Candidate, ...]) -> FloatByIndex:
    """Return by batch size a bound on the requests a second that one replica of ``group`` (a model's rows on one GPU
    type and share) answers on time in any placement: no queue, no filling, every smaller batch allowed, the narrowest
    interval of the group, of which the part counts that is within the objective and keeps up with the load."""
    rows = sorted(group, key=lambda c: c.batch_size)
    latencies = np.array([c.latency_ms for c in rows])
    batches = np.array([float(c.batch_size) for c in rows])
    sides = [interval_sigmas(c.latency_ms, c.row.latency_low_ms, c.row.latency_high_ms) for c in rows]
    below = max(side[0] for side in sides)
    above = min(side[1] for side in sides)
    factors = np.exp(_POINTS * np.where(_POINTS > 0, above, below))
    limits = model.slo_ms / factors
    parts = np.arange(1, len(factors) + 1) / len(factors) * np.minimum(1.0 / factors, _MOST_LOAD)
    reached = np.where(latencies[:, None] <= limits, (batches / latencies)[:, None], 0.0)
    # A batch between two rows may be in time where the larger is not.
    rise = np.maximum(np.diff(latencies), 1e-12)[:, None]
    beyond = np.clip((limits - latencies[:-1, None]) / rise, 0.0, 1.0)
    between = (batches[:-1, None] + np.diff(batches)[:, None] * beyond) / limits
    partly = (latencies[:-1, None] <= limits) & (latencies[1:, None] > limits)
    reached[1:] = np.where(partly, between, reached[1:])
    best = np.maximum.accumulate((reached * parts).max(axis=1))
    bounds = 1e3 * np.minimum(_GRID_MARGIN * best, (batches / latencies).max())
    return dict(zip([c.batch_size for c in rows], bounds.tolist(), strict=True))
