"""Make plans while a service runs: the policy again, by ``gkest schedule``'s own code, for the rates that came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.documents import Application, PlacementPlan, Workload, read_cluster
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.interference.base import Interference
from gkestimator.interference.contention import unanswerable
from gkestimator.interference.registry import interference_between
from gkestimator.placement.scheduling import schedule
from gkestimator.serving.served import ServedPlan
from gkestimator.serving.serving_plan import served_plan
from gkestimator.simulation.arrivals.making import sources_of
from gkestimator.simulation.conditions import rows_of_models
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.tables import Requirement


@frozen
class PlanningSettings:
    """Say by what plans are made and judged: the files of ``gkest schedule``, and when it runs again (``replan``)."""

    tables: Names
    cluster: str | None
    gpu_specs: Names
    policy: str | None
    policy_options: NamedValues
    replan: Replanning | None
    emulate: bool
    interference: str
    coefficients: str | None


class ServicePlanner:
    """Read the tables once, and make plans by them. Raises UsageError, TableError and DocumentError."""

    def __init__(self, settings: PlanningSettings, first: PlacementPlan) -> None:
        self._settings = settings
        self._first = first
        self._rows: list[Requirement] = rows_of_models(settings.tables, first.workload.names())
        self._notes: Names = ()
        self._law = self._made_law()
        self.pool = self._gpu_pool()

    def served(self, plan: PlacementPlan) -> ServedPlan:
        """Return ``plan`` as it is served."""
        settings = self._settings
        table = ", ".join(settings.tables)
        served = served_plan(plan, self._rows, law=self._law, gpu_specs=settings.gpu_specs, table=table)
        return replace(served, notes=(*served.notes, *self._notes))

    def plan_for(self, workload: Workload) -> PlacementPlan:
        """Return the policy's plan for ``workload``. Raises what ``gkest schedule`` raises."""
        settings = self._settings
        first = self._first
        assert settings.cluster is not None
        own = [r for gpu in first.gpus for r in gpu.replicas]
        asked: dict[str, Any] = {}
        for column in ("runtime", "dtype", "dims"):
            texts = {getattr(r, column) for r in own}
            if len(texts) == 1:  # a table of several answers each question once, as for the first plan
                asked[column] = texts.pop()
        return schedule(
            settings.tables,
            workload.document(),
            Path(settings.cluster),
            policy=settings.policy or first.policy,
            objective=first.objective,
            creq=first.creq,
            options=settings.policy_options,
            seed=first.seed,
            gpu_specs=settings.gpu_specs,
            allow_unserved=True,
            **asked,
        ).plan

    def _made_law(self) -> Interference | None:
        settings = self._settings
        if not settings.emulate:
            return None
        if settings.coefficients is None:
            note = unanswerable(settings.interference, self._rows)
            if note is not None:
                self._notes = (note,)
                return None
        catalogue = gpu_catalogue(settings.gpu_specs)
        types = dict.fromkeys(gpu.type for gpu in self._first.gpus)
        specs = [catalogue.spec(name) for name in types]
        if settings.cluster is not None:
            known = {spec.name for spec in specs}
            there = read_cluster(settings.cluster, gpu_specs=settings.gpu_specs).types
            specs += [spec for spec in there if spec.name not in known]
        return interference_between(settings.interference, settings.coefficients, specs)

    def _gpu_pool(self) -> Mapping[str, list[str]] | None:
        """Return the ids of a fixed cluster's GPUs by type; None without one."""
        if self._settings.cluster is None:
            return None
        cluster = read_cluster(self._settings.cluster, gpu_specs=self._settings.gpu_specs)
        if not cluster.gpus:
            return None
        return {g.spec.name: [f"{g.spec.name}-{i}" for i in range(g.count)] for g in cluster.gpus}


class SourceCounter:
    """Turn requests by model into rates by source: models asked for by themselves, then applications.

    An application is counted by its first stage that nothing else asks for. Raises UsageError where there is none.
    """

    def __init__(self, workload: Workload) -> None:
        self._parts: list[tuple[str, float]] = []
        sources = sources_of(workload)
        asking: dict[str, int] = dict.fromkeys(workload.names(), 0)
        shares = []
        for source in sources:
            if isinstance(source, Application):
                rates = source.rates_rps()
            else:
                rates = {source.name: source.rate_rps}
            shares.append({name: rate / source.rate_rps for name, rate in rates.items()})
            for name in rates:
                asking[name] += 1
        for source, share in zip(sources, shares, strict=True):
            alone = next((name for name in share if asking[name] == 1), None)
            if alone is None:
                raise UsageError(
                    f"re-planning: every model of {source.name} is asked for elsewhere too, so that its rate cannot be "
                    "counted; expected one of its own"
                )
            self._parts.append((alone, share[alone]))

    def rates_rps(self, arrived: Mapping[str, int], seconds: float) -> tuple[float, ...]:
        """Return the requests a second of each source, in which ``arrived`` by model came in ``seconds``."""
        return tuple(arrived.get(name, 0) / share / seconds for name, share in self._parts)


def checked_replan(settings: PlanningSettings, plan: PlacementPlan) -> None:
    """Raise UsageError where the policy could not run again as ``settings`` say."""
    if settings.replan is None:
        return
    from gkestimator.placement.registry import make_policy

    if settings.cluster is None:
        raise UsageError(
            f"replan {settings.replan.kind}: {spelled('cluster')} is missing: the GPUs that the policy may use"
        )
    make_policy(settings.policy or plan.policy, **settings.policy_options)
    SourceCounter(plan.workload)
