"""``gkest profile plan`` as a function: from models, catalogue and budget to a sweep plan and what to say of it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import chain
from pathlib import Path

import numpy as np

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.escaping import printable
from gkestimator.core.naming import find_models
from gkestimator.core.records import frozen
from gkestimator.estimation.sources import load_bundles
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.hardware.runtimes import executor_of
from gkestimator.jobs.stopping import Progress
from gkestimator.operators.registry import Kernels
from gkestimator.profiling.plan import DTYPES, MAX_ENTRIES, PlanEntry, SweepPlan
from gkestimator.profiling.sweep.candidates import CandidateCollector, SweepCandidate, lowering_options
from gkestimator.profiling.sweep.catalogue import catalogue
from gkestimator.profiling.sweep.choice import choose_order
from gkestimator.profiling.sweep.cost import (
    COSTS,
    CPU_LONGEST_S,
    GENERIC_GPU,
    GENERIC_KERNELS,
    counters_s,
    entry_s,
)
from gkestimator.profiling.sweep.from_models import ModelSweep, sweep_models
from gkestimator.profiling.sweep.summary import messages_of
from gkestimator.profiling.sweep.valuation import Valued, value
from gkestimator.profiling.type_names import CountByName, Names

DEFAULT_MINUTES = 10.0
_LEAST_CANDIDATES = 10_000  # a sweep of every precision has as many to choose from, whatever the budget
_SPARE = 1.3  # candidates per entry asked for
_SHAPES_ALREADY = 2_500  # real shapes and corners of the catalogue, about
_BATCH_SIZES = 64
_LEAST_MINUTES = 1e-300


def _between(value: float | None, least: float, most: float) -> bool:
    """Return True for a number in the range, and for None: nobody said any."""
    return value is None or least <= value <= most


@frozen
class PlanRequest:
    """What to plan, checked: UsageError names a field that cannot be.

    ``models``: files, folders, patterns. ``catalogue``: shapes of the built-in catalogue too. ``gpu``: the type to be
    measured where it is known (``gpu_specs``: files that describe more). ``cpu``: the plan is for a machine without a
    GPU, to try the chain. ``dtypes`` None: all that the GPU calculates in. ``minutes`` and ``entries``: the budget;
    both None: ten minutes. ``counters``: the part of the entries that hardware counters are wanted for. ``repeats``:
    calls per entry, if the run will be told so.
    """

    models: Sequence[str] = ()
    catalogue: bool = True
    runtime: str = "torch"
    gpu: str | None = None
    gpu_specs: Sequence[Path] = ()
    bundles: Sequence[Path] = ()
    cpu: bool = False
    dtypes: Sequence[str] | None = None
    batch_sizes: Sequence[int] | None = None
    dims: CountByName = field(default_factory=dict)
    minutes: float | None = None
    entries: int | None = None
    counters: float = 0.15
    repeats: int | None = None
    seed: int = 0
    made_by: str = ""

    def __post_init__(self) -> None:
        executor_of(self.runtime)
        self._require("minutes", _between(self.minutes, _LEAST_MINUTES, 1e6), "a positive number")
        self._require("entries", _between(self.entries, 1, MAX_ENTRIES), f"1 to {MAX_ENTRIES:,}")
        self._require("counters", _between(self.counters, 0, 1), "a share from 0 to 1")
        self._require("repeats", _between(self.repeats, 1, 10_000), "1 to 10,000")
        self._require("seed", _between(self.seed, 0, 2**32 - 1), "a whole number from 0")
        batches = len(self.batch_sizes or ())
        if batches > _BATCH_SIZES:
            raise UsageError(f"batch sizes: found {batches}, expected at most {_BATCH_SIZES}")
        self._require("gpu", not (self.cpu and self.gpu), "none for a plan of the CPU")
        for dtype in self.dtypes or ():
            if dtype not in DTYPES:
                raise UsageError(f"dtype: found {dtype!r}, expected {', '.join(DTYPES)}")
        if not self.catalogue and not self.models:
            raise UsageError("nothing to plan: neither models nor the catalogue; name models, or leave it in")

    def _require(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise UsageError(f"{name}: found {getattr(self, name)!r}, expected {expected}")

    @property
    def budget_minutes(self) -> float | None:
        """Return the minutes that the plan may take; None for as many as ``entries`` take."""
        if self.minutes is None and self.entries is None:
            return DEFAULT_MINUTES
        return self.minutes

    @property
    def budget_s(self) -> float:
        """Return the seconds that the plan may take, infinity where only ``entries`` bound it."""
        if self.budget_minutes is None:
            return math.inf
        return 60 * self.budget_minutes

    def plan_of(self, entries: Sequence[PlanEntry], gpu: GpuSpec) -> SweepPlan:
        """Return the plan of ``entries``; ``gpu`` is named where it was asked for."""
        return SweepPlan(
            runtime=self.runtime,
            entries=tuple(entries),
            gpu=None if self.gpu is None else gpu.name,
            minutes=self.budget_minutes,
            seed=self.seed,
            made_by=self.made_by,
        )


@frozen
class Planned:
    """Hold the plan; files that gave nothing, with the reason; what else to say, in lines."""

    plan: SweepPlan
    failures: tuple[tuple[Path, GkestimatorError], ...]
    messages: Names


def make_plan(request: PlanRequest, progress: Progress | None = None) -> Planned:
    """Return the entries most worth measuring within the budget, most valuable first.

    Entries of the models come first, those that take most of the models' estimated time at their head; then the
    catalogue, spread over the physical features of every family. The order does not depend on the budget, so a
    shorter plan of the same request is the head of a longer one. Raises GkestimatorError: a bad GPU, bundle or number,
    or nothing that could be planned.
    """
    say = progress or (lambda *_: None)
    gpus = gpu_catalogue(tuple(request.gpu_specs))
    gpu, note = gpus.resolve(request.gpu or GENERIC_GPU)
    known = request.gpu is not None
    kernels_of = gpu if known else gpus.spec(GENERIC_KERNELS)
    options = lowering_options(request.runtime, _dtypes(request, kernels_of), kernels_of)
    paths, missing = find_models(request.models)
    collector = CandidateCollector(options=options)
    sweep = ModelSweep()
    if paths:
        plain = lowering_options(request.runtime, ["fp32"], kernels_of)["fp32"]
        sweep = sweep_models(
            paths, options=plain, batch_sizes=request.batch_sizes, dims=request.dims, progress=progress
        )
    origins = _add_models(collector, sweep)
    of_models = len(collector.candidates)
    if request.catalogue:
        say("catalogue", 0, 2)
        for entry in catalogue(_sampled(request, len(options)), request.seed):
            collector.add(entry.fragment, f"catalogue:{entry.source}")
    candidates = collector.candidates
    failures = (*missing, *sweep.failures)
    if not candidates:
        reason = str(failures[0][1]) if failures else "no operator that launches a kernel"
        raise UsageError(f"nothing to plan: {reason}")
    say("choice", 1, 2)
    bundle = load_bundles(tuple(request.bundles))
    valued = value(candidates, bundle, gpu, doubt=known, cpu=request.cpu)
    seconds = _Seconds.of(request, candidates, valued)
    head = _model_order(sweep, origins, candidates, valued.call_us)
    # The models' entries come first whatever they add; the catalogue fills what they leave open.
    taken = np.arange(len(candidates)) < of_models
    rest = choose_order(
        valued.groups, valued.points, valued.weights, seconds.cheapness(), valued.shares, taken
    )
    entries = _within(request, candidates, chain(head, rest), valued, seconds)
    plan = request.plan_of(entries, gpu)
    planned_of_models = sum(entry.source.startswith("model:") for entry in entries)
    messages = messages_of(
        plan,
        note=note,
        cpu=request.cpu,
        candidates=len(candidates),
        cut_models=max(0, of_models - planned_of_models),
        left_out=_left_out(sweep, collector),
    )
    return Planned(plan=plan, failures=failures, messages=messages)


def _dtypes(request: PlanRequest, gpu: GpuSpec) -> Names:
    """Return the words asked for, in the order of ``DTYPES``; None: all that the GPU has."""
    if request.dtypes is not None:
        return tuple(d for d in DTYPES if d in request.dtypes)
    if request.cpu:
        return ("fp32",)
    return tuple(d for d in DTYPES if d == "fp32" or d in gpu.peak_flops_per_s)


def _sampled(request: PlanRequest, dtypes: int) -> int:
    """Return how many shapes to draw, so that there is a choice: matrix work alone comes in tf32."""
    wanted = max(_LEAST_CANDIDATES, round(_SPARE * (request.entries or 0)))
    shapes = round(wanted / max(1, dtypes - 0.3)) - _SHAPES_ALREADY
    return max(500, min(100_000, shapes))


def _add_models(collector: CandidateCollector, sweep: ModelSweep) -> list[str]:
    """Add candidates of every call of the models. Returns which call (its text) each is of."""
    origins: list[str] = []
    for text, call in sweep.calls.items():
        first, *others = dict.fromkeys(name for name, _ in call.launches)
        source = f"model:{first}"
        if others:
            source += f" and {len(others)} more"
        added = collector.add(call.fragment, printable(source)[:200])
        origins += [text] * len(added)
    return origins


def _model_order(
    sweep: ModelSweep, origins: Sequence[str], candidates: Sequence[SweepCandidate], call_us: np.ndarray
) -> list[int]:
    """Return the candidates of models (``origins`` names their calls) by the part of their models' estimated time that
    they stand for; one whose kernels an earlier one launches already comes after all that are new."""
    totals: defaultdict[tuple[str, str, int], float] = defaultdict(float)
    spent: list[dict[tuple[str, str, int], float]] = []
    for position, text in enumerate(origins):
        dtype = candidates[position].dtype
        mine = {}
        for (name, batch), launches in sweep.calls[text].launches.items():
            place = (dtype, name, batch)
            mine[place] = float(call_us[position]) * launches
            totals[place] += mine[place]
        spent.append(mine)
    shares = []
    for mine in spent:
        parts = [us / totals[place] for place, us in mine.items() if us > 0]
        shares.append(sum(parts))
    # The same kernels under another operator tell nothing new.
    seen: set[Kernels] = set()
    new: list[int] = []
    again: list[int] = []
    for position in np.argsort(np.negative(shares), kind="stable").tolist():
        kernels = candidates[position].kernels
        order = again if kernels in seen else new
        order.append(position)
        seen.add(kernels)
    return new + again


@frozen
class _Seconds:
    """Hold the seconds of every candidate: the timeline pass, and what counters add."""

    timeline: np.ndarray
    counters: np.ndarray

    @classmethod
    def of(cls, request: PlanRequest, candidates: Sequence[SweepCandidate], valued: Valued) -> _Seconds:
        costs = COSTS[request.runtime]
        nbytes = np.array([c.nbytes for c in candidates], dtype=np.float64)
        timeline = entry_s(valued.call_us, nbytes, costs, repeats=request.repeats)
        return cls(timeline=timeline, counters=counters_s(valued.kernels, timeline, costs))

    def cheapness(self) -> np.ndarray:
        """Return a weight: the root of how much cheaper than usual, within a factor of two."""
        usual = float(np.median(self.timeline))
        return np.asarray(np.clip(np.sqrt(usual / self.timeline), 0.5, 2.0))


def _within(
    request: PlanRequest,
    candidates: Sequence[SweepCandidate],
    order: Iterable[int],
    valued: Valued,
    seconds: _Seconds,
) -> list[PlanEntry]:
    """Return entries in order until the budget is used up.

    Counters go to every group in turn: the n-th of a group has them where the running share passes a whole number.
    """
    left_s = request.budget_s
    most = request.entries or MAX_ENTRIES
    turns = _CounterTurns(request, valued)
    entries: list[PlanEntry] = []
    for position in order:
        if len(entries) >= most:
            break
        candidate = candidates[position]
        if request.cpu and valued.call_us[position] > 1e6 * CPU_LONGEST_S:
            continue
        # Counters cost minutes where a timeline costs seconds, so a share of the entries has them.
        counters = turns.next_has_counters(position)
        cost = float(seconds.timeline[position])
        if counters:
            cost += float(seconds.counters[position])
        # Not a cheaper one further down: every plan is to be the head of a longer one.
        if cost > left_s:
            break
        left_s -= cost
        turns.take(position)
        entries.append(
            PlanEntry(
                id=candidate.id,
                fragment=candidate.fragment,
                dtype=candidate.dtype,
                source=candidate.source,
                counters=counters,
                estimated_s=round(cost, 4),
            )
        )
    if not entries:
        raise UsageError(f"minutes: found {request.budget_minutes}, expected enough for one entry")
    return entries


class _CounterTurns:
    """Say which entries of a group are measured with counters."""

    def __init__(self, request: PlanRequest, valued: Valued) -> None:
        self._share = 0.0 if request.cpu else request.counters
        self._group_of: dict[int, int] = {}
        for number, name in enumerate(sorted(valued.groups)):
            self._group_of |= dict.fromkeys(valued.groups[name], number)
        self._met: Counter[int] = Counter()

    def next_has_counters(self, position: int) -> bool:
        """Return True where the candidate, as the next of its group, has counters."""
        group = self._group_of[position]
        start = (group * 0.618034) % 1.0  # groups begin at different points of the running share
        met = self._met[group]
        before = int(start + met * self._share)
        after = int(start + (met + 1) * self._share)
        return after > before

    def take(self, position: int) -> None:
        """Count the candidate as one of its group."""
        self._met[self._group_of[position]] += 1


def _left_out(sweep: ModelSweep, collector: CandidateCollector) -> Counter[str]:
    """Return what is not in the plan whatever the budget, by reason."""
    reasons = Counter({f"of the models: {reason}": n for reason, n in sweep.left_out.items()})
    reasons.update(collector.left_out)
    return reasons
