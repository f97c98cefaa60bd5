"""Hold what a server logged, as arrays: one entry for each request to a model."""

from __future__ import annotations

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Flags, Floats, Ints, Names
from gkestimator.tables.request_log import STATUSES

OK = STATUSES.index("ok")


@frozen
class ServingLog:
    """Hold the requests of a log in the order of their arrival; arrays of one length.

    ``model`` and ``replica`` are indices into ``models`` and ``replicas`` (-1: not known), ``status`` into STATUSES.
    Times are in ms, ``arrived_ms`` from the first request; what is not known is nan, a batch 0. ``on_time``: 1, 0, or
    -1 where the log does not say. ``notes``: columns that were left aside, and what stands in for others.
    """

    name: str
    models: Names
    replicas: Names
    model: Ints
    replica: Ints
    batch: Ints
    arrived_ms: Floats
    router_ms: Floats
    queue_ms: Floats
    gpu_ms: Floats
    total_ms: Floats
    status: Ints
    on_time: Ints
    notes: Names = ()

    @property
    def answered(self) -> Flags:
        """Say of each request whether it was answered, after a time that is known."""
        return np.asarray((self.status == OK) & np.isfinite(self.total_ms), bool)

    @property
    def in_parts(self) -> Flags:
        """Say of each request whether its time in the queue and in service is known, beside its whole time."""
        known = np.isfinite(self.queue_ms) & np.isfinite(self.gpu_ms)
        return self.answered & known & (self.batch > 0)

    @property
    def length_ms(self) -> float:
        """Return the time from the first arrival to the last, and one mean gap more."""
        last = float(self.arrived_ms[-1])
        return last + last / max(len(self.arrived_ms) - 1, 1)
