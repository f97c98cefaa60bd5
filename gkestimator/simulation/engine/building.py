"""Make rows of the engine's arrays from the description of a system."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from gkestimator.interference.base import FEATURES, TERMS
from gkestimator.interference.registry import law_code
from gkestimator.llm.steps import StepLaw
from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.columns import EngineState, Floats, Ints
from gkestimator.simulation.histogram import BINS, bin_edges_ms
from gkestimator.simulation.options import COPIES, Options
from gkestimator.simulation.result import STAGES
from gkestimator.simulation.system import SimIterating, SimReplica, SimSource, System

Curve = tuple[float, ...] | None


def _at_sizes(batches: tuple[int, ...], values: Curve, sizes: Floats) -> Floats:
    """Return the curve of ``values`` at ``batches``, constant beyond, at ``sizes``; 0 where there is no curve."""
    if values is None:
        return np.zeros(len(sizes))
    return np.interp(sizes, batches, values)


def curves_of(replica: SimReplica) -> Floats:
    """Return rows for batches of 0, 1, ..., a full batch."""
    sizes = np.arange(replica.batch_size + 1, dtype=float)
    rows = np.zeros((len(sizes), c.C_FEATURES + FEATURES))
    rows[:, c.C_LATENCY] = _at_sizes(replica.batches, replica.latencies_ms, sizes)
    rows[:, c.C_TICKS] = np.rint(c.TICKS * rows[:, c.C_LATENCY])
    rows[:, c.C_COPY] = _at_sizes(replica.batches, replica.copies_ms, sizes)
    rows[:, c.C_REQUEST] = _at_sizes(replica.batches, replica.request_ms, sizes)
    rows[:, c.C_RESPONSE] = _at_sizes(replica.batches, replica.response_ms, sizes)
    if replica.features is not None:
        for k, values in enumerate(zip(*replica.features, strict=True)):
            rows[:, c.C_FEATURES + k] = _at_sizes(replica.batches, values, sizes)
    return rows


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


def curve_key(replica: SimReplica) -> tuple[object, ...]:
    """Return a key: replicas that have it in common share their rows of the curves."""
    return (
        replica.batch_size,
        replica.batches,
        replica.latencies_ms,
        replica.copies_ms,
        replica.request_ms,
        replica.response_ms,
        replica.features,
    )


def rows_of(
    replica: SimReplica, *, server: int, curve: int, available_ms: float
) -> tuple[list[int], list[float]]:
    """Return the replica's integers and floats, before anything was dealt to it."""
    turns = replica.duty_cycle_ms is not None
    ints = [0] * c.R_END
    ints[c.R_MODEL] = replica.model
    ints[c.R_GPU] = replica.gpu
    ints[c.R_SERVER] = server
    ints[c.R_SIZE] = replica.batch_size
    ints[c.R_TURNS] = int(turns)
    ints[c.R_CURVE] = curve
    ints[c.R_REQUEST_DELAY] = int(replica.request_ms is not None)
    ints[c.R_RESPONSE_DELAY] = int(replica.response_ms is not None)
    ints[c.R_COPIES] = int(replica.copies_ms is not None)
    ints[c.R_HEAD] = ints[c.R_TAIL] = ints[c.R_NEXT_DUE] = ints[c.R_ITERATES] = -1
    floats = [0.0] * c.RF_END
    floats[c.RF_WAIT] = replica.max_wait_ms
    floats[c.RF_WEIGHT] = replica.weight
    deal = replica.deal
    if turns:
        deal = 1
    elif deal is None:
        deal = replica.batch_size
    floats[c.RF_DEAL] = deal
    floats[c.RF_KEY] = floats[c.RF_DEAL] / replica.weight
    floats[c.RF_CYCLE] = replica.duty_cycle_ms or 0.0
    floats[c.RF_OFFSET] = replica.turn_offset_ms
    floats[c.RF_AVAILABLE] = available_ms
    floats[c.RF_FACTOR] = 1.0
    floats[c.RF_TAKEN] = -math.inf
    floats[c.RF_CREQ] = math.nan if replica.creq_pct is None else replica.creq_pct
    return ints, floats


def iterating_rows(iterates: SimIterating, law: int) -> tuple[list[int], list[float]]:
    """Return the integers and floats of a replica that serves by iterations, before anything came.

    ``law`` is where its law begins in the array of laws.
    """
    ints = [0] * c.W_END
    ints[c.W_PAGES] = ints[c.W_FREE] = iterates.pages
    ints[c.W_PAGE] = iterates.page_tokens
    ints[c.W_MOST] = iterates.most_sequences
    ints[c.W_BUDGET] = iterates.budget_tokens
    ints[c.W_CHUNKED] = int(iterates.chunked)
    ints[c.W_HEAD] = ints[c.W_TAIL] = -1
    ints[c.W_LAW] = law
    ints[c.W_BATCHES] = len(iterates.law.batches)
    ints[c.W_PROMPTS] = len(iterates.law.prompts)
    ints[c.W_CONTEXTS] = len(iterates.law.contexts)
    floats = [0.0] * c.WF_END
    floats[c.WF_LEAST] = iterates.law.step_ms[0][0]
    return ints, floats


def law_numbers(law: StepLaw) -> Floats:
    """Return the numbers of ``law`` in the order that the event loop reads."""
    parts = [law.batches, law.prompts, law.contexts, *law.prompt_ms, *law.step_ms]
    return np.concatenate([np.array(part, float) for part in parts])


def with_rows(array: np.ndarray, rows: Sequence[Sequence[float]] | np.ndarray) -> np.ndarray:
    """Return ``array`` with ``rows`` below."""
    if len(rows) == 0:
        return array
    return np.concatenate((array, np.asarray(rows, array.dtype)))


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
    models = len(system.models)
    sources = len(system.sources)
    windows = max(1, math.ceil(options.duration_ms / options.window_ms))
    z = _whole(c.Z_END)
    z[[c.Z_ITEM, c.Z_BATCH, c.Z_JOB, c.Z_ASKED]] = -1
    z[c.Z_LEAST_LOAD] = options.routing == "least-load"
    z[c.Z_EXPONENTIAL] = options.service == "exponential"
    z[c.Z_DROP] = options.drop == "late"
    z[c.Z_COPY] = COPIES.index(options.copy)
    z[c.Z_LAW] = law_code(options.interference)
    z[c.Z_KEEP] = options.keep_requests
    z[c.Z_WINDOWS] = windows
    f = _real(c.F_END)
    f[[c.F_FROM, c.F_UNTIL, c.F_WINDOW]] = options.warmup_ms, options.duration_ms, options.window_ms
    m = _whole(models, c.M_END)
    mf = _real(models, c.MF_END)
    m[:, [c.M_OPEN, c.M_BATCH, c.M_HEAD, c.M_TAIL]] = -1
    mf[:, c.MF_SLO] = [model.slo_ms for model in system.models]
    for k, model in enumerate(system.models):
        if model.paced is not None:
            m[k, c.M_SEQUENCES] = 1
            mf[k, c.MF_SLO_TTFT], mf[k, c.MF_SLO_TPOT] = model.paced.ttft_ms, model.paced.tpot_ms
    z[c.Z_SEQUENCES] = m[:, c.M_SEQUENCES].any()
    x = _whole(sources, c.X_END)
    xf = _real(sources, c.XF_END)
    t: list[list[int]] = []
    tf: list[float] = []
    afters: list[int] = []
    lengths = [_whole(0, c.L_END)]
    for k, (source, sole) in enumerate(zip(system.sources, _sole(system), strict=True)):
        kind = c.JOB
        if source.lengths is not None:
            kind = c.PLAIN
            x[k, c.X_LENGTH], x[k, c.X_LENGTHS] = sum(map(len, lengths)), len(source.lengths)
            lengths.append(np.array(source.lengths, np.int64))
        elif sole:
            kind = c.STREAM
        elif _is_plain(source):
            kind = c.PLAIN
        x[k, c.X_KIND] = kind
        x[k, c.X_MODEL] = source.stages[0].model if source.stages else -1
        x[k, c.X_SOLE] = sole
        x[k, c.X_STAGE], x[k, c.X_STAGES] = len(t), len(source.stages)
        xf[k, c.XF_SLO] = source.slo_ms
        if kind == c.STREAM:
            m[x[k, c.X_MODEL], c.M_STREAMED] = 1
            m[x[k, c.X_MODEL], c.M_SOURCE] = k
        for stage in source.stages:
            t.append([stage.model, len(afters), len(stage.after)])
            tf.append(stage.fan_out)
            afters += stage.after
    most_stages = max((len(s.stages) for s in system.sources), default=0)
    return EngineState(
        z=z,
        f=f,
        event_times=_real(0),
        event_keys=_whole(0),
        event_what=_whole(0),
        stream_times=np.full(max(1, sources), math.inf),
        stream_keys=_whole(max(1, sources)),
        stream_what=_whole(max(1, sources)),
        arrivals=_real(0),
        m=m,
        mf=mf,
        targets=_whole(0),
        r=_whole(0, c.R_END),
        rf=_real(0, c.RF_END),
        curves=_real(0, c.C_FEATURES + FEATURES),
        v=_whole(0, c.V_END),
        g=_whole(0, c.G_END),
        gf=_real(0, c.GF_TERMS + TERMS),
        b=_whole(0, c.B_END),
        bf=_real(0, c.BF_END),
        i=_whole(0, c.I_END),
        if_=_real(0, c.IF_END),
        x=x,
        xf=xf,
        t=np.array(t, np.int64).reshape(-1, c.T_END),
        tf=np.array(tf, float),
        afters=np.array(afters, np.int64),
        j=_whole(0, c.J_STAGES + 2 * most_stages),
        jf=_real(0),
        draws=_real(0),
        uniforms=_real(0),
        edges=bin_edges_ms(),
        histograms=_whole(models, len(STAGES), BINS),
        source_histograms=_whole(sources, BINS),
        features=_real(2, FEATURES),
        windows=_whole(models, 3, windows),
        window_waits=_real(models, windows),
        kept=_whole(0, c.K_END),
        kept_floats=_real(0, c.KF_END),
        w=_whole(0, c.W_END),
        wf=_real(0, c.WF_END),
        laws=_real(0),
        q=_whole(0, c.Q_END),
        qf=_real(0, c.QF_END),
        lengths=np.concatenate(lengths),
        token_histograms=_whole(models, 2, BINS),
    )
