"""Fit a bundle: one function from measured rows to what predicts.

Whatever is to be left out (shapes, a GPU, a source) is filtered out of the rows before; inside, out-of-fold
predictions give the weights of the stack and the interval widths, and then every member is fitted on all rows.
So the errors that an experiment prints with rows left out are those of exactly what is shipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.bundles.files import write_bundle
from gkestimator.bundles.models import (
    SCHEMA_VERSION,
    SHORTEST_KERNEL_US,
    SIZE_EDGES_US,
    BundleModel,
    Chip,
    chip_of,
)
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import Array
from gkestimator.core.records import NamedNumbers, NamedValues, Names, frozen
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.kernel_models.geometry import Geometry
from gkestimator.kernel_models.regressors import Stack, Uncertainty
from gkestimator.training.calibrate import coverage, fit_uncertainty, size_quantiles
from gkestimator.training.fit import FitProblem, StackFit, fit_stack, problem, sample
from gkestimator.training.geometry import fit_geometry
from gkestimator.training.members import fit_member, predicted
from gkestimator.training.plan import PLAN, ModelPlan
from gkestimator.training.rows import Progress, TrainingRows, rooflines_us

FEWEST_ROWS = 150
"""A family with fewer measured rows gets no regressor."""
FEWEST_CHIPS = 2
"""A regressor for GPUs that were not measured needs measurements of at least so many chips: its anchor carries the
physics, and what other chips' errors do not confirm gets no weight."""
# Largest by time at the anchor: models leave the training range upwards, with larger batches.
_LARGEST_SHARE = 0.1
_EXTRAPOLATION_TREES = 60


@frozen
class ModelReport:
    """Hold the out-of-fold errors of one regressor, mean absolute percentage.

    Every row was predicted by members fitted without its shape (scope ``seen``) or without any board of its
    chip (``unseen``). ``error_pct``: against what the publisher measured, launch gap included where it was;
    ``gpu_time_pct``: the same against GPU time, where it is known; ``roofline_pct``: the roofline alone in
    place of the prediction; per source, the first also ``per_gpu_pct``. ``members``: mean |log error| of each
    member alone. ``coverage_pct``: how often the 90 % interval held, each half of the shapes calibrated on the
    other.
    """

    name: str
    scope: str
    rows: int
    members: NamedNumbers
    weights: NamedNumbers
    error_pct: NamedNumbers
    gpu_time_pct: NamedNumbers
    roofline_pct: NamedNumbers
    per_gpu_pct: NamedNumbers
    counts: dict[str, int]
    coverage_pct: float


@frozen
class FittedModel:
    """Hold one fitted regressor: what it answers, where it was trained, its stack, its interval widths and
    its errors.
    """

    plan: ModelPlan
    stack: Stack
    feature_names: Names
    low: tuple[float, ...]
    high: tuple[float, ...]
    chips: tuple[Chip, ...]
    bandwidths: tuple[tuple[float, ...], ...]
    gpus: Names
    uncertainty: Uncertainty
    factors: tuple[float, ...]
    beyond: float
    report: ModelReport

    def as_model(self) -> BundleModel:
        """Return the model as a bundle holds it."""
        return BundleModel(
            name=self.plan.name,
            features=self.plan.features,
            feature_names=self.feature_names,
            trains=frozenset(self.plan.trains),
            covers=frozenset((*self.plan.trains, *self.plan.covers)),
            low=np.array(self.low),
            high=np.array(self.high),
            chips=self.chips,
            bandwidths=self.bandwidths,
            factors=self.factors,
            beyond=self.beyond,
            path=Path(f"{self.plan.name}.npz"),
            scope=self.plan.scope,
            anchor=self.plan.anchor,
            widest=self.plan.widest,
            variants=frozenset(self.plan.variants),
            _fitted=(self.stack, self.uncertainty),
        )


@frozen
class FittedBundle:
    """Say what :func:`fit_bundle` returns: predicts through ``bundle``, and is written with :meth:`write`."""

    models: tuple[FittedModel, ...]
    geometry: Geometry
    seed: int

    @property
    def bundle(self) -> Bundle:
        """Return the bundle in memory; it predicts as it does from disk, where arrays are rounded to 1e-6."""
        return Bundle(name="fitted", models=tuple(m.as_model() for m in self.models), geometry=self.geometry)

    def write(self, out: Path, *, card: Mapping[str, Any]) -> None:
        """Write the bundle folder ``out`` with ``card`` (JSON values, ``name`` among them).

        Raises OutputError.
        """
        entries: list[NamedValues] = []
        ranges: NamedValues = {}
        quantiles: NamedValues = {}
        arrays: dict[str, dict[str, Array]] = {}
        for m in self.models:
            name = m.plan.name
            entries.append(_entry(m))
            ends = {"low": list(m.low), "high": list(m.high)}
            chips = {"chips": [list(c) for c in m.chips], "dram_bytes_per_s": [list(b) for b in m.bandwidths]}
            ranges[name] = {**ends, **chips, "gpus": list(m.gpus)}
            quantiles[name] = {"factors": list(m.factors), "beyond": m.beyond, "widest": m.plan.widest}
            arrays[name] = _packed(m)
        documents: dict[str, NamedValues] = {
            "card": dict(card),
            "stack": {"schema_version": SCHEMA_VERSION, "models": entries},
            "ranges": ranges,
            "quantiles": quantiles,
        }
        if self.geometry.pickers:
            documents["geometry"] = self.geometry.document()
            arrays["geometry"] = self.geometry.arrays()
        write_bundle(out, documents, arrays)


def _entry(model: FittedModel) -> NamedValues:
    plan = model.plan
    return {
        "name": plan.name,
        "scope": plan.scope,
        "anchor": plan.anchor,
        "features": plan.features,
        "feature_names": list(model.feature_names),
        "trains": [list(p) for p in plan.trains],
        "covers": [list(p) for p in (*plan.trains, *plan.covers)],
        "variants": list(plan.variants),
    }


def _packed(model: FittedModel) -> dict[str, Array]:
    """Return the model's arrays in the smallest types that keep its predictions to 1e-6."""
    arrays = {**model.stack.arrays(), **model.uncertainty.arrays()}
    # No feature set has 256 columns.
    for name in ("forest.feature", "uncertainty.feature"):
        if name in arrays:
            arrays[name] = arrays[name].astype(np.uint8)
    return arrays


def fit_bundle(
    rows: Sequence[TrainingRows],
    gpus: GpuSpecs,
    *,
    seed: int = 0,
    plans: Sequence[ModelPlan] = PLAN,
    geometry: bool = True,
    progress: Progress | None = None,
) -> FittedBundle:
    """Fit the regressors of ``plans`` for which ``rows`` hold enough; the same rows and seed give the same
    bundle.

    ``gpus`` maps every GPU name in the rows to its specification. A plan with fewer than ``FEWEST_ROWS``
    rows, or of scope ``unseen`` with fewer than ``FEWEST_CHIPS`` chips, is left out. Raises TableError if
    none remains. Without ``geometry`` the learned choice of library kernels is left out: it moves no duration,
    only grids, and with them occupancy and SM utilisation.
    """
    tell = progress or (lambda text, done, total: None)
    models: list[FittedModel] = []
    most = 0
    for number, plan in enumerate(plans):
        parts = [p.take(plan.mask(p)) for p in rows]
        count = sum(len(p) for p in parts)
        most = max(most, count)
        if count < FEWEST_ROWS:
            continue
        mine = TrainingRows.concatenate(parts)
        if plan.scope == "unseen" and len(_chips(mine, gpus)) < FEWEST_CHIPS:
            continue
        tell(plan.name, number, len(plans))
        models.append(_fit_model(plan, mine, gpus, seed=seed))
    if not models:
        raise TableError(
            f"the most measured rows of one family that can be trained are {most}; expected at least {FEWEST_ROWS}"
        )
    if geometry:
        tell("launch geometry", len(plans), len(plans))
    else:
        rows = ()
    picked = fit_geometry(rows, gpus, seed=seed)
    return FittedBundle(models=tuple(models), geometry=picked, seed=seed)


def _chips(rows: TrainingRows, gpus: GpuSpecs) -> tuple[Chip, ...]:
    return tuple(sorted({chip_of(gpus[g]) for g in set(rows.gpu.tolist())}))


def _bandwidths(rows: TrainingRows, gpus: GpuSpecs) -> tuple[tuple[float, ...], ...]:
    """Return, for each of :func:`_chips`, the DRAM bytes/s of its measured boards."""
    by_chip: dict[Chip, set[float]] = {}
    for name in set(rows.gpu.tolist()):
        by_chip.setdefault(chip_of(gpus[name]), set()).add(gpus[name].dram_bytes_per_s)
    return tuple(tuple(sorted(by_chip[chip])) for chip in sorted(by_chip))


def _fit_model(plan: ModelPlan, rows: TrainingRows, gpus: GpuSpecs, *, seed: int) -> FittedModel:
    index, stands_for = sample(rows, plan.rows, seed, gpus)
    fitted_rows = rows.take(index)
    data = problem(plan, fitted_rows, gpus)
    fit = fit_stack(plan, data, seed=seed)
    # As a bundle does: nothing on a GPU is shorter.
    predicted = np.maximum(data.anchor_us * np.exp(fit.out_of_fold), SHORTEST_KERNEL_US)
    known = np.isfinite(fitted_rows.duration_us) & ~data.hidden
    weight = data.weight * stands_for
    uncertainty, scale = fit_uncertainty(data, fit, known, weight, seed=seed)
    relative = np.abs(fit.out_of_fold - data.y)[known] / scale[known]
    factors = size_quantiles(predicted[known], relative, weight[known], SIZE_EDGES_US)
    held = coverage(predicted[known], relative, weight[known], data.shape[known], SIZE_EDGES_US)
    return FittedModel(
        plan=plan,
        stack=fit.stack,
        feature_names=data.names,
        low=tuple(data.x.min(axis=0).astype(float).tolist()),
        high=tuple(data.x.max(axis=0).astype(float).tolist()),
        chips=_chips(fitted_rows, gpus),
        bandwidths=_bandwidths(fitted_rows, gpus),
        gpus=tuple(sorted(set(fitted_rows.gpu.tolist()))),
        uncertainty=uncertainty,
        factors=tuple(factors),
        beyond=_extrapolation(plan, data, known, seed=seed),
        report=_report(plan, fitted_rows, gpus, data, fit, predicted, known, stands_for, held),
    )


def _extrapolation(plan: ModelPlan, data: FitProblem, known: Array, *, seed: int) -> float:
    """Return the 90 % quantile of |log error| on the tenth of the rows with the largest anchor time, by
    XGBoost fitted on the rest: what leaving the training range costs.
    """
    limit = np.quantile(data.anchor_us, 1 - _LARGEST_SHARE)
    train = data.anchor_us <= limit
    test = (data.anchor_us > limit) & known
    if test.sum() < 20 or train.sum() < 50:
        return float(np.log(2.0))
    member = next(m for m in ("xgboost", *plan.members) if m in plan.members)
    fitted = fit_member(
        member, data.x[train], data.y[train], data.weight[train], seed=seed, estimators=_EXTRAPOLATION_TREES
    )
    value = predicted(fitted, data.x[test])
    error = np.abs(np.clip(value, data.y[train].min(), data.y[train].max()) - data.y[test])
    return round(min(float(np.quantile(error, 0.9)), 5.0), 4)


def _report(
    plan: ModelPlan,
    rows: TrainingRows,
    gpus: GpuSpecs,
    data: FitProblem,
    fit: StackFit,
    predicted: Array,
    known: Array,
    stands_for: Array,
    held: float,
) -> ModelReport:
    bare_us = rooflines_us(rows.table, rows.gpu, gpus)
    measured = np.abs(rows.as_measured_us(predicted) / rows.measured_us - 1) * 100
    bare = np.abs(rows.as_measured_us(bare_us) / rows.measured_us - 1) * 100
    exact = np.full(len(rows), np.nan)
    exact[known] = np.abs(predicted[known] / rows.duration_us[known] - 1) * 100
    weight = data.weight * stands_for
    members = {}
    for name, value in fit.member_predictions.items():
        members[name] = round(float(np.average(np.abs(value - data.y), weights=weight)), 4)
    sources, counts = np.unique(rows.source.astype(str), return_counts=True)
    return ModelReport(
        name=plan.name,
        scope=plan.scope,
        rows=len(rows),
        members=members,
        weights={name: round(float(w), 4) for name, w in fit.stack.weights.items()},
        error_pct=_by(rows.source, measured, stands_for),
        gpu_time_pct=_by(rows.source, exact, stands_for),
        roofline_pct=_by(rows.source, bare, stands_for),
        per_gpu_pct=_by(rows.gpu, measured, stands_for),
        counts=dict(zip(sources.tolist(), counts.tolist(), strict=True)),
        coverage_pct=round(held, 1),
    )


def _by(groups: Array, errors: Array, weight: Array) -> NamedNumbers:
    result = {}
    for group in sorted(set(groups.tolist())):
        mask = (groups == group) & np.isfinite(errors)
        if mask.any():
            result[str(group)] = round(float(np.average(errors[mask], weights=weight[mask])), 2)
    return result
