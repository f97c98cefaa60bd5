"""Make the result from what the engine counted."""

from __future__ import annotations

import numpy as np

from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.columns import EngineState
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import CountedRequests, Result, TokenCounts
from gkestimator.simulation.system import System


def result_of(
    system: System,
    options: Options,
    s: EngineState,
    source_arrived: Ints,
    source_rejected: Ints,
    kept: list[tuple[Ints, Floats]],
) -> Result:
    """Return what was counted so far; nothing of it is shared with the state."""
    # A column of the state is a row here; each row is an array of its own.
    m = s.m.T.copy()
    mf = s.mf.T.copy()
    r = s.r.T.copy()
    rf = s.rf.T.copy()
    gf = s.gf.T.copy()
    x = s.x.T.copy()
    sums = s.xf[:, c.XF_SUM].copy()
    histograms = s.source_histograms.copy()
    for source in np.flatnonzero(x[c.X_SOLE]):
        model = x[c.X_MODEL, source]
        x[c.X_DONE, source] = m[c.M_DONE, model]
        x[c.X_BY_END, source] = m[c.M_BY_END, model]
        x[c.X_ON_TIME, source] = m[c.M_ON_TIME, model]
        sums[source] = mf[c.MF_TOTAL, model]
        histograms[source] = s.histograms[model, -1]
    windows = s.windows.copy()
    for replica in system.replicas:
        # GPUs that hold one replica together are busy together.
        for gpu in replica.iterates.beside if replica.iterates else ():
            gf[[c.GF_BUSY, c.GF_CREQ], gpu] = gf[[c.GF_BUSY, c.GF_CREQ], replica.gpu]
    requests = None
    if options.keep_requests:
        requests = _requests(kept)
    return Result(
        from_ms=options.warmup_ms,
        until_ms=options.duration_ms,
        end_ms=float(s.f[c.F_LAST]),
        arrived=m[c.M_ARRIVED],
        done=m[c.M_DONE],
        done_by_end=m[c.M_BY_END],
        on_time=m[c.M_ON_TIME],
        dropped=m[c.M_DROPPED],
        sums_ms=s.mf[:, c.MF_ROUTER : c.MF_TOTAL + 1].copy(),
        wait_sums_ms=mf[c.MF_WAIT],
        histograms=s.histograms.copy(),
        batches=m[c.M_BATCHES],
        batches_full=m[c.M_FULL],
        batches_timed_out=m[c.M_TIMED_OUT],
        source_arrived=source_arrived.copy(),
        source_rejected=source_rejected.copy(),
        source_dropped=x[c.X_DROPPED],
        source_done=x[c.X_DONE],
        source_done_by_end=x[c.X_BY_END],
        source_on_time=x[c.X_ON_TIME],
        source_sums_ms=sums,
        source_histograms=histograms,
        window_ms=options.window_ms,
        arrived_by_window=windows[:, 0],
        on_time_by_window=windows[:, 1],
        done_by_window=windows[:, 2],
        wait_by_window_ms=s.window_waits.copy(),
        busy_ms=rf[c.RF_BUSY],
        replica_batches=r[c.R_BATCHES],
        replica_requests=r[c.R_REQUESTS],
        last_done_ms=rf[c.RF_LAST],
        gpu_busy_ms=gf[c.GF_BUSY],
        gpu_creq_ms=gf[c.GF_CREQ],
        requests=requests,
        tokens=_tokens(s, options, kept) if s.z[c.Z_SEQUENCES] else None,
    )


def _tokens(s: EngineState, options: Options, kept: list[tuple[Ints, Floats]]) -> TokenCounts:
    first = None
    if options.keep_requests:
        first = np.concatenate([np.zeros(0), *(part[:, c.KF_FIRST] for _, part in kept)])
    replicas = np.flatnonzero(s.r[:, c.R_ITERATES] >= 0)
    sums = s.wf[s.r[replicas, c.R_ITERATES]]
    return TokenCounts(
        tokens=s.m[:, c.M_TOKENS].copy(),
        preempted=s.m[:, c.M_PREEMPTED].copy(),
        iterations=s.m[:, c.M_ITERATIONS].copy(),
        spread=s.m[:, c.M_SPREAD].copy(),
        ttft_sums_ms=s.mf[:, c.MF_TTFT].copy(),
        tpot_sums_ms=s.mf[:, c.MF_TPOT].copy(),
        histograms=s.token_histograms.copy(),
        replicas=replicas,
        sequences_ms=sums[:, c.WF_SEQUENCES],
        held_ms=sums[:, c.WF_HELD],
        first_ms=first,
    )


def _requests(kept: list[tuple[Ints, Floats]]) -> CountedRequests:
    """Return every request that was kept. The parts are put together here once; the state holds no copy."""
    whole = np.concatenate([np.zeros((0, c.K_END), np.int64), *(part for part, _ in kept)])
    real = np.concatenate([np.zeros((0, c.KF_END)), *(part for _, part in kept)])
    source, model, replica, batch = np.ascontiguousarray(whole.T)
    arrived, router, network, queue, gpu = np.ascontiguousarray(real.T[: c.KF_FIRST])
    return CountedRequests(
        source=source,
        model=model,
        replica=replica,
        batch=batch,
        arrived_ms=arrived,
        router_ms=router,
        network_ms=network,
        queue_ms=queue,
        gpu_ms=gpu,
    )
