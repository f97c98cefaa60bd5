"""How many requests a replica of Ray Serve may hold and for how long: from its capacity and its objective.

A replica that answers C requests a second keeps an objective of S seconds for a request that finds at most C x S before
it (Little's law). Three limits of Ray Serve and of the worker follow:

- ``max_waiting``, of the worker: C x S. Who comes beyond could only be answered late, and is refused at once (429).
- ``max_ongoing_requests``, of Ray: C x (S + 0.5 s). While every replica holds that many, Ray's router does not wait for
  one to become free: it sleeps, each time twice as long, up to half a second (RAY_SERVE_ROUTER_RETRY_MAX_BACKOFF_S). A
  limit of two batches, say, lets a replica run dry during that sleep, and an overload of 1.6 ended with 3 % on time. So
  the limit lies where the worker refuses before it is reached, and half a second of work is left if it is.
- ``max_queued_requests``, of Ray, at each of its callers: as many as all replicas may hold. A request counts as queued
  while it is being assigned, so that a burst must fit; what is beyond all this is refused at once (503).

Never fewer than two batches, one that runs and one that waits. C is taken at the largest batch, with the latency of the
planned one: rather too high than too low, because a limit that is too high costs nothing but memory.
"""

from __future__ import annotations

import math

from gkestimator.core.records import frozen
from gkestimator.exporting.variants import Variant, slack_ms

_BACKOFF_S = 0.5
# Enough that a batch always waits while one runs, where nothing is known to derive more from.
_BATCHES_UNKNOWN = 8
_TIMEOUT_UNKNOWN_S = 60.0
# Who waited twice the objective is late beyond use; a second more for starts, clocks and slow first runs.
_TIMEOUT_OBJECTIVES = 2
_TIMEOUT_GRACE_S = 1.0


@frozen
class ReplicaLimits:
    """Hold the limits of one replica. ``cap`` is its largest batch; ``objective_ms`` and ``max_waiting`` are None where
    no objective, or no latency, is known."""

    cap: int
    objective_ms: float | None
    max_waiting: int | None
    max_ongoing: int
    timeout_s: float


def replica_limits(way: Variant) -> ReplicaLimits:
    """Return the limits of each replica of ``way``. Raises UsageError where its latency alone is above the
    objective."""
    cap = min(i.max_batch_size or i.batch_size for i in way.instances)
    cap = max(cap, way.first.batch_size)
    slacks = [slack_ms(i) for i in way.instances]
    objectives = [i.slo_ms for i in way.instances if i.slo_ms is not None]
    objective_ms = min(objectives) if len(objectives) == len(way.instances) else None
    timeout_s = _TIMEOUT_UNKNOWN_S
    if objective_ms is not None:
        timeout_s = _TIMEOUT_OBJECTIVES * objective_ms / 1e3 + _TIMEOUT_GRACE_S
    latency_ms = way.first.latency_ms
    if objective_ms is None or not latency_ms or None in slacks:
        return ReplicaLimits(
            cap=cap,
            objective_ms=objective_ms,
            max_waiting=None,
            max_ongoing=_BATCHES_UNKNOWN * cap,
            timeout_s=timeout_s,
        )
    capacity = max(way.first.throughput_rps or 0.0, cap / latency_ms * 1e3)
    max_waiting = max(2 * cap, math.ceil(capacity * objective_ms / 1e3))
    backoff = max(cap, math.ceil(capacity * _BACKOFF_S))
    return ReplicaLimits(
        cap=cap,
        objective_ms=objective_ms,
        max_waiting=max_waiting,
        max_ongoing=max_waiting + backoff,
        timeout_s=timeout_s,
    )
