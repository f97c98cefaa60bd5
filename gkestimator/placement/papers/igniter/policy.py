"""iGniter: interference-aware provisioning of SM shares by an analytical latency model."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gkestimator.interference.igniter_coefficients import (
    IgniterCoefficients,
    load_of,
    read_coefficients,
    terms_of,
)
from gkestimator.interference.igniter_law import GpuTerms, IgniterLoad, latency_ms, service_ms
from gkestimator.placement.patterns import ROOM_PCT
from gkestimator.placement.policy import Placed, Placement, Policy
from gkestimator.placement.problem import PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

_ENOUGH = 1 - 1e-9


class IgniterPolicy(Policy):
    """Each model gets the batch and the least SM share that serve its rate within half its SLO (the other
    half is the batch's filling), largest demand first, on the GPU where the shares of all on it have to
    grow least so that each still does beside the others; else on a new GPU.

    Source: F. Xu et al., iGniter, IEEE TPDS 2023: the latency model of section 3
    (:mod:`gkestimator.interference.igniter_law`), Theorem 1 (batch and least share), algorithms 1
    and 2. What the paper does not say is decided so:

    - shares and batches are the table's; the batch is the smallest of at least the theorem's, or smaller
      where that has no share that keeps half the SLO and the rate, both of which are then checked;
    - a rate beyond one GPU is split evenly over the fewest replicas that can;
    - a GPU's memory bounds what it takes;
    - with several GPU types each is tried as the one to fill first (the paper rents one type, the
      cheapest); what it cannot take goes to the others, and the best such plan is kept;
    - what is left when GPUs have run out is served as far as it can be (best effort) without touching the
      others' promises.
    """

    name = "igniter"
    summary = "iGniter: SM shares by an analytical model of interference, greedy placement"
    needs = ("memory",)
    options = ("coefficients",)

    def __init__(self, *, coefficients: Path | str | None = None) -> None:
        """``coefficients``: a file of fitted coefficients. Without it the table's columns stand in where
        they can, and a note names the terms that are not counted. Raises SpecError, DocumentError: the
        file is wrong."""
        self._coefficients = None if coefficients is None else read_coefficients(coefficients)

    def place(self, problem: Problem) -> Placement:
        """The placement. Raises UsageError: a figure that the model needs is in neither table nor
        coefficients."""
        profiles = {
            (m.name, t): _Profile(problem, m, t, self._coefficients)
            for m in problem.models
            for t in problem.types
        }
        prices = problem.prices
        # A fixed order, whatever the workload's, for what the paper's order by shares leaves open.
        problem = problem.with_models(tuple(sorted(problem.models, key=lambda m: m.name)))
        plans = []
        for first in problem.types:
            others = sorted((t for t in problem.types if t != first), key=lambda t: prices.get(t) or math.inf)
            plans.append(_Plan(problem, profiles, (first, *others)))
        best = min(plans, key=lambda p: p.order()) if plans else None
        placed = best.placed() if best else []
        able = {name for (name, _), profile in profiles.items() if profile.able}
        return Placement(
            placed=tuple(placed),
            reasons={
                m.name: f"no row is within half its SLO ({m.slo_ms / 2:g} ms, the other half is for filling a "
                "batch) and the memory"
                for m in problem.models
                if m.name not in able
            },
            notes=_not_counted(profiles.values(), self._coefficients),
        )


def _not_counted(profiles: Iterable[_Profile], coefficients: IgniterCoefficients | None) -> tuple[str, ...]:
    loads = [load for p in profiles for load in p.loads.values()]
    terms = []
    if any(load.input_bytes is None or load.output_bytes is None for load in loads):
        terms.append("moving inputs and outputs (input_bytes or output_bytes is null)")
    if loads and coefficients is None:
        terms.append(
            "the scheduling delay of neighbours and the clock under the power limit (no --coefficients)"
        )
    elif any(load.power_w is None for load in loads):
        terms.append("the clock under the power limit (power_w is null and the coefficients have none)")
    if terms:
        return (f"iGniter's latency leaves out {' and '.join(terms)}",)
    return ()


class _Profile:
    """One model on one GPU type: its candidates in the latency model's terms."""

    def __init__(
        self, problem: Problem, model: PlacementModel, gpu_type: str, coefficients: IgniterCoefficients | None
    ) -> None:
        self.model = model
        self.gpu: GpuTerms = terms_of(problem.specs[gpu_type], coefficients)
        beside = any(c.sm_share_pct < 100 for m in problem.models for c in m.on(gpu_type, sm_share_pct=None))
        self.loads: dict[int, IgniterLoad] = {}
        self.able: list[Candidate] = []
        for c in model.feasible(gpu_type, sm_share_pct=None):
            if c.memory_pct is None or c.memory_pct > ROOM_PCT:
                continue
            self.loads[id(c)] = load_of(model.name, c, self.gpu, coefficients, beside=beside)
            if latency_ms(self.gpu, [self.loads[id(c)]], 0) <= model.slo_ms / 2:
                self.able.append(c)

    def alone_rps(self, candidate: Candidate) -> float:
        """Requests a second without neighbours."""
        return 1e3 * candidate.batch_size / service_ms(self.gpu, [self.loads[id(candidate)]], 0)

    def wanted_batch(self, rate_rps: float) -> int:
        """Theorem 1: the batch that fills in what half the SLO leaves beside loading it."""
        load = next(iter(self.loads.values()))
        per_sample = (load.input_bytes or 0.0) / load.batch_size
        pcie = self.gpu.pcie_bytes_per_s
        slo_s = self.model.slo_ms / 1e3
        return max(1, math.ceil(slo_s * rate_rps * pcie / (2 * (pcie + rate_rps * per_sample)) - 1e-9))

    def ladder(self, rate_rps: float) -> tuple[Candidate, ...]:
        """The candidates of the batch for ``rate_rps``, from the least share that serves it on; empty: none
        does."""
        batches = sorted({c.batch_size for c in self.able})
        wanted = self.wanted_batch(rate_rps) if batches else 0
        above = [i for i, b in enumerate(batches) if b >= wanted]
        for batch in reversed(batches[: above[0] + 1] if above else batches):
            shares = [c for c in self.able if c.batch_size == batch]
            for i, c in enumerate(shares):
                if self.alone_rps(c) >= rate_rps * _ENOUGH:
                    return tuple(shares[i:])
        return ()

    def split(self, rate_rps: float) -> tuple[int, tuple[Candidate, ...]]:
        """The fewest replicas that serve ``rate_rps`` in even parts, and the ladder of each; (0, ()): none
        do."""
        for count in sorted({math.ceil(rate_rps / self.alone_rps(c) * _ENOUGH) for c in self.able}):
            found = self.ladder(rate_rps / count)
            if found:
                return count, found
        return 0, ()


@dataclass(frozen=True, slots=True)
class _Tenant:
    """A replica on a GPU: ``rung`` of ``ladder`` is its candidate."""

    profile: _Profile
    ladder: tuple[Candidate, ...]
    rung: int
    rate_rps: float

    @property
    def candidate(self) -> Candidate:
        return self.ladder[self.rung]

    @property
    def load(self) -> IgniterLoad:
        return self.profile.loads[id(self.candidate)]

    def key(self) -> tuple[int, int, float]:
        return (id(self.candidate), len(self.ladder) - self.rung, self.rate_rps)


_Tenants: TypeAlias = tuple[_Tenant, ...]
_Case: TypeAlias = tuple[tuple[int, int, float], ...]


def _keeps(tenants: _Tenants, which: int) -> bool:
    """Whether a tenant serves its rate within half its SLO beside the others."""
    t = tenants[which]
    loads = [x.load for x in tenants]
    if latency_ms(t.profile.gpu, loads, which) > t.profile.model.slo_ms / 2:
        return False
    return 1e3 * t.candidate.batch_size / service_ms(t.profile.gpu, loads, which) >= t.rate_rps * _ENOUGH


def _fits(tenants: _Tenants) -> bool:
    share = sum(t.candidate.sm_share_pct for t in tenants)
    memory = sum(t.candidate.memory_pct or 0.0 for t in tenants)
    return share <= ROOM_PCT and memory <= ROOM_PCT


def _alloc(tenants: _Tenants) -> _Tenants | None:
    """Algorithm 2: shares grow, one step each a round, until everyone keeps his half SLO and rate; None:
    they outgrow the GPU."""
    changed = True
    while changed:
        if not _fits(tenants):
            return None
        changed = False
        now = list(tenants)
        for i, t in enumerate(tenants):
            if not _keeps(tuple(now), i):
                if t.rung + 1 == len(t.ladder):
                    return None
                now[i] = _Tenant(t.profile, t.ladder, t.rung + 1, t.rate_rps)
                changed = True
        tenants = tuple(now)
    return tenants


class _Pool:
    """The GPUs of one type. Those on which the same runs are one case: a decision looks at cases, not at
    GPUs."""

    def __init__(self, limit: int | None) -> None:
        self.gpus: list[_Tenants] = []
        self._limit = limit
        self._cases: dict[_Case, tuple[_Tenants, list[int]]] = {}

    def cases(self) -> list[tuple[_Case, _Tenants, int]]:
        """(case, who runs, first GPU) of every case with a share left; an unused GPU, if there is one,
        comes last."""
        found = [(key, tenants, numbers[0]) for key, (tenants, numbers) in self._cases.items() if numbers]
        if self._limit is None or len(self.gpus) < self._limit:
            found.append(((), (), len(self.gpus)))
        return found

    def put(self, number: int, tenants: _Tenants) -> None:
        """``tenants`` now run on GPU ``number``, the first of its case (or a new one)."""
        if number == len(self.gpus):
            self.gpus.append(tenants)
        else:
            heapq.heappop(self._cases[_case(self.gpus[number])][1])
            self.gpus[number] = tenants
        if sum(t.candidate.sm_share_pct for t in tenants) < 100 - 1e-9:
            heapq.heappush(self._cases.setdefault(_case(tenants), (tenants, []))[1], number)


def _case(tenants: _Tenants) -> _Case:
    return tuple(t.key() for t in tenants)


class _Plan:
    """The greedy plan that fills GPUs of ``types`` in this order."""

    def __init__(
        self, problem: Problem, profiles: dict[tuple[str, str], _Profile], types: tuple[str, ...]
    ) -> None:
        self._problem = problem
        self._profiles = profiles
        self._pools = {t: _Pool(problem.limits[t]) for t in types}
        self._missing = {m.name: m.rate_rps for m in problem.models}
        for gpu_type in types:
            self._fill(gpu_type)
        for gpu_type in types:
            self._best_effort(gpu_type)

    def _lacks(self, model: PlacementModel) -> bool:
        return self._missing[model.name] > model.rate_rps * (1 - _ENOUGH)

    def _fill(self, gpu_type: str) -> None:
        """Algorithm 1 on one type: replicas by their least share, descending."""
        waiting: list[_Tenant] = []
        for model in self._problem.models:
            if self._lacks(model):
                profile = self._profiles[model.name, gpu_type]
                count, ladder = profile.split(self._missing[model.name])
                waiting += [_Tenant(profile, ladder, 0, self._missing[model.name] / max(1, count))] * count
        waiting.sort(key=lambda t: -t.candidate.sm_share_pct)
        pool = self._pools[gpu_type]
        known: dict[tuple[object, ...], _Tenants | None] = {}
        for tenant in waiting:
            best: tuple[float, int, _Tenants] | None = None
            new: int | None = None
            for case, here, number in pool.cases():
                if not here:
                    new = number
                    continue
                if (key := (tenant.key(), case)) not in known:
                    known[key] = _alloc((*here, tenant))
                grown = known[key]
                if grown is None:
                    continue
                increase = sum(t.candidate.sm_share_pct for t in grown)
                increase -= sum(t.candidate.sm_share_pct for t in here)
                if best is None or (increase, number) < best[:2]:
                    best = (increase, number, grown)
            if best is not None:
                pool.put(best[1], best[2])
            elif new is not None:
                pool.put(new, (tenant,))
            else:
                continue
            self._missing[tenant.profile.model.name] -= tenant.rate_rps

    def _best_effort(self, gpu_type: str) -> None:
        """What is left of each model: the way that serves most of it beside what is there, as long as there
        is one."""
        pool = self._pools[gpu_type]
        for model in self._problem.models:
            profile = self._profiles[model.name, gpu_type]
            known: dict[_Case, list[tuple[float, Candidate]]] = {}
            while self._lacks(model):
                missing = self._missing[model.name]
                best: tuple[float, int, _Tenants] | None = None
                for case, here, number in pool.cases():
                    if case not in known:
                        known[case] = _beside(profile, here)
                    ways = known[case]
                    if not ways:
                        continue
                    # The least share that is enough, else the way that serves most.
                    able, candidate = next(
                        (w for w in ways if w[0] >= missing), max(ways, key=lambda w: w[0])
                    )
                    rate = min(missing, able)
                    if best is None or (-rate, number) < (-best[0], best[1]):
                        best = (rate, number, (*here, _Tenant(profile, (candidate,), 0, rate)))
                if best is None:
                    break
                pool.put(best[1], best[2])
                self._missing[model.name] -= best[0]

    def order(self) -> tuple[float, float, float]:
        """Smaller is better: what is not served; of rented GPUs the cost per hour, then how many, else the
        reverse. GPUs count alike where a price is unknown."""
        counts = {t: len(pool.gpus) for t, pool in self._pools.items()}
        number = float(sum(counts.values()))
        prices = {t: p for t in counts if (p := self._problem.prices.get(t)) is not None}
        if len(prices) == len(counts):
            cost = sum(prices[t] * counts[t] for t in counts)
        else:
            cost = number
        if self._problem.elastic:
            thrift = (round(cost, 9), number)
        else:
            thrift = (number, round(cost, 9))
        return (round(sum(self._missing.values()), 6), *thrift)

    def placed(self) -> list[Placed]:
        """The replicas, GPU by GPU in the problem's order of types."""
        found = []
        for gpu_type in self._problem.types:
            for number, tenants in enumerate(self._pools[gpu_type].gpus):
                gpu = self._problem.gpu(gpu_type, number)
                found += [Placed(gpu=gpu, model=t.profile.model.name, candidate=t.candidate) for t in tenants]
        return found


def _beside(profile: _Profile, here: _Tenants) -> list[tuple[float, Candidate]]:
    """(requests a second, candidate) of the ways to run a model beside ``here`` without breaking a promise;
    by share."""
    found = []
    for c in profile.able:
        now = (*here, _Tenant(profile, (c,), 0, 0.0))
        if _fits(now) and all(_keeps(now, i) for i in range(len(now))):
            busy = service_ms(profile.gpu, [t.load for t in now], len(here))
            found.append((1e3 * c.batch_size / busy, c))
    return found
