"""``gkest profile plan --whole``: every model at every batch size and precision as one entry of a sweep plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, ModelError, UsageError, error_of_one
from gkestimator.core.escaping import is_line
from gkestimator.core.fragments import Fragment
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.naming import distinct_names, find_models
from gkestimator.core.records import frozen
from gkestimator.jobs.stopping import Progress
from gkestimator.onnx_io import Model, read_model
from gkestimator.profiling.plan import MAX_ENTRIES, ModelPoint, PlanEntry, SweepPlan, entry_id
from gkestimator.profiling.sweep.extraction import NotAFragmentError
from gkestimator.profiling.sweep.model_fragments import model_fragment, model_patterns
from gkestimator.profiling.sweep.model_prices import Prices
from gkestimator.profiling.sweep.planning import Planned, PlanRequest
from gkestimator.profiling.sweep.precision import in_dtype, native_dtype
from gkestimator.profiling.sweep.summary import expected_words
from gkestimator.profiling.type_names import CountByName, Names, Texts

_DTYPES = ("fp32", "fp16", "tf32", "bf16")
"""As they alternate; the first two unless others are asked for, on a CPU the first alone."""
_FIRST = (1, 8, 32)
_SECOND = (4, 16)
"""Batch sizes that are measured before all others: few and far apart."""
_LONGEST_NAME = 200


def make_whole_plan(request: PlanRequest, progress: Progress | None = None) -> Planned:
    """Return a plan of every model of ``request`` at every batch size (None: as exported) in every precision,
    cheap and most wanted first, until the budget is used up.

    A model that cannot be planned is in ``failures``, one line for each reason. Where ``request.gpu`` is named, entries
    whose estimated memory is more than it has are left out, and ``messages`` says so. The order does not depend on the
    budget. Raises GkestimatorError: a bad GPU, bundle or number, or nothing that could be planned.
    """
    if not request.models:
        raise UsageError("--whole plans models: name some with --models")
    paths, missing = find_models(request.models)
    if not paths:
        raise UsageError(f"nothing to plan: {missing[0][1]}")
    prices = Prices.of(request, paths, _dtypes(request))
    maker = _Maker(request=request, prices=prices)
    names = distinct_names(paths)
    patterns = model_patterns(names)
    for number, (path, name) in enumerate(zip(paths, names, strict=True)):
        if progress is not None:
            progress(name, number, len(paths))
        try:
            maker.add(path, name, patterns[number])
        except Exception as e:  # noqa: BLE001 - a defect that one model meets is called one, in its place
            maker.failures.append((path, error_of_one(e)))
    failures = (*missing, *maker.failures)
    unmet = sorted(request.dims.keys() - maker.dims_met)
    if unmet and maker.points:
        raise UsageError(f"--dim {unmet[0]}: no model has a symbolic dimension of this name")
    points = sorted(maker.points, key=lambda point: point.rank)
    ordered = [entry for point in points for entry in point.entries]
    if not ordered:
        reasons = [str(error) for _, error in failures] + maker.left_out()
        raise UsageError(f"nothing to plan: {reasons[0]}")
    plan = request.plan_of(_within(request, ordered), prices.gpu)
    messages = _messages(request, prices, maker, plan, len(ordered))
    return Planned(plan=plan, failures=failures, messages=messages)


@frozen
class _Point:
    """Hold one model at one batch size: an entry for each precision. ``again``: an earlier model of the plan
    is the same graph; ``seconds``: of all entries."""

    entries: tuple[PlanEntry, ...]
    batch_size: int
    again: bool
    seconds: float

    @property
    def rank(self) -> tuple[bool, int, float, int]:
        """Return what points are ordered by; of two that take about as long the smaller batch comes first."""
        if self.batch_size in _FIRST:
            turn = 0
        elif self.batch_size in _SECOND:
            turn = 1
        else:
            turn = 2
        return self.again, turn, round(self.seconds, 1), self.batch_size


@dataclass(slots=True, kw_only=True)
class _Maker:
    """Read, bind and price models one by one. ``points``, ``failures``: what became of them; ``dims_met``: names of
    dimensions that were asked for and found; ``same``: names of models that an earlier one is equal to, with its name;
    ``too_large``, ``halves``: what is left out, by model."""

    request: PlanRequest
    prices: Prices
    points: list[_Point] = field(default_factory=list)
    failures: list[tuple[Path, GkestimatorError]] = field(default_factory=list)
    dims_met: set[str] = field(default_factory=set)
    same: Texts = field(default_factory=dict)
    too_large: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    halves: Texts = field(default_factory=dict)
    _seen: Texts = field(default_factory=dict)  # digests of fragments without a name: whose they are

    def add(self, path: Path, name: str, pattern: str) -> None:
        """Add the points of one model. Why some are missing is told once, with the batch sizes unless it is all."""
        if not is_line(name, _LONGEST_NAME):
            self.failures.append(
                (path, UsageError(f"{path.name}: a plan holds names of at most 200 printable characters"))
            )
            return
        try:
            model = read_model(path, name=name)
        except GkestimatorError as e:
            self.failures.append((path, e))
            return
        dims = {k: v for k, v in self.request.dims.items() if k in model.dims}
        self.dims_met.update(dims)
        sizes = tuple(dict.fromkeys(self.request.batch_sizes or (None,)))
        wrong: defaultdict[str, list[int | None]] = defaultdict(list)
        for size in sizes:
            try:
                self._point(model, size, dims, pattern)
            except NotAFragmentError as e:
                wrong[f"{name}: cannot be measured as a whole: {e}"].append(size)
            except GkestimatorError as e:
                wrong[str(e)].append(size)
        for reason, mine in wrong.items():
            if len(mine) == len(sizes):
                where = ""
            else:
                where = f" (batch size {', '.join(map(str, mine))})"
            self.failures.append((path, ModelError(f"{reason}{where}")))

    def _point(self, model: Model, size: int | None, dims: CountByName, pattern: str) -> None:
        graph = model.bind(batch_size=size, dims=dims)
        fragment = model_fragment(graph, pattern)
        # The pattern holds the name: without it equal graphs are equal.
        digest = replace(fragment, pattern="").digest()
        first = self._seen.setdefault(digest, graph.name)
        if first != graph.name:
            self.same.setdefault(graph.name, first)
        entries = tuple(self._entries(graph, fragment))
        if entries:
            self.points.append(
                _Point(
                    entries=entries,
                    batch_size=graph.batch_size,
                    again=first != graph.name,
                    seconds=sum(e.estimated_s or 0.0 for e in entries),
                )
            )

    def _entries(self, graph: OperatorGraph, fragment: Fragment) -> list[PlanEntry]:
        native = native_dtype(fragment)
        words = _dtypes(self.request)
        if native is not None:
            if native not in words:
                self.halves[graph.name] = native
            words = tuple(word for word in words if word == native)
        point = ModelPoint(name=graph.name, batch_size=graph.batch_size, dims=dict(graph.dims))
        entries = []
        for dtype in words:
            # The executors run a fragment as it stands: its tensors say the precision.
            typed = in_dtype(fragment, dtype)
            if typed is None:  # only of what is no whole model
                continue
            price = self.prices.price(graph, typed, dtype)
            if price.mreq_pct is not None and price.mreq_pct > 100:
                self.too_large[graph.name].append(f"{dtype} batch {graph.batch_size}")
                continue
            entry = PlanEntry(
                id=entry_id(typed, dtype),
                fragment=typed,
                dtype=dtype,
                source=f"model:{graph.name}"[:_LONGEST_NAME],
                estimated_s=round(price.seconds, 4),
                model=point,
            )
            entries.append(entry)
        return entries

    def left_out(self) -> list[str]:
        """Return what is not in the plan whatever the budget, in lines."""
        lines = [
            f"left out: {name} is in {half}, which is not among the precisions wanted"
            for name, half in self.halves.items()
        ]
        if self.too_large:
            gpu = self.prices.gpu
            gib = (gpu.memory_visible_bytes or 0) / 2**30
            parts = []
            for name, points in self.too_large.items():
                parts.append(f"{name} {', '.join(points)}")
            listed = "; ".join(parts)
            lines.append(
                f"left out, for more than the {gib:.1f} GiB of the {gpu.name} are estimated: {listed}"
            )
        return lines


def _dtypes(request: PlanRequest) -> Names:
    if request.dtypes is not None:
        return tuple(d for d in _DTYPES if d in request.dtypes)
    if request.cpu:
        return _DTYPES[:1]
    return _DTYPES[:2]


def _within(request: PlanRequest, ordered: Sequence[PlanEntry]) -> list[PlanEntry]:
    """Return the head of ``ordered`` that the budget has room for."""
    left_s = request.budget_s
    entries: list[PlanEntry] = []
    for entry in ordered[: request.entries or MAX_ENTRIES]:
        left_s -= entry.estimated_s or 0.0
        if left_s < 0:
            break
        entries.append(entry)
    if not entries:
        raise UsageError(f"minutes: found {request.budget_minutes}, expected enough for one model")
    return entries


def _messages(request: PlanRequest, prices: Prices, maker: _Maker, plan: SweepPlan, candidates: int) -> Names:
    """Return lines for people, the most important one last."""
    lines = []
    if prices.note is not None and plan.gpu is not None:
        lines.append(prices.note)
    models = {e.model.name for e in plan.entries if e.model is not None}
    plural = "s" if len(models) > 1 else ""
    precisions = Counter(e.dtype for e in plan.entries)
    listed = ", ".join(f"{dtype} {n}" for dtype, n in precisions.most_common())
    lines.append(f"{len(models)} whole model{plural}; precisions: {listed}")
    if maker.same:
        listed = ", ".join(f"{name} (as {first})" for name, first in maker.same.items())
        lines.append(f"the same graph as an earlier model, so planned last: {listed}")
    lines += maker.left_out()
    missing = candidates - len(plan.entries)
    if missing:
        lines.append(f"the budget ends before {missing} entries: more --minutes (or --entries) has all")
    expected = expected_words(plan, cpu=request.cpu)
    lines.append(f"{len(plan.entries):,} entries of {candidates:,}; {expected}")
    return tuple(lines)
