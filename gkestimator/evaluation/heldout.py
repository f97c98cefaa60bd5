"""Held-out shapes: the trained regressors beside the roofline and beside USHER's literal features.

USHER (OSDI 2024) predicts a kernel's milliseconds from its raw sizes and the name of the GPU with a stack of
regressors. The same stack is fitted here on exactly that: sizes as they are, operators and GPUs one-hot,
target milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gkestimator.gpus import GpuSpec
from gkestimator.training.fit import Problem, fit_stack
from gkestimator.training.plan import PLAN, ModelPlan
from gkestimator.training.rows import TrainingRows, shape_hash
from gkestimator.training.train import ModelReport, TrainReport, measured_rows, split

__all__ = ["Baseline", "report_text", "usher_literal", "usher_literal_all"]

REQUIRED_PCT = {"linear": 9.0, "bmm": 8.0, "conv": 18.0, "elementwise": 3.0, "softmax": 4.0, "layernorm": 3.0}
"""What NeuSight's held-out shapes must not exceed, mean absolute percentage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """USHER's literal features on the same split: mean absolute percentage per source, and the rows
    fitted."""

    name: str
    rows: int
    held_out_pct: dict[str, float]


def _literal(rows: TrainingRows, gpus: Sequence[str], variants: Sequence[str]) -> np.ndarray:
    sizes = np.nan_to_num(np.stack(list(rows.table.columns.values()), axis=1), nan=0.0)
    gpu = np.stack([rows.gpu == g for g in gpus], axis=1)
    words = np.char.add(rows.table.variant.astype(str), rows.table.precision.astype(str))
    kind = np.stack([words == v for v in variants], axis=1)
    return np.hstack([sizes, gpu, kind]).astype(np.float32)


def usher_literal(plan: ModelPlan, rows: TrainingRows, gpus: dict[str, GpuSpec], *, seed: int) -> Baseline:
    """Fit and test USHER's literal features on the split that the regressor of ``plan`` uses."""
    fit, held = split(plan, rows, gpus, seed=seed)
    names = sorted(set(rows.gpu.tolist()))
    variants = sorted(
        set(np.char.add(rows.table.variant.astype(str), rows.table.precision.astype(str)).tolist())
    )
    x = _literal(fit, names, variants)
    data = Problem(
        x=x,
        y=fit.measured_us / 1e3,
        weight=fit.weight,
        hidden=np.zeros(len(fit), dtype=bool),
        shape=shape_hash(fit.table),
        names=tuple(str(i) for i in range(x.shape[1])),
        roofline_us=np.ones(len(fit)),
    )
    stack, _ = fit_stack(plan, data, seed=seed)
    predicted = stack.predict(_literal(held, names, variants)) * 1e3
    error = np.abs(predicted / held.measured_us - 1) * 100
    per_source = {
        s: round(float(error[held.source == s].mean()), 1) for s in sorted(set(held.source.tolist()))
    }
    return Baseline(name=plan.name, rows=len(fit), held_out_pct=per_source)


def usher_literal_all(
    sources: Sequence[Path], *, seed: int = 0, progress: Callable[[str], None] | None = None
) -> tuple[Baseline, ...]:
    """USHER's literal features for every regressor that the sources can train."""
    _, rows, gpus = measured_rows(sources)
    result = []
    for plan in PLAN:
        parts = [p.take(m) for p in rows if (m := plan.mask(p.table)).any()]
        if parts:
            if progress is not None:
                progress(plan.name)
            result.append(usher_literal(plan, TrainingRows.concatenate(parts), gpus, seed=seed))
    return tuple(result)


def report_text(report: TrainReport, baselines: Sequence[Baseline]) -> str:
    """The held-out report as Markdown."""
    literal = {b.name: b.held_out_pct for b in baselines}
    lines = [
        "# Accuracy on held-out shapes",
        "",
        "Written by `python benchmarks/heldout.py`, which also writes the default bundle; do not edit.",
        "15 % of the shapes, chosen by a hash of the shape, are seen by no member on any GPU. Mean absolute",
        "percentage error against what the publisher measured (launch gap included), and",
        "against GPU time on the rows where the launch does not hide it. `roofline` gets the same launch",
        "gap. `USHER literal`: raw sizes, one-hot GPU and operator, milliseconds; same stack, same rows.",
        "",
        "| regressor | source | rows | error % | GPU time % | roofline % | USHER literal % | required % |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for model in report.models:
        for source, error in model.held_out_pct.items():
            required = REQUIRED_PCT.get(model.name) if source == "neusight/train" else None
            lines.append(
                f"| {model.name} | {source} | {model.counts[source]} | {error:.1f} "
                f"| {_number(model.gpu_time_pct.get(source))} "
                f"| {model.roofline_pct[source]:.1f} | {_number(literal.get(model.name, {}).get(source))} "
                f"| {_number(required)} |"
            )
    lines += ["", "## Members, intervals, and GPUs not trained on", ""]
    lines += [
        "Weights in the stack; how often the 90 % interval held on shapes it was not calibrated on; error of",
        "XGBoost alone on a GPU left out together with boards of the same chip.",
        "",
        "| regressor | rows | weights | coverage % | unseen GPU % |",
        "|---|---:|---|---:|---|",
    ]
    lines += [_member_line(model) for model in report.models]
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _member_line(model: ModelReport) -> str:
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in model.weights.items())
    unseen = ", ".join(f"{gpu} {error:.0f}" for gpu, error in model.unseen_gpu_pct.items())
    return f"| {model.name} | {model.rows} | {weights} | {model.coverage_pct:.1f} | {unseen} |"
