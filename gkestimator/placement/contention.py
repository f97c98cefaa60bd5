"""How much replicas that share a GPU slow each other down: streaming multiprocessors and DRAM bandwidth are
shared in proportion to what is asked of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gkestimator.placement.policy import Placed

# The factors rise from 1 in every round and are bounded, so they converge; slowly only where demands and their sum are
# near to what there is.
_ROUNDS = 60
_CLOSE = 1e-4


def compute_demand_pct(placed: Placed) -> float | None:
    """Percent of the GPU's SMs that a running replica occupies: its mean SM utilisation, where that is unknown
    the measure it was packed by; at most the share it is confined to. None: unknown."""
    candidate = placed.candidate
    found = candidate.row.sm_util_mean_pct
    if found is None:
        found = candidate.creq_pct
    if found is None:
        return None
    return min(found, candidate.sm_share_pct, 100.0)


def slowdowns(placed: Sequence[Placed], rates_rps: Sequence[float]) -> list[float | None]:
    """Factor (1 or more) on each replica's latency while it serves ``rates_rps`` beside its neighbours; None
    where it has neighbours and a demand is unknown.

    A running replica with demand d beside neighbours that run a part u_j of the time with demands d_j is slowed by
    max(1, (d + sum u_j d_j) / 100), for SMs and, where the table has it, for DRAM bandwidth; the larger
    counts. Replicas confined to shares of the SMs do not take SMs from each other; those of one partition
    never run at once. Derivation: a resource asked for more than it has serves all in proportion; u_j itself
    grows with the slowdown (fixed point).
    """
    result: list[float | None] = [1.0] * len(placed)
    by_gpu: dict[str, list[int]] = defaultdict(list)
    for i, p in enumerate(placed):
        by_gpu[p.gpu.id].append(i)
    seen: dict[tuple[object, ...], list[float | None]] = {}
    for here in by_gpu.values():
        if len(here) == 1:
            continue
        key = tuple(
            (id(placed[i].candidate), placed[i].partition, placed[i].duty_cycle_ms, round(rates_rps[i], 9))
            for i in here
        )
        if key not in seen:
            seen[key] = _on_one_gpu([placed[i] for i in here], [rates_rps[i] for i in here])
        for i, factor in zip(here, seen[key], strict=True):
            result[i] = factor
    return result


def _on_one_gpu(here: Sequence[Placed], rates: Sequence[float]) -> list[float | None]:
    apart = [
        [
            j
            for j, q in enumerate(here)
            if j != i and not (p.partition is not None and p.partition == q.partition)
        ]
        for i, p in enumerate(here)
    ]
    compute = [compute_demand_pct(p) for p in here]
    dram = [p.candidate.row.dram_util_mean_pct for p in here]
    factors: list[float | None] = [1.0] * len(here)
    for _ in range(_ROUNDS):
        busy = []
        for p, rate, factor in zip(here, rates, factors, strict=True):
            part = min(1.0, rate / p.capacity_rps)
            if p.duty_cycle_ms is not None:
                part *= p.candidate.latency_ms / p.duty_cycle_ms
            busy.append(min(1.0, part * (factor or 1.0)))
        new: list[float | None] = []
        for i, others in enumerate(apart):
            factor = 1.0
            if others:
                demand = compute[i]
                if demand is None or any(compute[j] is None for j in others):
                    new.append(None)
                    continue
                confined = here[i].candidate.sm_share_pct < 100
                taking = [j for j in others if not (confined and here[j].candidate.sm_share_pct < 100)]
                if taking:
                    factor = max(factor, (demand + sum(busy[j] * (compute[j] or 0.0) for j in taking)) / 100)
                own = dram[i]
                if own is not None:
                    factor = max(factor, (own + sum(busy[j] * (dram[j] or 0.0) for j in others)) / 100)
            new.append(factor)
        done = all(a is None or b is None or a - b <= _CLOSE * a for a, b in zip(new, factors, strict=True))
        factors = new
        if done:
            break
    return factors
