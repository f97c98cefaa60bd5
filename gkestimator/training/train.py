"""``train``: from kernel measurements to a bundle, with its errors on shapes and GPUs it did not see."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.bundle_files import write_bundle
from gkestimator.bundles import SCHEMA_VERSION, SHORTEST_KERNEL_US, SIZE_EDGES_US
from gkestimator.errors import TableError
from gkestimator.gpus import GpuSpec, gpu_catalogue
from gkestimator.regressors import Stack
from gkestimator.training.calibrate import coverage, log_errors, size_quantiles
from gkestimator.training.fit import Problem, fit_stack, problem, sample
from gkestimator.training.importers import load_source
from gkestimator.training.members import fit_member
from gkestimator.training.plan import PLAN, ModelPlan
from gkestimator.training.rows import TrainingRows, shape_hash

__all__ = ["HELD_OUT", "ModelReport", "TrainReport", "measured_rows", "split", "train"]

HELD_OUT = 0.15
"""Share of shapes that no member sees: errors are reported and intervals calibrated on them."""
_MOST_HELD_OUT_ROWS = 20_000
_LEAVE_ONE_OUT_ROWS = 8_000
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """Errors of one regressor, mean absolute percentage.

    ``held_out_pct``: held-out shapes, against what the publisher measured (launch gap included where it was);
    ``gpu_time_pct``: the same against GPU time, where it is known; ``roofline_pct``: the roofline alone in
    place of the prediction; both per source and per GPU. ``unseen_gpu_pct``: XGBoost alone on GPUs that it
    was not trained on. ``coverage_pct``: how often the 90 % interval held, each half of the held-out rows
    calibrated on the other.
    """

    name: str
    rows: int
    held_out_rows: int
    members: dict[str, float]
    weights: dict[str, float]
    held_out_pct: dict[str, float]
    gpu_time_pct: dict[str, float]
    roofline_pct: dict[str, float]
    per_gpu_pct: dict[str, float]
    counts: dict[str, int]
    unseen_gpu_pct: dict[str, float]
    coverage_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """Where the bundle was written, its name, and one report per regressor."""

    path: Path
    name: str
    models: tuple[ModelReport, ...]

    def __str__(self) -> str:
        """One line per regressor: rows, mean error on held-out shapes (of GPU time; least to largest source)
        and how often the 90 % interval held there."""
        lines = ["regressor       rows  held out    error %  interval held %"]
        for m in self.models:
            errors = sorted(m.gpu_time_pct.values()) or sorted(m.held_out_pct.values())
            span = "–".join(dict.fromkeys(f"{e:.1f}" for e in (errors[0], errors[-1]))) if errors else "–"
            lines.append(
                f"{m.name:13} {m.rows:>6,}  {m.held_out_rows:>8,}  {span:>9}  {m.coverage_pct:>15.0f}"
            )
        return "\n".join(lines)


def train(
    sources: Sequence[Path],
    out: Path,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    name: str | None = None,
) -> TrainReport:
    """Train a bundle from ``sources`` (folders of public formats or kernel datasets) and write it to folder
    ``out``.

    Regressors are fitted for the families that the sources hold. The same sources and seed give the same
    bundle. Raises TableError for unreadable or unknown sources, UsageError for a GPU without specification,
    OutputError if ``out`` cannot be written.
    """
    if not sources:
        raise TableError("no sources given; expected kernel datasets or folders of a known format")
    tell = progress or (lambda text, done, total: None)
    loaded, rows, gpus = measured_rows(sources)
    plans = [plan for plan in PLAN if any(plan.mask(part.table).any() for part in rows)]
    if not plans:
        raise TableError("the sources hold no kernel of a family that can be trained")
    reports: list[ModelReport] = []
    models, ranges, quantiles, arrays = [], {}, {}, {}
    for number, plan in enumerate(plans):
        tell(plan.name, number, len(plans))
        mine = TrainingRows.concatenate([p.take(m) for p in rows if (m := plan.mask(p.table)).any()])
        stack, data, report, widths = fit_model(plan, mine, gpus, seed=seed)
        reports.append(report)
        chips = sorted(
            {(*gpus[g].compute_capability, gpus[g].sms) for g in np.unique(mine.gpu.astype(str)).tolist()}
        )
        models.append(
            {
                "name": plan.name,
                "features": plan.features,
                "feature_names": list(data.names),
                "trains": [list(p) for p in plan.trains],
                "covers": [list(p) for p in (*plan.trains, *plan.covers)],
            }
        )
        ranges[plan.name] = {
            "low": data.x.min(axis=0).astype(float).tolist(),
            "high": data.x.max(axis=0).astype(float).tolist(),
            "chips": [list(c) for c in chips],
            "gpus": sorted(set(mine.gpu.tolist())),
        }
        quantiles[plan.name] = widths
        arrays[plan.name] = _packed(stack)
    tell("writing", len(plans), len(plans))
    title = name or "".join(c if c.isalnum() else "_" for c in out.name.lower()) or "bundle"
    card = _card(title, loaded, reports, seed)
    documents: dict[str, dict[str, Any]] = {
        "card": card,
        "stack": {"schema_version": SCHEMA_VERSION, "models": models},
        "ranges": ranges,
        "quantiles": quantiles,
    }
    write_bundle(out, documents, arrays)
    return TrainReport(path=out, name=title, models=tuple(reports))


Loaded = list[tuple[Path, str, list[TrainingRows]]]


def measured_rows(sources: Sequence[Path]) -> tuple[Loaded, list[TrainingRows], dict[str, GpuSpec]]:
    """What every source holds (path, format, rows), all rows that are not empty, and the GPUs they name."""
    loaded = [(Path(path), *load_source(Path(path))) for path in sources]
    rows = [part for _, _, parts in loaded for part in parts if len(part)]
    catalogue = gpu_catalogue()
    names = {g for part in rows for g in np.unique(part.gpu.astype(str)).tolist()}
    return loaded, rows, {name: catalogue.resolve(name)[0] for name in sorted(names)}


def split(
    plan: ModelPlan, rows: TrainingRows, gpus: dict[str, GpuSpec], *, seed: int
) -> tuple[TrainingRows, TrainingRows]:
    """Rows to fit and rows held out, by a hash of the shape (never by row), each sampled to the plan's
    size."""
    test = shape_hash(rows.table) < HELD_OUT
    fit, held = rows.take(np.flatnonzero(~test)), rows.take(np.flatnonzero(test))
    rng = np.random.default_rng(seed)
    if len(held) > _MOST_HELD_OUT_ROWS:  # evenly over rows: the errors are those of the data as published
        held = held.take(np.sort(rng.choice(len(held), _MOST_HELD_OUT_ROWS, replace=False)))
    return fit.take(sample(fit, plan.rows, seed, gpus)), held


def fit_model(
    plan: ModelPlan, rows: TrainingRows, gpus: dict[str, GpuSpec], *, seed: int
) -> tuple[Stack, Problem, ModelReport, dict[str, list[float]]]:
    """One regressor: the stack, what it was fitted on, its report, and its interval widths."""
    fit, held = split(plan, rows, gpus, seed=seed)
    data = problem(plan, fit, gpus)
    if len(data.y) < 200:
        raise TableError(f"regressor {plan.name!r}: {len(data.y)} measured rows; expected at least 200")
    stack, members = fit_stack(plan, data, seed=seed)
    unseen, outside = _unseen_gpus(plan, rows, gpus, seed)
    if not len(held):
        raise TableError(f"regressor {plan.name!r}: too few distinct shapes to hold any out")
    test = problem(plan, held, gpus)
    predicted = np.maximum(test.roofline_us * np.exp(stack.predict(test.x)), SHORTEST_KERNEL_US)
    known = np.isfinite(held.duration_us) & ~test.hidden
    error = log_errors(predicted[known], held.duration_us[known])
    inside = size_quantiles(predicted[known], error, test.weight[known], SIZE_EDGES_US)
    measured = np.abs(held.as_measured_us(predicted) / held.measured_us - 1) * 100
    bare = np.abs(held.as_measured_us(test.roofline_us) / held.measured_us - 1) * 100
    exact = np.full(len(held), np.nan)
    exact[known] = np.abs(predicted[known] / held.duration_us[known] - 1) * 100
    report = ModelReport(
        name=plan.name,
        rows=len(data.y),
        held_out_rows=len(held),
        members=_rounded(members),
        weights=_rounded(stack.weights),
        held_out_pct=_by(held.source, measured),
        gpu_time_pct=_by(held.source, exact),
        roofline_pct=_by(held.source, bare),
        per_gpu_pct=_by(held.gpu, measured),
        counts={s: int((held.source == s).sum()) for s in sorted(set(held.source))},
        unseen_gpu_pct=unseen,
        coverage_pct=round(
            coverage(predicted[known], error, test.weight[known], test.shape[known], SIZE_EDGES_US), 1
        ),
    )
    widths = {"inside": inside, "outside": [max(a, outside) for a in inside]}
    return stack, data, report, widths


def _unseen_gpus(
    plan: ModelPlan, rows: TrainingRows, gpus: dict[str, GpuSpec], seed: int
) -> tuple[dict[str, float], float]:
    """Errors of XGBoost alone with each GPU left out, and the 90 % quantile of |log error| over all of
    them."""
    names = sorted(set(rows.gpu.tolist()))
    sampled = rows.take(sample(rows, _LEAVE_ONE_OUT_ROWS, seed, gpus))
    data = problem(plan, sampled, gpus)
    errors: dict[str, float] = {}
    pooled: list[np.ndarray] = []
    for gpu in names:
        # A sibling of the same chip (PCIe and SXM boards) would give the answer away.
        chip = (tuple(gpus[gpu].compute_capability), gpus[gpu].sms)
        sibling = {n for n in names if (tuple(gpus[n].compute_capability), gpus[n].sms) == chip}
        test = (sampled.gpu == gpu) & ~data.hidden
        fit = ~np.isin(sampled.gpu.astype(str), sorted(sibling))
        if test.sum() < 30 or fit.sum() < 200:
            continue
        forest = fit_member("xgboost", data.x[fit], data.y[fit], data.weight[fit], seed=seed, estimators=150)
        value = forest.predict(data.x[test])
        error = np.abs(
            np.clip(value[:, 0] if value.ndim == 2 else value, data.y[fit].min(), data.y[fit].max())
            - data.y[test]
        )
        errors[gpu] = round(float(100 * np.mean(np.abs(np.expm1(error)))), 1)
        pooled.append(error)
    quantile = float(np.quantile(np.concatenate(pooled), 0.9)) if pooled else float(np.log(3.0))
    return errors, min(round(quantile, 4), 5.0)


def _packed(stack: Stack) -> dict[str, np.ndarray]:
    """The stack's arrays in the smallest types that keep its predictions to 1e-6."""
    arrays = stack.arrays()
    if "forest.feature" in arrays:
        arrays["forest.feature"] = arrays["forest.feature"].astype(np.uint8)
    return arrays


def _by(groups: np.ndarray, errors: np.ndarray) -> dict[str, float]:
    result = {}
    for group in sorted(set(groups.tolist())):
        values = errors[(groups == group) & np.isfinite(errors)]
        if len(values):
            result[str(group)] = round(float(values.mean()), 2)
    return result


def _rounded(values: Any) -> dict[str, float]:
    return {k: round(float(v), 4) for k, v in values.items()}


def _card(
    name: str,
    loaded: Sequence[tuple[Path, str, list[TrainingRows]]],
    reports: Sequence[ModelReport],
    seed: int,
) -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for package in ("gkestimator", "numpy", "scikit-learn", "xgboost", "lightgbm"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "licence": "Apache-2.0",
        "versions": versions,
        "seed": seed,
        "trained_on": [
            {"format": kind, "source": path.name, "rows": sum(len(p) for p in parts)}
            for path, kind, parts in loaded
        ],
        "target": "log(GPU time / roofline); held-out shapes: 15 % by a hash of the shape, seen by no member",
        "errors": "mean absolute percentage; held_out_pct against the measurement with its launch gap, "
        "gpu_time_pct against GPU time alone, unseen_gpu_pct by XGBoost alone without boards of that chip",
        "models": [asdict(r) for r in reports],
    }
