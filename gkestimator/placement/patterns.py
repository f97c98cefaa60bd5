"""Patterns: the sets of replicas that fit on one GPU together.

Whoever counts patterns instead of naming GPUs has one integer for thousands of equal GPUs, and no two
programs' solutions that differ only in which of them is which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.placement.problem import FloatPair, IntRow, PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

ROOM_PCT = 100 + 1e-9


@frozen
class Choice:
    """Hold one way to run ``model`` on every GPU type: its candidate by type. A type it cannot run on is
    absent."""

    model: PlacementModel
    by_type: Mapping[str, Candidate]

    def throughput_rps(self, gpu_type: str) -> float:
        """Return the requests a second of one replica on ``gpu_type``."""
        return self.by_type[gpu_type].throughput_rps


Choices: TypeAlias = Sequence[Choice]

ChoiceList: TypeAlias = list[Choice]


@frozen
class ReplicaPattern:
    """Name replicas of distinct models that fit on a GPU of ``gpu_type`` together; ``members`` number the
    choices."""

    gpu_type: str
    members: IntRow


def needs_pct(candidate: Candidate) -> FloatPair:
    """Return (Creq, memory) that a replica takes from a GPU's 100 %. One whose Creq is above 100 % fills a
    GPU by itself and so takes all of both. The candidate must have both figures."""
    creq = candidate.creq_pct
    memory = candidate.memory_pct
    assert creq is not None and memory is not None
    if creq <= ROOM_PCT:
        return (creq, memory)
    return (100.0, max(100.0, memory))


def batch_choices(problem: Problem, model: PlacementModel) -> tuple[Choice, ...]:
    """Return one choice for each batch size at which ``model`` keeps its objective on some GPU type, whole
    GPUs (SM share 100 %) only, ascending.

    A batch size is left out where another runs on every type that it runs on, needs no more there and gives
    no less: in any plan it can be replaced, which changes neither the goodput nor a GPU.
    """
    by_batch: dict[int, dict[str, Candidate]] = {}
    for gpu_type in problem.types:
        for candidate in model.feasible(gpu_type):
            if candidate.memory_pct is not None and candidate.memory_pct <= ROOM_PCT:
                by_batch.setdefault(candidate.batch_size, {})[gpu_type] = candidate
    choices = [Choice(model=model, by_type=by_batch[batch]) for batch in sorted(by_batch)]
    return tuple(choice for choice in choices if not _is_replaced(choice, choices))


def _is_replaced(choice: Choice, choices: Choices) -> bool:
    """Return whether another of ``choices`` is better, or as good and before ``choice``."""
    before = True
    for other in choices:
        if other is choice:
            before = False
        elif _replaces(other, choice) and (before or not _replaces(choice, other)):
            return True
    return False


def _replaces(other: Choice, choice: Choice) -> bool:
    """Return whether ``other`` runs wherever ``choice`` does, needs no more there and gives no less."""
    for gpu_type, candidate in choice.by_type.items():
        instead = other.by_type.get(gpu_type)
        if instead is None or instead.throughput_rps < candidate.throughput_rps:
            return False
        if any(a > b for a, b in zip(needs_pct(instead), needs_pct(candidate), strict=True)):
            return False
    return True


# The number of a choice and what it takes of a GPU: Creq and memory, percent. Plain: the search looks at millions.
_Option: TypeAlias = tuple[int, float, float]
_NOTHING = (0.0, 0.0)


def maximal_patterns(choices: Choices, gpu_type: str, *, limit: int) -> list[ReplicaPattern] | None:
    """Return every pattern on ``gpu_type`` to which no replica of a further model can be added, in a fixed
    order. Smaller patterns are not needed where a replica too many does no harm. None: the search would take
    more than ``limit`` steps."""
    models = _options(choices, gpu_type)
    most, least = _still_to_come(models)
    any_creq, any_memory = least[0]  # of all models, skipped ones among them
    patterns: list[IntRow] = []
    steps = 0
    stack: list[tuple[int, IntRow, IntRow, float, float]] = [(0, (), (), 0.0, 0.0)]
    while stack:
        depth, members, skipped, creq, memory = stack.pop()
        steps += 1 + len(skipped) // 32  # looking at the skipped is the work where models are many
        if steps > limit:
            return None
        least_creq, least_memory = least[depth]
        done = creq + least_creq > ROOM_PCT or memory + least_memory > ROOM_PCT
        more_creq, more_memory = _NOTHING if done else most[depth]
        full_creq = creq + more_creq
        full_memory = memory + more_memory
        if full_creq + any_creq <= ROOM_PCT and full_memory + any_memory <= ROOM_PCT:
            skipped_fits = _any_fits([models[s] for s in skipped], full_creq, full_memory)
            if skipped_fits:
                continue
        if done:
            patterns.append(tuple(sorted(members)))
            continue
        stack.append((depth + 1, members, (*skipped, depth), creq, memory))
        for number, c, m in models[depth]:
            if creq + c <= ROOM_PCT and memory + m <= ROOM_PCT:
                stack.append((depth + 1, (*members, number), skipped, creq + c, memory + m))
    return [ReplicaPattern(gpu_type=gpu_type, members=members) for members in sorted(filter(None, patterns))]


def _any_fits(models: Sequence[Sequence[_Option]], creq: float, memory: float) -> bool:
    """Return whether an option fits beside what is taken already."""
    for model in models:
        for _, c, m in model:
            if creq + c <= ROOM_PCT and memory + m <= ROOM_PCT:
                return True
    return False


def _options(choices: Choices, gpu_type: str) -> list[list[_Option]]:
    """Return the options of each model on ``gpu_type``, the hungriest model first: what is left over is small
    early, and the search narrow."""
    by_model: dict[str, list[_Option]] = {}
    for number, choice in enumerate(choices):
        if gpu_type in choice.by_type:
            creq, memory = needs_pct(choice.by_type[gpu_type])
            by_model.setdefault(choice.model.name, []).append((number, creq, memory))
    return sorted(by_model.values(), key=lambda m: (-min(c + g for _, c, g in m), m[0][0]))


def _still_to_come(
    models: Sequence[Sequence[_Option]],
) -> tuple[list[FloatPair], list[FloatPair]]:
    """Return by model what those from it on take (Creq, memory): at most, all together; at least, one of
    them.

    Where the first fits beside a model that was skipped, a pattern cannot become maximal any more; where not
    even the second fits, it is done."""
    creq = memory = 0.0
    least_creq = least_memory = math.inf
    most = [(creq, memory)]
    least = [(least_creq, least_memory)]
    for model in reversed(models):
        creqs = [c for _, c, _ in model]
        memories = [m for _, _, m in model]
        creq += max(creqs)
        memory += max(memories)
        most.append((creq, memory))
        least_creq = min(least_creq, *creqs)
        least_memory = min(least_memory, *memories)
        least.append((least_creq, least_memory))
    return most[::-1], least[::-1]
