"""The GPUs while gpulet fills them: which are split, what stands in each gpu-let, where there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gkestimator.core.records import frozen
from gkestimator.interference.gpulet_law import GpuletCoefficients
from gkestimator.placement.papers.gpulet.lets import CLOSE, Asked, Ladders, Let, fit, sizes
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Gpu, IndicesByName, Problem

_ROUNDS = 6


@frozen
class Place:
    """Name a gpu-let of ``size_pct`` on GPU number ``slot`` of the board (None: on the next unsplit one of
    type ``gpu``), its first or second ``part``."""

    gpu: str
    size_pct: float
    slot: int | None = None
    part: int = 0


@frozen
class Fitted:
    """Say what stands in ``place`` then, and in the other gpu-let of its GPU."""

    place: Place
    mine: Let
    other: Let | None = None


@dataclass(slots=True)
class _Slot:
    gpu: Gpu
    lets: list[Let | None] = field(default_factory=list)


def settle(
    asked: Sequence[Asked],
    gpu: str,
    size_pct: float,
    other: Let | None,
    coefficients: GpuletCoefficients | None,
    ladders: Ladders,
) -> tuple[Let, Let | None] | None:
    """Return ``asked`` in a gpu-let beside ``other``, which must go on serving all it serves, slowed down as
    it may be; None where that does not fit."""
    mine: Let | None = None
    for _ in range(_ROUNDS):
        if other is None:
            alone = fit(asked, gpu, size_pct, coefficients=coefficients, ladders=ladders)
            if alone is None:
                return None
            return (alone, None)
        new = fit(
            asked,
            gpu,
            size_pct,
            memory_pct=100.0 - other.memory_pct,
            coefficients=coefficients,
            neighbour=other.pressure(coefficients),
            ladders=ladders,
        )
        if new is None:
            return None
        if coefficients is None:
            return new, other
        beside = fit(
            other.asked,
            gpu,
            other.size_pct,
            memory_pct=100.0 - new.memory_pct,
            coefficients=coefficients,
            neighbour=new.pressure(coefficients),
            ladders=ladders,
        )
        if beside is None:
            return None
        for now, before in zip(beside.loads, other.loads, strict=True):
            if now.rate_rps < before.rate_rps * (1 - CLOSE):
                return None
        if new == mine and beside == other:
            return new, beside
        mine = new
        other = beside
    return None


class Board:
    """Hold every GPU of a fixed cluster, or those rented so far; each split into two gpu-lets at most."""

    def __init__(
        self, problem: Problem, coefficients: GpuletCoefficients | None, ladders: Ladders | None = None
    ) -> None:
        self.problem = problem
        self.coefficients = coefficients
        self._ladders = ladders or Ladders()
        self.sizes = {gpu: sizes(problem, gpu) for gpu in problem.types}
        self._slots = [_Slot(gpu) for gpu in problem.gpus]
        self._unsplit: IndicesByName = defaultdict(list)
        for i in reversed(range(len(self._slots))):
            self._unsplit[self._slots[i].gpu.type].append(i)
        # (type, size): places with a free gpu-let, those of lower number first
        self._halves: dict[tuple[str, float], list[Place]] = defaultdict(list)
        self._rented: dict[str, int] = defaultdict(int)

    def unsplit(self, gpu: str) -> bool:
        """Return whether a whole GPU of this type is free, or may be rented."""
        if self.problem.elastic:
            limit = self.problem.limits[gpu]
            return limit is None or self._rented[gpu] < limit
        return bool(self._unsplit[gpu])

    def halves(self, gpu: str) -> Iterator[Place]:
        """Yield the free gpu-lets on split GPUs of this type, by ascending size."""
        for size in self.sizes[gpu]:
            yield from self._halves[gpu, size]

    def type_of(self, slot: int) -> str:
        """Return the type of GPU number ``slot``."""
        return self._slots[slot].gpu.type

    def try_in(self, place: Place, asked: Sequence[Asked]) -> Fitted | None:
        """Return what would stand there if ``asked`` were put (alone) into ``place``; nothing changes."""
        other = None
        if place.slot is not None:
            lets = self._slots[place.slot].lets
            if len(lets) > 1:
                other = lets[1 - place.part]
        settled = settle(asked, place.gpu, place.size_pct, other, self.coefficients, self._ladders)
        if settled is None:
            return None
        mine, other = settled
        return Fitted(place=place, mine=mine, other=other)

    def put(self, fitted: Fitted) -> Place:
        """Write ``fitted`` down; an unsplit GPU is split (or rented) for it. Returns the place with its GPU's
        number."""
        place = fitted.place
        if place.slot is None:
            slot = self._split(place.gpu, place.size_pct)
            place = Place(gpu=place.gpu, size_pct=place.size_pct, slot=slot)
        else:
            here = self._halves[place.gpu, place.size_pct]
            if place in here:
                here.remove(place)
        assert place.slot is not None
        lets = self._slots[place.slot].lets
        lets[place.part] = fitted.mine
        if fitted.other is not None:
            lets[1 - place.part] = fitted.other
        return place

    def _split(self, gpu: str, size: float) -> int:
        if self.problem.elastic:
            self._slots.append(_Slot(self.problem.rented(gpu, self._rented[gpu])))
            self._rented[gpu] += 1
            slot = len(self._slots) - 1
        else:
            slot = self._unsplit[gpu].pop()
        rest = [s for s in self.sizes[gpu] if s <= 100 - size + CLOSE]
        self._slots[slot].lets = [None]
        if rest:
            self._slots[slot].lets.append(None)
            self._halves[gpu, rest[-1]].append(Place(gpu=gpu, size_pct=rest[-1], slot=slot, part=1))
        return slot

    def placed(self) -> tuple[Placed, ...]:
        """Return the replicas, by GPU and gpu-let."""
        placed: list[Placed] = []
        for slot in self._slots:
            for part, let in enumerate(slot.lets):
                if let is not None:
                    placed += placed_in(slot.gpu, part, let)
        return tuple(placed)


def placed_in(gpu: Gpu, part: int, let: Let) -> list[Placed]:
    """Return the replicas of a gpu-let, the ``part``-th (from 0) of ``gpu``."""
    return [
        Placed(
            gpu=gpu,
            model=load.model.name,
            candidate=load.candidate,
            partition=f"{gpu.id}-let-{part}",
            duty_cycle_ms=let.cycle_ms,
        )
        for load in let.loads
    ]
