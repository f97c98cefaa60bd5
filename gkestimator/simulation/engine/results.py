"""Make the result from what the engine counted."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from gkestimator.simulation.arrays import Ints
from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.records import Records, rows
from gkestimator.simulation.engine.state import EngineState, KeptRecord
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import STAGES, CountedRequests, Result, TokenCounts
from gkestimator.simulation.system import System


def result_of(
    system: System,
    options: Options,
    s: EngineState,
    source_arrived: Ints,
    source_rejected: Ints,
    kept: list[Records[KeptRecord]],
) -> Result:
    """Return what was counted so far; nothing of it is shared with the state."""
    models = s.models
    replicas = s.replicas
    gpus = s.gpus.copy()
    sources = s.sources.copy()
    histograms = s.source_histograms.copy()
    for k, source in enumerate(sources):
        if source.sole == 0:
            continue
        model = models[source.model]
        source.done = model.done
        source.done_by_end = model.done_by_end
        source.on_time = model.on_time
        source.sum_ms = model.total_ms
        histograms[k] = s.histograms[source.model, codes.TOTAL]
    windows = s.windows.copy()
    for replica in system.replicas:
        # GPUs that hold one replica together are busy together.
        for gpu in replica.iterates.beside if replica.iterates else ():
            gpus[gpu].busy_ms = gpus[replica.gpu].busy_ms
            gpus[gpu].creq_ms = gpus[replica.gpu].creq_ms
    requests = None
    if options.keep_requests:
        requests = _requests(kept)
    return Result(
        from_ms=options.warmup_ms,
        until_ms=options.duration_ms,
        end_ms=float(s.loop.last_ms),
        arrived=models["arrived"].copy(),
        done=models["done"].copy(),
        done_by_end=models["done_by_end"].copy(),
        on_time=models["on_time"].copy(),
        dropped=models["dropped"].copy(),
        sums_ms=np.stack([models[f"{stage}_ms"] for stage in STAGES], axis=1),
        wait_sums_ms=models["wait_ms"].copy(),
        histograms=s.histograms.copy(),
        batches=models["batches"].copy(),
        batches_full=models["full"].copy(),
        batches_timed_out=models["timed_out"].copy(),
        source_arrived=source_arrived + sources["sent"],
        source_rejected=source_rejected.copy(),
        source_dropped=sources["dropped"].copy(),
        source_done=sources["done"].copy(),
        source_done_by_end=sources["done_by_end"].copy(),
        source_on_time=sources["on_time"].copy(),
        source_sums_ms=sources["sum_ms"].copy(),
        source_histograms=histograms,
        window_ms=options.window_ms,
        arrived_by_window=windows[:, codes.CAME],
        on_time_by_window=windows[:, codes.ON_TIME],
        done_by_window=windows[:, codes.ANSWERED],
        wait_by_window_ms=s.window_waits.copy(),
        busy_ms=replicas["busy_ms"].copy(),
        replica_batches=replicas["batches"].copy(),
        replica_requests=replicas["requests"].copy(),
        last_done_ms=replicas["last_ms"].copy(),
        gpu_busy_ms=gpus["busy_ms"].copy(),
        gpu_creq_ms=gpus["creq_ms"].copy(),
        requests=requests,
        tokens=_tokens(s, options, kept) if s.options.sequences else None,
    )


def _tokens(s: EngineState, options: Options, kept: list[Records[KeptRecord]]) -> TokenCounts:
    first = None
    if options.keep_requests:
        first = np.concatenate([np.zeros(0), *(part["first_ms"] for part in kept)])
    replicas = np.flatnonzero(s.replicas["iterator"] >= 0)
    sums = s.iterators[s.replicas["iterator"][replicas]]
    return TokenCounts(
        tokens=s.models["tokens"].copy(),
        preempted=s.models["preempted"].copy(),
        iterations=s.models["iterations"].copy(),
        spread=s.models["spread"].copy(),
        ttft_sums_ms=s.models["ttft_ms"].copy(),
        tpot_sums_ms=s.models["tpot_ms"].copy(),
        histograms=s.token_histograms.copy(),
        replicas=replicas,
        sequences_ms=sums["sequences_ms"].copy(),
        held_ms=sums["held_ms"].copy(),
        first_ms=first,
    )


def _requests(kept: list[Records[KeptRecord]]) -> CountedRequests:
    """Return every request that was kept. The parts are put together here once; the state holds no copy."""
    parts = [rows(KeptRecord), *kept]
    columns = {}
    for field in fields(CountedRequests):
        columns[field.name] = np.concatenate([part[field.name] for part in parts])
    return CountedRequests(**columns)
