"""Make the result from what the engine counted."""

from __future__ import annotations

import numpy as np

from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.columns import EngineState
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import CountedRequests, Result
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
    done, by_end, on_time = (s.x[:, k].copy() for k in (c.X_DONE, c.X_BY_END, c.X_ON_TIME))
    dropped = s.x[:, c.X_DROPPED].copy()
    sums = s.xf[:, c.XF_SUM].copy()
    histograms = s.source_histograms.copy()
    for x in np.flatnonzero(s.x[:, c.X_SOLE]):
        m = s.x[x, c.X_MODEL]
        done[x], by_end[x], on_time[x] = (s.m[m, k] for k in (c.M_DONE, c.M_BY_END, c.M_ON_TIME))
        sums[x], histograms[x] = s.mf[m, c.MF_TOTAL], s.histograms[m, -1]
    return Result(
        from_ms=options.warmup_ms,
        until_ms=options.duration_ms,
        end_ms=float(s.f[c.F_LAST]),
        arrived=s.m[:, c.M_ARRIVED].copy(),
        done=s.m[:, c.M_DONE].copy(),
        done_by_end=s.m[:, c.M_BY_END].copy(),
        on_time=s.m[:, c.M_ON_TIME].copy(),
        dropped=s.m[:, c.M_DROPPED].copy(),
        sums_ms=s.mf[:, c.MF_ROUTER : c.MF_TOTAL + 1].copy(),
        wait_sums_ms=s.mf[:, c.MF_WAIT].copy(),
        histograms=s.histograms.copy(),
        batches=s.m[:, c.M_BATCHES].copy(),
        batches_full=s.m[:, c.M_FULL].copy(),
        batches_timed_out=s.m[:, c.M_TIMED_OUT].copy(),
        source_arrived=source_arrived.copy(),
        source_rejected=source_rejected.copy(),
        source_dropped=dropped,
        source_done=done,
        source_done_by_end=by_end,
        source_on_time=on_time,
        source_sums_ms=sums,
        source_histograms=histograms,
        window_ms=options.window_ms,
        arrived_by_window=s.windows[:, 0].copy(),
        on_time_by_window=s.windows[:, 1].copy(),
        done_by_window=s.windows[:, 2].copy(),
        wait_by_window_ms=s.window_waits.copy(),
        busy_ms=s.rf[:, c.RF_BUSY].copy(),
        replica_batches=s.r[:, c.R_BATCHES].copy(),
        replica_requests=s.r[:, c.R_REQUESTS].copy(),
        last_done_ms=s.rf[:, c.RF_LAST].copy(),
        gpu_busy_ms=s.gf[:, c.GF_BUSY].copy(),
        gpu_creq_ms=s.gf[:, c.GF_CREQ].copy(),
        requests=_requests(kept) if options.keep_requests else None,
    )


def _requests(kept: list[tuple[Ints, Floats]]) -> CountedRequests:
    whole = np.concatenate([part for part, _ in kept] or [np.zeros((0, c.K_END), np.int64)])
    real = np.concatenate([part for _, part in kept] or [np.zeros((0, c.KF_END))])
    return CountedRequests(
        source=whole[:, c.K_SOURCE].copy(),
        model=whole[:, c.K_MODEL].copy(),
        replica=whole[:, c.K_REPLICA].copy(),
        batch=whole[:, c.K_BATCH].copy(),
        arrived_ms=real[:, c.KF_ARRIVED].copy(),
        router_ms=real[:, c.KF_ROUTER].copy(),
        network_ms=real[:, c.KF_NETWORK].copy(),
        queue_ms=real[:, c.KF_QUEUE].copy(),
        gpu_ms=real[:, c.KF_GPU].copy(),
    )
