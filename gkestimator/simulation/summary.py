"""Turn what a simulation counted into its report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gkestimator.documents import PlacementPlan
from gkestimator.documents.simulation import (
    QUANTILES_PCT,
    SimulatedApplication,
    SimulatedGpu,
    SimulatedModel,
    SimulationReport,
    SimulationSettings,
    SimulationTotals,
    StageTimes,
    TimelineModel,
)
from gkestimator.simulation.arrays import Floats, Ints, NumberOrNone, Texts, ValuesByName
from gkestimator.simulation.histogram import quantile_ms
from gkestimator.simulation.result import STAGES, Result
from gkestimator.simulation.system import System

_TOTAL = STAGES.index("total")
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def summarise(
    plan: PlacementPlan,
    system: System,
    result: Result,
    settings: SimulationSettings,
    notes: Texts = (),
) -> SimulationReport:
    """Return the report of ``result``, had from simulating ``system``, which was built from ``plan``."""
    seconds = (result.until_ms - result.from_ms) / 1e3
    models = _models(plan, system, result, settings.rate_scale, seconds)
    gpus = _gpus(plan, result)
    return SimulationReport(
        settings=settings,
        totals=_totals(plan, system, result, settings.rate_scale, seconds, models, gpus),
        models=models,
        applications=_applications(system, result, settings.rate_scale, seconds),
        gpus=gpus,
        timeline=_timeline(system, result),
        notes=tuple(notes),
    )


def _timeline(system: System, result: Result) -> tuple[TimelineModel, ...]:
    timeline = []
    for i, model in enumerate(system.models):
        of_model = TimelineModel(
            model=model.name,
            arrived=tuple(result.arrived_by_window[i].tolist()),
            on_time=tuple(result.on_time_by_window[i].tolist()),
            wait_mean_ms=window_means(result.wait_by_window_ms[i], result.done_by_window[i]),
        )
        timeline.append(of_model)
    return tuple(timeline)


def window_means(totals: Floats, counts: Ints) -> tuple[NumberOrNone, ...]:
    """Return the mean of each window; None of nothing."""
    return tuple(map(mean_of, totals.tolist(), counts.tolist()))


def mean_of(total: float, count: int) -> NumberOrNone:
    """Return the mean of ``count`` things that sum to ``total``; None of nothing."""
    if count:
        return total / count
    return None


def percent_of(part: int, whole: int) -> NumberOrNone:
    """Return the share of ``whole`` in percent; None of nothing."""
    return mean_of(100 * part, whole)


def rejected_by_model(system: System, result: Result) -> list[int]:
    """Return how many requests were turned away at each model's own door."""
    rejected = [0] * len(system.models)
    for source, count in zip(system.sources, result.source_rejected.tolist(), strict=True):
        if not source.application:
            rejected[source.stages[0].model] += count
    return rejected


def _latencies(histogram: Ints, total_ms: float, count: int) -> ValuesByName:
    """Return mean, percentiles and quantiles of response times by field; all None without any."""
    latencies: ValuesByName = {"latency_mean_ms": mean_of(total_ms, count)}
    for name, q in _PERCENTILES.items():
        latencies[f"latency_{name}_ms"] = quantile_ms(histogram, q)
    quantiles = [quantile_ms(histogram, q / 100) for q in QUANTILES_PCT]
    known = tuple(q for q in quantiles if q is not None)
    return latencies | {"latency_quantiles_ms": known or None}


def _throughput(by_end: int, on_time: int, seconds: float) -> float:
    """Return answers a second: those given by the end of the arrivals.

    Those given after it but on time count too, or a system that keeps up would seem to do less than its
    goodput.
    """
    return max(by_end, on_time) / seconds


def _models(
    plan: PlacementPlan, system: System, result: Result, scale: float, seconds: float
) -> tuple[SimulatedModel, ...]:
    asked = plan.workload.model_rates_rps()
    promised = dict.fromkeys(asked, 0.0)
    replicas = dict.fromkeys(asked, 0)
    for gpu in plan.gpus:
        for r in gpu.replicas:
            promised[r.model] += r.goodput_rps
            replicas[r.model] += 1
    # By replica over the whole run, warm-up included: whole batches and all their requests.
    ran = [0] * len(system.models)
    served = [0] * len(system.models)
    for i, replica in enumerate(system.replicas):
        ran[replica.model] += int(result.replica_batches[i])
        served[replica.model] += int(result.replica_requests[i])
    rejected = rejected_by_model(system, result)
    models = []
    for m, model in enumerate(system.models):
        done = int(result.done[m])
        on_time = int(result.on_time[m])
        batches = int(result.batches[m])
        arrived = int(result.arrived[m]) + rejected[m]
        stages: ValuesByName = {}
        for i, name in enumerate(STAGES[:_TOTAL]):
            stages[name] = StageTimes(
                mean_ms=mean_of(float(result.sums_ms[m, i]), done),
                p50_ms=quantile_ms(result.histograms[m, i], 0.5),
                p99_ms=quantile_ms(result.histograms[m, i], 0.99),
            )
        models.append(
            SimulatedModel(
                model=model.name,
                slo_ms=model.slo_ms,
                replicas=replicas[model.name],
                asked_rps=asked[model.name] * scale,
                promised_rps=promised[model.name],
                arrived_rps=arrived / seconds,
                rejected_rps=rejected[m] / seconds,
                dropped_rps=int(result.dropped[m]) / seconds,
                goodput_rps=on_time / seconds,
                throughput_rps=_throughput(int(result.done_by_end[m]), on_time, seconds),
                on_time_pct=percent_of(on_time, arrived),
                wait_mean_ms=mean_of(float(result.wait_sums_ms[m]), done),
                **_latencies(result.histograms[m, _TOTAL], float(result.sums_ms[m, _TOTAL]), done),
                **stages,
                batches=batches,
                batch_mean=mean_of(served[m], ran[m]),
                batches_full_pct=percent_of(int(result.batches_full[m]), batches),
                batches_timed_out_pct=percent_of(int(result.batches_timed_out[m]), batches),
            )
        )
    return tuple(models)


def _applications(
    system: System, result: Result, scale: float, seconds: float
) -> tuple[SimulatedApplication, ...]:
    applications = []
    for s, source in enumerate(system.sources):
        if not source.application:
            continue
        arrived = int(result.source_arrived[s])
        rejected = int(result.source_rejected[s])
        done = int(result.source_done[s])
        on_time = int(result.source_on_time[s])
        applications.append(
            SimulatedApplication(
                application=source.name,
                slo_ms=source.slo_ms,
                asked_rps=source.rate_rps * scale,
                arrived_rps=arrived / seconds,
                rejected_rps=rejected / seconds,
                dropped_rps=int(result.source_dropped[s]) / seconds,
                goodput_rps=on_time / seconds,
                throughput_rps=_throughput(int(result.source_done_by_end[s]), on_time, seconds),
                on_time_pct=percent_of(on_time, arrived),
                **_latencies(result.source_histograms[s], float(result.source_sums_ms[s]), done),
            )
        )
    return tuple(applications)


def _gpus(plan: PlacementPlan, result: Result) -> tuple[SimulatedGpu, ...]:
    span = result.until_ms - result.from_ms
    gpus = []
    for g, gpu in enumerate(plan.gpus):
        cuti = float(result.gpu_creq_ms[g]) / span
        gpus.append(
            SimulatedGpu(
                id=gpu.id,
                type=gpu.type,
                busy_pct=100 * float(result.gpu_busy_ms[g]) / span,
                cuti_pct=None if math.isnan(cuti) else cuti,
                muti_pct=gpu.muti_pct,
            )
        )
    return tuple(gpus)


def _mean(values: Sequence[NumberOrNone]) -> NumberOrNone:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    return mean_of(sum(known), len(known))


def _totals(
    plan: PlacementPlan,
    system: System,
    result: Result,
    scale: float,
    seconds: float,
    models: Sequence[SimulatedModel],
    gpus: Sequence[SimulatedGpu],
) -> SimulationTotals:
    arrived = int(result.source_arrived.sum())
    rejected = int(result.source_rejected.sum())
    return SimulationTotals(
        goodput_rps=sum(m.goodput_rps for m in models),
        throughput_rps=sum(m.throughput_rps for m in models),
        promised_goodput_rps=plan.totals.goodput_rps,
        expected_goodput_rps=plan.totals.expected_goodput_rps,
        asked_rps=sum(s.rate_rps for s in system.sources) * scale,
        arrived_rps=arrived / seconds,
        rejected_rps=rejected / seconds,
        dropped_rps=int(result.source_dropped.sum()) / seconds,
        on_time_pct=percent_of(int(result.source_on_time.sum()), arrived),
        **_latencies(
            result.source_histograms.sum(axis=0),
            float(result.source_sums_ms.sum()),
            int(result.source_done.sum()),
        ),
        cuti_pct=_mean([g.cuti_pct for g in gpus]),
        muti_pct=_mean([g.muti_pct for g in gpus]),
        gpus_used=len(plan.gpus),
        cost_per_hour=plan.totals.cost_per_hour,
    )
