"""Describe what a plan serves: each replica with the times, the cap and the lane that routers and workers go by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gkestimator.core.records import Names, frozen
from gkestimator.documents import PlacementPlan, Replica

# How types of CPUs are called that were described and measured as if they were GPUs.
_CPU = "CPU-"


def is_cpu(gpu_type: str) -> bool:
    """Return whether a GPU type of a plan is a CPU, measured as if it were one."""
    return gpu_type.startswith(_CPU)


@frozen
class ServedReplica:
    """Hold a replica as it is served.

    ``name`` is its own while the service runs; ``asked`` the plan's record of it. Replicas of one ``lane`` on one
    ``gpu`` take turns: one batch at a time. ``cap`` is the largest batch. ``times_ms`` is the estimated time of a batch
    of each of the sizes ``batches`` alone on the GPU, ``features`` what the interference law asks of it (None: no law),
    ``terms`` what the law keeps of the GPU. ``slo_ms`` is the model's objective.
    """

    name: str
    asked: Replica
    gpu: str
    gpu_type: str
    lane: str
    cap: int
    slo_ms: float
    batches: tuple[int, ...]
    times_ms: tuple[float, ...]
    features: tuple[tuple[float, ...], ...] | None
    terms: tuple[float, ...]

    @property
    def model(self) -> str:
        """Return the name of the model."""
        return self.asked.model

    def time_ms(self, batch: int) -> float:
        """Return the estimated time of a batch, linear between the table's sizes and constant beyond."""
        return float(np.interp(batch, self.batches, self.times_ms))

    def dims(self) -> Mapping[str, int]:
        """Return the lengths that the plan binds symbolic axes to."""
        pairs = (pair.rpartition("=") for pair in self.asked.dims.split(","))
        return {name: int(value) for name, _, value in pairs if value.isdigit()}


@frozen
class ServedPlan:
    """Hold the replicas of ``plan``, in its order, and what a reader must know (``notes``)."""

    plan: PlacementPlan
    replicas: tuple[ServedReplica, ...]
    notes: Names

    @property
    def models(self) -> Names:
        """Return the models that are asked for, in the order of the workload."""
        return self.plan.workload.names()
