"""gpu-lets: elastic partitioning of GPUs, with turns inside a part (Choi et al., USENIX ATC 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.errors import UsageError
from gkestimator.interference.gpulet_law import DERIVED, GpuletCoefficients, read_coefficients
from gkestimator.placement.papers.gpulet.board import Board, Fitted, Place
from gkestimator.placement.papers.gpulet.lets import CLOSE, Asked, Ladders, Let, affordable, knee, sizes
from gkestimator.placement.policy import Placement, Policy, check_flags
from gkestimator.placement.problem import FloatRow, PlacementModel, Problem

_HALVINGS = 20
_MOST_PASSES = 8
_SMALLEST_PART = 1e-3


class GpuletPolicy(Policy):
    """Split GPUs in two, models in turns inside a part. Source: Choi et al., "Serving Heterogeneous Machine
    Learning Models on Multi-GPU Servers with Spatio-Temporal Sharing", USENIX ATC 2022, algorithm 1.

    Models by descending rate; each takes gpu-lets of size min(knee of its curve of affordable rate, smallest
    size that serves what is left) by best fit, from GPUs split in two at most, until its rate is served; the
    last, not saturated, one is merged into a gpu-let that is already there where both then keep rate and
    objective by turns (the split is reverted).

    Where the paper answers "not schedulable", two steps of ours follow: a model takes the largest gpu-lets
    that are free though smaller than they should be, then what fits into others by turns; and the models that
    were not wholly served go to the front for another pass, while that changes the order, ``_MOST_PASSES`` at
    most; the pass with the most goodput counts. ``published`` True leaves both out.

    ``coefficients``: file of the interference model (default: ``gpulet_interference.DERIVED``);
    ``interference`` and ``temporal_sharing`` False leave out either.
    """

    name = "gpulet"
    summary = "gpu-lets: GPUs split in two, models in turns inside a part (Choi et al., ATC 2022)"
    options = ("coefficients", "interference", "temporal_sharing", "published")

    def __init__(
        self,
        *,
        coefficients: Path | str | None = None,
        interference: bool = True,
        temporal_sharing: bool = True,
        published: bool = False,
    ) -> None:
        check_flags(
            self.name, interference=interference, temporal_sharing=temporal_sharing, published=published
        )
        if coefficients is not None and not interference:
            raise UsageError(f"policy {self.name}: coefficients are given, but interference is turned off")
        if coefficients is None:
            self._given = None
        else:
            self._given = read_coefficients(Path(coefficients))
        self._interference = interference
        self._temporal = temporal_sharing
        self._published = published

    def place(self, problem: Problem) -> Placement:
        """Return replicas in gpu-lets; see :class:`Policy`. Raises UsageError: coefficients were given for a
        column that is null."""
        coefficients, notes = interference_of(self.name, problem, self._given, self._interference)
        notes += whole_only({gpu: sizes(problem, gpu) for gpu in problem.types})
        order = sorted(problem.models, key=lambda m: (-m.rate_rps, m.name))
        best: tuple[float, Board] | None = None
        ladders = Ladders()
        for _ in range(1 if self._published else _MOST_PASSES):
            board = Board(problem, coefficients, ladders)
            filling = _Filling(problem, board, temporal=self._temporal, published=self._published)
            missing = [filling.serve(m) for m in order]
            short = sum(missing)
            if best is None or short < best[0] * (1 - CLOSE):
                best = (short, board)
            lacking = [m for m, rate in zip(order, missing, strict=True) if rate > 0]
            served = [m for m, rate in zip(order, missing, strict=True) if rate <= 0]
            if not lacking or lacking + served == order:
                break
            order = lacking + served
        assert best is not None
        return Placement(placed=best[1].placed(), notes=tuple(notes))


def interference_of(
    policy: str, problem: Problem, given: GpuletCoefficients | None, counted: bool
) -> tuple[GpuletCoefficients | None, list[str]]:
    """Return the coefficients to count interference with (None: not counted), and what a reader must know of
    it."""
    if not counted:
        return None, []
    coefficients = given or DERIVED
    unknown = unknown_utilisation(problem, coefficients)
    if unknown is None:
        return coefficients, []
    model, column = unknown
    if given is not None:
        raise UsageError(
            f"policy {policy} needs {column} for its coefficients, which is null in a row of {model}"
        )
    return None, [f"interference between gpu-lets is not counted: {column} is null in a row of {model}"]


def whole_only(shares: dict[str, FloatRow]) -> list[str]:
    """Return a note for GPU types of which the table knows no smaller share."""
    whole = [gpu for gpu, known in shares.items() if known == (100.0,)]
    return [
        f"{gpu}: the table has no rows at a share of the SMs, so GPUs are shared in time only"
        for gpu in whole
    ]


# (size in percent of the SMs, affordable requests a second), ascending, by GPU type.
_Curves: TypeAlias = dict[str, list[tuple[float, float]]]


def _rate_of(model: PlacementModel, let: Let) -> float:
    """Return the requests a second of ``model`` that ``let`` serves."""
    return sum(load.rate_rps for load in let.loads if load.model is model)


class _Filling:
    """Run algorithm 1 for one problem."""

    def __init__(self, problem: Problem, board: Board, *, temporal: bool, published: bool) -> None:
        self.problem = problem
        self.board = board
        self.temporal = temporal
        self.published = published
        # gpu-lets with time left, and the part of it that is taken at least, by GPU number and part
        self._open: dict[tuple[int, int], tuple[Let, float]] = {}
        self._work: dict[tuple[str, str, float], float | None] = {}
        self._knees: dict[str, float | None] = {}

    def serve(self, model: PlacementModel) -> float:
        """Give ``model`` gpu-lets until its rate is served or nothing more fits. Returns the rate that is
        not."""
        left = model.rate_rps
        curves: _Curves = {}
        for gpu in self.problem.types:
            curves[gpu] = [(size, affordable(model, gpu, size)[0]) for size in self.board.sizes[gpu]]
            self._knees[gpu] = knee(curves[gpu])
        while left > CLOSE * model.rate_rps:
            fitted = self._best_fit(model, left, curves)
            if fitted is None and not self.published:
                fitted = self._what_is_left(model, left, curves)
            if fitted is None:
                return left
            left -= self._put(fitted, model)
        return 0.0

    def _put(self, fitted: Fitted, model: PlacementModel) -> float:
        """Write down; return how much more of ``model`` is served now."""
        place = fitted.place
        before = 0.0
        if place.slot is not None and (place.slot, place.part) in self._open:
            old, _ = self._open[place.slot, place.part]
            before = _rate_of(model, old)
        place = self.board.put(fitted)
        assert place.slot is not None
        self._note_open(place.gpu, place.slot, place.part, fitted.mine)
        if fitted.other is not None:
            self._note_open(place.gpu, place.slot, 1 - place.part, fitted.other)
        return _rate_of(model, fitted.mine) - before

    def _note_open(self, gpu: str, slot: int, part: int, let: Let) -> None:
        busy = self._busy(let, gpu)
        if self.temporal and busy < 1 - _SMALLEST_PART:
            self._open[slot, part] = (let, busy)
        else:
            self._open.pop((slot, part), None)

    def _best_fit(self, model: PlacementModel, left: float, curves: _Curves) -> Fitted | None:
        """Return the gpu-let where ``left`` of a model's rate fits best, merged with others where that is its
        rest."""
        options: list[tuple[FloatRow, Place]] = []
        rest = False
        for order, gpu in enumerate(self.problem.types):
            efficient = self._knees[gpu]
            if efficient is None:
                continue
            curve = curves[gpu]
            required = min((size for size, rate in curve if rate >= left * (1 - CLOSE)), default=100.0)
            ideal = min(efficient, required)
            rate = dict(curve)[ideal]
            if rate <= 0:
                continue
            rest |= rate >= left * (1 - CLOSE)
            # Across types: the cheapest (on a fixed cluster: the least of a GPU) for the rate that it serves.
            dear = self.problem.rent(gpu) * ideal / 100 / min(left, rate)
            for i, place in enumerate(self.board.halves(gpu)):
                if place.size_pct >= ideal:
                    options.append(((0, dear, order, i), place))
            if self.board.unsplit(gpu):
                options.append(((1, dear, order, 0), Place(gpu=gpu, size_pct=ideal)))
        merged = self._merged(model, left) if rest else None
        if merged is not None:
            return merged
        asked = [Asked(model=model, rate_rps=left)]
        for _, place in sorted(options, key=lambda o: o[0]):
            fitted = self.board.try_in(place, asked)
            if fitted is not None:
                return fitted
        return None

    def _what_is_left(self, model: PlacementModel, left: float, curves: _Curves) -> Fitted | None:
        """Return (beyond the paper), as no free gpu-let is as large as it should be, the one that serves
        most, or part of the rate by turns in another's."""
        whole = self._merged(model, left)
        if whole is not None:
            return whole
        best: Fitted | None = None
        most = 0.0
        asked = [Asked(model=model, rate_rps=left)]
        for place in self._free(curves):
            fitted = self.board.try_in(place, asked)
            if fitted is None:
                continue
            rate = fitted.mine.loads[0].rate_rps
            if best is None or rate > most * (1 + CLOSE):
                best = fitted
                most = rate
        if best is not None:
            return best
        return self._part_by_turns(model, left)

    def _part_by_turns(self, model: PlacementModel, left: float) -> Fitted | None:
        """Return the largest part of ``left`` that can be served by turns in another's gpu-let, by
        halving."""
        if self._merged(model, left * _SMALLEST_PART) is None:
            return None
        low = 0.0
        high = 1.0
        best = None
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tried = self._merged(model, left * middle)
            if tried is None:
                high = middle
            else:
                low = middle
                best = tried
        if low >= _SMALLEST_PART:
            return best
        return None

    def _free(self, curves: _Curves) -> Iterator[Place]:
        for gpu in self.problem.types:
            seen = set()
            for place in self.board.halves(gpu):
                if self.board.coefficients is not None or place.size_pct not in seen:
                    yield place
                seen.add(place.size_pct)
            if self.board.unsplit(gpu):
                yield from (Place(gpu=gpu, size_pct=size) for size, rate in curves[gpu] if rate > 0)

    def _merged(self, model: PlacementModel, rate: float) -> Fitted | None:
        """Return ``rate`` of ``model`` by turns in a gpu-let that has time left: in the smallest, of those in
        the busiest."""
        tried = []
        for (slot, part), (let, taken) in self._open.items():
            own = self._least_work(model, self.board.type_of(slot), let.size_pct)
            if own is None:
                continue
            busy = taken + rate * own
            if busy <= 1 + CLOSE:
                tried.append((let.size_pct, -busy, slot, part))
        for size, _, slot, part in sorted(tried):
            rates = {a.model.name: a for a in self._open[slot, part][0].asked}
            before = rates.get(model.name)
            if before is None:
                whole = rate
            else:
                whole = before.rate_rps + rate
            rates[model.name] = Asked(model=model, rate_rps=whole)
            asked = list(rates.values())
            place = Place(gpu=self.board.type_of(slot), size_pct=size, slot=slot, part=part)
            fitted = self.board.try_in(place, asked)
            if fitted is not None and _serves_all(fitted.mine, asked):
                return fitted
        return None

    def _least_work(self, model: PlacementModel, gpu: str, size: float) -> float | None:
        """Return the seconds of a gpu-let for one request of ``model`` at its most efficient batch; None
        where it cannot run there."""
        key = (model.name, gpu, size)
        if key not in self._work:
            here = model.feasible(gpu, sm_share_pct=size)
            self._work[key] = min((c.latency_ms / 1e3 / c.batch_size for c in here), default=None)
        return self._work[key]

    def _busy(self, let: Let, gpu: str) -> float:
        """Return the part of the time that ``let`` is busy at least."""
        busy = 0.0
        for load in let.loads:
            busy += load.rate_rps * (self._least_work(load.model, gpu, let.size_pct) or 0.0)
        return busy


def _serves_all(let: Let, asked: Sequence[Asked]) -> bool:
    pairs = zip(let.loads, asked, strict=True)
    return all(load.rate_rps >= a.rate_rps * (1 - CLOSE) for load, a in pairs)


def unknown_utilisation(problem: Problem, coefficients: GpuletCoefficients) -> tuple[str, str] | None:
    """Return the first model, and the column that is null in one of its rows, though ``coefficients``
    multiply it; None: all known."""
    for model in problem.models:
        for column in coefficients.columns:
            if any(getattr(c.row, column) is None for c in model.candidates):
                return model.name, column
    return None
