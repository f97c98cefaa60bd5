"""Fit what a bundle learns of measured GPUs: corrections of a base bundle, measured calls, achieved
occupancy.

Who profiles a new GPU has few rows and no public ones, but the shipped bundle has seen a hundred thousand. So
the target is log(measured / base prediction) and the default is that the base is right; per family and
precision, errors on shapes left out decide how far to move away from it, and whether the public recipe on the
measured rows does better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.bundles.corrections import BASE, Correction, correction_features, feature_set, reference_us
from gkestimator.bundles.measured import MeasuredContents, MeasuredGpu, Shift
from gkestimator.bundles.models import SIZE_EDGES_US, chip_of
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import Array, Kernel, KernelTable
from gkestimator.core.records import NamedNumbers, Names, frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.regressors import Stack
from gkestimator.training.calibrate import coverage, size_quantiles
from gkestimator.training.calls import Label, MeasuredCall, base_labels
from gkestimator.training.fit import FitProblem, fit_stack
from gkestimator.training.measured_lowering import build_lowering
from gkestimator.training.occupancy import OccupancyReport, fit_occupancy
from gkestimator.training.plan import PLAN, ModelPlan
from gkestimator.training.rows import Progress, size_hash
from gkestimator.training.small_stack import FEWEST, fit_small_stack

FEWEST_ALONE = 200
"""Shapes from which the public recipe, relative to a roofline instead of the base, is tried as well."""
# Fewer rows do not earn more trees, which only cost time.
_FEW_ROWS = 2_000
_TREES_OF_FEW = 120
# Rarer operators teach their feature nothing but their own noise.
_FEWEST_OF_VARIANT = 5
_MOST_VARIANTS = 24
# Of two families nobody can say which of them is unlike the GPU.
_FEWEST_FAMILIES = 3
_WORTH_SHIFTING = 0.9
_NORMAL_90 = 1.645
_BORROWS = {"fp16": ("bf16",), "bf16": ("fp16",)}
"""One half type answers for the other where that was not measured: same units, same bytes."""


@frozen
class FamilyReport:
    """Hold one family in one precision on one GPU.

    Errors: mean absolute percentage of GPU time. ``base_pct``: the base bundle's; ``correction_pct`` and
    ``alone_pct``: of the correction and of the public recipe on these rows, every row predicted with its
    shape left out (None: not tried). ``kept``: the one that answers, by |log error|. ``coverage_pct``: how
    often its 90 % interval held, each half of the shapes calibrated on the other.
    """

    family: str
    precision: str
    rows: int
    base_pct: float
    correction_pct: float | None
    alone_pct: float | None
    kept: str
    coverage_pct: float | None
    runtimes: Names


@frozen
class GpuReport:
    """Say what was learned of one GPU.

    ``calls``: operator calls used; ``exact``: distinct kernels whose time and launches are known as measured;
    ``launches_per_call``: how many calls make 1, 2, 3, ... launches; ``shift``: factor applied to families
    without rows, None for none; ``skipped``: calls left out, by reason.
    """

    gpu: str
    calls: int
    families: tuple[FamilyReport, ...]
    exact: int
    launches_per_call: Mapping[str, int]
    shift: float | None
    occupancy: OccupancyReport
    skipped: Mapping[str, int]


def fit_gpu(
    calls: Sequence[MeasuredCall],
    gpu: GpuSpec,
    base: Bundle,
    *,
    name: str,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[MeasuredGpu, GpuReport]:
    """Return what bundle ``name`` learns of ``gpu`` from its ``calls``.

    The same calls and seed give the same result. Raises TableError where no call can be used.
    """
    tell = progress or (lambda text, done, total: None)

    def base_us(kernels: Sequence[Kernel]) -> Array:
        return base.predict(KernelTable.from_kernels(kernels), gpu).duration_us

    calls = sorted(calls, key=lambda call: (call.entry_id, call.runtime))  # datasets come in any order
    labels, skipped = base_labels(calls, base_us)
    if not labels:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in skipped.items())
        raise TableError(f"{gpu.name}: of {len(calls)} measured calls none can be trained on; {reasons}")
    corrections, reports, middles = _fit_families(labels, gpu, base_us, seed=seed, tell=tell)
    occupancy, occupancy_report = fit_occupancy(calls, gpu, seed=seed)
    lowering = build_lowering(labels)
    shift = _common_shift(middles)
    contents = MeasuredContents(
        corrections=tuple(corrections), lowering=lowering, occupancy=occupancy, shift=shift
    )
    counts: Counter[str] = Counter()
    for call in calls:
        launches = len(call.rows)
        counts[str(launches) if launches < 4 else "4+"] += 1
    factor = None
    if shift is not None:
        factor = round(float(np.exp(shift.value)), 4)
    report = GpuReport(
        gpu=gpu.name,
        calls=len(calls),
        families=tuple(reports),
        exact=len(lowering or ()),
        launches_per_call=dict(sorted(counts.items())),
        shift=factor,
        occupancy=occupancy_report,
        skipped=skipped,
    )
    measured = MeasuredGpu(bundle=name, base=base, gpus=(gpu.name,), chip=chip_of(gpu), read=lambda: contents)
    return measured, report


def _fit_families(
    labels: Sequence[Label],
    gpu: GpuSpec,
    base_us: Callable[[Sequence[Kernel]], Array],
    *,
    seed: int,
    tell: Progress,
) -> tuple[list[Correction], list[FamilyReport], NamedNumbers]:
    """Return the corrections that pay, a report of every family and precision, and their median log errors."""
    kernels = [label.kernel for label in labels]
    table = KernelTable.from_kernels(kernels)
    duration = np.array([label.duration_us for label in labels])
    runtimes = np.array([label.call.runtime for label in labels], dtype=object)
    expected = base_us(kernels)
    kinds = np.array([f"{kernel.family.value}|{kernel.precision.value}" for kernel in kernels])
    measured_kinds = sorted(set(kinds.tolist()))
    corrections: list[Correction] = []
    reports: list[FamilyReport] = []
    middles: NamedNumbers = {}
    for done, kind in enumerate(measured_kinds):
        tell(f"{gpu.name}: {kind.replace('|', ' ')}", done, len(measured_kinds))
        index = np.flatnonzero((kinds == kind) & (expected > 0))
        if not len(index):
            continue
        family, precision = kind.split("|")
        covers = []
        for other in _BORROWS.get(precision, ()):
            if f"{family}|{other}" not in measured_kinds:
                covers.append((family, other))
        correction, report = fit_correction(
            table.take(index),
            duration[index],
            expected[index],
            gpu,
            runtimes=tuple(sorted(set(runtimes[index].tolist()))),
            covers=covers,
            seed=seed,
        )
        reports.append(report)
        if correction is not None:
            corrections.append(correction)
        if len(index) >= FEWEST:
            middles[kind] = float(np.median(np.log(duration[index] / expected[index])))
    tell(f"{gpu.name}: occupancy", len(measured_kinds), len(measured_kinds))
    return corrections, reports, middles


def fit_correction(
    table: KernelTable,
    duration_us: Array,
    base_us: Array,
    gpu: GpuSpec,
    *,
    runtimes: Names = (),
    covers: Sequence[tuple[str, str]] = (),
    weight: Array | None = None,
    seed: int = 0,
) -> tuple[Correction | None, FamilyReport]:
    """Return the regressor of one family and precision, or None where there are fewer than ``FEWEST`` rows or
    shapes, or the base is no worse on shapes left out. ``weight``: how much each row counts, alike by
    default.
    """
    family = str(table.family[0])
    precision = str(table.precision[0])
    count = len(table)
    weight = np.ones(count) if weight is None else weight
    shape = size_hash(table)  # with one operator of a size, all others of that size are left out

    def error(predicted: Array) -> float:
        return round(float(np.average(np.abs(predicted / duration_us - 1), weights=weight) * 100), 2)

    def distance(predicted: Array) -> float:
        """Return what decides: too short by half is as wrong as twice too long, which percentages deny."""
        return float(np.average(np.abs(np.log(predicted / duration_us)), weights=weight))

    def middle(predicted: Array) -> float:
        return float(np.median(np.abs(np.log(predicted / duration_us))))

    report = FamilyReport(
        family=family,
        precision=precision,
        rows=count,
        base_pct=error(base_us),
        correction_pct=None,
        alone_pct=None,
        kept="base",
        coverage_pct=None,
        runtimes=runtimes,
    )
    if len(set(shape.tolist())) < FEWEST:
        return None, report
    features = feature_set(family, precision)
    counts = Counter(table.variant.tolist())
    # A variant that every row has tells rows no more apart than one that hardly any has.
    common = [v for v, n in counts.most_common(_MOST_VARIANTS) if _FEWEST_OF_VARIANT <= n < count]
    variants = tuple(sorted(common))
    x, names = correction_features(table, gpu, base_us, features, variants)
    small = fit_small_stack(x, np.log(duration_us / base_us), weight, shape, seed=seed)
    corrected = base_us * np.exp(small.out_of_fold)
    report = replace(report, correction_pct=error(corrected))
    reference = BASE
    stack = small.stack
    predicted = corrected
    if len(set(shape.tolist())) >= FEWEST_ALONE:
        anchor, alone, out = _alone(family, precision, table, gpu, x, names, duration_us, weight, shape, seed)
        report = replace(report, alone_pct=error(out))
        if distance(out) < distance(corrected):
            reference = anchor
            stack = alone
            predicted = out
    # A few strange rows may draw a correction to them and pay for it: most rows must be no worse off, too.
    if distance(predicted) >= distance(base_us) or middle(predicted) > middle(base_us):
        return None, report
    errors = np.abs(np.log(predicted / duration_us))
    # A half-width of 5 is a factor of 148: it says that nothing is known, and stays a number.
    factors = [min(f, 5.0) for f in size_quantiles(predicted, errors, weight, SIZE_EDGES_US)]
    held = coverage(predicted, errors, weight, shape, SIZE_EDGES_US)
    correction = Correction(
        name=f"{family}_{precision}",
        features=features,
        feature_names=names,
        reference=reference,
        trains=(family, precision),
        covers=frozenset(((family, precision), *covers)),
        variants=variants,
        known_variants=frozenset(counts),
        runtimes=frozenset(runtimes),
        low=small.low,
        high=small.high,
        factors=tuple(factors),
        stack=stack,
    )
    chosen = "correction" if reference == BASE else "alone"
    return correction, replace(report, kept=chosen, coverage_pct=round(held, 1))


def _alone(
    family: str,
    precision: str,
    table: KernelTable,
    gpu: GpuSpec,
    x: Array,
    names: Names,
    duration_us: Array,
    weight: Array,
    shape: Array,
    seed: int,
) -> tuple[str, Stack, Array]:
    """Return the public recipe on these rows, the base one feature among others: anchor, stack, out-of-fold
    microseconds.
    """
    plan = _plan(family, precision)
    if len(table) < _FEW_ROWS:
        plan = replace(plan, estimators={k: min(n, _TREES_OF_FEW) for k, n in plan.estimators.items()})
    anchor_us = reference_us(plan.anchor, table, gpu, duration_us)
    data = FitProblem(
        x=x,
        y=np.log(duration_us / anchor_us),
        weight=weight,
        hidden=np.zeros(len(table), dtype=bool),
        shape=shape,
        chip=np.zeros(len(table), dtype=np.int64),
        names=names,
        anchor_us=anchor_us,
    )
    fit = fit_stack(plan, data, seed=seed)
    return plan.anchor, fit.stack, anchor_us * np.exp(fit.out_of_fold)


def _plan(family: str, precision: str) -> ModelPlan:
    """Return the public plan for the pair; for families without one, trees on the analytical time."""
    for plan in PLAN:
        if plan.scope == "seen" and (family, precision) in (*plan.trains, *plan.covers):
            return plan
    return ModelPlan(
        name=family,
        features="memory",
        trains=((family, precision),),
        anchor="analytical",
        members=("xgboost", "lightgbm"),
    )


def _common_shift(middles: Mapping[str, float]) -> Shift | None:
    """Return the mean of the families' median errors, where what the others say of each family brings it
    closer to the truth than the base is: a GPU that sustains less than its specification says is slow in
    everything.

    ``middles``: by ``family|precision``. Precisions of a family are one opinion, not several: they share
    their errors.
    """
    families: dict[str, list[float]] = {}
    for kind, middle in middles.items():
        families.setdefault(kind.split("|")[0], []).append(middle)
    if len(families) < _FEWEST_FAMILIES:
        return None
    values = np.array([float(np.mean(opinions)) for opinions in families.values()])
    others = (values.sum() - values) / (len(values) - 1)
    if np.mean(np.abs(values - others)) >= _WORTH_SHIFTING * np.mean(np.abs(values)):
        return None
    return Shift(
        value=float(values.mean()),
        half_width=min(5.0, _NORMAL_90 * float(np.std(values - others, ddof=1))),
    )
