"""What USHER chooses from for a group of models: batch sizes and replication degrees, and the order in which
they are placed.

Source: USHER (OSDI 2024): batch sizes 4 to 128, replication degrees c to 6 c, C-heavy and M-heavy models
placed in turn. Our reading, where the text leaves it open, is marked as such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.placement.problem import Candidates, FloatRow, Floats, IntRow, PlacementModel
from gkestimator.tables.candidate import Candidate

BATCH_SIZES = (4, 128)  # from, to
DEGREES = range(1, 7)  # multiples of c
HEAVY_RATIO = 1.2
C_HEAVY = 0
M_HEAVY = 1
NEITHER = 2


@frozen
class UsherChoice:
    """Hold one batch size of one model of a group, by GPU type (index into ``types``; infinite demand and no
    throughput where its latency is above the objective or it has no row): ``creq`` and ``mreq`` in percent,
    ``rps`` of one replica.

    ``degrees`` are the replication degrees to choose from. ``heavy`` and ``key`` are what it is ordered by;
    ``number`` is that of its first configuration among those of its model.
    """

    model: int
    name: str
    rate_rps: float
    candidates: tuple[Candidate | None, ...]
    creq: FloatRow
    mreq: FloatRow
    rps: FloatRow
    degrees: IntRow
    heavy: int
    key: tuple[float | str, ...]
    number: int


Choices: TypeAlias = Sequence[UsherChoice]


def considered(model: PlacementModel) -> Candidates:
    """Return the rows of ``model`` that USHER chooses from: the whole GPU, batch sizes 4 to 128; a model
    without any of these: its rows at every batch size (our reading: such a model has no batch, or was
    exported with one)."""
    whole = tuple(c for c in model.candidates if c.sm_share_pct == 100)
    smallest, largest = BATCH_SIZES
    return tuple(c for c in whole if smallest <= c.batch_size <= largest) or whole


def choices_of(
    model: PlacementModel,
    number: int,
    *,
    types: Sequence[str],
    most: float,
    sort: bool = True,
    heavy: bool = True,
) -> tuple[UsherChoice, ...]:
    """Return every batch size at which ``model`` (the ``number``-th of its group) keeps its objective on some
    type of ``types``, ascending.

    c = ceil(rate / throughput at the largest feasible batch); degrees are c x {1..6} up to ``most``, the
    number of GPUs; no degree, no choice: the model is not served. Our reading for several GPU types: each has
    its own c, and the degrees of all are chosen from; the order goes by the mean demand over the types where
    the batch size is feasible. A Creq above 100 % takes the whole GPU.
    """
    feasible: dict[int, dict[str, Candidate]] = {}
    largest: dict[str, Candidate] = {}
    for candidate in considered(model):
        if candidate.gpu in types and candidate.latency_ms <= model.slo_ms:
            feasible.setdefault(candidate.batch_size, {})[candidate.gpu] = candidate
            best = largest.get(candidate.gpu)
            if best is None or candidate.batch_size > best.batch_size:
                largest[candidate.gpu] = candidate
    least = {math.ceil(model.rate_rps / c.throughput_rps * (1 - 1e-12)) for c in largest.values()}
    degrees = tuple(sorted({c * k for c in least for k in DEGREES if c * k <= most}))
    if not degrees:
        return ()
    choices = []
    for i, (_, by_type) in enumerate(sorted(feasible.items())):
        row = tuple(by_type.get(t) for t in types)
        creq, mreq, rps = _figures(row)
        mean_creq = _mean(creq)
        mean_mreq = _mean(mreq)
        if heavy:
            weight = _weight(mean_creq, mean_mreq)
        else:
            weight = NEITHER
        if sort:
            key = _key(weight, mean_creq, mean_mreq, model.name)
        else:
            key = (number,)
        choice = UsherChoice(
            model=number,
            name=model.name,
            rate_rps=model.rate_rps,
            candidates=row,
            creq=creq,
            mreq=mreq,
            rps=rps,
            degrees=degrees,
            heavy=weight,
            key=key,
            number=i * len(degrees),
        )
        choices.append(choice)
    return tuple(choices)


def _figures(row: Sequence[Candidate | None]) -> tuple[FloatRow, ...]:
    """Return Creq and Mreq (percent) and the requests a second of a replica by GPU type."""
    creq = []
    mreq = []
    rps = []
    for candidate in row:
        if candidate is None:
            creq.append(math.inf)
            mreq.append(math.inf)
            rps.append(0.0)
        else:
            creq.append(min(candidate.creq_pct or 0.0, 100.0))
            mreq.append(candidate.memory_pct or 0.0)
            rps.append(candidate.throughput_rps)
    return tuple(creq), tuple(mreq), tuple(rps)


def _mean(values: Floats) -> float:
    finite = [v for v in values if v < math.inf]
    return sum(finite) / len(finite)


def _weight(creq: float, mreq: float) -> int:
    if creq > HEAVY_RATIO * mreq:
        return C_HEAVY
    if mreq > HEAVY_RATIO * creq:
        return M_HEAVY
    return NEITHER


def _key(heavy: int, creq: float, mreq: float, name: str) -> tuple[float | str, ...]:
    """Return the key for descending order of demand: of Creq, M-heavy models of Mreq; then of the other; then
    names."""
    if heavy == M_HEAVY:
        return (-mreq, -creq, name)
    return (-creq, -mreq, name)


def then(
    turn: int, chosen: UsherChoice, others: Mapping[int, Choices]
) -> dict[int, list[UsherChoice]] | None:
    """Return what remains of the choices of ``others`` once ``chosen`` is placed next, whose turn (C_HEAVY or
    M_HEAVY) it is; None where that cannot be the order.

    C-heavy and M-heavy models take turns, a C-heavy one first, each in its order; when one kind is used up
    the other follows, and those that are neither come last (our reading: they spoil no balance)."""
    if chosen.heavy == turn:
        before: IntRow = ()
    elif chosen.heavy == NEITHER:
        before = (C_HEAVY, M_HEAVY)
    else:
        before = (turn,)
    remaining = {}
    for model, choices in others.items():
        left = []
        for c in choices:
            if c.heavy not in before and (c.heavy != chosen.heavy or c.key > chosen.key):
                left.append(c)
        if not left:
            return None
        remaining[model] = left
    return remaining


def in_order(chosen: Choices) -> list[UsherChoice]:
    """Return ``chosen``, one choice of each model, in the order in which they are placed."""
    kinds: dict[int, list[UsherChoice]] = {C_HEAVY: [], M_HEAVY: [], NEITHER: []}
    for choice in sorted(chosen, key=lambda c: c.key):
        kinds[choice.heavy].append(choice)
    order: list[UsherChoice] = []
    for pair in zip_longest(kinds[C_HEAVY], kinds[M_HEAVY]):
        order += [choice for choice in pair if choice is not None]
    return order + kinds[NEITHER]
