"""Decide when the policy runs again, and for which rates, by what was counted."""

from __future__ import annotations

import abc
from dataclasses import replace

from gkestimator.documents import Workload
from gkestimator.placement.papers.gpulet.lets import ewma
from gkestimator.simulation.arrays import Numbers, Series
from gkestimator.simulation.arrivals.making import sources_of
from gkestimator.simulation.replanning.settings import Replanning


def source_rates_rps(workload: Workload) -> Numbers:
    """Return the rate of each source: models asked for by themselves, then applications, in the workload's order."""
    return tuple(source.rate_rps for source in sources_of(workload))


def with_rates(workload: Workload, rates_rps: Series) -> Workload:
    """Return ``workload`` with ``rates_rps`` by source, in the order of :func:`source_rates_rps`."""
    rates = iter(rates_rps)
    models = tuple(replace(m, rate_rps=next(rates)) for m in workload.models)
    applications = tuple(replace(a, rate_rps=next(rates)) for a in workload.applications)
    return Workload(models=models, applications=applications)


class Trigger(abc.ABC):
    """Observe the arrivals of each count; say when the policy is to run again, and for which rates."""

    def __init__(self, settings: Replanning, workload: Workload) -> None:
        self.settings = settings
        self.rates_rps: Numbers = source_rates_rps(workload)
        self._workload = workload

    @abc.abstractmethod
    def observe(self, counted_rps: Series) -> None:
        """Take note of the requests a second of each source in the count that has just ended."""

    @abc.abstractmethod
    def due(self, now_ms: float) -> str | None:
        """Return why the policy is to run again now; None: it is not."""

    @abc.abstractmethod
    def planned(self, now_ms: float) -> None:
        """Take note that the policy has run for ``rates_rps``."""

    def asked(self) -> Workload:
        """Return what the policy is to plan for: ``rates_rps``, at least the floor, times the headroom."""
        settings = self.settings
        rates = [max(r, settings.floor_rps) * settings.headroom for r in self.rates_rps]
        return with_rates(self._workload, rates)


class RateTrigger(Trigger):
    """Run the policy again once a model's rate has moved by a threshold since the last plan (USHER)."""

    def __init__(self, settings: Replanning, workload: Workload) -> None:
        super().__init__(settings, workload)
        self._last = workload.model_rates_rps()

    def observe(self, counted_rps: Series) -> None:
        self.rates_rps = tuple(counted_rps)

    def due(self, now_ms: float) -> str | None:
        rates = with_rates(self._workload, self.rates_rps).model_rates_rps()
        moved = {name: abs(rate - self._last[name]) for name, rate in rates.items()}
        name = max(moved, key=lambda n: moved[n], default=None)
        if name is None or moved[name] < self.settings.threshold_rps:
            return None
        return f"{name}: from {self._last[name]:.0f} to {rates[name]:.0f} req/s"

    def planned(self, now_ms: float) -> None:
        self._last = with_rates(self._workload, self.rates_rps).model_rates_rps()


class PeriodTrigger(Trigger):
    """Run the policy again every period, for the moving average of the rates (gpulet)."""

    def __init__(self, settings: Replanning, workload: Workload) -> None:
        super().__init__(settings, workload)
        self._next_ms = settings.period_ms

    def observe(self, counted_rps: Series) -> None:
        alpha = self.settings.smoothing
        self.rates_rps = tuple(
            ewma((old, new), alpha) for old, new in zip(self.rates_rps, counted_rps, strict=True)
        )

    def due(self, now_ms: float) -> str | None:
        if now_ms < self._next_ms:
            return None
        return f"{self.settings.period_ms / 1e3:g} s are over"

    def planned(self, now_ms: float) -> None:
        while self._next_ms <= now_ms:
            self._next_ms += self.settings.period_ms


def make_trigger(settings: Replanning, workload: Workload) -> Trigger:
    """Return the trigger of ``settings``; the running plan is for the rates of ``workload``."""
    kinds: dict[str, type[Trigger]] = {"usher": RateTrigger, "gpulet": PeriodTrigger}
    return kinds[settings.kind](settings, workload)
