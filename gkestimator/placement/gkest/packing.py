"""A start for many models: each model's rest, what is left beside whole GPUs, packed by best fit.

A rest may run in turns with others on the whole GPU, beside them, or on a share of the SMs of its own; a GPU keeps to
the kind that it was opened with. Turns: for each of a few cycles a model takes the time of the smallest batch that
serves it, as a part of the cycle, and a GPU has room as long as the parts sum to 1 for any one of the cycles. Source:
squishy bin packing (Shen et al., SOSP 2019), for all cycles at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.records import frozen
from gkestimator.placement.gkest.menu import Menus
from gkestimator.placement.gkest.state import GpuPattern, Members, PatternMember, allowed, pattern
from gkestimator.placement.gkest.ways import Way
from gkestimator.placement.problem import FloatPair
from gkestimator.placement.queueing import Array

_CYCLES = 40  # tried, from a tenth of the tightest objective to half of the loosest
_TURNS = "turns"
_BESIDE = "beside"
_CONFINED = "confined"
_KINDS = (_TURNS, _BESIDE, _CONFINED)
_MOST_MEMBERS = 12
_PARTS = (1, 2, 4, 8)
_FULL = 1.0 + 1e-9


@frozen
class PackingMargins:
    """Say how much room a rest is packed with.

    ``load``: of its turns' batches; ``wary``: the power of its interval's width by which its latency is lengthened;
    ``spare``: how many times its rate a replica of its own must serve.
    """

    load: float
    wary: float
    spare: float


ROOMY = PackingMargins(load=0.65, wary=0.8, spare=1.2)
TIGHTER = (PackingMargins(load=0.8, wary=0.4, spare=1.05), PackingMargins(load=0.92, wary=0.0, spare=1.0))


@frozen
class Rest:
    """Hold what is left of a model for a GPU type: ``rps`` requests a second, worth ``worth`` each."""

    model: int
    type: int
    rps: float
    worth: float


@frozen
class Whole:
    """Hold up to ``count`` GPUs that all hold ``pattern`` and serve ``rps`` requests a second of a model, worth
    ``worth`` each."""

    pattern: GpuPattern
    count: int
    model: int
    rps: float
    worth: float

    def rests(self, count: int) -> list[Rest]:
        """Return what ``count`` of them serve, a rest for each."""
        return [Rest(model=self.model, type=self.pattern.type, rps=self.rps, worth=self.worth)] * count


@frozen
class _Sized:
    """Hold a rest with the ways that it may run, and the part of a GPU that it takes at least."""

    rest: Rest
    offers: tuple[_Offer, ...]
    size: float

    @property
    def density(self) -> float:
        """Return what it is worth for each GPU that it takes."""
        return self.rest.rps * self.rest.worth / self.size


@frozen
class _Offer:
    """Hold how a rest may run.

    ``ways``: one by cycle where it takes turns (None: in none). ``needs``, parts of a GPU: rows are compute, memory,
    Creq and DRAM bandwidth, columns the cycles. ``size``: what it takes of a GPU at least.
    """

    kind: str
    ways: tuple[Way | None, ...]
    needs: Array

    size: float


class _Bins:
    """Hold the GPUs of one type that were opened for one kind, and what is taken of each."""

    def __init__(self, columns: int) -> None:
        self.taken = np.zeros((0, 4, columns))
        self.members = np.zeros(0, dtype=np.int64)
        self.offers: list[list[_Offer]] = []

    def room(self, offer: _Offer) -> tuple[FloatPair, int] | None:
        """Return the GPU that ``offer`` fits best, with (what more is taken of it, how much stays free); None: none has
        room."""
        if not self.offers:
            return None
        after = (self.taken + offer.needs).max(axis=1).min(axis=1)
        after[self.members >= _MOST_MEMBERS] = math.inf
        if float(after.min()) > _FULL:
            return None
        before = self.taken.max(axis=1).min(axis=1)
        more = np.where(after > _FULL, math.inf, np.round(after - before, 2) - 1e-3 * np.minimum(after, 2.0))
        at = int(np.argmin(more))
        return (float(more[at]), 1.0 - float(after[at])), at

    def put(self, offer: _Offer, at: int) -> None:
        """Put ``offer`` on the GPU number ``at``."""
        self.taken[at] += offer.needs
        self.members[at] += 1
        self.offers[at].append(offer)

    def open(self, offer: _Offer) -> None:
        """Put ``offer`` on a GPU of its own."""
        self.taken = np.concatenate([self.taken, offer.needs[None]])
        self.members = np.append(self.members, 1)
        self.offers.append([offer])

    def best_column(self, at: int) -> int:
        """Return the cycle at which the GPU number ``at`` is least full."""
        return int(np.argmin(self.taken[at].max(axis=0)))


class GpuPacking:
    """Pack whole GPUs and rests on ``free`` GPUs by type."""

    def __init__(self, menus: Menus, free: Sequence[int], margins: PackingMargins) -> None:
        self.menus = menus
        self.free = list(free)
        self.margins = margins
        self._offered: dict[tuple[int, int, float], tuple[_Offer, ...]] = {}
        # whether something had no room
        self.short = False
        objectives = [m.slo_ms for m in menus.problem.models]
        self.cycles = np.geomspace(0.1 * min(objectives), 0.5 * max(objectives), _CYCLES)
        self.bins = {(t, k): _Bins(_CYCLES if k == _TURNS else 1) for t in range(len(free)) for k in _KINDS}

    def pack(
        self, wholes: Iterable[Whole], rests: Iterable[Rest], *, by_worth: bool
    ) -> dict[GpuPattern, int]:
        """Return the GPUs that hold as much as fits, by what they hold: the whole GPUs and then the largest rests
        first, or all ``by_worth`` for the GPUs that they take, the most first. What does not fit as it is is taken
        apart, and tried on the other types."""
        counts: dict[GpuPattern, int] = {}
        left = []
        for step in self._steps(wholes, rests, by_worth=by_worth):
            if isinstance(step, Whole):
                t = step.pattern.type
                count = min(step.count, self.free[t])
                self.free[t] -= count
                counts[step.pattern] = counts.get(step.pattern, 0) + count
                for rest in step.rests(step.count - count):
                    left += self._sized(rest)
            elif not self._placed(step.rest.type, step.offers):
                left.append(step)
            if not by_worth and left and not any(self.free):
                self.short = True
                break
        if by_worth or any(self.free):
            for sized in left:
                self._squeeze(sized.rest)
        for p, n in self._patterns().items():
            counts[p] = counts.get(p, 0) + n
        return counts

    def _steps(
        self, wholes: Iterable[Whole], rests: Iterable[Rest], *, by_worth: bool
    ) -> list[Whole | _Sized]:
        """Return what is to be placed, in order: whole GPUs, then the largest rests, or all by their worth."""
        steps: list[tuple[float, int, Whole | _Sized]] = []
        for whole in wholes:
            worth = whole.worth * whole.rps if by_worth else math.inf
            steps.append((-worth, len(steps), whole))
        for rest in rests:
            for sized in self._sized(rest):
                first = sized.density if by_worth else sized.size
                steps.append((-first, len(steps), sized))
        return [step for _, _, step in sorted(steps, key=lambda s: s[:2])]

    def _sized(self, rest: Rest) -> list[_Sized]:
        """Return ``rest``, in equal parts where no single replica serves it; none where no part is served."""
        for parts in _PARTS:
            part = replace(rest, rps=rest.rps / parts)
            offers = self._fitting(part, part.type)
            if offers:
                size = max(min(o.size for o in offers), 1e-6)
                return [_Sized(rest=part, offers=offers, size=size)] * parts
        return []

    def _squeeze(self, rest: Rest) -> None:
        """Place what there is room for of ``rest``, on any type, by ever smaller parts."""
        types = [rest.type, *(t for t in range(len(self.free)) if t != rest.type)]
        left = rest.rps
        for parts in _PARTS:
            part = replace(rest, rps=rest.rps / parts)
            for t in types:
                offers = self._fitting(part, t)
                while left >= part.rps * 0.999 and offers and self._placed(t, offers):
                    left -= part.rps
        self.short |= left > 1e-3 * rest.rps

    def _placed(self, t: int, offers: Sequence[_Offer]) -> bool:
        """Put the best of ``offers`` on a GPU of type ``t``; return whether there is room."""
        best = None
        for number, offer in enumerate(offers):
            bins = self.bins[t, offer.kind]
            room = bins.room(offer)
            if room is not None and (best is None or (room[0], number) < best[:2]):
                best = (room[0], number, offer, room[1])
        if best is not None:
            self.bins[t, best[2].kind].put(best[2], best[3])
            return True
        if not offers or not self.free[t]:
            return False
        offer = min(offers, key=lambda o: o.size)
        self.bins[t, offer.kind].open(offer)
        self.free[t] -= 1
        return True

    def _fitting(self, rest: Rest, t: int) -> tuple[_Offer, ...]:
        """Return how ``rest`` may run on a GPU of type ``t`` (many rests of a model are alike)."""
        key = (rest.model, t, rest.rps)
        if key not in self._offered:
            self._offered[key] = tuple(o for o in self._offers(rest, t) if o.size <= _FULL)
        return self._offered[key]

    def _offers(self, rest: Rest, t: int) -> Iterator[_Offer]:
        ways = self.menus.of[rest.model].get(t, ())
        loose = sorted((w for w in ways if w.share_pct >= 100), key=lambda w: w.batch)
        confined = [w for w in ways if w.share_pct < 100]
        if loose and self.menus.turns:
            yield self._in_turns(rest, loose)
        for kind, own in ((_BESIDE, loose), (_CONFINED, confined)):
            enough = [w for w in own if self.menus.rate(w) >= self.margins.spare * rest.rps]
            if enough:
                needs = [_needs(w) for w in enough]
                at = min(range(len(enough)), key=lambda i: (max(needs[i]), enough[i].batch))
                column = np.array(needs[at])[:, None]
                yield _Offer(kind=kind, ways=(enough[at],), needs=column, size=max(needs[at]))

    def _in_turns(self, rest: Rest, ladder: list[Way]) -> _Offer:
        """Return what ``rest`` takes of each cycle by the smallest of its batches that serves it."""
        batches = np.array([w.batch for w in ladder])
        latencies = np.array([w.latency_ms for w in ladder])
        memory = np.array([w.memory_pct / 100 for w in ladder])
        widths = np.array([w.width for w in ladder]) ** self.margins.wary
        at: NDArray[np.int64] = np.searchsorted(batches, rest.rps * self.cycles / (1e3 * self.margins.load))
        inside = at < len(ladder)
        at = np.minimum(at, len(ladder) - 1)
        in_time = (latencies[at] + self.cycles) * widths[at] <= self.menus.model(rest.model).slo_ms
        fits = inside & in_time
        needs = np.zeros((4, len(self.cycles)))
        needs[0] = np.where(fits, latencies[at] / self.cycles, math.inf)
        needs[1] = memory[at]
        ways = tuple(ladder[i] if ok else None for i, ok in zip(at.tolist(), fits.tolist(), strict=True))
        return _Offer(kind=_TURNS, ways=ways, needs=needs, size=float(needs.max(axis=0).min()))

    def _patterns(self) -> dict[GpuPattern, int]:
        counts: dict[GpuPattern, int] = {}
        for (t, kind), bins in self.bins.items():
            for at, offers in enumerate(bins.offers):
                members = self._members(kind, offers, bins.best_column(at))
                p = pattern(t, members)
                while members and not allowed(self.menus, p):
                    members.pop()
                    p = pattern(t, members)
                counts[p] = counts.get(p, 0) + 1
        return counts

    def _members(self, kind: str, offers: list[_Offer], column: int) -> Members:
        ways = [w for w in (o.ways[column] for o in offers) if w is not None]
        if kind != _TURNS or len(ways) == 1:
            return [PatternMember(w.number) for w in ways]
        cycle = math.fsum(w.latency_ms for w in ways)
        return [PatternMember(w.number, 0, cycle) for w in ways]


def _needs(way: Way) -> list[float]:
    """Return the parts of a GPU that one replica of ``way`` takes: compute, memory, Creq, DRAM bandwidth."""
    creq = way.share_pct if way.creq_pct is None else way.creq_pct
    return [way.part, way.memory_pct / 100, creq / 100, (way.dram_pct or 0.0) / 100]
