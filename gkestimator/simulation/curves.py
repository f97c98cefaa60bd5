"""Look up how long a plan's replicas take at every batch size, in the rows of a requirement table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import PlacedGpu, PlacementPlan, Replica
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec
from gkestimator.reporting.simulated import first_of
from gkestimator.tables import Requirement

_NAMED = 8
# A plan's latency and the table's that differ by less are equal: one of them went through a file.
_ROUNDING = 1e-6


@frozen
class CurvePoint:
    """Hold one row of a replica's curve: its batch size, latency and the row."""

    batch: int
    latency_ms: float
    row: Requirement


CurveOf: TypeAlias = Callable[[Replica, PlacedGpu], Sequence[CurvePoint]]


@frozen
class _Setting:
    """Hold what a row and a replica of it have in common at every batch size."""

    model: str
    gpu: str
    runtime: str
    dtype: str
    dims: str
    sm_share_pct: float

    def __str__(self) -> str:
        parts = [self.runtime, self.dtype, f"{self.sm_share_pct:g} %"]
        if self.dims:
            parts.insert(2, self.dims)
        return ", ".join(parts)


class Curves:
    """Find rows by what a replica names. Raises TableError where two rows answer for one setting and batch size."""

    def __init__(
        self, rows: Iterable[Requirement], plan: PlacementPlan, catalogue: GpuCatalogue, table: str
    ) -> None:
        self._table = table
        self._catalogue = catalogue
        self._specs: dict[str, GpuSpec | None] = {}
        self._rows: dict[_Setting, dict[int, Requirement]] = defaultdict(dict)
        self._curves: dict[tuple[_Setting, int], tuple[CurvePoint, ...]] = {}
        wanted = {r.model for gpu in plan.gpus for r in gpu.replicas}
        for row in rows:
            if row.model not in wanted:
                continue
            batch = row.batch_size or 1
            if self._rows[self._setting(row, row.gpu)].setdefault(batch, row) != row:
                raise TableError(
                    f"{table}: two rows answer for {row.model} on {row.gpu} ({row.runtime}, {row.dtype}) at batch "
                    f"{batch}, {row.sm_share_pct:g} % of the SMs, expected one"
                )

    def spec(self, gpu: str) -> GpuSpec | None:
        """Return the specification of a GPU type, None where nothing is known of it."""
        if gpu not in self._specs:
            try:
                self._specs[gpu] = self._catalogue.spec(gpu)
            except UsageError:
                self._specs[gpu] = None
        return self._specs[gpu]

    def _setting(self, source: Requirement | Replica, gpu: str) -> _Setting:
        spec = self.spec(gpu)
        if spec is not None:
            gpu = spec.name
        return _Setting(
            model=source.model,
            gpu=gpu,
            runtime=source.runtime,
            dtype=source.dtype,
            dims=source.dims,
            sm_share_pct=source.sm_share_pct,
        )

    def of(self, replica: Replica, gpu: PlacedGpu) -> tuple[CurvePoint, ...]:
        """Return the curve of ``replica``, ascending, up to its batch. Raises TableError without its own row."""
        points = self._up_to(replica, gpu, replica.batch_size)
        if not points or points[-1].batch != replica.batch_size:
            raise TableError(self._missing(replica, gpu, replica.batch_size))
        return points

    def reaching(self, replica: Replica, gpu: PlacedGpu, size: int) -> tuple[CurvePoint, ...]:
        """Return the curve of ``replica`` up to the first row of at least ``size``. Raises TableError without any."""
        points = self._up_to(replica, gpu, size)
        if not points or points[-1].batch < size:
            raise TableError(self._missing(replica, gpu, size))
        return points

    def _up_to(self, replica: Replica, gpu: PlacedGpu, size: int) -> tuple[CurvePoint, ...]:
        """Return the rows of ``replica`` in order of batch, the last the first of at least ``size`` if there is one."""
        setting = self._setting(replica, gpu.type)
        key = setting, size
        if key in self._curves:
            return self._curves[key]
        points: list[CurvePoint] = []
        for batch, row in sorted(self._rows.get(setting, {}).items()):
            latency = _latency_ms(row)
            if latency is None:
                continue
            points.append(CurvePoint(batch=batch, latency_ms=latency, row=row))
            if batch >= size:
                break
        self._curves[key] = tuple(points)
        return self._curves[key]

    def _missing(self, replica: Replica, gpu: PlacedGpu, size: int) -> str:
        """Return the message that ``replica`` has no row, with the nearest that the table has."""
        setting = self._setting(replica, gpu.type)
        dims = ""
        if replica.dims:
            dims = f", {replica.dims}"
        message = (
            f"{self._table}: no row with a latency for {replica.model} on {gpu.type} ({replica.runtime}, "
            f"{replica.dtype}{dims}) at batch {size}, {replica.sm_share_pct:g} % of the SMs, "
            f"by which {replica.id} of the plan runs"
        )
        if setting in self._rows:
            return f"{message}; it has batch {first_of(sorted(self._rows[setting]), _NAMED)}"
        others = [s for s in self._rows if s.model == replica.model]
        gpus = sorted({s.gpu for s in others})
        if not others:
            return f"{message}; it has no row of this model"
        if setting.gpu not in gpus:
            return f"{message}; it has this model on {first_of(gpus, _NAMED)}"
        settings = sorted({str(s) for s in others if s.gpu == setting.gpu})
        return f"{message}; it has this model there as {first_of(settings, _NAMED, '; ')}"

    def notes(self, plan: PlacementPlan) -> list[str]:
        """Return where smaller batches than the table's take its time, and where plan and table differ."""
        least: dict[str, int] = {}
        differing: list[str] = []
        count = 0
        for gpu in plan.gpus:
            for replica in gpu.replicas:
                points = self.of(replica, gpu)
                if points[0].batch > 1:
                    least[replica.model] = max(least.get(replica.model, 0), points[0].batch)
                if abs(points[-1].latency_ms - replica.latency_ms) > _ROUNDING * replica.latency_ms:
                    differing.append(replica.id)
                count += 1
        notes = []
        if least:
            models = first_of([f"{name} ({batch})" for name, batch in sorted(least.items())], _NAMED)
            notes.append(f"batches below the table's smallest take as long as that one: {models}")
        if differing:
            notes.append(
                f"{len(differing)} of {count} replicas have another latency in {self._table} than in the plan "
                f"(the table's counts): {first_of(differing, _NAMED)}"
            )
        return notes


def _latency_ms(row: Requirement) -> float | None:
    """Return the latency as placement reads it: the column, else batch over throughput."""
    if row.latency_ms:
        return row.latency_ms
    if row.throughput_rps:
        return 1e3 * (row.batch_size or 1) / row.throughput_rps
    return None
