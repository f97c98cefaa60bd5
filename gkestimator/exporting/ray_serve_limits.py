"""How many requests a replica of Ray Serve may hold and for how long: from its capacity and its objective.

A replica that answers C requests a second keeps an objective of S seconds for a request that finds at most C x S before
it (Little's law). Three limits of Ray Serve and of the worker follow:

- ``max_waiting``, of the worker: C x S. Who comes beyond could only be answered late, and is refused at once (429).
- ``max_ongoing_requests``, of Ray: ten times C x (S + 0.5 s), so that it is the worker who refuses, in milliseconds.
  Once every replica holds that many, Ray's router does not wait for one to become free: it sleeps, each time twice as
  long, up to half a second (RAY_SERVE_ROUTER_RETRY_MAX_BACKOFF_S), and wakes for few requests. Measured with a
  burst of 200, again and again, on one replica that can answer 50 within its objective: at 2 x C x S + C x 0.5 s, 109
  of 400 requests sat in the router until their time-out while the replica was idle; with ten times as much every one
  was answered or refused within 1.6 s. Two batches, as it was, let an overload of 1.6 end with 3 % on time.
- ``max_queued_requests``, of Ray, at each of its callers: C x S of all replicas. A request counts as queued while it is
  being assigned, so a burst that can be answered must fit; what is beyond is refused at once (503).

``max_waiting`` is never below two batches, one that runs and one that waits. C is taken at the largest batch, with the
latency of the planned one: rather too high than too low, because of limits that are too low replicas run dry.
"""

from __future__ import annotations

import math

from gkestimator.core.records import frozen
from gkestimator.exporting.variants import Variant, slack_ms

_BACKOFF_S = 0.5
_OVERLOAD = 10
# A handful of simultaneous requests is no overload, however slow a replica is.
_LEAST = 100
# As good as no limit, where nothing is known to derive one from.
_ONGOING_UNKNOWN = 1000
_TIMEOUT_UNKNOWN_S = 60.0
# Who waited twice the objective is late beyond use; a second more for starts, clocks and slow first runs.
_TIMEOUT_OBJECTIVES = 2
_TIMEOUT_GRACE_S = 1.0


@frozen
class ReplicaLimits:
    """Hold the limits of the replicas of one deployment.

    ``cap`` is the largest batch. ``objective_ms`` and ``max_waiting`` are None where no objective, or no latency, is
    known. ``max_queued`` is for all replicas together, the others for each.
    """

    cap: int
    objective_ms: float | None
    max_waiting: int | None
    max_ongoing: int
    max_queued: int
    timeout_s: float


def replica_limits(way: Variant) -> ReplicaLimits:
    """Return the limits of the replicas of ``way``. Raises UsageError where the latency alone is above the
    objective."""
    cap = min(i.max_batch_size or i.batch_size for i in way.instances)
    cap = max(cap, way.first.batch_size)
    slacks = [slack_ms(i) for i in way.instances]
    latency_ms = way.first.latency_ms
    objectives = [i.slo_ms for i in way.instances if i.slo_ms is not None]
    if not latency_ms or None in slacks:
        return ReplicaLimits(
            cap=cap,
            objective_ms=None,
            max_waiting=None,
            max_ongoing=_ONGOING_UNKNOWN,
            max_queued=_ONGOING_UNKNOWN * len(way.instances),
            timeout_s=_TIMEOUT_UNKNOWN_S,
        )
    objective_s = min(objectives) / 1e3
    capacity = max(way.first.throughput_rps or 0.0, cap / latency_ms * 1e3)
    max_waiting = max(2 * cap, math.ceil(capacity * objective_s))
    beyond = math.ceil(_OVERLOAD * capacity * (objective_s + _BACKOFF_S))
    return ReplicaLimits(
        cap=cap,
        objective_ms=min(objectives),
        max_waiting=max_waiting,
        max_ongoing=max(_LEAST, _OVERLOAD * max_waiting, beyond),
        max_queued=max(_LEAST, max_waiting * len(way.instances)),
        timeout_s=_TIMEOUT_OBJECTIVES * objective_s + _TIMEOUT_GRACE_S,
    )
