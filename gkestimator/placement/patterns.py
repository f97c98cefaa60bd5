"""Patterns: the sets of replicas that fit on one GPU together.

Whoever counts patterns instead of naming GPUs has one integer for thousands of equal GPUs, and no two
programs' solutions that differ only in which of them is which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gkestimator.core.records import frozen
from gkestimator.placement.problem import PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

ROOM_PCT = 100 + 1e-9


@frozen
class Choice:
    """One way to run ``model`` on every GPU type: its candidate by type. A type it cannot run on is absent."""

    model: PlacementModel
    by_type: Mapping[str, Candidate]

    def throughput_rps(self, gpu_type: str) -> float:
        """Requests a second of one replica on ``gpu_type``."""
        return self.by_type[gpu_type].throughput_rps


@frozen
class ReplicaPattern:
    """Replicas of distinct models that fit on a GPU of ``gpu_type`` together; ``members`` number the
    choices."""

    gpu_type: str
    members: tuple[int, ...]


def needs_pct(candidate: Candidate) -> tuple[float, float]:
    """(Creq, memory) that a replica takes from a GPU's 100 %. One whose Creq is above 100 % fills a GPU by
    itself and so takes all of both. The candidate must have both figures."""
    creq = candidate.creq_pct
    memory = candidate.memory_pct
    assert creq is not None and memory is not None
    if creq <= ROOM_PCT:
        return (creq, memory)
    return (100.0, max(100.0, memory))


def batch_choices(problem: Problem, model: PlacementModel) -> tuple[Choice, ...]:
    """One choice for each batch size at which ``model`` keeps its objective on some GPU type, whole GPUs
    (SM share 100 %) only, ascending.

    A batch size is left out where another runs on every type that it runs on, needs no more there and gives
    no less: in any plan it can be replaced, which changes neither the goodput nor a GPU.
    """
    by_batch: dict[int, dict[str, Candidate]] = {}
    for gpu_type in problem.types:
        for candidate in model.feasible(gpu_type):
            if candidate.memory_pct is not None and candidate.memory_pct <= ROOM_PCT:
                by_batch.setdefault(candidate.batch_size, {})[gpu_type] = candidate
    choices = [Choice(model=model, by_type=by_batch[batch]) for batch in sorted(by_batch)]
    kept: list[Choice] = []
    for i, choice in enumerate(choices):
        if not any(
            _replaces(other, choice) and (j < i or not _replaces(choice, other))
            for j, other in enumerate(choices)
            if j != i
        ):
            kept.append(choice)
    return tuple(kept)


def _replaces(other: Choice, choice: Choice) -> bool:
    for gpu_type, candidate in choice.by_type.items():
        instead = other.by_type.get(gpu_type)
        if instead is None or instead.throughput_rps < candidate.throughput_rps:
            return False
        if any(a > b for a, b in zip(needs_pct(instead), needs_pct(candidate), strict=True)):
            return False
    return True


def maximal_patterns(choices: Sequence[Choice], gpu_type: str, *, limit: int) -> list[ReplicaPattern] | None:
    """Every pattern on ``gpu_type`` to which no replica of a further model can be added, in a fixed order.
    Smaller patterns are not needed where a replica too many does no harm. None: the search would take
    more than ``limit`` steps.
    """
    grouped: dict[str, list[tuple[int, float, float]]] = {}
    for i, choice in enumerate(choices):
        if gpu_type in choice.by_type:
            grouped.setdefault(choice.model.name, []).append((i, *needs_pct(choice.by_type[gpu_type])))
    # The hungriest first: what is left over is small early, and the search narrow.
    models = sorted(grouped.values(), key=lambda m: (-min(c + g for _, c, g in m), m[0][0]))
    # What the models from here on take at most, all together: where that fits beside a model that was skipped, the
    # pattern cannot become maximal any more. And what one of them takes at least: where not even that fits, it is done.
    most = [(0.0, 0.0)]
    least = [(math.inf, math.inf)]
    for model in reversed(models):
        creqs = [c for _, c, _ in model]
        memories = [g for _, _, g in model]
        most.append((most[-1][0] + max(creqs), most[-1][1] + max(memories)))
        least.append((min(least[-1][0], *creqs), min(least[-1][1], *memories)))
    most.reverse()
    least.reverse()
    found: list[ReplicaPattern] = []
    steps = 0
    stack: list[tuple[int, tuple[int, ...], tuple[int, ...], float, float]] = [(0, (), (), 0.0, 0.0)]
    while stack:
        depth, members, skipped, creq, memory = stack.pop()
        steps += 1 + len(skipped) // 32  # looking at the skipped is the work where models are many
        if steps > limit:
            return None
        done = creq + least[depth][0] > ROOM_PCT or memory + least[depth][1] > ROOM_PCT
        more = (0.0, 0.0) if done else most[depth]
        most_creq = creq + more[0]
        most_memory = memory + more[1]
        # least[0]: of all models, skipped ones among them.
        if (
            most_creq + least[0][0] <= ROOM_PCT
            and most_memory + least[0][1] <= ROOM_PCT
            and any(
                most_creq + c <= ROOM_PCT and most_memory + g <= ROOM_PCT
                for s in skipped
                for _, c, g in models[s]
            )
        ):
            continue
        if done:
            if members:
                found.append(ReplicaPattern(gpu_type=gpu_type, members=tuple(sorted(members))))
            continue
        stack.append((depth + 1, members, (*skipped, depth), creq, memory))
        for i, c, g in models[depth]:
            if creq + c <= ROOM_PCT and memory + g <= ROOM_PCT:
                stack.append((depth + 1, (*members, i), skipped, creq + c, memory + g))
    return sorted(found, key=lambda p: p.members)
