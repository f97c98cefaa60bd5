"""The baseline that USHER (OSDI 2024, section 3.2) describes: a kernel's milliseconds from raw sizes and names.

The stack of members is the same as ours; it is fitted on exactly what the paper lists: sizes as they are,
operators and GPUs one-hot, target milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.training.fit import Problem, fit_stack
from gkestimator.training.plan import ModelPlan
from gkestimator.training.rows import TrainingRows, shape_hash

__all__ = ["usher_literal_us"]


def _kinds(rows: TrainingRows) -> np.ndarray:
    return np.char.add(rows.table.variant.astype(str), rows.table.precision.astype(str))


def _literal(rows: TrainingRows, gpus: Sequence[str], kinds: Sequence[str]) -> np.ndarray:
    sizes = np.nan_to_num(np.stack(list(rows.table.columns.values()), axis=1), nan=0.0)
    gpu = np.stack([rows.gpu == g for g in gpus], axis=1)
    words = _kinds(rows)
    kind = np.stack([words == k for k in kinds], axis=1)
    return np.hstack([sizes, gpu, kind]).astype(np.float32)


def usher_literal_us(plan: ModelPlan, fit: TrainingRows, test: TrainingRows, *, seed: int = 0) -> np.ndarray:
    """Microseconds of ``test`` as USHER's literal features predict them, fitted on ``fit``: (rows,) float64.

    What is predicted is what the publisher measured, launch included. A GPU of ``test`` that ``fit`` lacks has
    no column, as in the paper.
    """
    gpus = sorted(set(fit.gpu.tolist()))
    kinds = sorted(set(_kinds(fit).tolist()))
    x = _literal(fit, gpus, kinds)
    data = Problem(
        x=x,
        y=fit.measured_us / 1e3,
        weight=fit.weight,
        hidden=np.zeros(len(fit), dtype=bool),
        shape=shape_hash(fit.table),
        chip=np.zeros(len(fit), dtype=np.int64),
        names=tuple(str(i) for i in range(x.shape[1])),
        anchor_us=np.ones(len(fit)),
    )
    stack = fit_stack(plan, data, seed=seed).stack
    return np.asarray(stack.predict(_literal(test, gpus, kinds)) * 1e3)
