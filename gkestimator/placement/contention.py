"""How much replicas that share a GPU slow each other down: by what they ask of streaming multiprocessors, DRAM
bandwidth and L2 bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gkestimator.core.records import frozen
from gkestimator.placement.policy import Placed, PlacedReplicas
from gkestimator.placement.problem import Floats, FloatsOrNone, IndicesByName

# The factors rise from 1 in every round and are bounded, so they converge; slowly only where demands and their sum are
# near to what there is.
_ROUNDS = 60
_CLOSE = 1e-4
# What is asked of the memories that all batches of a GPU share, whatever their shares of the SMs (percent).
MEMORY_COLUMNS = ("dram_util_mean_pct", "l2_util_mean_pct")


@frozen
class _Contest:
    """Hold what a replica asks of one resource (percent), and what each of those that take it meanwhile
    asks. ``in_turns``: the resource is a memory, which serves one request after the other."""

    own: float
    takers: tuple[tuple[int, float], ...]
    in_turns: bool = False


def compute_demand_pct(placed: Placed) -> float | None:
    """Return the percent of the GPU's SMs that a running replica occupies: its mean SM utilisation, where
    that is unknown the measure it was packed by; at most the share it is confined to. None: unknown."""
    candidate = placed.candidate
    demand = candidate.row.sm_util_mean_pct
    if demand is None:
        demand = candidate.creq_pct
    if demand is None:
        return None
    return min(demand, candidate.sm_share_pct, 100.0)


def slowdowns(placed: PlacedReplicas, rates_rps: Floats) -> FloatsOrNone:
    """Return the factor (1 or more) on each replica's latency while it serves ``rates_rps`` beside its
    neighbours; None where it has neighbours and a demand is unknown.

    A running replica with demand d beside neighbours that run a part u_j of the time with demands d_j is
    slowed, with D = sum u_j d_j, by max(1, d + D) for SMs and, where the table has them, by 1 + d D for DRAM
    and for L2 bandwidth (parts of 1); the largest counts. Replicas confined to shares of the SMs do not
    take SMs from each other; those of one partition never run at once. Derivation:
    :class:`gkestimator.interference.contention.Contention`, the simulator's law, which is the same for one moment:
    who runs then has u_j = 1. u_j itself grows with the slowdown (fixed point)."""
    result: FloatsOrNone = [1.0] * len(placed)
    by_gpu: IndicesByName = defaultdict(list)
    for i, p in enumerate(placed):
        by_gpu[p.gpu.id].append(i)
    # GPUs that hold and serve the same are looked at once: a plan may have thousands of them.
    seen: dict[object, FloatsOrNone] = {}
    for numbers in by_gpu.values():
        if len(numbers) == 1:
            continue
        here = [placed[i] for i in numbers]
        rates = [rates_rps[i] for i in numbers]
        key = tuple(
            (id(p.candidate), p.partition, p.duty_cycle_ms, round(rate, 9))
            for p, rate in zip(here, rates, strict=True)
        )
        if key not in seen:
            seen[key] = _on_one_gpu(here, rates)
        for i, factor in zip(numbers, seen[key], strict=True):
            result[i] = factor
    return result


def _on_one_gpu(here: PlacedReplicas, rates: Floats) -> FloatsOrNone:
    demands = [compute_demand_pct(p) for p in here]
    contests = [_contests(here, demands, i) for i in range(len(here))]
    alone = []
    for p, rate in zip(here, rates, strict=True):
        part = min(1.0, rate / p.capacity_rps)
        if p.duty_cycle_ms is not None:
            part *= p.candidate.latency_ms / p.duty_cycle_ms
        alone.append(part)
    factors = [1.0] * len(here)
    for _ in range(_ROUNDS):
        busy = [min(1.0, part * factor) for part, factor in zip(alone, factors, strict=True)]
        before = factors
        factors = [_factor(own or (), busy) for own in contests]
        if all(a - b <= _CLOSE * a for a, b in zip(factors, before, strict=True)):
            break
    return [None if own is None else factor for own, factor in zip(contests, factors, strict=True)]


def _factor(contests: Sequence[_Contest], busy: Floats) -> float:
    """Return the slowdown by the resource where it is most, while each replica runs a part ``busy`` of the
    time."""
    factor = 1.0
    for contest in contests:
        taken = sum(busy[j] * demand for j, demand in contest.takers)
        if contest.in_turns:
            factor = max(factor, 1 + contest.own * taken / 1e4)
        else:
            factor = max(factor, (contest.own + taken) / 100)
    return factor


def _contests(here: PlacedReplicas, demands: Sequence[float | None], i: int) -> tuple[_Contest, ...] | None:
    """Return what the ``i``-th replica contests with others: SMs, and DRAM and L2 bandwidth where its own use is
    known. None: it has neighbours, and an SM demand is unknown."""
    mine = here[i]
    confined = mine.candidate.sm_share_pct < 100
    compute = []
    beside = []
    for j, other in enumerate(here):
        if j == i or (mine.partition is not None and mine.partition == other.partition):
            continue
        demand = demands[j]
        if demand is None:
            return None
        if not (confined and other.candidate.sm_share_pct < 100):
            compute.append((j, demand))
        beside.append(j)
    if not beside:
        return ()
    demand = demands[i]
    if demand is None:
        return None
    contests = []
    if compute:
        contests.append(_Contest(own=demand, takers=tuple(compute)))
    for column in MEMORY_COLUMNS:
        own = getattr(mine.candidate.row, column)
        if own is not None:
            takers = tuple((j, getattr(here[j].candidate.row, column) or 0.0) for j in beside)
            contests.append(_Contest(own=own, takers=takers, in_turns=True))
    return tuple(contests)
