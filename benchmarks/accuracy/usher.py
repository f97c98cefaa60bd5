"""Take USHER's claim apart: which target, which features, and what tau does to the maximum occupancy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.errors import GkestimatorError
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.timeline import concurrent_maxima
from gkestimator.evaluation.baselines import TARGETS, fit_free_stack
from gkestimator.evaluation.metrics import absolute_errors_pct
from gkestimator.evaluation.splits import hold_out_chip, hold_out_shapes, hold_out_source, thin
from gkestimator.training.plan import PLAN
from gkestimator.training.rows import TrainingRows

from .kernels import LARGER
from .workspace import SEED, Workspace

TAUS_MS = (0.0, 0.001, 0.01, 0.1, 1.0)
STREAMS = (1, 2)
GRAPHS = (
    "ethz/alexnet",
    "ethz/resnet50",
    "ethz/inception_v3",
    "ethz/bert",
    "ethz/gpt2",
    "timm/vit_base_patch16_224",
)
SPLITS = ("shapes", "larger", "V100 left out")
_ROWS = 8_000
_TESTED = 4_000
_FAMILIES = ("linear", "bmm", "conv", "elementwise", "softmax", "layernorm")


def run_targets(space: Workspace) -> None:
    """XGBoost alone on NeuSight's rows: features x target x split, mean error per family."""
    key = [
        "usher-targets",
        space.data_key,
        space.recipe_key,
        space.judge_key,
        Path(__file__).read_text(encoding="utf-8"),
    ]
    if space.current("usher-targets", key):
        return
    neusight = np.char.startswith(space.rows.source.astype(str), "neusight")
    found: list[dict[str, object]] = []
    for family in _FAMILIES:
        mine = neusight & (space.rows.table.family == family) & (space.rows.table.precision == "fp32")
        rows = space.rows.take(np.flatnonzero(mine))
        plan = next(p for p in PLAN if (family, "fp32") in p.trains and p.scope == "seen")
        for split in SPLITS:
            if split == "larger" and family == "conv":
                continue
            train, test = _split(split, rows)
            for features in ("literal", plan.features):
                for target in TARGETS:
                    error = _error(space, train, test, features, target)
                    found.append(
                        {
                            "family": family, "split": split, "target": target, "error_pct": error, "n": len(test),
                            "features": "literal" if features == "literal" else "physical",
                        }
                    )  # fmt: skip
        space.tell(f"usher-targets: {family}")
    space.keep("usher-targets", key, found)


def _split(split: str, rows: TrainingRows) -> tuple[TrainingRows, TrainingRows]:
    if split == "shapes":
        found = hold_out_shapes(rows)
    elif split == "larger":
        found = hold_out_source(rows, LARGER)
    else:
        found = hold_out_chip(rows, frozenset({"V100-PCIE-32GB"}))
    rng = np.random.default_rng(SEED)
    train = (
        found.train if len(found.train) <= _ROWS else np.sort(rng.choice(found.train, _ROWS, replace=False))
    )
    return rows.take(train), rows.take(thin(rows, found.test, most=_TESTED // 4, seed=SEED))


def _error(space: Workspace, train: TrainingRows, test: TrainingRows, features: str, target: str) -> float:
    stack = fit_free_stack(
        train, space.gpus, features=features, target=target, members=("xgboost",), seed=SEED
    )
    time = stack.predict_us(test.table, test.gpu, space.gpus)
    return float(absolute_errors_pct(test.as_measured_us(time), test.measured_us).mean())


def run_tau(space: Workspace) -> None:
    """Largest sum of occupancies of concurrent kernels on the V100 by tau and streams, batch 8, fp32, not capped.

    Two readings: ``table``, this project's (kernels on different streams that overlap or start within tau), and
    ``starts``, USHER's words alone (kernels that start within tau of each other, wherever they run).
    """
    key = ["usher-tau", space.product_key, Path(__file__).read_text(encoding="utf-8")]
    if space.current("usher-tau", key):
        return
    found: list[dict[str, object]] = []
    for graph in GRAPHS:
        path = space.shared / "models" / f"{graph}.onnx"
        for streams in STREAMS:
            request = EstimateRequest(
                models=[path], gpus=["V100-SXM2-16GB"], batch_sizes=[8], dtype="fp32", streams=streams
            )
            for _, outcome in Engine(request).run():
                if isinstance(outcome, GkestimatorError):
                    raise outcome
                timeline = outcome[0].measures.timeline
                occupancy = outcome[0].predictions.occupancy_pct[outcome[0].lowering.program.kernel]
                for tau in TAUS_MS:
                    table = concurrent_maxima(timeline, {"occupancy": occupancy}, tau_ms=tau)["occupancy"]
                    row = {"model": path.stem, "streams": streams, "tau_ms": tau}
                    found.append({**row, "reading": "table", "occupancy_max_pct": table})
                    starts = largest_within(timeline.start_us, occupancy, tau * 1e3)
                    found.append({**row, "reading": "starts", "occupancy_max_pct": starts})
    space.keep("usher-tau", key, found)
    space.tell("usher-tau: done")


def largest_within(start: np.ndarray, value: np.ndarray, width: float) -> float:
    """The largest sum of ``value`` over launches whose starts lie within ``width`` of the first of them."""
    order = np.argsort(start, kind="stable")
    start, total = start[order], np.concatenate([[0.0], np.cumsum(value[order])])
    ends = np.searchsorted(start, start + width, side="right")
    return float(np.max(total[ends] - total[:-1]))
