"""Describe what a plan serves: each replica with the times, the cap and the lane that routers and workers go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.records import Names, frozen
from gkestimator.documents import PlacementPlan, Replica
from gkestimator.interference.base import Interference
from gkestimator.simulation.building import build_system
from gkestimator.tables import Requirement


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


def served_plan(
    plan: PlacementPlan,
    rows: Iterable[Requirement],
    *,
    law: Interference | None = None,
    gpu_specs: Names = (),
    table: str = "table",
) -> ServedPlan:
    """Return ``plan`` as it is served by what ``rows`` say.

    ``law``: by which emulated replicas slow their neighbours (None: they do not). Raises UsageError, TableError and
    DocumentError where the plan is one of language models, places nothing, or does not fit the rows.
    """
    if not any(gpu.replicas for gpu in plan.gpus):
        raise UsageError("the plan places no replica: expected one at least, to be served")
    system = build_system(
        _at_cap(plan),
        rows,
        interference=law,
        max_wait_ms=0.0,  # batches are formed when the device is free: none waits to fill
        admission="none",
        joined=True,
        gpu_specs=gpu_specs,
        table=table,
    )
    runs = iter(system.replicas)
    objectives = {model.name: model.slo_ms for model in system.models}
    replicas = []
    for gpu, on_gpu in zip(plan.gpus, system.gpus, strict=True):
        for asked in gpu.replicas:
            run = next(runs)
            served = ServedReplica(
                name=asked.id,
                asked=asked,
                gpu=gpu.id,
                gpu_type=gpu.type,
                lane=asked.partition or asked.id,
                cap=_cap(asked),
                slo_ms=objectives[asked.model],
                batches=run.batches,
                times_ms=run.latencies_ms,
                features=run.features,
                terms=on_gpu.terms,
            )
            replicas.append(served)
    return ServedPlan(plan=plan, replicas=tuple(replicas), notes=system.notes)


def _cap(replica: Replica) -> int:
    return replica.max_batch_size or replica.batch_size


def _at_cap(plan: PlacementPlan) -> PlacementPlan:
    """Return ``plan`` with every replica at its cap, so that its times are known up to there."""
    gpus = []
    for gpu in plan.gpus:
        replicas = tuple(replace(r, batch_size=_cap(r)) for r in gpu.replicas)
        gpus.append(replace(gpu, replicas=replicas))
    return replace(plan, gpus=tuple(gpus))
