"""Starts of the search beside those that are built one replica after the other: all models packed at once, and the
answers of other policies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from gkestimator.core.errors import GkestimatorError
from gkestimator.placement.gkest.fluid import Fluid
from gkestimator.placement.gkest.menu import Menus
from gkestimator.placement.gkest.moves import Moves
from gkestimator.placement.gkest.packing import ROOMY, TIGHTER, GpuPacking, Rest, Whole
from gkestimator.placement.gkest.state import Change, GpuPattern, Members, PatternMember, allowed, pattern
from gkestimator.placement.policy import PlacedReplicas, partitions
from gkestimator.placement.registry import make_policy

# Up to so many models a policy's answer is quick beside the search.
_MODELS = {"nexus": 400, "gpulet": 100}
_HEADROOMS = (1.0, 1.2, 1.5)  # times the rates that are packed for


def packed_starts(moves: Moves, optimum: Fluid, free: Sequence[int], close: float) -> Iterator[Change]:
    """Yield placements on ``free`` GPUs by type: whole ones by the fluid ``optimum``, the rests by :class:`GpuPacking`.

    Where all fit, for ever higher rates, so that queues find room; else the worthiest, with more and with less room.
    Rests below a part ``close`` of what is wanted are left out."""
    for factor in _HEADROOMS:
        wholes, rests = _parts(moves, optimum, factor, close)
        packing = GpuPacking(moves.menus, free, ROOMY)
        counts = packing.pack(wholes, rests, by_worth=False)
        if not packing.short or factor > 1:
            yield counts
        if packing.short and factor == 1:
            for margins in (ROOMY, *TIGHTER):
                yield GpuPacking(moves.menus, free, margins).pack(wholes, rests, by_worth=True)
        if packing.short:
            return


def _parts(moves: Moves, optimum: Fluid, factor: float, close: float) -> tuple[list[Whole], list[Rest]]:
    """Return the whole GPUs that each model fills by ``factor`` times the requests of the fluid ``optimum``, and what
    is left of it."""
    wholes = []
    rests = []
    for m, by_type in enumerate(optimum.rps):
        wanted = max(moves.wanted[m], 1e-12)
        worth = moves.state.worth(m, wanted) / wanted
        for t, rps in sorted(by_type.items()):
            left = factor * rps
            full = None
            if optimum.share[m][t] > 1 - 1e-6:
                full = moves.full_with_rate(m, t)
            if full is not None:
                rate, p = full
                count = math.floor(left / rate + 1e-6)
                wholes.append(Whole(pattern=p, count=count, model=m, rps=rate, worth=worth))
                left -= count * rate
            if left > close * wanted:
                rests.append(Rest(model=m, type=t, rps=left, worth=worth))
    return wholes, rests


def replacing(counts: Change) -> Change:
    """Return the change that puts ``counts`` on GPUs that hold nothing."""
    change = {p: n for p, n in counts.items() if p.members}
    for p, n in counts.items():
        if p.members:
            blank = GpuPattern(p.type)
            change[blank] = change.get(blank, 0) - n
    return change


def other_starts(menus: Menus) -> Iterator[dict[GpuPattern, int]]:
    """Yield what other policies answer for the problem of ``menus``, as GPUs by what they hold."""
    for name, most in _MODELS.items():
        if len(menus.of) <= most and not menus.problem.elastic:
            try:
                answer = make_policy(name).place(menus.problem)
            except GkestimatorError:
                continue  # it needs a column that is null here
            yield as_patterns(menus, answer.placed)


def as_patterns(menus: Menus, placed: PlacedReplicas) -> dict[GpuPattern, int]:
    """Return ``placed`` as GPUs by what they hold.

    A replica alone in its partition runs whenever it has a batch, turns follow each other without a pause; replicas
    that our rules do not allow beside the others are left out, the last first."""
    number = {model.name: m for m, model in enumerate(menus.problem.models)}
    by_gpu = defaultdict(list)
    for replica in placed:
        by_gpu[replica.gpu.id].append(replica)
    counts: dict[GpuPattern, int] = {}
    for here in by_gpu.values():
        t = menus.types.index(here[0].gpu.type)
        groups: list[Members] = []
        for turn, group in enumerate(partitions(here)):
            ways = [menus.way_of(number[r.model], r.candidate) for r in group]
            if len(ways) == 1 or not menus.turns:
                groups += [[PatternMember(w.number)] for w in ways]
                continue
            cycle = sum(w.latency_ms for w in ways)
            groups.append([PatternMember(w.number, turn, cycle) for w in ways])
        while groups:
            p = pattern(t, [x for group in groups for x in group])
            if allowed(menus, p):
                counts[p] = counts.get(p, 0) + 1
                break
            groups.pop()
    return counts
