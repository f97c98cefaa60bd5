"""The fluid relaxation of a placement: replicas may be split without end, and GPUs of a type are one pool of
compute and memory.

Its optimum bounds what any placement without mixed confinement reaches, and says which model should have how
much of which GPU type. Side by side, replicas that run parts u_i of the time with SM demands d_i and slowdowns
f_i >= (d_i + sum_{j != i} u_j d_j) / 100 serve parts u_i / f_i of their capacities, so sum d_i u_i / f_i <=
100: the pool's compute is never exceeded, whatever is placed beside what. (Derivation: 1 / f_i <= 100 / sum_j
u_j d_j, as u_i <= 1.) The same holds of DRAM bandwidth, and of Creq where its sum is kept within 100 %, turns
by the time that they take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.records import frozen
from gkestimator.placement.expected import model_on_time
from gkestimator.placement.gkest.menu import WORK_FULL, Menus, Way
from gkestimator.placement.integer import solver_of

# on_time looks for the admitted load on a grid: no load between its points does better by more than this factor.
_GRID_MARGIN = 1.04
_MANY = 1_000_000
_NEAR = 1.3  # times the upper end of the latency's interval


@frozen
class Fluid:
    """Optimum of the relaxation. ``value``: worth served (or the cost per hour); ``share[m][t]``: GPUs of type
    t for model m, by compute; ``gpus[t]``: GPUs of type t in use; ``price[t]``: worth of one GPU more of type t."""

    value: float
    share: tuple[dict[int, float], ...]
    gpus: tuple[float, ...]
    price: tuple[float, ...]


def most_rps(menus: Menus, way: Way) -> float:
    """No placement serves more requests on time by one replica of ``way``: the best of its batch sizes and
    those below, back to back; where its latency is near the objective, what is on time of that when it is
    pooled with a million others, so that a batch leaves at once and finds no queue."""
    model = menus.model(way.model)
    alone = menus.server(way.number, None)
    most = max(1e3 * b / t for b, t in zip(alone.batches, alone.latencies_ms, strict=True))
    high = way.candidate.latency_high_ms
    if high * _NEAR < model.slo_ms:
        return most
    asked = replace(model, rate_rps=1.5 * _MANY * most)
    found = model_on_time(asked, [replace(alone, count=_MANY)], [way.candidate]).rate_rps / _MANY
    menus.work += WORK_FULL
    return min(most, _GRID_MARGIN * found)


def fluid(
    menus: Menus,
    rates: Sequence[float],
    *,
    pools: Sequence[float],
    weights: Sequence[float],
    prices: Sequence[float] | None = None,
    needs: Sequence[float] | None = None,
) -> Fluid | None:
    """Optimum where one replica of way w serves ``rates[w]`` requests a second on time.

    ``pools``: GPUs by type (inf: any number). With ``prices`` (cost per hour by type) and ``needs`` (requests
    a second by model that must be served) the cheapest pools, else the most worth (``weights`` by model).
    None: no optimum (the needs cannot be met).
    """
    import highspy

    problem = menus.problem
    models = len(problem.models)
    types = len(pools)
    ways = [w for w in menus.ways if rates[w.number] > 0]
    # columns: replicas by way, requests by model, GPUs by type; rows: requests by model;
    # compute, memory, Creq and DRAM bandwidth by type
    infinity = highspy.kHighsInf
    columns = len(ways) + models + types
    cost = np.zeros(columns)
    lower = np.zeros(columns)
    upper = np.full(columns, infinity)
    asked = [m.rate_rps for m in problem.models]
    at = len(ways)
    upper[at : at + models] = asked
    upper[at + models :] = [p if math.isfinite(p) else infinity for p in pools]
    if prices is None:
        cost[at : at + models] = weights
    else:
        cost[at + models :] = prices
        lower[at : at + models] = np.minimum(needs or asked, asked)
    index: list[int] = []
    value: list[float] = []
    start = [0]
    for w in ways:
        row = models + 4 * w.type
        index += [w.model, row, row + 1, row + 2, row + 3]
        if menus.oversubscribe or w.creq_pct is None:
            creq = 0.0
        else:
            creq = w.creq_pct / 100
        value += [rates[w.number], w.part, w.memory_pct / 100, creq, (w.dram_pct or 0.0) / 100]
        start.append(len(index))
    for m in range(models):
        index.append(m)
        value.append(-1.0)
        start.append(len(index))
    for t in range(types):
        index += [models + 4 * t + i for i in range(4)]
        value += [-1.0] * 4
        start.append(len(index))
    rows = models + 4 * types
    lp = highspy.HighsLp()
    lp.num_col_ = columns
    lp.num_row_ = rows
    lp.col_cost_ = cost
    lp.col_lower_ = lower
    lp.col_upper_ = upper
    lp.row_lower_ = np.concatenate([np.zeros(models), np.full(4 * types, -infinity)])
    lp.row_upper_ = np.concatenate([np.full(models, infinity), np.zeros(4 * types)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.array(start, dtype=np.int32)
    lp.a_matrix_.index_ = np.array(index, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(value)
    if prices is None:
        lp.sense_ = highspy.ObjSense.kMaximize
    else:
        lp.sense_ = highspy.ObjSense.kMinimize
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
    x = list(solution.col_value)
    share: list[dict[int, float]] = [{} for _ in range(models)]
    for i, w in enumerate(ways):
        if x[i] > 1e-12:
            share[w.model][w.type] = share[w.model].get(w.type, 0.0) + x[i] * w.part
    reduced = list(solution.col_dual)
    return Fluid(
        value=solver.getInfo().objective_function_value,
        share=tuple(share),
        gpus=tuple(x[at + models :]),
        price=tuple(abs(v) for v in reduced[at + models :]),
    )
