"""gpu-lets: a share of one GPU's SMs, for one model or for several in turns; what each can serve."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from gkestimator.core.records import frozen
from gkestimator.interference.gpulet_law import GpuletCoefficients, Pressure
from gkestimator.placement.problem import FloatPair, FloatRow, Floats, PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

CLOSE = 1e-9
_ROUNDS = 6
# Bends below this (1 over the radius, both axes scaled to 1) are noise of the estimate, not a knee.
_LEAST_CURVATURE = 1e-3


@frozen
class Asked:
    """Name a model and the rate that a gpu-let is asked to serve of it."""

    model: PlacementModel
    rate_rps: float


@frozen
class LetLoad:
    """Hold a model in a gpu-let: how it runs, and the rate that it serves."""

    model: PlacementModel
    rate_rps: float
    candidate: Candidate


@frozen
class Let:
    """Hold a gpu-let of ``size_pct`` of the SMs. ``cycle_ms``: in which all its loads run once; None: one
    load alone."""

    size_pct: float
    loads: tuple[LetLoad, ...]
    cycle_ms: float | None = None

    @property
    def memory_pct(self) -> float:
        """Return the memory of all its loads, percent of the GPU's."""
        return sum(load.candidate.memory_pct or 0.0 for load in self.loads)

    @property
    def asked(self) -> tuple[Asked, ...]:
        """Return what it serves, to be fitted anew."""
        return tuple(Asked(model=load.model, rate_rps=load.rate_rps) for load in self.loads)

    def pressure(self, coefficients: GpuletCoefficients | None) -> Pressure | None:
        """Return what it does to the other gpu-let of its GPU; None: interference is not counted."""
        if coefficients is None:
            return None
        return coefficients.pressure([load.candidate for load in self.loads])


def ewma(rates_rps: Floats, alpha: float) -> float:
    """Return the exponentially weighted moving average of successive rates, the last counting most: e = alpha
    r + (1 - alpha) e, from the first rate on. Source: Choi et al., USENIX ATC 2022 (rates are tracked by it
    before each placement). Raises ValueError: no rates, or alpha outside 0 (exclusive) to 1."""
    if not rates_rps or not 0 < alpha <= 1:
        raise ValueError(f"found {len(rates_rps)} rates and alpha {alpha}, expected some and 0 < alpha <= 1")
    average = rates_rps[0]
    for rate in rates_rps[1:]:
        average = alpha * rate + (1 - alpha) * average
    return average


def sizes(problem: Problem, gpu: str) -> FloatRow:
    """Return the shares of type ``gpu``'s SMs that the table knows, percent, ascending."""
    return tuple(sorted({c.sm_share_pct for m in problem.models for c in m.candidates if c.gpu == gpu}))


def affordable(
    model: PlacementModel,
    gpu: str,
    size_pct: float,
    *,
    memory_pct: float = 100.0,
    coefficients: GpuletCoefficients | None = None,
    neighbour: Pressure | None = None,
) -> tuple[float, Candidate | None]:
    """Return the highest rate that ``model`` sustains alone in a gpu-let of this size within its objective
    and ``memory_pct``, beside ``neighbour``; and the batch that does (the smallest of several). 0 and None
    where none does."""
    best: tuple[float, Candidate | None] = (0.0, None)
    for candidate in model.on(gpu, sm_share_pct=size_pct):
        slow = _slowdown([candidate], coefficients, neighbour)
        late = candidate.latency_ms * slow > model.slo_ms * (1 + CLOSE)
        if late or (candidate.memory_pct or 0.0) > memory_pct * (1 + CLOSE):
            continue
        rate = candidate.throughput_rps / slow
        if rate > best[0] * (1 + CLOSE):
            best = (rate, candidate)
    return best


def knee(points: Sequence[FloatPair]) -> float | None:
    """Return the share at the knee of the curve of affordable rate against share (``points``, by ascending
    share): where it bends down most, by the curvature of the circle through the point and its neighbours,
    both axes scaled to 1, from (0, 0) on. The largest share where it nowhere bends; None where no rate is
    above 0.

    Source: Choi et al., USENIX ATC 2022 (MaxEfficientPartition: the knee of the rate curve is the
    point of highest curvature).
    """
    high = max((rate for _, rate in points), default=0.0)
    if high <= 0:
        return None
    wide = points[-1][0]
    curve = [(0.0, 0.0), *((share / wide, rate / high) for share, rate in points)]
    best = _LEAST_CURVATURE
    at = points[-1][0]
    for i in range(1, len(curve) - 1):
        (ax, ay), (bx, by), (cx, cy) = curve[i - 1 : i + 2]
        # Twice the triangle, negative where it bends down.
        cross = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        first = _length(ax - bx, ay - by)
        second = _length(bx - cx, by - cy)
        third = _length(ax - cx, ay - cy)
        sides = first * second * third
        bend = -2 * cross / sides
        if by > 0 and bend > best:
            best = bend
            at = points[i - 1][0]
    return at


def _length(x: float, y: float) -> float:
    return float((x * x + y * y) ** 0.5)


def _slowdown(
    candidates: Sequence[Candidate], coefficients: GpuletCoefficients | None, neighbour: Pressure | None
) -> float:
    if coefficients is None or neighbour is None:
        return 1.0
    return coefficients.slowdown(coefficients.pressure(candidates), neighbour)


def fit(
    asked: Sequence[Asked],
    gpu: str,
    size_pct: float,
    *,
    memory_pct: float = 100.0,
    coefficients: GpuletCoefficients | None = None,
    neighbour: Pressure | None = None,
    ladders: Ladders | None = None,
) -> Let | None:
    """Return a gpu-let of this size that serves ``asked``, or None. One model may be served in part (at what
    it can sustain); several are served wholly, by turns, or not at all."""
    if len(asked) == 1:
        model = asked[0].model
        rate = asked[0].rate_rps
        most, candidate = affordable(
            model, gpu, size_pct, memory_pct=memory_pct, coefficients=coefficients, neighbour=neighbour
        )
        if candidate is None:
            return None
        served = rate if most >= rate * (1 - CLOSE) else most
        return Let(size_pct=size_pct, loads=(LetLoad(model=model, rate_rps=served, candidate=candidate),))
    # The slowdown depends on the batches and they on it: from none upwards, to where it covers what it leads
    # to.
    slow = 1.0
    if ladders is None:
        ladders = Ladders()
    for _ in range(_ROUNDS):
        let = _in_turns(asked, gpu, size_pct, slow, memory_pct, ladders)
        if let is None:
            return None
        needed = _slowdown([load.candidate for load in let.loads], coefficients, neighbour)
        if needed <= slow * (1 + CLOSE):
            return let
        slow = needed
    return None


class _Turn(NamedTuple):
    """Run a model by ``candidate``, which takes ``late_ms`` beside the other gpu-let. A plain tuple:
    thousands are made for one gpu-let."""

    late_ms: float
    batch: int
    candidate: Candidate


@frozen
class _Ladder:
    """Hold the turns that a model may take: ``batches`` ascending, and ``fastest[i]``, the fastest turn (then
    the smallest batch) of at least ``batches[i]``."""

    batches: tuple[int, ...]
    fastest: tuple[_Turn, ...]

    @property
    def least_ms(self) -> float:
        """Return the time of the fastest of all its turns."""
        return self.fastest[0].late_ms


class Ladders:
    """Make the ladders of one problem's models; those without a slowdown, with which every fit begins, once."""

    def __init__(self) -> None:
        self._alone: dict[tuple[str, str, float], _Ladder | None] = {}

    def of(self, model: PlacementModel, gpu: str, size_pct: float, slow: float) -> _Ladder | None:
        """Return the turns of ``model`` in a gpu-let of this size, ``slow`` times as long as alone; None: it
        has none."""
        key = (model.name, gpu, size_pct)
        if slow == 1.0 and key in self._alone:
            return self._alone[key]
        candidates = model.on(gpu, sm_share_pct=size_pct)
        ladder = None
        if candidates:
            ladder = _ladder(candidates, slow)
        if slow == 1.0:
            self._alone[key] = ladder
        return ladder


def _ladder(candidates: Sequence[Candidate], slow: float) -> _Ladder:
    """Return the turns by ``candidates`` (at least one), each ``slow`` times as long as alone."""
    turns = [_Turn(c.latency_ms * slow, c.batch_size, c) for c in candidates]
    turns.sort(key=lambda turn: turn.batch)
    fastest = turns[-1]
    down = []
    for turn in reversed(turns):
        if turn[:2] <= fastest[:2]:
            fastest = turn
        down.append(fastest)
    return _Ladder(batches=tuple(turn.batch for turn in turns), fastest=tuple(reversed(down)))


def _in_turns(
    asked: Sequence[Asked], gpu: str, size_pct: float, slow: float, memory_pct: float, ladders_of: Ladders
) -> Let | None:
    """Return batches b and a cycle d with rate <= b / d, sum of latencies <= d, and d + latency <= objective
    for each.

    For given batches the longest cycle is the least of b / rate and objective - latency over the models; so
    only those values are tried as d, each with the fastest sufficient batches, which finds a solution
    wherever there is one (where a larger batch takes neither less time nor less memory). Of all, the one with
    the most headroom (the least of b / d over rate) is taken, then the shortest cycle; d is then shortened to
    the sum of the latencies, which only helps.
    """
    ladders = []
    for a in asked:
        ladder = ladders_of.of(a.model, gpu, size_pct, slow)
        if ladder is None:
            return None
        ladders.append(ladder)
    # No choice of batches is quicker than this: what it breaks, all do.
    least = sum(ladder.least_ms for ladder in ladders)
    if any(least + x.least_ms > a.model.slo_ms for a, x in zip(asked, ladders, strict=True)):
        return None
    best: list[_Turn] = []
    most = 0.0
    before: list[_Turn] = []
    for cycle in _cycles(asked, gpu, size_pct, slow):
        if least > cycle * (1 + CLOSE):
            continue
        turns = _fastest(asked, ladders, cycle)
        if turns is None:
            break  # longer cycles need larger batches still
        # The same turns have the same headroom, once they fit a cycle.
        if turns == before or sum(turn.late_ms for turn in turns) > cycle * (1 + CLOSE):
            continue
        before = turns
        headroom = _headroom(asked, turns, memory_pct)
        if headroom > most * (1 + CLOSE):
            best = turns
            most = headroom
    if not best:
        return None
    return _let_of(asked, best, size_pct)


def _let_of(asked: Sequence[Asked], turns: Sequence[_Turn], size_pct: float) -> Let:
    """Return the gpu-let whose models take ``turns``, its cycle no longer than they are together."""
    loads = []
    for a, turn in zip(asked, turns, strict=True):
        loads.append(LetLoad(model=a.model, rate_rps=a.rate_rps, candidate=turn.candidate))
    return Let(size_pct=size_pct, loads=tuple(loads), cycle_ms=sum(turn.late_ms for turn in turns))


def _cycles(asked: Sequence[Asked], gpu: str, size_pct: float, slow: float) -> list[float]:
    """Return the cycles worth a try, ascending; none where there is more work than time."""
    cycles = set()
    work = 0.0
    for a in asked:
        per_request = math.inf
        for c in a.model.on(gpu, sm_share_pct=size_pct):
            late = c.latency_ms * slow
            cycles.add(1e3 * c.batch_size / a.rate_rps)
            cycles.add(a.model.slo_ms - late)
            per_request = min(per_request, late / c.batch_size)
        work += a.rate_rps * per_request
    if work > 1e3 * (1 + CLOSE):  # milliseconds in a second
        return []
    return sorted(d for d in cycles if d > 0)


def _fastest(asked: Sequence[Asked], ladders: Sequence[_Ladder], cycle: float) -> list[_Turn] | None:
    """Return for each model the fastest turn (then the smallest batch) that is enough in a cycle; None: a
    model has none."""
    turns = []
    for a, ladder in zip(asked, ladders, strict=True):
        needed = a.rate_rps * cycle / 1e3 * (1 - CLOSE)
        at = bisect_left(ladder.batches, needed)
        if at == len(ladder.batches):
            return None
        turns.append(ladder.fastest[at])
    return turns


def _headroom(asked: Sequence[Asked], turns: Sequence[_Turn], memory_pct: float) -> float:
    """Return how many times its rate ``turns`` serve of each model at least; 0 where they do not fit the
    memory or the objectives."""
    busy = sum(turn.late_ms for turn in turns)
    memory = sum(turn.candidate.memory_pct or 0.0 for turn in turns)
    if memory > memory_pct * (1 + CLOSE):
        return 0.0
    headroom = math.inf
    for a, turn in zip(asked, turns, strict=True):
        if busy + turn.late_ms > a.model.slo_ms:
            return 0.0
        headroom = min(headroom, 1e3 * turn.batch / busy / a.rate_rps)
    return headroom
