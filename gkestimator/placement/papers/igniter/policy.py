"""iGniter: interference-aware provisioning of SM shares by an analytical latency model."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
from gkestimator.placement.problem import Candidates, Names, PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

_RatedCandidate: TypeAlias = tuple[float, Candidate]

_ENOUGH = 1 - 1e-9


class IgniterPolicy(Policy):
    """Give each model the batch and the least SM share that serve its rate within half its SLO (the other
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
        if coefficients is None:
            self._coefficients = None
        else:
            self._coefficients = read_coefficients(coefficients)

    def place(self, problem: Problem) -> Placement:
        """Return the placement. Raises UsageError: a figure that the model needs is in neither table nor
        coefficients."""
        profiles = {}
        for model in problem.models:
            for gpu_type in problem.types:
                profile = _Profile(problem, model, gpu_type, self._coefficients)
                profiles[model.name, gpu_type] = profile
        # A fixed order, whatever the workload's, for what the paper's order by shares leaves open.
        models = sorted(problem.models, key=lambda m: m.name)
        problem = problem.with_models(tuple(models))
        by_price = sorted(problem.types, key=lambda t: problem.prices.get(t) or math.inf)
        plans = []
        for first in problem.types:
            others = [t for t in by_price if t != first]
            plans.append(_Plan(problem, profiles, (first, *others)))
        best = min(plans, key=lambda p: p.order(), default=None)
        able = {name for (name, _), profile in profiles.items() if profile.able}
        reasons = {}
        for m in models:
            if m.name not in able:
                reasons[m.name] = (
                    f"no row is within half its SLO ({m.slo_ms / 2:g} ms, the other half is for filling a "
                    "batch) and the memory"
                )
        placed: list[Placed] = []
        if best:
            placed = best.placed()
        return Placement(
            placed=tuple(placed),
            reasons=reasons,
            notes=_not_counted(profiles.values(), self._coefficients),
        )


def _not_counted(profiles: Iterable[_Profile], coefficients: IgniterCoefficients | None) -> Names:
    """Return a note that names the terms of the latency model that nobody knows figures for."""
    loads = [load for p in profiles for load in p.loads.values()]
    terms = []
    if any(load.input_bytes is None or load.output_bytes is None for load in loads):
        terms.append("moving inputs and outputs (input_bytes or output_bytes is null)")
    if loads and coefficients is None:
        terms.append(
            "the scheduling delay of neighbours and the clock under the power limit (no file of coefficients)"
        )
    elif any(load.power_w is None for load in loads):
        terms.append("the clock under the power limit (power_w is null and the coefficients have none)")
    if terms:
        return (f"iGniter's latency leaves out {' and '.join(terms)}",)
    return ()


class _Profile:
    """Hold one model on one GPU type: its candidates in the latency model's terms."""

    def __init__(
        self, problem: Problem, model: PlacementModel, gpu_type: str, coefficients: IgniterCoefficients | None
    ) -> None:
        self.model = model
        self.half_slo_ms = model.slo_ms / 2
        self.gpu: GpuTerms = terms_of(problem.specs[gpu_type], coefficients)
        beside = any(c.sm_share_pct < 100 for m in problem.models for c in m.on(gpu_type, sm_share_pct=None))
        self.loads: dict[int, IgniterLoad] = {}
        self.able: list[Candidate] = []
        for c in model.feasible(gpu_type, sm_share_pct=None):
            if c.memory_pct is None or c.memory_pct > ROOM_PCT:
                continue
            load = load_of(model.name, c, self.gpu, coefficients, beside=beside)
            self.loads[id(c)] = load
            if latency_ms(self.gpu, [load], 0) <= self.half_slo_ms:
                self.able.append(c)

    def alone_rps(self, candidate: Candidate) -> float:
        """Return the requests a second without neighbours."""
        return 1e3 * candidate.batch_size / service_ms(self.gpu, [self.loads[id(candidate)]], 0)

    def wanted_batch(self, rate_rps: float) -> int:
        """Return the batch that fills in what half the SLO leaves beside loading it (Theorem 1)."""
        load = next(iter(self.loads.values()))
        per_sample = (load.input_bytes or 0.0) / load.batch_size
        pcie = self.gpu.pcie_bytes_per_s
        slo_s = self.model.slo_ms / 1e3
        batch = slo_s * rate_rps * pcie / (2 * (pcie + rate_rps * per_sample))
        return max(1, math.ceil(batch - 1e-9))

    def ladder(self, rate_rps: float) -> Candidates:
        """Return the candidates of the batch for ``rate_rps``, from the least share that serves it on; empty:
        none does."""
        batches = sorted({c.batch_size for c in self.able})
        if not batches:
            return ()
        wanted = self.wanted_batch(rate_rps)
        # From the smallest that is enough downwards.
        tried = batches[: bisect_left(batches, wanted) + 1]
        for batch in reversed(tried):
            shares = [c for c in self.able if c.batch_size == batch]
            for i, c in enumerate(shares):
                if self.alone_rps(c) >= rate_rps * _ENOUGH:
                    return tuple(shares[i:])
        return ()

    def split(self, rate_rps: float) -> tuple[int, Candidates]:
        """Return the fewest replicas that serve ``rate_rps`` in even parts, and the ladder of each; (0, ()):
        none do."""
        for count in sorted({math.ceil(rate_rps / self.alone_rps(c) * _ENOUGH) for c in self.able}):
            ladder = self.ladder(rate_rps / count)
            if ladder:
                return count, ladder
        return 0, ()


@dataclass(frozen=True, slots=True)
class _Tenant:
    """Put a replica on a GPU: ``rung`` of ``ladder`` is its candidate."""

    profile: _Profile
    ladder: Candidates
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
    """Return whether a tenant serves its rate within half its SLO beside the others."""
    tenant = tenants[which]
    gpu = tenant.profile.gpu
    loads = [t.load for t in tenants]
    if latency_ms(gpu, loads, which) > tenant.profile.half_slo_ms:
        return False
    served = 1e3 * tenant.candidate.batch_size / service_ms(gpu, loads, which)
    return served >= tenant.rate_rps * _ENOUGH


def _share_pct(tenants: _Tenants) -> float:
    return sum(t.candidate.sm_share_pct for t in tenants)


def _fits(tenants: _Tenants) -> bool:
    memory = sum(t.candidate.memory_pct or 0.0 for t in tenants)
    return _share_pct(tenants) <= ROOM_PCT and memory <= ROOM_PCT


def _alloc(tenants: _Tenants) -> _Tenants | None:
    """Let shares grow, one step each a round, until everyone keeps his half SLO and rate (algorithm 2); None:
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
                now[i] = replace(t, rung=t.rung + 1)
                changed = True
        tenants = tuple(now)
    return tenants


class _Pool:
    """Hold the GPUs of one type. Those on which the same runs are one case: a decision looks at cases, not at
    GPUs."""

    def __init__(self, limit: int | None) -> None:
        self.gpus: list[_Tenants] = []
        self._limit = limit
        self._cases: dict[_Case, tuple[_Tenants, list[int]]] = {}

    def cases(self) -> list[tuple[_Case, _Tenants, int]]:
        """Return (case, who runs, first GPU) of every case with a share left; an unused GPU, if there is one,
        comes last."""
        cases = [(key, tenants, numbers[0]) for key, (tenants, numbers) in self._cases.items() if numbers]
        if self._limit is None or len(self.gpus) < self._limit:
            cases.append(((), (), len(self.gpus)))
        return cases

    def put(self, number: int, tenants: _Tenants) -> None:
        """Let ``tenants`` run on GPU ``number``, the first of its case (or a new one)."""
        if number == len(self.gpus):
            self.gpus.append(tenants)
        else:
            _, numbers = self._cases[_case(self.gpus[number])]
            heapq.heappop(numbers)
            self.gpus[number] = tenants
        if _share_pct(tenants) < 100 - 1e-9:
            _, numbers = self._cases.setdefault(_case(tenants), (tenants, []))
            heapq.heappush(numbers, number)


def _case(tenants: _Tenants) -> _Case:
    return tuple(t.key() for t in tenants)


class _Plan:
    """Make the greedy plan that fills GPUs of ``types`` in this order."""

    def __init__(self, problem: Problem, profiles: dict[tuple[str, str], _Profile], types: Names) -> None:
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
        """Place replicas on one type by their least share, descending (algorithm 1)."""
        waiting: list[_Tenant] = []
        for model in self._problem.models:
            if self._lacks(model):
                profile = self._profiles[model.name, gpu_type]
                missing = self._missing[model.name]
                count, ladder = profile.split(missing)
                waiting += [_Tenant(profile, ladder, 0, missing / max(1, count))] * count
        waiting.sort(key=lambda t: -t.candidate.sm_share_pct)
        known: dict[object, _Tenants | None] = {}
        for tenant in waiting:
            place = self._least_growth(self._pools[gpu_type], tenant, known)
            if place is not None:
                self._pools[gpu_type].put(*place)
                self._missing[tenant.profile.model.name] -= tenant.rate_rps

    def _least_growth(
        self, pool: _Pool, tenant: _Tenant, known: dict[object, _Tenants | None]
    ) -> tuple[int, _Tenants] | None:
        """Return the GPU where ``tenant`` makes the shares of all on it grow least, else an unused one, and
        who runs there then; None: there is none. ``known``: what :func:`_alloc` answered so far."""
        best: tuple[float, int, _Tenants] | None = None
        for case, here, number in pool.cases():
            if not here:  # the unused one, which comes last
                if best is None:
                    return (number, (tenant,))
                return best[1:]
            key = (tenant.key(), case)
            if key not in known:
                known[key] = _alloc((*here, tenant))
            grown = known[key]
            if grown is not None:
                increase = _share_pct(grown) - _share_pct(here)
                if best is None or (increase, number) < best[:2]:
                    best = (increase, number, grown)
        return best and best[1:]

    def _best_effort(self, gpu_type: str) -> None:
        """Serve what is left of each model by the way that serves most of it beside what is there, as long as
        there is one."""
        for model in self._problem.models:
            profile = self._profiles[model.name, gpu_type]
            known: dict[_Case, list[_RatedCandidate]] = {}
            while self._lacks(model):
                if not self._serve_most(profile, self._pools[gpu_type], known):
                    break

    def _serve_most(self, profile: _Profile, pool: _Pool, known: dict[_Case, list[_RatedCandidate]]) -> bool:
        """Add the replica of a model that serves most of what is missing; return whether there was one."""
        name = profile.model.name
        missing = self._missing[name]
        best: tuple[float, int, _Tenants] | None = None
        for case, here, number in pool.cases():
            if case not in known:
                known[case] = _beside(profile, here)
            ways = known[case]
            if not ways:
                continue
            # The least share that is enough, else the way that serves most.
            enough = (way for way in ways if way[0] >= missing)
            able, candidate = next(enough, max(ways, key=lambda way: way[0]))
            rate = min(missing, able)
            if best is None or (-rate, number) < (-best[0], best[1]):
                best = (rate, number, (*here, _Tenant(profile, (candidate,), 0, rate)))
        if best is None:
            return False
        rate, number, tenants = best
        pool.put(number, tenants)
        self._missing[name] -= rate
        return True

    def order(self) -> tuple[float, float, float]:
        """Return a key, smaller being better: what is not served; of rented GPUs the cost per hour, then how
        many, else the reverse. GPUs count alike where a price is unknown."""
        prices = self._problem.known_prices or dict.fromkeys(self._pools, 1.0)
        number = float(sum(len(pool.gpus) for pool in self._pools.values()))
        cost = round(sum(prices[t] * len(pool.gpus) for t, pool in self._pools.items()), 9)
        missing = round(sum(self._missing.values()), 6)
        if self._problem.elastic:
            return (missing, cost, number)
        return (missing, number, cost)

    def placed(self) -> list[Placed]:
        """Return the replicas, GPU by GPU in the problem's order of types."""
        placed = []
        for gpu_type in self._problem.types:
            for number, tenants in enumerate(self._pools[gpu_type].gpus):
                gpu = self._problem.gpu(gpu_type, number)
                for t in tenants:
                    placed.append(Placed(gpu=gpu, model=t.profile.model.name, candidate=t.candidate))
        return placed


def _beside(profile: _Profile, here: _Tenants) -> list[_RatedCandidate]:
    """Return (requests a second, candidate) of the ways to run a model beside ``here`` without breaking a
    promise; by share."""
    ways = []
    for c in profile.able:
        now = (*here, _Tenant(profile, (c,), 0, 0.0))
        if _fits(now) and all(_keeps(now, i) for i in range(len(now))):
            busy = service_ms(profile.gpu, [t.load for t in now], len(here))
            ways.append((1e3 * c.batch_size / busy, c))
    return ways
