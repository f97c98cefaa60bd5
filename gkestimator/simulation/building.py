"""Build the system that is simulated from a plan and requirement rows."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gkestimator.core.errors import DocumentError, TableError, UsageError
from gkestimator.core.options import spelled
from gkestimator.documents import Application, ModelLoad, PlacedGpu, PlacementPlan, Replica
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.interference.base import TERMS, Interference
from gkestimator.placement.queueing import interval_sigmas
from gkestimator.simulation.admission import admitted_parts
from gkestimator.simulation.arrays import Files, NumberOrNone, Numbers, Texts
from gkestimator.simulation.curves import CurvePoint, Curves
from gkestimator.simulation.network import Network
from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System
from gkestimator.tables import Requirement


def build_system(
    plan: PlacementPlan,
    rows: Iterable[Requirement],
    *,
    interference: Interference | None,
    network: Network | None = None,
    copy: str = "none",
    batching: str = "early",
    max_wait_ms: NumberOrNone = None,
    admission: str = "plan",
    joined: bool = False,
    gpu_specs: Files = (),
    table: str = "table",
) -> System:
    """Return the system that ``plan`` describes, its replicas as fast as ``rows`` say.

    Models are in the order of ``plan.workload.names()``, sources are its models, then its applications, GPUs
    and replicas in the order of the plan; so two plans for one workload differ in GPUs and replicas alone. A
    replica runs by the rows of its model, GPU type, runtime, dtype, dims and SM share at all batch sizes up
    to its own.

    ``interference`` None: replicas do not slow each other down; a model of it is asked for GPUs alone on
    which two replicas may run at once, or (``joined``) for all: replicas of a later plan may join what runs.
    ``max_wait_ms`` None: each replica's of the plan. ``admission``: see
    :func:`gkestimator.simulation.admission.admitted_parts`; an application's least stage counts. ``copy`` and
    ``batching`` are those of :class:`gkestimator.simulation.options.Options`: batches that are formed ``late`` hold up
    to the plan's ``max_batch_size`` requests. ``table`` is what messages call the rows.

    Raises DocumentError (the plan lacks something), TableError (no row for a replica, two rows, a null
    column), UsageError.
    """
    if plan.workload.languages:
        raise UsageError(
            f"{next(iter(plan.workload.languages))}: found a language model, which serves by iterations"
        )
    _check_wait(max_wait_ms, batching)
    curves = Curves(rows, plan, gpu_catalogue(gpu_specs), table)
    models = {name: number for number, name in enumerate(plan.workload.names())}
    gpus: list[SimGpu] = []
    replicas: list[SimReplica] = []
    lacking: set[str] = set()
    slowed = False
    partitions: dict[tuple[int, str], int] = {}
    turns_ms: dict[int, float] = defaultdict(float)
    for gpu_number, gpu in enumerate(plan.gpus):
        law = None
        if joined or _servers(gpu) > 1:
            law = interference
            slowed = True
        gpus.append(_gpu(gpu, curves.spec(gpu.type), law))
        for replica in gpu.replicas:
            points = curves.of(replica, gpu)
            partition = None
            offset_ms = 0.0
            if replica.partition is not None:
                partition = partitions.setdefault((gpu_number, replica.partition), len(partitions))
                if _cycle_ms(replica, batching) is not None:
                    offset_ms = turns_ms[partition]
                    turns_ms[partition] += points[-1].latency_ms
            if law is not None:
                full = points[-1].row
                lacking.update(name for name in law.optional if getattr(full, name) is None)
            cap = _cap(replica, batching)
            runs = _replica(
                replica,
                curves.reaching(replica, gpu, cap),
                full=points[-1],
                cap=cap,
                duty_cycle_ms=_cycle_ms(replica, batching),
                model=models[replica.model],
                gpu=gpu_number,
                partition=partition,
                turn_offset_ms=offset_ms,
                max_wait_ms=_wait_ms(replica, max_wait_ms, batching),
                law=law,
                network=network,
                copy=copy,
                table=table,
            )
            replicas.append(runs)
    notes = curves.notes(plan)
    if interference is not None and slowed:
        notes += interference.notes
        notes += _lacking_notes(interference.name, sorted(lacking))
    objectives = _objectives(plan)
    admitted = admitted_parts(plan, admission, objectives, curves.of)
    return System(
        sources=_sources(plan, models, admitted),
        models=tuple(SimModel(name=name, slo_ms=slo) for name, slo in objectives.items()),
        gpus=tuple(gpus),
        replicas=_dealt(replicas),
        host_ms=0.0 if network is None else network.host_ms,
        notes=tuple(notes),
    )


def _check_wait(max_wait_ms: NumberOrNone, batching: str) -> None:
    if max_wait_ms is None:
        return
    if not 0 <= max_wait_ms < math.inf:
        raise UsageError(f"wait of {max_wait_ms:g} ms, expected a finite number of at least 0")
    if batching == "late":
        raise UsageError(
            f"{spelled('max_wait_ms')} {max_wait_ms:g}: has no use where batches are formed late"
        )


def _cap(replica: Replica, batching: str) -> int:
    """Return how many requests ``replica`` runs at once at most."""
    if batching == "late":
        return replica.max_batch_size or replica.batch_size
    return replica.batch_size


def _cycle_ms(replica: Replica, batching: str) -> NumberOrNone:
    """Return the cycle in which ``replica`` takes turns; None where it has no turns.

    A server that batches late does not clock turns: whenever the partition is free, the replica whose request waits
    longest is next, and no GPU idles until somebody's time has come.
    """
    if batching == "late":
        return None
    return replica.duty_cycle_ms


def _servers(gpu: PlacedGpu) -> int:
    """Return how many batches may run on ``gpu`` at once: one partition runs one at a time."""
    named = {r.partition for r in gpu.replicas if r.partition is not None}
    return len(named) + sum(r.partition is None for r in gpu.replicas)


def _gpu(gpu: PlacedGpu, spec: GpuSpec | None, law: Interference | None) -> SimGpu:
    price = None
    terms = (0.0,) * TERMS
    if spec is not None:
        price = spec.price_per_hour_usd
    if law is not None:
        if spec is None:
            raise UsageError(
                f"nothing is known of GPU {gpu.type}, which interference needs: give its file by "
                + spelled("gpu_specs", "--gpu-spec")
            )
        terms = law.terms(spec)
    return SimGpu(id=gpu.id, type=gpu.type, price_per_hour=price, terms=terms)


def _replica(
    replica: Replica,
    points: Sequence[CurvePoint],
    *,
    full: CurvePoint,
    cap: int,
    duty_cycle_ms: NumberOrNone,
    model: int,
    gpu: int,
    partition: int | None,
    turn_offset_ms: float,
    max_wait_ms: float,
    law: Interference | None,
    network: Network | None,
    copy: str,
    table: str,
) -> SimReplica:
    """Return ``replica`` as it runs by its curve; arguments as in :func:`build_system`.

    ``full`` is the point of the plan's batch, ``cap`` the most requests that it runs at once.
    """
    copies = request = response = features = None
    if copy != "none":
        copies = _column(points, "copy_ms", f"copy {copy}", table)
    if network is not None:
        request = _delays(network, points, "input_bytes", table)
        response = _delays(network, points, "output_bytes", table)
    if law is not None:
        features = tuple(law.features(p.row) for p in points)
    below, above = interval_sigmas(full.latency_ms, full.row.latency_low_ms, full.row.latency_high_ms)
    weight = replica.goodput_rps or replica.throughput_rps
    if not weight:
        weight = 1e3 * replica.batch_size / (replica.duty_cycle_ms or full.latency_ms)
    return SimReplica(
        id=replica.id,
        model=model,
        gpu=gpu,
        batch_size=cap,
        max_wait_ms=max_wait_ms,
        weight=weight,
        sm_share_pct=replica.sm_share_pct,
        partition=partition,
        duty_cycle_ms=duty_cycle_ms,
        turn_offset_ms=turn_offset_ms,
        batches=tuple(p.batch for p in points),
        latencies_ms=tuple(p.latency_ms for p in points),
        copies_ms=copies,
        request_ms=request,
        response_ms=response,
        features=features,
        sigma_below=below,
        sigma_above=above,
        creq_pct=replica.creq_pct,
        memory_pct=replica.mreq_pct,
    )


def _delays(network: Network, points: Sequence[CurvePoint], column: str, table: str) -> Numbers:
    """Return what a transfer of the batch of each point takes, by its bytes in ``column``."""
    sizes: Numbers = (0.0,) * len(points)
    if network.by_bytes:
        sizes = _column(points, column, "network", table)
    return tuple(network.delay_ms(size, p.batch) for size, p in zip(sizes, points, strict=True))


def _column(points: Sequence[CurvePoint], name: str, why: str, table: str) -> Numbers:
    """Return a column of the rows of ``points``. Raises TableError where it is null, saying ``why`` it is needed."""
    values = []
    for point in points:
        value = getattr(point.row, name)
        if value is None:
            raise TableError(
                f"{table}: {point.row.model} at batch {point.batch} on {point.row.gpu}: {name} is null, "
                f"which {why} needs"
            )
        values.append(float(value))
    return tuple(values)


def _lacking_notes(law: str, columns: Texts) -> list[str]:
    if not columns:
        return []
    verb = "are"
    if len(columns) == 1:
        verb = "is"
    return [
        f"interference {law}: {' and '.join(columns)} {verb} null for some replicas: not counted there",
    ]


def _dealt(replicas: Sequence[SimReplica]) -> tuple[SimReplica, ...]:
    """Return ``replicas`` with the requests that their batches usually hold.

    These are the first, and those that come while it waits, at most the full batch, the model's rate being
    what its replicas are to serve together. A router that counted every batch as a full one would give
    replicas whose batches time out too few requests, and the others too many.
    """
    served: dict[int, float] = defaultdict(float)
    for replica in replicas:
        served[replica.model] += replica.weight
    dealt = []
    for replica in replicas:
        usual = 1 + served[replica.model] * replica.max_wait_ms / 1e3
        dealt.append(dataclasses.replace(replica, deal=min(float(replica.batch_size), usual)))
    return tuple(dealt)


def _wait_ms(replica: Replica, asked: NumberOrNone, batching: str) -> float:
    # Turn-takers gather requests themselves, as late batching does, and a batch of one never waits.
    if batching == "late" or replica.duty_cycle_ms is not None or replica.batch_size == 1:
        return 0.0
    if asked is not None:
        return asked
    if replica.max_wait_ms is None:
        raise DocumentError(
            f"replica {replica.id} of the plan has no max_wait_ms: give one for all with {spelled('max_wait_ms')}"
        )
    return replica.max_wait_ms


def _objectives(plan: PlacementPlan) -> dict[str, float]:
    """Return each model's objective in ms: its replicas' (the plan's part of an application's), else the workload's."""
    workload = plan.workload
    asked = [(m.name, m.slo_ms) for m in workload.models]
    asked += [(s.model, a.slo_ms) for a in workload.applications for s in a.stages]
    planned = [(r.model, r.slo_ms) for gpu in plan.gpus for r in gpu.replicas if r.slo_ms is not None]
    objectives = _least(asked) | _least(planned)
    return {name: objectives[name] for name in workload.names()}


def _least(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    least: dict[str, float] = {}
    for name, value in values:
        least[name] = min(value, least.get(name, value))
    return least


def _sources(
    plan: PlacementPlan, models: Mapping[str, int], admitted: Mapping[str, float]
) -> tuple[SimSource, ...]:
    """Return the models that are asked for by themselves, then the applications."""
    sources = []
    for m in plan.workload.models:
        stages = [SimStage(model=models[m.name])]
        sources.append(_source(m, stages, admitted[m.name], application=False))
    for a in plan.workload.applications:
        places = {s.model: i for i, s in enumerate(a.stages)}
        stages = []
        for s in a.stages:
            after = tuple(places[name] for name in s.after)
            stages.append(SimStage(model=models[s.model], after=after, fan_out=s.fan_out))
        admit = min(admitted[s.model] for s in a.stages)
        sources.append(_source(a, stages, admit, application=True))
    return tuple(sources)


def _source(
    asked: ModelLoad | Application, stages: Sequence[SimStage], admit: float, *, application: bool
) -> SimSource:
    return SimSource(
        name=asked.name,
        application=application,
        rate_rps=asked.rate_rps,
        slo_ms=asked.slo_ms,
        stages=tuple(stages),
        admit=admit,
    )
