"""From a plan and requirement rows to the system that is simulated."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gkestimator.core.errors import DocumentError, TableError, UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import PlacedGpu, PlacementPlan, Replica
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec, gpu_catalogue
from gkestimator.interference.base import TERMS, Interference
from gkestimator.placement.queueing import interval_sigmas
from gkestimator.simulation.admission import admitted_parts
from gkestimator.simulation.network import Network
from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System
from gkestimator.tables import Requirement

# Columns that an interference model uses where they are known.
_OPTIONAL: Mapping[str, tuple[str, ...]] = {"contention": ("dram_util_mean_pct", "l2_util_mean_pct")}
_Key = tuple[str, str, str, str, str, float]


def build_system(
    plan: PlacementPlan,
    rows: Iterable[Requirement],
    *,
    interference: Interference | None,
    network: Network | None = None,
    copy: str = "none",
    max_wait_ms: float | None = None,
    admission: str = "plan",
    joined: bool = False,
    gpu_specs: Sequence[Path | str] = (),
    table: str = "table",
) -> System:
    """The system that ``plan`` describes, its replicas as fast as ``rows`` say.

    Models are in the order of ``plan.workload.names()``, sources are its models, then its applications, GPUs and
    replicas in the order of the plan; so two plans for one workload differ in GPUs and replicas alone. A replica
    runs by the rows of its model, GPU type, runtime, dtype, dims and SM share at all batch sizes up to its own.

    ``interference`` None: replicas do not slow each other down; a model of it is asked for GPUs alone on which
    two replicas may run at once, or (``joined``) for all: replicas of a later plan may join what runs. ``max_wait_ms``
    None: each replica's of the plan. ``admission``: see
    :func:`gkestimator.simulation.admission.admitted_parts`; an application's least stage counts. ``copy`` is that
    of :class:`gkestimator.simulation.options.Options`. ``table`` is what messages call the rows. Raises
    DocumentError (the plan lacks something), TableError (no row for a replica, two rows, a null column),
    UsageError.
    """
    if max_wait_ms is not None and not 0 <= max_wait_ms < math.inf:
        raise UsageError(f"wait of {max_wait_ms:g} ms, expected a finite number of at least 0")
    catalogue = gpu_catalogue(gpu_specs)
    curves = _Curves(rows, plan, catalogue, table)
    index = {name: i for i, name in enumerate(plan.workload.names())}
    notes: list[str] = []
    lacking: set[str] = set()
    by_replica: dict[str, list[tuple[Requirement, float]]] = {}
    gpus = []
    replicas = []
    partitions: dict[tuple[int, str], int] = {}
    turns: dict[int, float] = defaultdict(float)
    for g, gpu in enumerate(plan.gpus):
        spec = curves.spec(gpu.type)
        together = interference if joined or _servers(gpu) > 1 else None
        gpus.append(
            SimGpu(
                id=gpu.id,
                type=gpu.type,
                price_per_hour=None if spec is None else spec.price_per_hour_usd,
                terms=(0.0,) * TERMS if together is None else together.terms(_known(spec, gpu)),
            )
        )
        for replica in gpu.replicas:
            here = curves.of(replica, gpu)
            by_replica[replica.id] = [(p.row, p.latency_ms) for p in here]
            partition = None
            if replica.partition is not None:
                partition = partitions.setdefault((g, replica.partition), len(partitions))
            offset = 0.0
            if partition is not None and replica.duty_cycle_ms is not None:
                offset = turns[partition]
                turns[partition] += here[-1].latency_ms
            replicas.append(
                _replica(
                    replica,
                    here,
                    model=index[replica.model],
                    gpu=g,
                    partition=partition,
                    turn_offset_ms=offset,
                    max_wait_ms=max_wait_ms,
                    interference=together,
                    network=network,
                    copy=copy,
                    table=table,
                )
            )
            if together is not None:
                lacking |= {c for c in _OPTIONAL.get(together.name, ()) if getattr(here[-1].row, c) is None}
    notes += curves.notes(plan)
    if interference is not None:
        notes += interference.notes
    if lacking and interference is not None:
        notes.append(
            f"interference {interference.name}: {' and '.join(sorted(lacking))} {'is' if len(lacking) == 1 else 'are'} "
            "null for some replicas: not counted there"
        )
    objectives = _objectives(plan)
    chance = admitted_parts(plan, admission, objectives, by_replica)
    return System(
        sources=_sources(plan, index, chance),
        models=tuple(SimModel(name=name, slo_ms=slo) for name, slo in objectives.items()),
        gpus=tuple(gpus),
        replicas=_dealt(replicas),
        notes=tuple(notes),
    )


@frozen
class _Point:
    """One row of a replica's curve: its batch size, latency and the row."""

    batch: int
    latency_ms: float
    row: Requirement


class _Curves:
    """Rows by what a replica names, and what must be said about them."""

    def __init__(
        self, rows: Iterable[Requirement], plan: PlacementPlan, catalogue: GpuCatalogue, table: str
    ) -> None:
        self._table = table
        self._catalogue = catalogue
        self._specs: dict[str, GpuSpec | None] = {}
        wanted = {r.model for gpu in plan.gpus for r in gpu.replicas}
        self._found: dict[_Key, dict[int, Requirement]] = defaultdict(dict)
        for row in rows:
            if row.model not in wanted:
                continue
            here = self._found[
                row.model, self._canonical(row.gpu), row.runtime, row.dtype, row.dims, row.sm_share_pct
            ]
            batch = row.batch_size or 1
            if here.setdefault(batch, row) != row:
                raise TableError(
                    f"{table}: two rows answer for {row.model} on {row.gpu} ({row.runtime}, {row.dtype}) at batch "
                    f"{batch}, {row.sm_share_pct:g} % of the SMs, expected one"
                )
        self._ready: dict[tuple[_Key, int], tuple[_Point, ...]] = {}

    def spec(self, gpu: str) -> GpuSpec | None:
        """The specification of a GPU type, None where nothing is known of it."""
        if gpu not in self._specs:
            try:
                self._specs[gpu] = self._catalogue.spec(gpu)
            except UsageError:
                self._specs[gpu] = None
        return self._specs[gpu]

    def _canonical(self, gpu: str) -> str:
        spec = self.spec(gpu)
        if spec is None:
            return gpu
        return spec.name

    def of(self, replica: Replica, gpu: PlacedGpu) -> tuple[_Point, ...]:
        """The curve of ``replica``, ascending, up to its batch. Raises TableError where its own row is missing."""
        key = (
            replica.model,
            self._canonical(gpu.type),
            replica.runtime,
            replica.dtype,
            replica.dims,
            replica.sm_share_pct,
        )
        ready = self._ready.get((key, replica.batch_size))
        if ready is None:
            found = self._found.get(key, {})
            points = [
                _Point(batch=b, latency_ms=latency, row=row)
                for b, row in sorted(found.items())
                if b <= replica.batch_size and (latency := _latency_ms(row)) is not None
            ]
            if not points or points[-1].batch != replica.batch_size:
                raise TableError(self._missing(replica, gpu, key))
            ready = self._ready[key, replica.batch_size] = tuple(points)
        return ready

    def _missing(self, replica: Replica, gpu: PlacedGpu, key: _Key) -> str:
        what = (
            f"{self._table}: no row with a latency for {replica.model} on {gpu.type} ({replica.runtime}, "
            f"{replica.dtype}{', ' + replica.dims if replica.dims else ''}) at batch {replica.batch_size}, "
            f"{replica.sm_share_pct:g} % of the SMs, by which {replica.id} of the plan runs"
        )
        if key in self._found:
            return f"{what}; it has batch {_some(sorted(self._found[key]))}"
        others = [k for k in self._found if k[0] == replica.model]
        if not others:
            return f"{what}; it has no row of this model"
        gpus = sorted({k[1] for k in others})
        if key[1] not in gpus:
            return f"{what}; it has this model on {_some(gpus)}"
        ways = sorted(
            {f"{k[2]}, {k[3]}{', ' + k[4] if k[4] else ''}, {k[5]:g} %" for k in others if k[1] == key[1]}
        )
        return f"{what}; it has this model there as {_some(ways, '; ')}"

    def notes(self, plan: PlacementPlan) -> list[str]:
        """Where smaller batches than the table's take its time, and where plan and table differ."""
        least: dict[str, int] = {}
        differing: list[str] = []
        count = 0
        for gpu in plan.gpus:
            for replica in gpu.replicas:
                here = self.of(replica, gpu)
                if here[0].batch > 1:
                    least[replica.model] = max(least.get(replica.model, 0), here[0].batch)
                if abs(here[-1].latency_ms - replica.latency_ms) > 1e-6 * replica.latency_ms:
                    differing.append(replica.id)
                count += 1
        notes = []
        if least:
            of = _some([f"{name} ({batch})" for name, batch in sorted(least.items())])
            notes.append(f"batches below the table's smallest take as long as that one: {of}")
        if differing:
            notes.append(
                f"{len(differing)} of {count} replicas have another latency in {self._table} than in the plan "
                f"(the table's counts): {_some(differing)}"
            )
        return notes


def _some(items: Sequence[object], separator: str = ", ", limit: int = 8) -> str:
    shown = separator.join(str(i) for i in items[:limit])
    if len(items) <= limit:
        return shown
    return f"{shown} and {len(items) - limit:,} more"


def _latency_ms(row: Requirement) -> float | None:
    """As placement reads it: the column, else batch over throughput."""
    if row.latency_ms:
        return row.latency_ms
    if row.throughput_rps:
        return 1e3 * (row.batch_size or 1) / row.throughput_rps
    return None


def _servers(gpu: PlacedGpu) -> int:
    """How many batches may run on ``gpu`` at once: one partition runs one at a time."""
    named = {r.partition for r in gpu.replicas if r.partition is not None}
    return len(named) + sum(r.partition is None for r in gpu.replicas)


def _known(spec: GpuSpec | None, gpu: PlacedGpu) -> GpuSpec:
    if spec is None:
        raise UsageError(f"nothing is known of GPU {gpu.type}, which interference needs: give its --gpu-spec")
    return spec


def _replica(
    replica: Replica,
    here: Sequence[_Point],
    *,
    model: int,
    gpu: int,
    partition: int | None,
    turn_offset_ms: float,
    max_wait_ms: float | None,
    interference: Interference | None,
    network: Network | None,
    copy: str,
    table: str,
) -> SimReplica:
    latencies = tuple(p.latency_ms for p in here)
    weight = replica.goodput_rps or replica.throughput_rps
    if not weight:
        weight = 1e3 * replica.batch_size / (replica.duty_cycle_ms or latencies[-1])

    def column(name: str, why: str) -> Callable[[_Point], float]:
        def value(point: _Point) -> float:
            found = getattr(point.row, name)
            if found is None:
                raise TableError(
                    f"{table}: {replica.model} at batch {point.batch} on {point.row.gpu}: {name} is null, "
                    f"which {why} needs"
                )
            return float(found)

        return value

    copies = request = response = None
    if copy != "none":
        copies = tuple(map(column("copy_ms", f"--copy {copy}"), here))
    if network is not None:
        request = tuple(network.delay_ms(v) for v in map(column("input_bytes", "--network"), here))
        response = tuple(network.delay_ms(v) for v in map(column("output_bytes", "--network"), here))
    below, above = interval_sigmas(latencies[-1], here[-1].row.latency_low_ms, here[-1].row.latency_high_ms)
    return SimReplica(
        id=replica.id,
        model=model,
        gpu=gpu,
        batch_size=replica.batch_size,
        max_wait_ms=_wait_ms(replica, max_wait_ms),
        weight=weight,
        sm_share_pct=replica.sm_share_pct,
        partition=partition,
        duty_cycle_ms=replica.duty_cycle_ms,
        turn_offset_ms=turn_offset_ms,
        batches=tuple(p.batch for p in here),
        latencies_ms=latencies,
        copies_ms=copies,
        request_ms=request,
        response_ms=response,
        features=None if interference is None else tuple(interference.features(p.row) for p in here),
        sigma_below=below,
        sigma_above=above,
        creq_pct=replica.creq_pct,
        memory_pct=replica.mreq_pct,
    )


def _dealt(replicas: Sequence[SimReplica]) -> tuple[SimReplica, ...]:
    """``replicas`` with the requests that their batches usually hold: the first, and those that come while it waits, at
    most the full batch, the model's rate being what its replicas are to serve together. A router that counted every
    batch as a full one would give replicas whose batches time out too few requests, and the others too many."""
    served: dict[int, float] = {}
    for replica in replicas:
        served[replica.model] = served.get(replica.model, 0.0) + replica.weight
    return tuple(
        dataclasses.replace(r, deal=min(float(r.batch_size), 1 + served[r.model] * r.max_wait_ms / 1e3))
        for r in replicas
    )


def _wait_ms(replica: Replica, asked: float | None) -> float:
    # Turn-takers gather requests themselves, and a batch of one never waits.
    if replica.duty_cycle_ms is not None or replica.batch_size == 1:
        return 0.0
    found = replica.max_wait_ms if asked is None else asked
    if found is None:
        raise DocumentError(
            f"replica {replica.id} of the plan has no max_wait_ms: give one for all with --max-wait-ms"
        )
    return found


def _objectives(plan: PlacementPlan) -> dict[str, float]:
    """Of each model: its replicas' (the plan's part of an application's), else the workload's."""
    found: dict[str, float] = {}
    for gpu in plan.gpus:
        for r in gpu.replicas:
            if r.slo_ms is not None:
                found[r.model] = min(r.slo_ms, found.get(r.model, r.slo_ms))
    asked: dict[str, float] = {}
    for name, slo in (
        *((m.name, m.slo_ms) for m in plan.workload.models),
        *((s.model, a.slo_ms) for a in plan.workload.applications for s in a.stages),
    ):
        asked[name] = min(slo, asked.get(name, slo))
    return {name: found.get(name, asked[name]) for name in plan.workload.names()}


def _sources(
    plan: PlacementPlan, index: Mapping[str, int], chance: Mapping[str, float]
) -> tuple[SimSource, ...]:
    alone = [
        SimSource(
            name=m.name,
            application=False,
            rate_rps=m.rate_rps,
            slo_ms=m.slo_ms,
            stages=(SimStage(model=index[m.name]),),
            admit=chance[m.name],
        )
        for m in plan.workload.models
    ]
    together = []
    for a in plan.workload.applications:
        at = {s.model: i for i, s in enumerate(a.stages)}
        stages = tuple(
            SimStage(model=index[s.model], after=tuple(at[m] for m in s.after), fan_out=s.fan_out)
            for s in a.stages
        )
        together.append(
            SimSource(
                name=a.name,
                application=True,
                rate_rps=a.rate_rps,
                slo_ms=a.slo_ms,
                stages=stages,
                admit=min(chance[s.model] for s in a.stages),
            )
        )
    return (*alone, *together)
