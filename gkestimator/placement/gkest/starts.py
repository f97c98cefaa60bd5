"""Answers of other policies as starts of the search: few models get by without, many are placed well by packing alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gkestimator.core.errors import GkestimatorError
from gkestimator.placement.gkest.menu import Menus
from gkestimator.placement.gkest.state import GpuPattern, Members, PatternMember, allowed, pattern
from gkestimator.placement.policy import PlacedReplicas, partitions
from gkestimator.placement.registry import make_policy

# Up to so many models a policy's answer is quick beside the search.
_MODELS = {"nexus": 400, "gpulet": 100}


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
    """Return ``placed`` as GPUs by what they hold. A replica alone in its partition runs whenever it has a batch, turns
    follow each other without a pause; replicas that our rules do not allow beside the others are left out, the last first."""
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
