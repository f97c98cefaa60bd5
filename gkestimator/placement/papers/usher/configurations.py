"""What USHER chooses from for a group of models: batch sizes and replication degrees, and the order in which
they are placed.

Source: USHER (OSDI 2024): batch sizes 4 to 128, replication degrees c to 6 c, C-heavy and M-heavy models
placed in turn. Our reading, where the text leaves it open, is marked as such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gkestimator.core.records import frozen
from gkestimator.placement.problem import PlacementModel
from gkestimator.tables.candidate import Candidate

BATCH_SIZES = (4, 128)  # from, to
DEGREES = range(1, 7)  # multiples of c
HEAVY_RATIO = 1.2
C_HEAVY = 0
M_HEAVY = 1
NEITHER = 2


@frozen
class UsherChoice:
    """One batch size of one model of a group, by GPU type (index into ``types``; infinite demand and no
    throughput where its latency is above the objective or it has no row): ``creq`` and ``mreq`` in percent,
    ``rps`` of one replica.

    ``degrees`` are the replication degrees to choose from. ``heavy`` and ``key`` are what it is ordered by;
    ``number`` is that of its first configuration among those of its model.
    """

    model: int
    name: str
    rate_rps: float
    candidates: tuple[Candidate | None, ...]
    creq: tuple[float, ...]
    mreq: tuple[float, ...]
    rps: tuple[float, ...]
    degrees: tuple[int, ...]
    heavy: int
    key: tuple[float | str, ...]
    number: int


def considered(model: PlacementModel) -> tuple[Candidate, ...]:
    """The rows of ``model`` that USHER chooses from: the whole GPU, batch sizes 4 to 128; a model without any
    of these: its rows at every batch size (our reading: such a model has no batch, or was exported with one)."""
    whole = tuple(c for c in model.candidates if c.sm_share_pct == 100)
    return tuple(c for c in whole if BATCH_SIZES[0] <= c.batch_size <= BATCH_SIZES[1]) or whole


def choices_of(
    model: PlacementModel,
    number: int,
    *,
    types: Sequence[str],
    most: float,
    sort: bool = True,
    heavy: bool = True,
) -> tuple[UsherChoice, ...]:
    """Every batch size at which ``model`` (the ``number``-th of its group) keeps its objective on some type of
    ``types``, ascending.

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
    found = []
    for i, (_, by_type) in enumerate(sorted(feasible.items())):
        row = tuple(by_type.get(t) for t in types)
        creq = tuple(math.inf if c is None else min(c.creq_pct or 0.0, 100.0) for c in row)
        mreq = tuple(math.inf if c is None else c.memory_pct or 0.0 for c in row)
        weight = _weight(_mean(creq), _mean(mreq)) if heavy else NEITHER
        found.append(
            UsherChoice(
                model=number,
                name=model.name,
                rate_rps=model.rate_rps,
                candidates=row,
                creq=creq,
                mreq=mreq,
                rps=tuple(0.0 if c is None else c.throughput_rps for c in row),
                degrees=degrees,
                heavy=weight,
                key=_key(weight, _mean(creq), _mean(mreq), model.name) if sort else (number,),
                number=i * len(degrees),
            )
        )
    return tuple(found)


def _mean(values: Sequence[float]) -> float:
    finite = [v for v in values if v < math.inf]
    return sum(finite) / len(finite)


def _weight(creq: float, mreq: float) -> int:
    if creq > HEAVY_RATIO * mreq:
        return C_HEAVY
    if mreq > HEAVY_RATIO * creq:
        return M_HEAVY
    return NEITHER


def _key(heavy: int, creq: float, mreq: float, name: str) -> tuple[float | str, ...]:
    """In descending order of demand: of Creq, M-heavy models of Mreq; then of the other; then names."""
    if heavy == M_HEAVY:
        return (-mreq, -creq, name)
    return (-creq, -mreq, name)


def then(
    turn: int, chosen: UsherChoice, others: Mapping[int, Sequence[UsherChoice]]
) -> dict[int, list[UsherChoice]] | None:
    """What remains of the choices of ``others`` once ``chosen`` is placed next, whose turn (C_HEAVY or
    M_HEAVY) it is; None where that cannot be the order.

    C-heavy and M-heavy models take turns, a C-heavy one first, each in its order; when one kind is used up the
    other follows, and those that are neither come last (our reading: they spoil no balance).
    """
    if chosen.heavy == turn:
        before: tuple[int, ...] = ()
    elif chosen.heavy == NEITHER:
        before = (C_HEAVY, M_HEAVY)
    else:
        before = (turn,)
    found = {}
    for model, choices in others.items():
        left = [
            c for c in choices if c.heavy not in before and (c.heavy != chosen.heavy or c.key > chosen.key)
        ]
        if not left:
            return None
        found[model] = left
    return found


def in_order(chosen: Sequence[UsherChoice]) -> list[UsherChoice]:
    """``chosen``, one choice of each model, in the order in which they are placed."""
    kinds = [sorted((c for c in chosen if c.heavy == k), key=lambda c: c.key) for k in (C_HEAVY, M_HEAVY)]
    found: list[UsherChoice] = []
    for i in range(max(map(len, kinds))):
        found += [kind[i] for kind in kinds if i < len(kind)]
    return found + sorted((c for c in chosen if c.heavy == NEITHER), key=lambda c: c.key)
