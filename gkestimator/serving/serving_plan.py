"""Build what is served from a plan and the rows of a requirement table, as the simulator builds its system."""

from __future__ import annotations

from collections.abc import Iterable

from gkestimator.core.errors import UsageError
from gkestimator.core.records import Names
from gkestimator.documents import PlacementPlan
from gkestimator.interference.base import Interference
from gkestimator.serving.served import ServedPlan, ServedReplica
from gkestimator.simulation.building import build_system
from gkestimator.tables import Requirement


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
        plan,
        rows,
        interference=law,
        batching="late",  # whatever law the plan was judged by: this is how workers batch
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
                cap=run.batch_size,
                slo_ms=objectives[asked.model],
                batches=run.batches,
                times_ms=run.latencies_ms,
                features=run.features,
                terms=on_gpu.terms,
            )
            replicas.append(served)
    return ServedPlan(plan=plan, replicas=tuple(replicas), notes=system.notes)
