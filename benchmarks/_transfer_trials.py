"""Try ideas for GPUs that were not measured: each fits on some GPUs' rows and predicts another GPU's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.attainable import attainable_us, compute_us, memory_us, tile_slowdown
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.roofline import MATRIX_FAMILIES, roofline
from gkestimator.kernel_models.sustained import sustained_bytes_per_s, sustained_flops_per_s
from gkestimator.training.fit import fit_stack, problem
from gkestimator.training.members import fit_member
from gkestimator.training.plan import PLANS, ModelPlan
from gkestimator.training.rows import TrainingRows

Gpus = Mapping[str, GpuSpec]
Predict = Callable[[KernelTable, GpuSpec], np.ndarray]
Trial = Callable[[str, TrainingRows, Gpus], Predict]
"""(family, rows to fit on, specifications) -> (kernels, GPU) -> microseconds."""

_TREES = {"xgboost": 100, "lightgbm": 100}


def _plan(family: str, **changes: object) -> ModelPlan:
    return replace(PLANS[f"{family}_unseen"], **changes)  # type: ignore[arg-type]


def _of_plan(plan: ModelPlan, rows: TrainingRows, gpus: Gpus) -> Predict:
    """What the recipe fits for ``plan``: weights from folds, members on all rows."""
    from gkestimator.kernel_models.anchors import ANCHORS

    stack = fit_stack(plan, problem(plan, rows, gpus), seed=0).stack

    def predict(table: KernelTable, gpu: GpuSpec) -> np.ndarray:
        matrix, _ = feature_matrix(plan.features, table, gpu)
        return np.asarray(ANCHORS[plan.anchor](table, gpu) * np.exp(stack.predict(matrix)))

    return predict


def _raw_features(family: str) -> str:
    """The feature set with the GPU's specification numbers, as models for measured GPUs had it first."""
    return {"linear": "matrix", "bmm": "matrix", "softmax": "memory"}.get(family, family)


def roofline_alone(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """FLOPs over peak rate and bytes over nominal bandwidth; nothing is fitted."""
    return lambda table, gpu: roofline(table, gpu).roofline_us


def analytical_alone(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """The analytical model; nothing is fitted."""
    return analytical_duration_us


def attainable_alone(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """Sustained rates, tiles and reuse from the specification; nothing is fitted."""
    return attainable_us


def raw_on_roofline(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """Trees on raw specification features, target over the roofline."""
    return _of_plan(_plan(family, features=_raw_features(family), anchor="roofline", shrink=1.0), rows, gpus)


def invariant_on_roofline(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """Trees on features that mean the same on every GPU, target over the roofline."""
    return _of_plan(_plan(family, anchor="roofline", shrink=1.0), rows, gpus)


def raw_on_attainable(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """Trees on raw specification features, target over the attainable time."""
    return _of_plan(_plan(family, features=_raw_features(family), shrink=1.0), rows, gpus)


def all_the_way(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """Trees on invariant features, target over the attainable time, weights as the folds give them."""
    return _of_plan(_plan(family, shrink=1.0), rows, gpus)


def half_way(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """The same with every weight halved: half-way between the anchor and what other GPUs say."""
    return _of_plan(_plan(family, shrink=0.5), rows, gpus)


def lasso(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """A linear residual on the invariant features."""
    return _of_plan(_plan(family, members=("lasso",), shrink=1.0), rows, gpus)


def ensemble(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """Seven XGBoosts, each on a random half of the raw features, averaged."""
    plan = _plan(family, features=_raw_features(family))
    data = problem(plan, rows, gpus)
    rng = np.random.default_rng(0)
    low, high = data.y.min(), data.y.max()
    parts = []
    for seed in range(7):
        columns = np.sort(rng.choice(data.x.shape[1], data.x.shape[1] // 2, replace=False))
        x = np.ascontiguousarray(data.x[:, columns])
        parts.append((columns, fit_member("xgboost", x, data.y, data.weight, seed=seed, estimators=60)))

    def predict(table: KernelTable, gpu: GpuSpec) -> np.ndarray:
        matrix, _ = feature_matrix(plan.features, table, gpu)
        values = [
            np.reshape(member.predict(np.ascontiguousarray(matrix[:, columns])), len(table))
            for columns, member in parts
        ]
        return np.asarray(attainable_us(table, gpu) * np.exp(np.clip(np.mean(values, axis=0), low, high)))

    return predict


_FASTER = frozenset({"log_bandwidth", "log_sms", "log_cores_per_sm", "log_clock", "log_peak", "log_l2"})
_SLOWER = frozenset({"log_roofline", "log_memory", "log_compute"})


def monotone(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """XGBoost on raw features for log(time) itself, never slower with more bandwidth, SMs, lanes, clock, peak
    or L2, never faster with a longer roofline."""
    import xgboost

    plan = _plan(family, features=_raw_features(family))
    data = problem(plan, rows, gpus)
    signs = tuple(-1 if n in _FASTER else 1 if n in _SLOWER else 0 for n in data.names)
    booster = xgboost.train(
        {"max_depth": 6, "eta": 0.1, "subsample": 0.7, "colsample_bytree": 0.6, "nthread": 1, "seed": 0}
        | {"monotone_constraints": signs, "verbosity": 0},
        xgboost.DMatrix(data.x, data.y + np.log(data.anchor_us), weight=data.weight),
        num_boost_round=200,
    )

    def predict(table: KernelTable, gpu: GpuSpec) -> np.ndarray:
        matrix, _ = feature_matrix(plan.features, table, gpu)
        return np.asarray(np.exp(booster.predict(xgboost.DMatrix(matrix)).astype(np.float64)))

    return predict


def nearest(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """Wave scaling: what the nearest measured GPU takes, times the ratio of attainable times (as Habitat
    scales by wave)."""
    plan = _plan(family, features=_raw_features(family), anchor="roofline", folds="shape", shrink=1.0)
    known = _of_plan(plan, rows, gpus)
    measured = sorted(set(rows.gpu.tolist()))

    def distance(a: GpuSpec, b: GpuSpec) -> float:
        rates = (sustained_flops_per_s(a, "fp32") / sustained_flops_per_s(b, "fp32"),)
        rates += (sustained_bytes_per_s(a) / sustained_bytes_per_s(b), a.l2_bytes / b.l2_bytes)
        return float(np.abs(np.log(rates)).sum()) + abs(a.compute_capability[0] - b.compute_capability[0])

    def predict(table: KernelTable, gpu: GpuSpec) -> np.ndarray:
        other = gpus[min(measured, key=lambda name: distance(gpu, gpus[name]))]
        return np.asarray(known(table, other) * attainable_us(table, gpu) / attainable_us(table, other))

    return predict


def physics(family: str, rows: TrainingRows, gpus: Gpus) -> Predict:
    """Four parameters by robust least squares over all GPUs: efficiency of arithmetic and of memory, latency,
    and how far the two overlap."""
    from scipy.optimize import least_squares

    matrix = family in MATRIX_FAMILIES

    def sides(table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, np.ndarray]:
        memory = memory_us(table, gpu)
        return (compute_us(table, gpu) * tile_slowdown(table, gpu) if matrix else 0 * memory), memory

    def time(p: np.ndarray, compute: np.ndarray, memory: np.ndarray) -> np.ndarray:
        overlap = 1 + np.exp(p[3])
        a, b = compute * np.exp(p[0]), memory * np.exp(p[1])
        return np.asarray((a**overlap + b**overlap) ** (1 / overlap) + np.exp(p[2]))

    known = np.flatnonzero(np.isfinite(rows.duration_us))
    compute, memory = np.empty(len(rows)), np.empty(len(rows))
    for name in set(rows.gpu.tolist()):
        index = np.flatnonzero(rows.gpu == name)
        compute[index], memory[index] = sides(rows.table.take(index), gpus[name])
    target = np.log(rows.duration_us[known])
    fit = least_squares(
        lambda p: np.log(time(p, compute[known], memory[known])) - target,
        np.array([0.0, 0.0, 0.5, 1.0]),
        bounds=([-2, -2, -2, -3], [2, 2, 4, 3]),
        loss="soft_l1",
        f_scale=0.2,
    )
    return lambda table, gpu: time(fit.x, *sides(table, gpu))


TRIALS: Mapping[str, Trial] = {
    "roofline": roofline_alone,
    "analytical model": analytical_alone,
    "trees, raw features, roofline": raw_on_roofline,
    "trees, invariant features, roofline": invariant_on_roofline,
    "trees, raw features, attainable": raw_on_attainable,
    "ensemble of encodings, attainable": ensemble,
    "monotone trees of log(time)": monotone,
    "nearest GPU, scaled": nearest,
    "physics, four parameters": physics,
    "attainable alone": attainable_alone,
    "lasso, invariant features, attainable": lasso,
    "trees, invariant features, attainable": all_the_way,
    "the same, halved": half_way,
}
"""In the order of the table."""


def shipped(family: str) -> str:
    """The title of the trial that is the bundle's plan for ``family``."""
    return "the same, halved" if _plan(family).shrink == 0.5 else "trees, invariant features, attainable"
