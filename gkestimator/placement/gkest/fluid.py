"""The fluid relaxation of a placement: replicas may be split without end, and GPUs of a type are one pool of
compute and memory.

Its optimum bounds what any placement without mixed confinement reaches, and says which model should have how
much of which GPU type. Side by side, replicas that run parts u_i of the time with SM demands d_i and
slowdowns f_i >= (d_i + sum_{j != i} u_j d_j) / 100 serve parts u_i / f_i of their capacities, so sum d_i u_i
/ f_i <= 100: the pool's compute is never exceeded, whatever is placed beside what. (Derivation: 1 / f_i <=
100 / sum_j u_j d_j, as u_i <= 1.) The same holds of DRAM bandwidth, and of Creq where its sum is kept within
100 %, turns by the time that they take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.records import frozen
from gkestimator.placement.expected import model_on_time
from gkestimator.placement.gkest.menu import WORK_FULL, Menus
from gkestimator.placement.gkest.rates import quick_bounds
from gkestimator.placement.gkest.ways import Way, Ways
from gkestimator.placement.integer import linear_program, solver_of
from gkestimator.placement.problem import FloatByIndex, FloatRow, Floats

# on_time looks for the admitted load on a grid: no load between its points does better by more than this factor.
_GRID_MARGIN = 1.04
_MANY = 1_000_000
_NEAR = 1.3  # times the upper end of the latency's interval


@frozen
class Fluid:
    """Hold the optimum of the relaxation.

    ``value``: worth served (or the cost per hour); ``share[m][t]``: GPUs of type t for model m, by compute, and
    ``rps[m][t]`` the requests a second that they serve; ``gpus[t]``: GPUs of type t in use; ``price[t]``: worth of one
    GPU more of type t."""

    value: float
    share: tuple[FloatByIndex, ...]
    rps: tuple[FloatByIndex, ...]
    gpus: FloatRow
    price: FloatRow


def bounds_rps(menus: Menus) -> list[float]:
    """Return by way a bound on the requests on time by one replica in any placement: :func:`most_rps`; with many models
    a quicker one that is about as large."""
    if not menus.many:
        return [most_rps(menus, w) for w in menus.ways]
    groups: dict[tuple[int, str, float], FloatByIndex] = {}
    bounds = []
    for way in menus.ways:
        gpu = way.candidate.gpu
        key = (way.model, gpu, way.share_pct)
        if key not in groups:
            model = menus.model(way.model)
            groups[key] = quick_bounds(model, model.on(gpu, sm_share_pct=way.share_pct))
        bounds.append(groups[key][way.batch])
    return bounds


def most_rps(menus: Menus, way: Way) -> float:
    """Return a bound on the requests on time by one replica of ``way`` in any placement: the best of its
    batch sizes and those below, back to back; where its latency is near the objective, what is on time of
    that when it is pooled with a million others, so that a batch leaves at once and finds no queue."""
    model = menus.model(way.model)
    alone = menus.server(way.number, None)
    most = max(1e3 * b / t for b, t in zip(alone.batches, alone.latencies_ms, strict=True))
    if model.batching == "late":
        # Whatever was planned, a batch formed late may be as large as the objective allows.
        larger = model.feasible(way.candidate.gpu, sm_share_pct=way.share_pct)
        return max(most, *(c.throughput_rps for c in larger))
    high = way.candidate.latency_high_ms
    if high * _NEAR < model.slo_ms:
        return most
    asked = replace(model, rate_rps=1.5 * _MANY * most)
    pooled = model_on_time(asked, [replace(alone, count=_MANY)], [way.candidate]).rate_rps / _MANY
    menus.work += WORK_FULL
    return min(most, _GRID_MARGIN * pooled)


def fluid(
    menus: Menus,
    rates: Floats,
    *,
    pools: Floats,
    weights: Floats,
    prices: Floats | None = None,
    needs: Floats | None = None,
) -> Fluid | None:
    """Return the optimum where one replica of way w serves ``rates[w]`` requests a second on time.

    ``pools``: GPUs by type (inf: any number). With ``prices`` (cost per hour by type) and ``needs`` (requests
    a second by model that must be served) the cheapest pools, else the most worth (``weights`` by model).
    None: no optimum (the needs cannot be met).
    """
    import highspy

    problem = menus.problem
    models = len(problem.models)
    types = len(pools)
    ways = [w for w in menus.ways[: len(rates)] if rates[w.number] > 0]
    if menus.many:
        ways = _undominated(menus, ways, rates)
    first_model = len(ways)
    first_type = first_model + models
    infinity = highspy.kHighsInf
    asked = [m.rate_rps for m in problem.models]
    cost = np.zeros(first_type + types)
    lower = np.zeros(first_type + types)
    upper = np.full(first_type + types, infinity)
    upper[first_model:first_type] = asked
    upper[first_type:] = [p if math.isfinite(p) else infinity for p in pools]
    if prices is None:
        cost[first_model:first_type] = weights
    else:
        cost[first_type:] = prices
        lower[first_model:first_type] = np.minimum(needs or asked, asked)
    columns = _columns(menus, ways, rates, types)
    nothing = np.zeros(models)
    lp = linear_program(
        cost=cost,
        lower=lower,
        upper=upper,
        row_lower=np.concatenate([nothing, np.full(4 * types, -infinity)]),
        row_upper=np.concatenate([np.full(models, infinity), np.zeros(4 * types)]),
        vectors=columns,
        by_row=False,
        maximise=prices is None,
    )
    solver = solver_of(lp, random_seed=0, solver="simplex")
    solver.run()
    status = solver.getModelStatus()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise GkestimatorError(
            f"policy gkest: HiGHS found {status} for its linear program, expected an optimum"
        )
    solution = solver.getSolution()
    values = list(solution.col_value)
    share: list[FloatByIndex] = [{} for _ in range(models)]
    rps: list[FloatByIndex] = [{} for _ in range(models)]
    for way, replicas in zip(ways, values, strict=False):
        if replicas > 1e-12:
            by_type = share[way.model]
            by_type[way.type] = by_type.get(way.type, 0.0) + replicas * way.part
            served = rps[way.model]
            served[way.type] = served.get(way.type, 0.0) + replicas * rates[way.number]
    return Fluid(
        value=solver.getInfo().objective_function_value,
        share=tuple(share),
        rps=tuple(rps),
        gpus=tuple(values[first_type:]),
        price=tuple(abs(v) for v in list(solution.col_dual)[first_type:]),
    )


def _undominated(menus: Menus, ways: Sequence[Way], rates: Floats) -> Ways:
    """Return ``ways`` without those that serve no more than another of their model and type, and ask for no less of the
    GPU: the optimum is the same without them."""
    groups: dict[tuple[int, int], Ways] = {}
    for way in ways:
        groups.setdefault((way.model, way.type), []).append(way)
    left: Ways = []
    for group in groups.values():
        costs = np.array([[-rates[w.number], *_needs(menus, w)] for w in group])
        no_worse = (costs[:, None, :] <= costs[None, :, :]).all(axis=2)
        alike = no_worse & no_worse.T
        # of several that are alike the first stays
        dominates = (no_worse & ~alike) | np.triu(alike, 1)
        dominated = np.flatnonzero(dominates.any(axis=0)).tolist()
        left += [w for i, w in enumerate(group) if i not in dominated]
    return left


def _needs(menus: Menus, way: Way) -> list[float]:
    """Return the parts of a GPU that one replica takes: compute, memory, Creq and DRAM bandwidth."""
    creq = 0.0 if menus.oversubscribe else (way.creq_pct or 0.0) / 100
    return [way.part, way.memory_pct / 100, creq, (way.dram_pct or 0.0) / 100]


def _columns(
    menus: Menus, ways: Sequence[Way], rates: Floats, types: int
) -> list[tuple[Sequence[int], Floats]]:
    """Return the program's columns as (rows, coefficients): replicas by way, requests by model, GPUs by type.
    The rows: requests by model; compute, memory, Creq and DRAM bandwidth by type."""
    models = len(menus.of)
    columns: list[tuple[Sequence[int], Floats]] = []
    for way in ways:
        row = models + 4 * way.type
        rows = [way.model, row, row + 1, row + 2, row + 3]
        columns.append((rows, [rates[way.number], *_needs(menus, way)]))
    columns += [([m], [-1.0]) for m in range(models)]
    for t in range(types):
        row = models + 4 * t
        columns.append((range(row, row + 4), [-1.0] * 4))
    return columns
