"""Report a run with re-planning: totals, models, decisions, GPUs and waits over time."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.core.versions import record_version
from gkestimator.simulation.arrays import Names, NumberOrNone, Numbers, Texts, ValuesByName, Wholes
from gkestimator.simulation.histogram import quantile_ms
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.change import Counted
from gkestimator.simulation.replanning.control import PolicyDecision, Replanned
from gkestimator.simulation.replanning.fleet import GpuUse, max_memory, memory_sum
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.simulation.result import STAGES, Result
from gkestimator.simulation.summary import mean_of, percent_of, rejected_by_model, window_means

_TOTAL = STAGES.index("total")


@frozen
class ReplanTotals:
    """Hold what became of the requests of clients (an application's is one) that came while counted.

    ``arrived`` of them, ``rejected`` at the door, ``done``, ``on_time``, ``dropped`` (too late to be served,
    with that option), ``unanswered`` (a plan left them without a replica to the end). ``goodput_rps``:
    requests to models answered within their SLO, by the second; ``wait_mean_ms``: arrival at the router to
    start of service, ``latency_*`` per request to a model.

    A GPU counts from the start of its first load until its last batch is done, up to the end of the arrivals:
    ``gpus_mean``, ``gpus_peak``, ``gpu_hours``, ``cost`` in USD (null where a price is unknown). ``changes``:
    decisions that were carried out; ``failed``: that the policy could not answer. Replicas over all changes:
    ``kept`` as they were, ``reset`` (other settings, no load), ``loads``, of these ``moves`` (the model lost
    a replica elsewhere), ``ends``, of these ``retired_first`` because memory did not allow old and new
    together. ``memory_peak_pct``: the most that any GPU held at any time (null: unknown).
    """

    arrived: int
    rejected: int
    done: int
    on_time: int
    dropped: int
    unanswered: int
    on_time_pct: NumberOrNone
    goodput_rps: float
    wait_mean_ms: NumberOrNone
    latency_p50_ms: NumberOrNone
    latency_p99_ms: NumberOrNone
    gpus_mean: float
    gpus_peak: int
    gpu_hours: float
    cost: NumberOrNone
    decisions: int
    changes: int
    failed: int
    kept: int
    reset: int
    loads: int
    moves: int
    ends: int
    retired_first: int
    memory_peak_pct: NumberOrNone


@frozen
class ReplanModel:
    """Hold requests to one model, stages of applications included; null where none was done.

    ``rejected``: at its own door (an application's that is turned away stands with the totals), of those that
    ``arrived``.
    """

    model: str
    slo_ms: float
    arrived: int
    rejected: int
    done: int
    on_time: int
    wait_mean_ms: NumberOrNone
    latency_p50_ms: NumberOrNone
    latency_p99_ms: NumberOrNone


@frozen
class ReplanDecision:
    """Hold that the policy was asked again.

    ``rates_rps`` by source, as counted (gpulet's: their moving average); ``gpus``, ``goodput_rps`` of the new
    plan (null: it ``failed``); what the change did; ``ready_s``: when it was complete (null: nothing was
    changed).
    """

    time_s: float
    reason: str
    rates_rps: Mapping[str, float]
    failed: str | None
    gpus: int | None
    goodput_rps: NumberOrNone
    kept: int
    reset: int
    loads: int
    moves: int
    ends: int
    retired_first: int
    ready_s: NumberOrNone


@frozen
class ReplanTimeline:
    """Hold figures by window of ``window_s`` from the start (warm-up included), all models together.

    By time of arrival at a router: requests that ``arrived``, those answered within the model's SLO, the mean
    wait until service in ms of those that were served (null where none was); ``gpus``: mean number in use.
    """

    window_s: float
    arrived: Wholes
    on_time: Wholes
    wait_mean_ms: tuple[NumberOrNone, ...]
    gpus: Numbers


@frozen
class ReplanReport:
    """Hold what came of a run with re-planning. ``replan``: the settings (null: the first plan served to the end)."""

    policy: str
    arrivals: str
    options: Options
    replan: Replanning | None
    totals: ReplanTotals
    models: tuple[ReplanModel, ...]
    decisions: tuple[ReplanDecision, ...]
    timeline: ReplanTimeline
    notes: Names = ()


def replan_document(report: ReplanReport) -> ValuesByName:
    """Return ``report`` as the mapping that its JSON file holds."""
    return {"schema_version": record_version(ReplanReport), **dataclasses.asdict(report)}


def replan_json(report: ReplanReport) -> str:
    """Return ``report`` as JSON text."""
    return json.dumps(replan_document(report), indent=1, allow_nan=False) + "\n"


def report_of(
    run: Replanned,
    *,
    policy: str,
    arrivals: str,
    options: Options,
    replan: Replanning | None,
    prices: Mapping[str, NumberOrNone],
    notes: Texts = (),
) -> ReplanReport:
    """Return the report of ``run``. ``prices``: USD per hour by GPU type."""
    result = run.result
    names = [s.name for s in run.system.sources]
    histogram = result.histograms[:, _TOTAL].sum(axis=0)
    arrived = int(result.source_arrived.sum())
    on_time = int(result.source_on_time.sum())
    spans = _spans(run.uses, result, options.duration_ms)
    types = {g.id: g.type for g in run.system.gpus}
    hours = {gpu: sum(b - a for a, b in parts) / 3.6e6 for gpu, parts in spans.items()}
    changes = [d.counted for d in run.decisions if d.counted is not None]
    rejected = int(result.source_rejected.sum())
    answered = int(result.source_done.sum())
    dropped = int(result.source_dropped.sum())
    totals = ReplanTotals(
        arrived=arrived,
        rejected=rejected,
        done=answered,
        dropped=dropped,
        unanswered=arrived - rejected - dropped - answered,
        on_time=on_time,
        on_time_pct=percent_of(on_time, arrived),
        goodput_rps=float(result.on_time.sum()) / (result.until_ms - result.from_ms) * 1e3,
        wait_mean_ms=mean_of(float(result.wait_sums_ms.sum()), int(result.done.sum())),
        latency_p50_ms=quantile_ms(histogram, 0.5),
        latency_p99_ms=quantile_ms(histogram, 0.99),
        gpus_mean=sum(hours.values()) * 3.6e6 / options.duration_ms,
        gpus_peak=_peak(spans.values()),
        gpu_hours=sum(hours.values()),
        cost=memory_sum(_cost(h, prices.get(types[gpu])) for gpu, h in hours.items()),
        decisions=len(run.decisions),
        changes=len(changes),
        failed=sum(d.failed is not None for d in run.decisions),
        **{f.name: sum(getattr(c, f.name) for c in changes) for f in dataclasses.fields(Counted)},
        memory_peak_pct=max_memory(run.peak_memory_pct.values()),
    )
    return ReplanReport(
        policy=policy,
        arrivals=arrivals,
        options=options,
        replan=replan,
        totals=totals,
        models=_models(run),
        decisions=tuple(_decision(d, names) for d in run.decisions),
        timeline=_timeline(result, spans, options),
        notes=tuple(notes),
    )


def _models(run: Replanned) -> tuple[ReplanModel, ...]:
    result = run.result
    rejected = rejected_by_model(run.system, result)
    models = []
    for m, model in enumerate(run.system.models):
        done = int(result.done[m])
        histogram = result.histograms[m, _TOTAL]
        of_model = ReplanModel(
            model=model.name,
            slo_ms=model.slo_ms,
            arrived=int(result.arrived[m]) + rejected[m],
            rejected=rejected[m],
            done=done,
            on_time=int(result.on_time[m]),
            wait_mean_ms=mean_of(float(result.wait_sums_ms[m]), done),
            latency_p50_ms=quantile_ms(histogram, 0.5),
            latency_p99_ms=quantile_ms(histogram, 0.99),
        )
        models.append(of_model)
    return tuple(models)


def _decision(decision: PolicyDecision, names: Texts) -> ReplanDecision:
    gpus = goodput_rps = ready_s = None
    if decision.plan is not None:
        gpus = decision.plan.totals.gpus_used
        goodput_rps = decision.plan.totals.goodput_rps
    if decision.ready_ms is not None:
        ready_s = decision.ready_ms / 1e3
    return ReplanDecision(
        time_s=decision.time_ms / 1e3,
        reason=decision.reason,
        rates_rps=dict(zip(names, decision.rates_rps, strict=True)),
        failed=decision.failed,
        gpus=gpus,
        goodput_rps=goodput_rps,
        **dataclasses.asdict(decision.counted or Counted()),
        ready_s=ready_s,
    )


Span = tuple[float, float]


def _spans(uses: Sequence[GpuUse], result: Result, until_ms: float) -> dict[str, list[Span]]:
    """Return, by GPU, the times in which it is in use, in order, none over another; up to ``until_ms``."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for use in uses:
        start = min(use.start_ms, until_ms)
        end = min(use.end_ms(result.last_done_ms, until_ms), until_ms)
        of_gpu = spans[use.gpu]
        if of_gpu and start <= of_gpu[-1][1]:  # used anew before its last batch was done
            start, before = of_gpu.pop()
            end = max(end, before)
        of_gpu.append((start, end))
    return dict(spans)


def _peak(spans: Iterable[Sequence[Span]]) -> int:
    """Return the most GPUs in use at one time (one that is left at the moment when another is entered: not both)."""
    steps = []
    for of_gpu in spans:
        for start, end in of_gpu:
            if end > start:
                steps += [(start, 1), (end, -1)]
    counts = itertools.accumulate(step for _, step in sorted(steps))
    return max(counts, default=0)


def _cost(hours: float, price: NumberOrNone) -> NumberOrNone:
    if price is None:
        return None
    return hours * price


def _timeline(result: Result, spans: Mapping[str, Sequence[Span]], options: Options) -> ReplanTimeline:
    windows = math.ceil(options.duration_ms / options.window_ms)
    starts = np.arange(windows) * options.window_ms
    ends = np.minimum(starts + options.window_ms, options.duration_ms)
    used_ms = np.zeros(windows)
    for of_gpu in spans.values():
        for start, end in of_gpu:
            overlap = np.minimum(ends, end) - np.maximum(starts, start)
            used_ms += np.clip(overlap, 0.0, None)
    waited_ms = result.wait_by_window_ms.sum(axis=0)
    return ReplanTimeline(
        window_s=options.window_ms / 1e3,
        arrived=tuple(result.arrived_by_window.sum(axis=0).tolist()),
        on_time=tuple(result.on_time_by_window.sum(axis=0).tolist()),
        wait_mean_ms=window_means(waited_ms, result.done_by_window.sum(axis=0)),
        gpus=tuple((used_ms / (ends - starts)).tolist()),
    )
