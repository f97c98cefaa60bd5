"""Make rows of the engine's arrays from the description of a system."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from gkestimator.core.limits import allowed
from gkestimator.interference.base import FEATURES, TERMS
from gkestimator.interference.registry import law_code
from gkestimator.llm.steps import StepLaw
from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.records import Records, row, rows
from gkestimator.simulation.engine.state import (
    AskedOptions,
    BatchRecord,
    CurveRecord,
    EngineState,
    FreeRecord,
    GpuRecord,
    IteratorRecord,
    JobRecord,
    KeptRecord,
    LengthRecord,
    LoopRecord,
    ModelRecord,
    NeedsRecord,
    ReplicaRecord,
    RequestRecord,
    SequenceRecord,
    ServerRecord,
    SourceRecord,
    StageRecord,
)
from gkestimator.simulation.histogram import BINS, bin_edges_ms
from gkestimator.simulation.options import COPIES, Options
from gkestimator.simulation.result import STAGES
from gkestimator.simulation.system import SimIterating, SimReplica, SimSource, SimStage, System

Curve = tuple[float, ...] | None


def _at_sizes(batches: tuple[int, ...], values: Curve, sizes: Floats) -> Floats:
    """Return the curve of ``values`` at ``batches``, constant beyond, at ``sizes``; 0 where there is no curve."""
    if values is None:
        return np.zeros(len(sizes))
    return np.interp(sizes, batches, values)


def batches_late(replica: SimReplica, options: Options) -> bool:
    """Say whether batches of ``replica`` are formed when its server is free.

    At turns they are formed late in any case, by rules of their own, and iterations know no batches.
    """
    return options.batching == "late" and replica.duty_cycle_ms is None and replica.iterates is None


def curves_of(replica: SimReplica, late: bool) -> tuple[Records[CurveRecord], Floats]:
    """Return rows for batches of 0, 1, ..., a full batch, and their features.

    ``late``: requests travel alone, and so do their answers, whatever batch they were in.
    """
    sizes = np.arange(replica.batch_size + 1, dtype=float)
    curve = rows(CurveRecord, len(sizes))
    curve["latency_ms"] = _at_sizes(replica.batches, replica.latencies_ms, sizes)
    curve["ticks"] = np.rint(codes.TICKS * curve["latency_ms"])
    curve["copy_ms"] = _at_sizes(replica.batches, replica.copies_ms, sizes)
    curve["request_ms"] = _at_sizes(replica.batches, replica.request_ms, sizes)
    curve["response_ms"] = _at_sizes(replica.batches, replica.response_ms, sizes)
    if late:
        curve["response_ms"] = curve[1].response_ms
    features = np.zeros((len(sizes), FEATURES))
    if replica.features is not None:
        for k, values in enumerate(zip(*replica.features, strict=True)):
            features[:, k] = _at_sizes(replica.batches, values, sizes)
    return curve, features


def most_asked(source: SimSource) -> int:
    """Return how many requests to models one request of ``source`` can become at most."""
    asked: list[int] = []
    left = dict(enumerate(source.stages))
    most: dict[int, int] = {}
    while left:
        ready = [k for k, stage in left.items() if all(a in most for a in stage.after)]
        if not ready:
            raise ValueError(f"source {source.name!r}: its stages follow each other in a circle")
        for k in ready:
            stage = left.pop(k)
            most[k] = math.ceil(max((most[a] for a in stage.after), default=1) * stage.fan_out)
            asked.append(most[k])
    return sum(asked)


def curve_key(replica: SimReplica, late: bool) -> tuple[object, ...]:
    """Return a key: replicas that have it in common share their rows of the curves."""
    return (
        late,
        replica.batch_size,
        replica.batches,
        replica.latencies_ms,
        replica.copies_ms,
        replica.request_ms,
        replica.response_ms,
        replica.features,
    )


def fill_replica(
    row: ReplicaRecord, replica: SimReplica, *, server: int, curve: int, available_ms: float, late: bool
) -> None:
    """Fill ``row``, all zeros, with the replica as it is before anything was dealt to it."""
    row.model = replica.model
    row.gpu = replica.gpu
    row.server = server
    row.iterator = -1
    row.batch_size = replica.batch_size
    row.max_wait_ms = replica.max_wait_ms
    row.turns = replica.duty_cycle_ms is not None
    row.late = late
    row.singly = row.turns or row.late
    row.cycle_ms = replica.duty_cycle_ms or 0.0
    row.offset_ms = replica.turn_offset_ms
    row.curve = curve
    row.factor = 1.0
    row.request_delay = replica.request_ms is not None
    row.response_delay = replica.response_ms is not None
    row.copies = replica.copies_ms is not None
    row.creq_pct = math.nan if replica.creq_pct is None else replica.creq_pct
    row.available_ms = available_ms
    row.weight = replica.weight
    row.deal = replica.batch_size if replica.deal is None else replica.deal
    if row.singly:
        row.deal = 1
    row.key = row.deal / replica.weight
    row.head = row.tail = row.next_due = row.next_late = -1
    row.taken_ms = -math.inf


def iterator_row(iterates: SimIterating, law: int) -> Records[IteratorRecord]:
    """Return the row of a replica that serves by iterations, before anything came.

    ``law`` is where its law begins in the array of laws.
    """
    made = rows(IteratorRecord, 1)
    row = made[0]
    row.pages = row.free = iterates.pages
    row.page_tokens = iterates.page_tokens
    row.most_sequences = iterates.most_sequences
    row.budget_tokens = iterates.budget_tokens
    row.chunked = iterates.chunked
    row.head = row.tail = -1
    row.law = law
    row.batches = len(iterates.law.batches)
    row.prompts = len(iterates.law.prompts)
    row.contexts = len(iterates.law.contexts)
    row.least_ms = iterates.law.step_ms[0][0]
    return made


def law_numbers(law: StepLaw) -> Floats:
    """Return the numbers of ``law`` in the order that the event loop reads."""
    parts = [law.batches, law.prompts, law.contexts, *law.prompt_ms, *law.step_ms]
    return np.concatenate([np.array(part, float) for part in parts])


def _whole(*shape: int) -> Ints:
    return np.zeros(shape, np.int64)


def _real(*shape: int) -> Floats:
    return np.zeros(shape)


def _is_plain(source: SimSource) -> bool:
    """Say whether each request of ``source`` is one request to one model."""
    return not source.application and len(source.stages) == 1 and source.stages[0].fan_out == 1.0


def _sole(system: System) -> list[bool]:
    """Say whether each source alone feeds its model, request for request, and is held to the model's SLO."""
    asked = Counter(stage.model for source in system.sources for stage in source.stages)
    sole = []
    for source in system.sources:
        alone = _is_plain(source) and asked[source.stages[0].model] == 1
        sole.append(alone and source.slo_ms == system.models[source.stages[0].model].slo_ms)
    return sole


def first_state(system: System, options: Options) -> EngineState:
    """Return the state before anything comes, without GPUs and replicas.

    Pools are empty; the first call of the loop asks for room.
    """
    asked = _asked_options(system, options)
    models = len(system.models)
    sources = len(system.sources)
    stages = [stage for source in system.sources for stage in source.stages]
    lengths = rows(LengthRecord, sum(len(source.lengths or ()) for source in system.sources))
    every_length = [length for source in system.sources for length in source.lengths or ()]
    lengths["prompt"] = [prompt for prompt, _ in every_length]
    lengths["answer"] = [answer for _, answer in every_length]
    most_stages = max((len(source.stages) for source in system.sources), default=0)
    loop = row(LoopRecord)
    loop.asked = -1
    free = row(FreeRecord)
    free.request = free.batch = free.job = -1
    state = EngineState(
        options=asked,
        loop=loop,
        free=free,
        needs=row(NeedsRecord),
        event_times=_real(0),
        event_keys=_whole(0),
        event_what=_whole(0),
        stream_times=np.full(max(1, sources), math.inf),
        stream_keys=_whole(max(1, sources)),
        stream_what=_whole(max(1, sources)),
        arrivals=_real(0),
        came=_real(0),
        models=_models(system),
        targets=_whole(0),
        replicas=rows(ReplicaRecord),
        curves=rows(CurveRecord),
        curve_features=_real(0, FEATURES),
        servers=rows(ServerRecord),
        gpus=rows(GpuRecord),
        terms=_real(0, TERMS),
        batches=rows(BatchRecord),
        requests=rows(RequestRecord),
        sources=rows(SourceRecord, sources),
        stages=_stages(stages),
        afters=np.array([before for stage in stages for before in stage.after], np.int64),
        jobs=rows(JobRecord),
        asked=_whole(0, most_stages),
        lacking=_whole(0, most_stages),
        draws=_real(0),
        uniforms=_real(0),
        edges=bin_edges_ms(),
        histograms=_whole(models, len(STAGES), BINS),
        source_histograms=_whole(sources, BINS),
        features=_real(2, FEATURES),
        windows=_whole(models, 3, int(asked.windows)),
        window_waits=_real(models, int(asked.windows)),
        kept=rows(KeptRecord),
        iterators=rows(IteratorRecord),
        laws=_real(0),
        sequences=rows(SequenceRecord),
        lengths=lengths,
        token_histograms=_whole(models, 2, BINS),
    )
    _fill_sources(state, system)
    return state


def _asked_options(system: System, options: Options) -> AskedOptions:
    asked = row(AskedOptions)
    asked.least_load = options.routing == "least-load"
    asked.exponential = options.service == "exponential"
    asked.drop = options.drop == "late"
    asked.late = options.batching == "late"
    asked.copy = COPIES.index(options.copy)
    asked.law = law_code(options.interference)
    asked.keep = options.keep_requests
    asked.windows = max(1, math.ceil(options.duration_ms / options.window_ms))
    asked.sequences = any(model.paced is not None for model in system.models)
    asked.most_sent = allowed("requests")
    asked.most_speeds = allowed("speeds")
    asked.from_ms = options.warmup_ms
    asked.until_ms = options.duration_ms
    asked.window_ms = options.window_ms
    return asked


def _models(system: System) -> Records[ModelRecord]:
    models = rows(ModelRecord, len(system.models))
    for model, described in zip(models, system.models, strict=True):
        model.open_for = model.batch = model.head = model.tail = -1
        model.slo_ms = described.slo_ms
        if described.paced is not None:
            model.paced = 1
            model.slo_ttft_ms = described.paced.ttft_ms
            model.slo_tpot_ms = described.paced.tpot_ms
    return models


def _stages(described: Sequence[SimStage]) -> Records[StageRecord]:
    stages = rows(StageRecord, len(described))
    after = 0
    for stage, asked in zip(stages, described, strict=True):
        stage.model = asked.model
        stage.after = after
        stage.afters = len(asked.after)
        stage.fan_out = asked.fan_out
        after += len(asked.after)
    return stages


def _fill_sources(s: EngineState, system: System) -> None:
    """Fill the rows of sources, and note which models they stream to."""
    stage = 0
    length = 0
    sole = _sole(system)
    for k, described in enumerate(system.sources):
        source = s.sources[k]
        source.kind = codes.JOB
        source.model = described.stages[0].model if described.stages else -1
        if described.lengths is not None:
            source.kind = codes.PLAIN
            source.length = length
            source.lengths = len(described.lengths)
            length += len(described.lengths)
        elif sole[k] and not s.options.late and not described.closed:
            source.kind = codes.STREAM
            s.models[source.model].streamed = 1
            s.models[source.model].source = k
        elif _is_plain(described):
            source.kind = codes.PLAIN
        source.sole = sole[k]
        source.closed = described.closed
        source.stage = stage
        source.stages = len(described.stages)
        source.slo_ms = described.slo_ms
        stage += len(described.stages)
