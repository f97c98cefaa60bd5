"""Find for every request of a log what the requirement table says of its batch: how long it runs, how many bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.simulation.arrays import Files, Floats
from gkestimator.simulation.curves import Curves
from gkestimator.simulation.measured.log import ServingLog
from gkestimator.tables import Requirement


@frozen
class BatchCurve:
    """Hold what a table says of one model as it is served, by batch size (ascending).

    Bytes are those of a whole batch's inputs and outputs, nan where the table does not say.
    """

    batches: Floats
    latencies_ms: Floats
    input_bytes: Floats
    output_bytes: Floats

    def at(self, batches: Floats, values: Floats) -> Floats:
        """Return ``values`` (one of the curve's) at other batch sizes; nan beyond the table's largest."""
        return np.interp(batches, self.batches, values, right=np.nan)


class LogCurves:
    """Find the curve by which each request of ``log`` was served.

    With a plan it is that of the replica that the log names, else of the model's replicas in the plan; without a plan
    the table must hold one kind of row for each model. Raises TableError or UsageError.
    """

    def __init__(
        self,
        log: ServingLog,
        rows: Sequence[Requirement],
        plan: PlacementPlan | None,
        *,
        table: str = "table",
        gpu_specs: Files = (),
    ) -> None:
        self._log = log
        self.of_model: dict[str, BatchCurve] = {}
        self.of_replica: dict[str, BatchCurve] = {}
        if plan is None:
            self.of_model = _curves_of_table(log, rows, table)
            return
        curves = Curves(rows, plan, gpu_catalogue(gpu_specs), table)
        for gpu in plan.gpus:
            for replica in gpu.replicas:
                points = curves.of(replica, gpu)
                if plan.batching == "late" and replica.max_batch_size is not None:
                    points = curves.reaching(replica, gpu, replica.max_batch_size)
                curve = _curve({p.batch: (p.latency_ms, p.row) for p in points})
                self.of_replica[replica.id] = curve
                self.of_model.setdefault(replica.model, curve)
        for name in log.models:
            if name not in self.of_model:
                raise UsageError(f"{log.name}: model {name} has no replica in the plan")

    def each(self, value: str, batches: Floats) -> Floats:
        """Return ``value`` (a field of :class:`BatchCurve`) for every request, were it in a batch of ``batches``."""
        log = self._log
        result = np.full(len(log.model), np.nan)
        for m, model in enumerate(log.models):
            curve = self.of_model[model]
            mine = log.model == m
            result[mine] = curve.at(batches[mine], getattr(curve, value))
        for r, name in enumerate(log.replicas):
            curve_of_it = self.of_replica.get(name)
            if curve_of_it is not None:
                mine = log.replica == r
                result[mine] = curve_of_it.at(batches[mine], getattr(curve_of_it, value))
        return result


def _curves_of_table(log: ServingLog, rows: Iterable[Requirement], table: str) -> dict[str, BatchCurve]:
    by_model: dict[str, dict[int, tuple[float, Requirement]]] = defaultdict(dict)
    for row in rows:
        if row.model not in log.models or not row.latency_ms:
            continue
        batch = row.batch_size or 1
        if batch in by_model[row.model]:
            raise UsageError(
                f"{table}: two rows answer for {row.model} at batch {batch}: say by which it ran, with "
                + spelled("plan", "--plan")
            )
        by_model[row.model][batch] = row.latency_ms, row
    for name in log.models:
        if not by_model[name]:
            raise TableError(f"{table}: no row with a latency for {name}, which {log.name} has requests for")
    return {name: _curve(by_model[name]) for name in log.models}


def _curve(points: Mapping[int, tuple[float, Requirement]]) -> BatchCurve:
    batches = sorted(points)
    rows = [points[b][1] for b in batches]
    return BatchCurve(
        batches=np.array(batches, np.float64),
        latencies_ms=np.array([points[b][0] for b in batches], np.float64),
        input_bytes=np.array([row.input_bytes for row in rows], np.float64),
        output_bytes=np.array([row.output_bytes for row in rows], np.float64),
    )
