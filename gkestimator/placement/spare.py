"""Spend what a placement leaves free, where batches are formed late: larger batches, and GPUs that stand idle.

A server that forms its batches when it is free takes what waits, however much the plan counted on. So that a
burst is served in few large batches, a replica's largest batch is the largest of the table that keeps the
objective and whose memory is left on its GPU (:func:`with_caps`). GPUs that a plan for the workload's rates does
not need, and room beside replicas, go to whichever model stands the smallest burst, again and again
(:func:`with_spare`). Derivation: ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from gkestimator.placement.contention import slowdowns
from gkestimator.placement.expected import expect, model_on_time, server_of
from gkestimator.placement.policy import TOLERANCE_PCT, Placed, PlacedReplicas, Placement, partitions
from gkestimator.placement.problem import Candidates, FloatByName, Gpu, Indices, PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

_ON_TIME = 0.99  # of its requests: a model that is served less does not stand the burst
_BURSTS = tuple(1.15**i for i in range(1, 40))  # factors on a rate that are tried, up to 230
_LOSS = 1e-4  # of the requests expected on time that a replica beside others may cost
_STEPS = 64  # a cluster's idle GPUs are given away in about so many steps


def with_caps(problem: Problem, placed: PlacedReplicas) -> tuple[Placed, ...]:
    """Return ``placed`` with the largest batch that each replica may run: one after the other a step of the
    table more, while the memory of the GPU holds it."""
    by_gpu: dict[str, Indices] = defaultdict(list)
    for i, p in enumerate(placed):
        by_gpu[p.gpu.id].append(i)
    capped = list(placed)
    seen: dict[object, list[Candidate | None]] = {}
    for numbers in by_gpu.values():
        here = [placed[i] for i in numbers]
        key = tuple((id(p.candidate), p.partition, p.duty_cycle_ms) for p in here)
        if key not in seen:
            seen[key] = _caps(problem, here)
        for i, cap in zip(numbers, seen[key], strict=True):
            capped[i] = replace(capped[i], cap=cap)
    return tuple(capped)


def _caps(problem: Problem, here: PlacedReplicas) -> list[Candidate | None]:
    """Return the largest batches of the replicas of one GPU."""
    larger = [_larger(problem.by_name[p.model], p) for p in here]
    now = list(here)
    while any(larger):
        for i, rows in enumerate(larger):
            if rows:
                tried = now.copy()
                tried[i] = replace(now[i], cap=rows.pop(0))
                if _holds(problem, tried):
                    now = tried
                else:
                    larger[i] = []
    return [p.cap for p in now]


def _holds(problem: Problem, here: PlacedReplicas) -> bool:
    """Return whether the replicas of one GPU fit its memory and keep their objectives at their largest
    batches, all of them busy."""
    if sum(p.largest.memory_pct or 0.0 for p in here) > 100 + TOLERANCE_PCT:
        return False
    busy = [replace(p, candidate=p.largest, cap=None) for p in here]
    factors = slowdowns(busy, [p.capacity_rps for p in busy])
    for p, factor in zip(here, factors, strict=True):
        if factor is None:
            return False
        if p.cap is not None and _response_ms(p, here) * factor > problem.by_name[p.model].slo_ms:
            return False
    return True


def _response_ms(placed: Placed, here: PlacedReplicas) -> float:
    """Return the time from a full largest batch to its answer: after the others' turns where it takes turns."""
    wait = 0.0
    if placed.duty_cycle_ms is not None:
        wait = sum(p.largest.latency_ms for p in here if p.partition == placed.partition)
    return placed.largest.latency_ms + wait


def _larger(model: PlacementModel, placed: Placed) -> list[Candidate]:
    """Return the rows of larger batches than that of ``placed`` that keep the objective and serve more requests
    a second than any smaller one, ascending."""
    own = placed.candidate
    most = own.throughput_rps
    rows = []
    for c in model.feasible(own.gpu, sm_share_pct=own.sm_share_pct):
        if c.batch_size > own.batch_size and c.memory_pct is not None and c.throughput_rps > most*1.05:
            most = c.throughput_rps
            rows.append(c)
    return rows
