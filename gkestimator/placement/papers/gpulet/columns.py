"""Every way to fill a GPU with gpu-lets that no other is at least as good as: the ideal's choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.interference.gpulet_law import GpuletCoefficients
from gkestimator.placement.papers.gpulet.lets import CLOSE, Let, LetLoad, sizes
from gkestimator.placement.problem import FloatRow, PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

MOST_WAYS = 200_000
MOST_PAIRS = 1_000_000

Array = NDArray[np.float64]
Whole = NDArray[np.int64]


@frozen
class Filled:
    """Hold one GPU of type ``gpu`` with its one or two gpu-lets, and what it serves of each model of the
    problem at most (in their order, no more than their rate)."""

    gpu: str
    lets: tuple[Let, ...]
    served_rps: FloatRow


@frozen
class _Ways:
    """Hold ways to fill a gpu-let of one size, an entry each: the candidate of each model (-1: not in it),
    what it serves at no slowdown, memory, pressure from and on a neighbour, and the largest slowdown at which
    every objective holds."""

    size_pct: float
    chosen: Whole  # ways x models
    served: Array  # ways x models
    memory: Array
    own: Array
    other: Array
    bearable: Array
    cycle_ms: Array  # NaN: one model alone

    def __len__(self) -> int:
        return len(self.memory)

    def take(self, rows: Whole) -> _Ways:
        """Return the ways of these ``rows``."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _ARRAYS})

    def or_empty(self) -> _Ways:
        """Return these ways and, last, an empty gpu-let."""
        longer: dict[str, Any] = {}
        for name, empty in _ARRAYS.items():
            column = getattr(self, name)
            longer[name] = np.concatenate([column, np.full_like(column, empty, shape=(1, *column.shape[1:]))])
        return replace(self, **longer)


# The arrays of :class:`_Ways`, and what an empty gpu-let has in each.
_ARRAYS = {
    "chosen": -1,
    "served": 0.0,
    "memory": 0.0,
    "own": 0.0,
    "other": 0.0,
    "bearable": np.inf,
    "cycle_ms": np.nan,
}
# What a GPU serves of each model, split by split: (served, ((ways, their rows) of each part), slowdown of each part).
_Split: TypeAlias = tuple[Array, tuple[tuple[_Ways, Whole], ...], Array]


def fillings(problem: Problem, gpu: str, coefficients: GpuletCoefficients | None) -> list[Filled]:
    """Return every undominated way to fill a GPU of type ``gpu``. Exact: for given batches the shortest cycle
    is the sum of the latencies, and no other serves more of any model. Raises UsageError: more than MOST_WAYS
    ways for a gpu-let, or MOST_PAIRS for a GPU."""
    models = problem.models
    rates = np.array([m.rate_rps for m in models])
    shares = sizes(problem, gpu)
    ways = {size: _ways(models, gpu, size, coefficients) for size in shares}
    limits = _limits(list(ways.values()), coefficients)
    best = {size: own.take(best_of(_goods(own, rates, limits))) for size, own in ways.items()}
    pairs = set()
    alone: list[_Split] = []
    for size in shares:
        rest = [s for s in shares if s <= 100 - size + CLOSE]
        if rest:
            # The largest share that the table knows is what is left of a GPU.
            pairs.add((min(size, rest[-1]), max(size, rest[-1])))
            continue
        served = np.minimum(ways[size].served, rates)
        rows = best_of(served)
        alone.append((served[rows], ((ways[size], rows),), np.ones((len(rows), 1))))
    splits = [_pairs(best[first], best[second], rates, coefficients) for first, second in sorted(pairs)]
    return _undominated(models, gpu, splits + alone)


@frozen
class _Limits:
    """Say beyond what a way's figures make no difference beside any neighbour: memory and pressures (below
    it), and the slowdown that it bears (above it)."""

    memory: float
    own: float
    other: float
    slowdown: float


def _limits(ways: Sequence[_Ways], coefficients: GpuletCoefficients | None) -> _Limits:
    heaviest = own = other = 0.0
    for w in ways:
        if len(w):
            heaviest = max(heaviest, float(w.memory.max()))
            own = max(own, float(w.own.max()))
            other = max(other, float(w.other.max()))
    if coefficients is None:
        return _Limits(memory=100 - heaviest, own=0.0, other=0.0, slowdown=1.0)
    return _Limits(
        memory=100 - heaviest,
        own=1 - coefficients.constant - other,
        other=1 - coefficients.constant - own,
        slowdown=max(1.0, coefficients.constant + own + other),
    )


def _goods(ways: _Ways, rates: Array, limits: _Limits) -> Array:
    """Return what makes one way at least as good as another beside every neighbour, more being better, a row
    each."""
    return np.column_stack(
        [
            np.minimum(ways.served, rates * limits.slowdown),
            -np.maximum(ways.memory, limits.memory),
            -np.maximum(ways.own, limits.own),
            -np.maximum(ways.other, limits.other),
            np.minimum(ways.bearable, limits.slowdown),
        ]
    )


def _ways(
    models: Sequence[PlacementModel], gpu: str, size: float, coefficients: GpuletCoefficients | None
) -> _Ways:
    options = [_options(m, gpu, size) for m in models]
    chosen = np.full((1, 0), -1, dtype=np.int64)
    busy = np.zeros(1)
    least = np.full(1, np.inf)
    memory = np.zeros(1)
    count = np.zeros(1, dtype=np.int64)
    for model, mine in zip(models, options, strict=True):
        late = np.array([0.0, *(c.latency_ms for c in mine)])
        slack = np.array([np.inf, *(model.slo_ms - c.latency_ms for c in mine)])
        size_of = np.array([0.0, *(c.memory_pct or 0.0 for c in mine)])
        one = np.array([0, *(1 for _ in mine)])
        index = np.arange(-1, len(mine))
        a, b = _grid(len(busy), len(index))
        busy = busy[a] + late[b]
        memory = memory[a] + size_of[b]
        count = count[a] + one[b]
        least = np.minimum(least[a], slack[b])
        # More models only make the cycle longer: what is late by now stays late.
        good = ((count < 2) | (busy <= least)) & (memory <= 100 * (1 + CLOSE))
        chosen = np.hstack([chosen[a[good]], index[b[good], None]])
        busy = busy[good]
        least = least[good]
        memory = memory[good]
        count = count[good]
        if len(busy) > MOST_WAYS:
            raise UsageError(
                f"policy gpulet-ideal searches exhaustively: {len(models)} models fill {size:g} % of a {gpu} in "
                f"more than {MOST_WAYS:,} ways, its limit; policy gpulet takes any number"
            )
    some = count > 0
    chosen = chosen[some]
    busy = busy[some]
    memory = memory[some]
    count = count[some]
    served = np.zeros(chosen.shape)
    own = np.zeros(len(busy))
    other = np.zeros(len(busy))
    bearable = np.full(len(busy), np.inf)
    for i, (model, mine) in enumerate(zip(models, options, strict=True)):
        for j, c in enumerate(mine):
            here = chosen[:, i] == j
            turns = here & (count > 1)
            served[here, i] = c.throughput_rps
            served[turns, i] = 1e3 * c.batch_size / busy[turns]
            response = np.where(count > 1, busy + c.latency_ms, c.latency_ms)
            bearable[here] = np.minimum(bearable[here], model.slo_ms * (1 + CLOSE) / response[here])
            if coefficients is not None:
                pressure = coefficients.pressure([c])
                own[here] = np.maximum(own[here], pressure.own)
                other[here] = np.maximum(other[here], pressure.other)
    return _Ways(
        size_pct=size,
        chosen=chosen,
        served=served,
        memory=memory,
        own=own,
        other=other,
        bearable=bearable,
        cycle_ms=np.where(count > 1, busy, np.nan),
    )


def _options(model: PlacementModel, gpu: str, size: float) -> list[Candidate]:
    return [c for c in model.feasible(gpu, sm_share_pct=size) if (c.memory_pct or 0.0) <= 100]


def best_of(goods: Array) -> Whole:
    """Return the rows (n x k, finite, more is better in every column) that no other is at least as good as;
    of equal ones the first. Ascending."""
    if not len(goods):
        return np.empty(0, dtype=np.int64)
    scale = np.abs(goods).max(axis=0)
    rank = (goods / np.where(scale > 0, scale, 1.0)).sum(axis=1)
    order = np.lexsort((np.arange(len(goods)), -rank))
    alive = goods[order]
    best: list[int] = []
    while len(order):
        # The first has the largest sum, so nothing that is left dominates it.
        best.append(int(order[0]))
        left = ~(alive <= alive[0]).all(axis=1)
        order = order[left]
        alive = alive[left]
    return np.array(sorted(best), dtype=np.int64)


def _pairs(first: _Ways, second: _Ways, rates: Array, coefficients: GpuletCoefficients | None) -> _Split:
    """Return what two gpu-lets serve together (pairs x models), which ways they are, and their slowdowns
    (pairs x 2)."""
    if (len(first) + 1) * (len(second) + 1) > MOST_PAIRS:
        raise UsageError(
            f"policy gpulet-ideal searches exhaustively: found more than {MOST_PAIRS:,} ways to fill a GPU, its limit; "
            "policy gpulet takes any number of models"
        )
    first = first.or_empty()
    second = second.or_empty()
    n = len(first)
    m = len(second)
    a, b = _grid(n, m)
    good = first.memory[a] + second.memory[b] <= 100 * (1 + CLOSE)
    good &= (a < n - 1) | (b < m - 1)  # the last is the empty one
    a = a[good]
    b = b[good]
    slow = np.ones((len(a), 2))
    if coefficients is not None:
        both = (a < n - 1) & (b < m - 1)
        slow[:, 0] = np.where(both, np.maximum(1, coefficients.constant + first.own[a] + second.other[b]), 1)
        slow[:, 1] = np.where(both, np.maximum(1, coefficients.constant + second.own[b] + first.other[a]), 1)
        bears = (slow[:, 0] <= first.bearable[a]) & (slow[:, 1] <= second.bearable[b])
        a = a[bears]
        b = b[bears]
        slow = slow[bears]
    served = first.served[a] / slow[:, :1] + second.served[b] / slow[:, 1:]
    return np.minimum(served, rates), ((first, a), (second, b)), slow


def _grid(n: int, m: int) -> tuple[Whole, Whole]:
    """Return every pair of a number below ``n`` and one below ``m``, the second fastest."""
    pairs = np.arange(n * m)
    return pairs // m, pairs % m


def _undominated(models: Sequence[PlacementModel], gpu: str, splits: Sequence[_Split]) -> list[Filled]:
    # First within each split, then over all.
    entries: list[tuple[Array, int, int]] = []
    for split, (served, _, _) in enumerate(splits):
        entries += [(served[row], split, int(row)) for row in best_of(served)]
    if not entries:
        return []
    filled = []
    for i in best_of(np.stack([served for served, _, _ in entries])):
        served, split, row = entries[i]
        _, parts, slow = splits[split]
        lets = []
        for (ways, rows), factor in zip(parts, slow[row], strict=True):
            let = _let(models, gpu, ways, int(rows[row]), float(factor))
            if let is not None:
                lets.append(let)
        filled.append(Filled(gpu=gpu, lets=tuple(lets), served_rps=tuple(float(s) for s in served)))
    return filled


def _let(models: Sequence[PlacementModel], gpu: str, ways: _Ways, row: int, slow: float) -> Let | None:
    loads = []
    for model, number, served in zip(models, ways.chosen[row], ways.served[row], strict=True):
        if number >= 0:
            candidate = _options(model, gpu, ways.size_pct)[number]
            loads.append(LetLoad(model=model, rate_rps=float(served) / slow, candidate=candidate))
    if not loads:
        return None
    cycle = float(ways.cycle_ms[row])
    if np.isnan(cycle):
        cycle_ms = None
    else:
        cycle_ms = cycle * slow
    return Let(size_pct=ways.size_pct, loads=tuple(loads), cycle_ms=cycle_ms)
