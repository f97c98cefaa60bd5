"""One end-to-end objective of an application, split over its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gkestimator.documents import Application, ModelLoad, Workload
from gkestimator.placement.problem import Candidate

__all__ = ["split_objective", "stage_objectives"]


def stage_objectives(
    workload: Workload, candidates: Mapping[str, Sequence[Candidate]]
) -> tuple[tuple[ModelLoad, ...], list[str]]:
    """Every model of ``workload`` once, with the rate that reaches it and the objective it must keep, and notes.

    A model asked for in several places is one load: rates add up, the smallest objective and the largest weight hold.
    """
    loads = {m.name: m for m in workload.models}
    notes = []
    for application in workload.applications:
        rates = application.rates_rps()
        budgets = split_objective(application, candidates)
        for stage in application.stages:
            new = ModelLoad(
                name=stage.model,
                rate_rps=rates[stage.model],
                slo_ms=budgets[stage.model],
                weight=application.weight,
            )
            old = loads.get(stage.model)
            if old is not None:
                new = ModelLoad(
                    name=stage.model,
                    rate_rps=old.rate_rps + new.rate_rps,
                    slo_ms=min(old.slo_ms, new.slo_ms),
                    weight=max(old.weight, new.weight),
                )
                notes.append(f"{stage.model} is asked for in several places: served as one, within {new.slo_ms:g} ms")
            loads[stage.model] = new
        parts = ", ".join(f"{s.model} {budgets[s.model]:.4g}" for s in application.stages)
        notes.append(f"application {application.name}: {application.slo_ms:g} ms split as {parts} ms")
    return tuple(loads.values()), notes


def split_objective(
    application: Application, candidates: Mapping[str, Sequence[Candidate]]
) -> dict[str, float]:
    """Milliseconds for each stage, so that no way through the stages takes longer than the application's objective.

    In proportion to each stage's fastest latency, on the longest way that it lies on.
    """
    fastest = {s.model: min(c.latency_ms for c in candidates[s.model]) for s in application.stages}
    longest: dict[str, float] = dict.fromkeys(fastest, 0.0)
    for path in application.paths():
        total = sum(fastest[m] for m in path)
        for model in path:
            longest[model] = max(longest[model], total)
    return {m: application.slo_ms * fastest[m] / longest[m] for m in fastest}
