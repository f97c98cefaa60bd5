"""The placement problem that every policy answers: models with their rates, objectives and table rows;
GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.documents import Workload
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.tables.candidate import Candidate

# What the room's values are, by name.
Floats: TypeAlias = Sequence[float]
FloatRow: TypeAlias = tuple[float, ...]
IntRow: TypeAlias = tuple[int, ...]
Names: TypeAlias = tuple[str, ...]
FloatPair: TypeAlias = tuple[float, float]
IndicesByName: TypeAlias = dict[str, list[int]]
Indices: TypeAlias = list[int]
FloatByName: TypeAlias = dict[str, float]
FloatByIndex: TypeAlias = dict[int, float]
Candidates: TypeAlias = tuple[Candidate, ...]
FloatsOrNone: TypeAlias = list[float | None]
Figures: TypeAlias = Mapping[str, float | None]
Words: TypeAlias = dict[str, str]

# Requests come at the rate itself, all the time.
STEADY: tuple[FloatPair, ...] = ((1.0, 1.0),)


@frozen
class PlacementModel:
    """Hold one model of the workload. ``slo_ms`` is its own objective, or its part of an application's;
    ``candidates`` are its rows on the cluster's GPU types at every batch size and SM share, sorted by (GPU
    type in the problem's order, share, batch size). A candidate whose latency is above the objective is still
    here: what is feasible is for the policy to say. ``incomplete`` are rows that cannot be placed, because a
    column that the policy needs is null there (:func:`~gkestimator.placement.policy.checked_problem` puts
    them apart); what else they say was measured. ``batching``: the law by which its servers form batches, one
    of :data:`gkestimator.documents.plan.BATCHINGS`."""

    name: str
    rate_rps: float
    slo_ms: float
    weight: float = 1.0
    candidates: Candidates
    incomplete: Candidates = ()
    batching: str = "early"
    # Policies ask :meth:`on` thousands of times for each of a few groups.
    _groups: dict[tuple[str, float | None], Candidates] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def on(self, gpu: str, *, sm_share_pct: float | None = 100.0) -> Candidates:
        """Return the candidates on GPU type ``gpu`` at one SM share (None: at every), by ascending share and
        batch size."""
        key = (gpu, sm_share_pct)
        group = self._groups.get(key)
        if group is None:
            on_type = [c for c in self.candidates if c.gpu == gpu]
            group = tuple(c for c in on_type if sm_share_pct in (None, c.sm_share_pct))
            self._groups[key] = group
        return group

    def feasible(self, gpu: str, *, sm_share_pct: float | None = 100.0) -> Candidates:
        """Return those of :meth:`on` whose latency is at most the objective."""
        return tuple(c for c in self.on(gpu, sm_share_pct=sm_share_pct) if c.latency_ms <= self.slo_ms)


@frozen
class Gpu:
    """Name one GPU of a fixed cluster, or one that a policy rents. ``id`` is ``<type>-<number from 0>``."""

    id: str
    type: str


@frozen
class Offer:
    """Offer a GPU type that may be rented; ``limit`` of them at most (None: as many as needed)."""

    type: str
    price_per_hour: float
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Hold what a policy is to place, and on what.

    Exactly one of ``gpus`` (a fixed cluster) and ``offers`` (an elastic one) is filled. ``objective``:
    ``goodput`` (as much as the GPUs allow) or ``cost`` (every rate served within its objective at the lowest
    cost per hour; on a fixed cluster: on the fewest, then cheapest GPUs). ``specs`` and ``prices`` (USD per
    hour, None where unknown) are by GPU type. ``creq`` is a key of CREQ_COLUMNS. Randomness comes from
    ``seed`` alone. ``factors``: what the rates are multiplied by, and for which part of the time; the products
    sum to 1, so that a rate is the mean.
    """

    models: tuple[PlacementModel, ...]
    gpus: tuple[Gpu, ...] = ()
    offers: tuple[Offer, ...] = ()
    objective: str = "goodput"
    creq: str = "sm-util-mean"
    seed: int = 0
    specs: Mapping[str, GpuSpec]
    prices: Mapping[str, float | None]
    workload: Workload
    notes: Names = ()
    factors: tuple[FloatPair, ...] = STEADY

    @property
    def elastic(self) -> bool:
        """Return whether GPUs are rented."""
        return not self.gpus

    @property
    def batching(self) -> str:
        """Return the law by which the models' servers form batches."""
        if any(model.batching == "late" for model in self.models):
            return "late"
        return "early"

    @cached_property
    def types(self) -> Names:
        """Return the GPU types in the cluster's order."""
        return tuple(dict.fromkeys(g.type for g in self.gpus)) or tuple(o.type for o in self.offers)

    @cached_property
    def by_name(self) -> Mapping[str, PlacementModel]:
        """Return the models by name."""
        return {m.name: m for m in self.models}

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Return the number of GPUs of each type in a fixed cluster."""
        return {t: len(gpus) for t, gpus in self._of_type.items()}

    @cached_property
    def limits(self) -> Mapping[str, int | None]:
        """Return the number of GPUs of each type that may be used: those of a fixed cluster, or the most that
        may be rented (None: any number)."""
        if self.elastic:
            return {o.type: o.limit for o in self.offers}
        return self.counts

    @cached_property
    def pools(self) -> tuple[float, ...]:
        """Return :attr:`limits` in the order of the types; infinite: any number."""
        limits = [self.limits[t] for t in self.types]
        return tuple(math.inf if limit is None else float(limit) for limit in limits)

    @cached_property
    def _of_type(self) -> Mapping[str, tuple[Gpu, ...]]:
        return {t: tuple(g for g in self.gpus if g.type == t) for t in self.types}

    @cached_property
    def known_prices(self) -> Mapping[str, float] | None:
        """Return the price of every type (USD per hour); None where one is unknown, so that costs say
        nothing."""
        known: dict[str, float] = {}
        for gpu_type in self.types:
            price = self.prices.get(gpu_type)
            if price is None:
                return None
            known[gpu_type] = price
        return known

    def rent(self, gpu_type: str) -> float:
        """Return the price of a rented GPU of ``gpu_type`` (USD per hour); 1 where none is rented, or it is
        unknown."""
        price = self.prices.get(gpu_type)
        if price is None or not self.elastic:
            return 1.0
        return price

    def gpu(self, gpu_type: str, number: int) -> Gpu:
        """Return the ``number``-th (from 0) GPU of ``gpu_type``: one of a fixed cluster, or a rented one."""
        if self.elastic:
            return self.rented(gpu_type, number)
        return self._of_type[gpu_type][number]

    def rented(self, gpu_type: str, number: int) -> Gpu:
        """Return the ``number``-th (from 0) rented GPU of ``gpu_type``."""
        return Gpu(id=f"{gpu_type}-{number}", type=gpu_type)

    def with_models(self, models: tuple[PlacementModel, ...]) -> Problem:
        """Return the same problem for other models."""
        return replace(self, models=models)

    def times(self, factor: float) -> Problem:
        """Return the same problem with ``factor`` times the rates, all the time."""
        models = tuple(replace(m, rate_rps=factor * m.rate_rps) for m in self.models)
        return replace(self, models=models, factors=STEADY)
