"""Every way to fill a GPU with gpu-lets that no other is at least as good as: the ideal's choices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.interference.gpulet_law import GpuletCoefficients
from gkestimator.placement.papers.gpulet.lets import CLOSE, Let, LetLoad, sizes
from gkestimator.placement.problem import PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

MOST_WAYS = 200_000
MOST_PAIRS = 1_000_000

Array = NDArray[np.float64]
Whole = NDArray[np.int64]


@frozen
class Filled:
    """One GPU of type ``gpu`` with its one or two gpu-lets, and what it serves of each model of the problem
    at most (in their order, no more than their rate)."""

    gpu: str
    lets: tuple[Let, ...]
    served_rps: tuple[float, ...]


@frozen
class _Ways:
    """Ways to fill a gpu-let of one size, an entry each: the candidate of each model (-1: not in it), what it
    serves at no slowdown, memory, pressure from and on a neighbour, and the largest slowdown at which every
    objective holds."""

    size_pct: float
    chosen: Whole  # ways x models
    served: Array  # ways x models
    memory: Array
    own: Array
    other: Array
    bearable: Array
    cycle_ms: Array  # NaN: one model alone

    def take(self, rows: Whole) -> _Ways:
        return _Ways(
            size_pct=self.size_pct,
            chosen=self.chosen[rows],
            served=self.served[rows],
            memory=self.memory[rows],
            own=self.own[rows],
            other=self.other[rows],
            bearable=self.bearable[rows],
            cycle_ms=self.cycle_ms[rows],
        )


def fillings(problem: Problem, gpu: str, coefficients: GpuletCoefficients | None) -> list[Filled]:
    """Every undominated way to fill a GPU of type ``gpu``. Exact: for given batches the shortest cycle is the
    sum of the latencies, and no other serves more of any model. Raises UsageError: more than MOST_WAYS ways
    for a gpu-let, or MOST_PAIRS for a GPU."""
    models = problem.models
    rates = np.array([m.rate_rps for m in models])
    shares = sizes(problem, gpu)
    ways = {size: _ways(models, gpu, size, coefficients) for size in shares}
    limits = _limits(list(ways.values()), coefficients)
    kept = {size: found.take(best_of(_goods(found, rates, limits))) for size, found in ways.items()}
    splits = {tuple(sorted((size, rest))) for size in shares for rest in _rest(shares, size)}
    whole = [_pairs(kept[one], kept[two], rates, coefficients) for one, two in sorted(splits)]
    for size in shares:
        if not _rest(shares, size):
            alone = ways[size].take(best_of(np.minimum(ways[size].served, rates)))
            every = np.arange(len(alone.memory))
            whole.append((np.minimum(alone.served, rates), ((alone, every),), np.ones((len(every), 1))))
    return _undominated(models, gpu, whole, rates)


@frozen
class _Limits:
    """Beyond what a way's figures make no difference beside any neighbour: memory and pressures (below it), and the
    slowdown that it bears (above it)."""

    memory: float
    own: float
    other: float
    slowdown: float


def _limits(ways: Sequence[_Ways], coefficients: GpuletCoefficients | None) -> _Limits:
    heaviest = max((float(w.memory.max()) for w in ways if len(w.memory)), default=0.0)
    if coefficients is None:
        return _Limits(memory=100 - heaviest, own=0.0, other=0.0, slowdown=1.0)
    own = max((float(w.own.max()) for w in ways if len(w.memory)), default=0.0)
    other = max((float(w.other.max()) for w in ways if len(w.memory)), default=0.0)
    return _Limits(
        memory=100 - heaviest,
        own=1 - coefficients.constant - other,
        other=1 - coefficients.constant - own,
        slowdown=max(1.0, coefficients.constant + own + other),
    )


def _goods(ways: _Ways, rates: Array, limits: _Limits) -> Array:
    """What makes one way at least as good as another beside every neighbour, more being better, a row each."""
    return np.column_stack(
        [
            np.minimum(ways.served, rates * limits.slowdown),
            -np.maximum(ways.memory, limits.memory),
            -np.maximum(ways.own, limits.own),
            -np.maximum(ways.other, limits.other),
            np.minimum(ways.bearable, limits.slowdown),
        ]
    )


def _rest(shares: Sequence[float], size: float) -> list[float]:
    """The share that is left of a GPU beside ``size`` (the largest that the table knows), none or one."""
    return [s for s in shares if s <= 100 - size + CLOSE][-1:]


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
        a, b = (x.ravel() for x in np.meshgrid(np.arange(len(busy)), np.arange(len(index)), indexing="ij"))
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
    """Rows (n x k, finite, more is better in every column) that no other is at least as good as; of equal ones the
    first. Ascending."""
    if not len(goods):
        return np.empty(0, dtype=np.int64)
    scale = np.abs(goods).max(axis=0)
    rank = (goods / np.where(scale > 0, scale, 1.0)).sum(axis=1)
    order = np.lexsort((np.arange(len(goods)), -rank))
    alive = goods[order]
    kept: list[int] = []
    while len(order):
        # The first has the largest sum, so nothing that is left dominates it.
        kept.append(int(order[0]))
        left = ~(alive <= alive[0]).all(axis=1)
        order = order[left]
        alive = alive[left]
    return np.array(sorted(kept), dtype=np.int64)


def _pairs(
    first: _Ways, second: _Ways, rates: Array, coefficients: GpuletCoefficients | None
) -> tuple[Array, tuple[tuple[_Ways, Whole], ...], Array]:
    """What two gpu-lets serve together (pairs x models), which ways they are, and their slowdowns (pairs x
    2)."""
    if (len(first.memory) + 1) * (len(second.memory) + 1) > MOST_PAIRS:
        raise UsageError(
            f"policy gpulet-ideal searches exhaustively: found more than {MOST_PAIRS:,} ways to fill a GPU, its limit; "
            "policy gpulet takes any number of models"
        )
    first = _or_empty(first)
    second = _or_empty(second)
    n = len(first.memory)
    m = len(second.memory)
    a, b = (x.ravel() for x in np.meshgrid(np.arange(n), np.arange(m), indexing="ij"))
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


def _or_empty(ways: _Ways) -> _Ways:
    """``ways`` and, last, an empty gpu-let."""
    return _Ways(
        size_pct=ways.size_pct,
        chosen=np.vstack([ways.chosen, np.full((1, ways.chosen.shape[1]), -1, dtype=np.int64)]),
        served=np.vstack([ways.served, np.zeros((1, ways.served.shape[1]))]),
        memory=np.append(ways.memory, 0.0),
        own=np.append(ways.own, 0.0),
        other=np.append(ways.other, 0.0),
        bearable=np.append(ways.bearable, np.inf),
        cycle_ms=np.append(ways.cycle_ms, np.nan),
    )


def _undominated(
    models: Sequence[PlacementModel],
    gpu: str,
    whole: Sequence[tuple[Array, tuple[tuple[_Ways, Whole], ...], Array]],
    rates: Array,
) -> list[Filled]:
    # First within each split, then over all.
    entries: list[tuple[Array, int, int]] = []
    for split, (served, _, _) in enumerate(whole):
        entries += [(served[row], split, int(row)) for row in best_of(served)]
    if not entries:
        return []
    found = []
    for i in best_of(np.stack([e[0] for e in entries])):
        served, split, row = entries[i]
        _, parts, slow = whole[split]
        lets = tuple(
            let
            for k, (ways, index) in enumerate(parts)
            if (let := _let(models, gpu, ways, int(index[row]), float(slow[row, k]))) is not None
        )
        found.append(Filled(gpu=gpu, lets=lets, served_rps=tuple(float(s) for s in served)))
    return found


def _let(models: Sequence[PlacementModel], gpu: str, ways: _Ways, row: int, slow: float) -> Let | None:
    loads = []
    for i, model in enumerate(models):
        j = int(ways.chosen[row, i])
        if j >= 0:
            candidate = _options(model, gpu, ways.size_pct)[j]
            loads.append(
                LetLoad(model=model, rate_rps=float(ways.served[row, i]) / slow, candidate=candidate)
            )
    if not loads:
        return None
    cycle = float(ways.cycle_ms[row])
    return Let(size_pct=ways.size_pct, loads=tuple(loads), cycle_ms=None if np.isnan(cycle) else cycle * slow)
