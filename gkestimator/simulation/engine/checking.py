"""What the event loop takes for granted, looked at before: it would go on for ever, or count nonsense."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from gkestimator.errors import UsageError
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.system import SimReplica

__all__ = ["check_chunk", "check_replica"]


def check_replica(replica: SimReplica, models: int, gpus: int) -> None:
    """Raises UsageError naming the replica and the field that is not as it must be."""

    def need(field: str, right: bool, expected: str) -> None:
        if not right:
            raise UsageError(
                f"replica {replica.id!r}: {field} is {getattr(replica, field)!r}, expected {expected}"
            )

    need("model", 0 <= replica.model < models, f"one of {models} models")
    need("gpu", 0 <= replica.gpu < gpus, f"one of {gpus} GPUs")
    need("batch_size", replica.batch_size >= 1, "1 or more")
    need("max_wait_ms", 0 <= replica.max_wait_ms < math.inf, "0 ms or more")
    need("weight", 0 < replica.weight < math.inf, "more than 0")
    need("deal", replica.deal is None or 0 < replica.deal < math.inf, "more than 0")
    if replica.duty_cycle_ms is not None:
        need("duty_cycle_ms", 0 < replica.duty_cycle_ms < math.inf, "more than 0 ms")
    need("turn_offset_ms", 0 <= replica.turn_offset_ms < math.inf, "0 ms or more")
    batches = replica.batches
    ascending = all(a < b for a, b in pairwise(batches))
    need("batches", bool(batches) and batches[0] >= 1 and ascending, "ascending sizes")
    for field in ("latencies_ms", "copies_ms", "request_ms", "response_ms"):
        curve = getattr(replica, field)
        if curve is not None:
            right = len(curve) == len(batches) and all(0 <= value < math.inf for value in curve)
            need(field, right, f"{len(batches)} times of 0 ms or more")


def check_chunk(chunk: Chunk, sources: int, now_ms: float) -> None:
    """Raises UsageError where the times are not those of ``sources`` sources, ascending, from ``now_ms`` up to the
    chunk's end."""
    if len(chunk.times_ms) != sources:
        raise UsageError(f"arrivals of {len(chunk.times_ms)} sources, expected {sources}")
    for k, times in enumerate(chunk.times_ms):
        if len(times) and not (
            times[0] >= now_ms and times[-1] < chunk.end_ms and np.all(times[1:] >= times[:-1])
        ):
            raise UsageError(
                f"arrivals of source {k}: expected ascending times from {now_ms:g} to below {chunk.end_ms:g} ms, "
                f"found {times.min():g} to {times.max():g}"
                + (" unsorted" if np.any(times[1:] < times[:-1]) else "")
            )
    if not chunk.end_ms >= now_ms:
        raise UsageError(f"a chunk that ends at {chunk.end_ms:g} ms, expected {now_ms:g} or later")
