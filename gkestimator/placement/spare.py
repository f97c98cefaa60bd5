"""Spend what a placement leaves free, where batches are formed late: larger batches, and GPUs that stand idle.

A server that forms its batches when it is free takes what waits, however much the plan counted on. So that a
burst is served in few large batches, a replica's largest batch is the largest of the table that keeps the
objective, beside neighbours that run without a pause, and whose memory is left on its GPU (:func:`with_caps`). GPUs
that hold nothing go to whichever model stands the smallest burst, again and again (:func:`with_spare`).
Derivation: ours."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from gkestimator.placement.contention import slowdowns
from gkestimator.placement.expected import capacities_rps
from gkestimator.placement.policy import TOLERANCE_PCT, Placed, PlacedReplicas
from gkestimator.placement.problem import Indices, PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

# A larger batch that does not serve so much more a second only makes the next ones wait.
_WORTH_WAITING = 1.05


def with_caps(problem: Problem, placed: PlacedReplicas) -> tuple[Placed, ...]:
    """Return ``placed`` with the largest batch that each replica may run: one after the other a step of the
    table more, while it holds (:func:`largest_batches`)."""
    by_gpu: dict[str, Indices] = defaultdict(list)
    for i, p in enumerate(placed):
        by_gpu[p.gpu.id].append(i)
    capped = list(placed)
    seen: dict[object, Sequence[Candidate | None]] = {}
    for numbers in by_gpu.values():
        here = [placed[i] for i in numbers]
        key = tuple((id(p.candidate), p.partition, p.duty_cycle_ms) for p in here)
        if key not in seen:
            seen[key] = largest_batches(problem, here)
        for i, cap in zip(numbers, seen[key], strict=True):
            capped[i] = replace(capped[i], cap=cap)
    return tuple(capped)


def largest_batches(problem: Problem, here: PlacedReplicas) -> list[Candidate | None]:
    """Return the rows of the largest batches of the replicas of one GPU (None: the planned one's)."""
    larger = [_larger(problem.by_name[p.model], p) for p in here]
    now = list(here)
    while any(larger):
        for i, rows in enumerate(larger):
            if not rows:
                continue
            tried = now.copy()
            tried[i] = replace(now[i], cap=rows.pop(0))
            if _holds(problem, tried):
                now = tried
            else:
                rows.clear()
    return [p.cap for p in now]


def _larger(model: PlacementModel, placed: Placed) -> list[Candidate]:
    """Return the rows of larger batches than that of ``placed`` that keep the objective, ascending; each
    serves more requests a second than the one before. None where it takes turns: their length is agreed."""
    if placed.duty_cycle_ms is not None:
        return []
    own = placed.candidate
    most = own.throughput_rps
    rows = []
    for c in model.feasible(own.gpu, sm_share_pct=own.sm_share_pct):
        worth = c.throughput_rps > _WORTH_WAITING * most
        # A table that knows no memory at all (a CPU's) is placed by without: so are its batches.
        known = c.memory_pct is not None or own.memory_pct is None
        if c.batch_size > own.batch_size and known and worth:
            most = c.throughput_rps
            rows.append(c)
    return rows


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
        if p.cap is not None and p.cap.latency_ms * factor > problem.by_name[p.model].slo_ms:
            return False
    return True


def with_spare(problem: Problem, placed: PlacedReplicas) -> tuple[Placed, ...]:
    """Return ``placed`` and, on the fixed cluster's GPUs that hold nothing, one replica each of the model whose
    capacity is then the smallest multiple of its rate."""
    used = {p.gpu.id for p in placed}
    capacities = capacities_rps(problem, placed)
    bursts = [(capacities[m.name] / m.rate_rps, i) for i, m in enumerate(problem.models) if m.rate_rps > 0]
    heapq.heapify(bursts)
    more = list(placed)
    for gpu in problem.gpus:
        if gpu.id in used:
            continue
        passed = []
        while bursts:
            burst, i = heapq.heappop(bursts)
            model = problem.models[i]
            best = _most_alone(model, gpu.type)
            if best is not None:
                more.append(Placed(gpu=gpu, model=model.name, candidate=best))
                heapq.heappush(bursts, (burst + best.throughput_rps / model.rate_rps, i))
                break
            passed.append((burst, i))
        for entry in passed:
            heapq.heappush(bursts, entry)
    return tuple(more)


def _most_alone(model: PlacementModel, gpu_type: str) -> Candidate | None:
    """Return the row by which a GPU alone serves most requests a second: where one can be, one of half the
    objective, so that a request may wait for the batch before its own."""
    rows = [c for c in model.feasible(gpu_type) if (c.memory_pct or 0.0) <= 100]
    half = [c for c in rows if 2 * c.latency_ms <= model.slo_ms]
    return max(half or rows, key=lambda c: (c.throughput_rps, -c.batch_size), default=None)
