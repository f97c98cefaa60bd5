"""``gkest profile plan`` as a function: from models, catalogue and budget to a sweep plan and what to say of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import chain
from pathlib import Path

import numpy as np

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.kernels import Kernel
from gkestimator.core.naming import find_models
from gkestimator.core.records import frozen
from gkestimator.estimation.sources import load_bundles
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.hardware.runtimes import RUNTIMES, runtime_words
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

Progress = Callable[[str, int, int], None]
DEFAULT_MINUTES = 10.0
_LEAST_CANDIDATES = 10_000  # a sweep of every precision has as many to choose from, whatever the budget
_SPARE = 1.3  # candidates per entry asked for
_SHAPES_ALREADY = 2_500  # real shapes and corners of the catalogue, about
_BATCH_SIZES = 64


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
    dims: Mapping[str, int] = field(default_factory=dict)
    minutes: float | None = None
    entries: int | None = None
    counters: float = 0.15
    repeats: int | None = None
    seed: int = 0
    made_by: str = ""

    def __post_init__(self) -> None:
        for name, good, value, expected in (
            ("runtime", self.runtime in tuple(RUNTIMES), self.runtime, runtime_words()),
            ("minutes", self.minutes is None or 0 < self.minutes <= 1e6, self.minutes, "a positive number"),
            (
                "entries",
                self.entries is None or 1 <= self.entries <= MAX_ENTRIES,
                self.entries,
                f"1 to {MAX_ENTRIES:,}",
            ),
            ("counters", 0 <= self.counters <= 1, self.counters, "a share from 0 to 1"),
            ("repeats", self.repeats is None or 1 <= self.repeats <= 10_000, self.repeats, "1 to 10,000"),
            ("seed", 0 <= self.seed < 2**32, self.seed, "a whole number from 0"),
            (
                "batch sizes",
                len(self.batch_sizes or ()) <= _BATCH_SIZES,
                len(self.batch_sizes or ()),
                f"at most {_BATCH_SIZES}",
            ),
            ("gpu", not (self.cpu and self.gpu), self.gpu, "none for a plan of the CPU"),
        ):
            if not good:
                raise UsageError(f"{name}: found {value!r}, expected {expected}")
        for dtype in self.dtypes or ():
            if dtype not in DTYPES:
                raise UsageError(f"dtype: found {dtype!r}, expected {', '.join(DTYPES)}")
        if not self.catalogue and not self.models:
            raise UsageError("nothing to plan: neither models nor the catalogue; name models, or leave it in")


@frozen
class Planned:
    """The plan; files that gave nothing, with the reason; what else to say, in lines."""

    plan: SweepPlan
    failures: tuple[tuple[Path, GkestimatorError], ...]
    messages: tuple[str, ...]


def make_plan(request: PlanRequest, progress: Progress | None = None) -> Planned:
    """The entries most worth measuring within the budget, most valuable first.

    Entries of the models come first, those that take most of the models' estimated time at their head; then the
    catalogue, spread over the physical features of every family. The order does not depend on the budget, so a
    shorter plan of the same request is the head of a longer one. Raises GkestimatorError: a bad GPU, bundle or number,
    or nothing that could be planned.
    """
    say = progress or (lambda *_: None)
    gpus = gpu_catalogue(tuple(request.gpu_specs))
    gpu, note = gpus.resolve(request.gpu or GENERIC_GPU)
    kernels_of = gpu if request.gpu else gpus.spec(GENERIC_KERNELS)
    options = lowering_options(request.runtime, _dtypes(request, kernels_of), kernels_of)
    paths, failures = find_models(request.models)
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
    failures = (*failures, *sweep.failures)
    if not candidates:
        reason = str(failures[0][1]) if failures else "no operator that launches a kernel"
        raise UsageError(f"nothing to plan: {reason}")
    say("choice", 1, 2)
    bundle = load_bundles(tuple(request.bundles))
    known = request.gpu is not None
    valued = value(candidates, bundle, gpu, doubt=known, cpu=request.cpu)
    seconds = _Seconds.of(request, candidates, valued)
    head = _model_order(sweep, origins, candidates, valued.call_us)
    taken = np.zeros(len(candidates), dtype=bool)
    taken[:of_models] = True
    rest = choose_order(
        valued.groups, valued.points, valued.weights, seconds.cheapness(), valued.shares, taken
    )
    order = chain(head, rest)
    entries, cut = _cut(request, candidates, order, valued, seconds)
    plan = SweepPlan(
        runtime=request.runtime,
        entries=entries,
        gpu=gpu.name if known else None,
        minutes=_minutes(request),
        seed=request.seed,
        made_by=request.made_by,
    )
    return Planned(
        plan=plan,
        failures=tuple(failures),
        messages=messages_of(
            plan,
            note=note,
            cpu=request.cpu,
            candidates=len(candidates),
            cut_models=max(0, of_models - cut),
            left_out=_left_out(sweep, collector),
        ),
    )


def _minutes(request: PlanRequest) -> float | None:
    if request.minutes is None and request.entries is None:
        return DEFAULT_MINUTES
    return request.minutes


def _dtypes(request: PlanRequest, gpu: GpuSpec) -> tuple[str, ...]:
    """The words asked for, in the order of ``DTYPES``; None: all that the GPU has."""
    if request.dtypes is not None:
        return tuple(d for d in DTYPES if d in request.dtypes)
    if request.cpu:
        return ("fp32",)
    return tuple(d for d in DTYPES if d == "fp32" or d in gpu.peak_flops_per_s)


def _sampled(request: PlanRequest, dtypes: int) -> int:
    """How many shapes to draw, so that there is a choice: matrix work alone comes in tf32."""
    wanted = max(_LEAST_CANDIDATES, round(_SPARE * (request.entries or 0)))
    return max(500, min(100_000, round(wanted / max(1, dtypes - 0.3)) - _SHAPES_ALREADY))


def _add_models(collector: CandidateCollector, sweep: ModelSweep) -> list[str]:
    """Candidates of every call of the models; which call (its text) each is of."""
    origins: list[str] = []
    for text, call in sweep.calls.items():
        names = list(dict.fromkeys(name for name, _ in call.launches))
        source = f"model:{names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        added = collector.add(call.fragment, "".join(c for c in source if c.isprintable())[:200])
        origins += [text] * len(added)
    return origins


def _model_order(
    sweep: ModelSweep, origins: Sequence[str], candidates: Sequence[SweepCandidate], call_us: np.ndarray
) -> list[int]:
    """Candidates of models (``origins`` names their calls) by the part of their models' estimated time that they stand
    for; one whose kernels an earlier one launches already comes after all that are new."""
    totals: defaultdict[tuple[str, str, int], float] = defaultdict(float)
    parts: list[list[tuple[tuple[str, str, int], float]]] = []
    for position, text in enumerate(origins):
        dtype = candidates[position].dtype
        each = float(call_us[position])
        mine = [((dtype, *place), each * n) for place, n in sweep.calls[text].launches.items()]
        parts.append(mine)
        for place, spent in mine:
            totals[place] += spent
    value = np.array([sum(spent / totals[place] for place, spent in mine if spent > 0) for mine in parts])
    seen: set[tuple[Kernel, ...]] = set()
    new: list[int] = []
    again: list[int] = []
    for position in np.argsort(-value, kind="stable") if len(value) else ():
        kernels = candidates[position].kernels
        (again if kernels in seen else new).append(int(position))
        seen.add(kernels)
    return new + again


@frozen
class _Seconds:
    """Seconds of every candidate: the timeline pass, and what counters add."""

    timeline: np.ndarray
    counters: np.ndarray

    @classmethod
    def of(cls, request: PlanRequest, candidates: Sequence[SweepCandidate], valued: Valued) -> _Seconds:
        costs = COSTS[request.runtime]
        nbytes = np.array([c.nbytes for c in candidates], dtype=np.float64)
        timeline = entry_s(valued.call_us, nbytes, costs, repeats=request.repeats)
        return cls(timeline=timeline, counters=counters_s(valued.kernels, timeline, costs))

    def cheapness(self) -> np.ndarray:
        """A weight: the root of how much cheaper than usual, within a factor of two."""
        usual = float(np.median(self.timeline))
        return np.asarray(np.clip(np.sqrt(usual / self.timeline), 0.5, 2.0))


def _cut(
    request: PlanRequest,
    candidates: Sequence[SweepCandidate],
    order: Iterable[int],
    valued: Valued,
    seconds: _Seconds,
) -> tuple[tuple[PlanEntry, ...], int]:
    """Entries in order until the budget is used up, and how many of them are at the front of the candidates (models').

    Counters go to every group in turn: the n-th of a group has them where the running share passes a whole number.
    """
    budget = _minutes(request)
    left_s = np.inf if budget is None else 60 * budget
    most = request.entries or MAX_ENTRIES
    names = sorted(valued.groups)
    group_of = {p: n for n, name in enumerate(names) for p in valued.groups[name]}
    met: Counter[int] = Counter()
    entries: list[PlanEntry] = []
    of_models = 0
    for position in order:
        if len(entries) >= most:
            break
        candidate = candidates[position]
        if request.cpu and valued.call_us[position] > 1e6 * CPU_LONGEST_S:
            continue
        group = group_of[position]
        start = (group * 0.618034) % 1.0  # groups begin at different points of the running share
        before, after = (int(start + n * request.counters) for n in (met[group], met[group] + 1))
        wanted = after > before and not request.cpu
        cost = float(seconds.timeline[position]) + (float(seconds.counters[position]) if wanted else 0.0)
        if cost > left_s:
            break
        left_s -= cost
        met[group] += 1
        of_models += candidate.source.startswith("model:")
        entries.append(
            PlanEntry(
                id=candidate.id,
                fragment=candidate.fragment,
                dtype=candidate.dtype,
                source=candidate.source,
                counters=wanted,
                estimated_s=round(cost, 4),
            )
        )
    if not entries:
        raise UsageError(f"minutes: found {budget}, expected enough for one entry")
    return tuple(entries), of_models


def _left_out(sweep: ModelSweep, collector: CandidateCollector) -> Counter[str]:
    """What is not in the plan whatever the budget, by reason."""
    reasons = Counter({f"of the models: {reason}": n for reason, n in sweep.left_out.items()})
    reasons.update(collector.left_out)
    return reasons
