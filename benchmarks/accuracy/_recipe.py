"""Stand-in for gkestimator.training.recipe until it exists."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.bundle_files import write_bundle
from gkestimator.bundles import SCHEMA_VERSION
from gkestimator.training.plan import PLAN
from gkestimator.training.rows import TrainingRows
import gkestimator.training.train as trainer
from gkestimator.training.rows import shape_hash
from gkestimator.training.train import _packed, fit_model


def _split(plan, rows, gpus, *, seed):
    test = (shape_hash(rows.table) * 1000) % 1 < 0.15
    fit, held = rows.take(np.flatnonzero(~test)), rows.take(np.flatnonzero(test))
    return fit.take(trainer.sample(fit, plan.rows, seed, gpus)), held


trainer.split = _split


class _Fitted:
    def __init__(self, documents, arrays):
        self.documents, self.arrays = documents, arrays

    def write(self, out: Path) -> None:
        write_bundle(out, self.documents, self.arrays)


def fit_bundle(rows, gpus, *, seed=0, plans=PLAN, progress=None):
    models, ranges, quantiles, arrays = [], {}, {}, {}
    for plan in plans:
        parts = [p.take(m) for p in rows if (m := plan.mask(p.table)).any()]
        if not parts:
            continue
        mine = TrainingRows.concatenate(parts)
        stack, data, _, widths = fit_model(plan, mine, gpus, seed=seed)
        if progress:
            progress(plan.name, 0, 0)
        chips = sorted({(*gpus[g].compute_capability, gpus[g].sms) for g in np.unique(mine.gpu.astype(str))})
        models.append({"name": plan.name, "features": plan.features, "feature_names": list(data.names),
                       "trains": [list(p) for p in plan.trains], "covers": [list(p) for p in (*plan.trains, *plan.covers)]})
        ranges[plan.name] = {"low": data.x.min(axis=0).astype(float).tolist(), "high": data.x.max(axis=0).astype(float).tolist(),
                             "chips": [list(c) for c in chips], "gpus": sorted(set(mine.gpu.tolist()))}
        quantiles[plan.name] = widths
        arrays[plan.name] = _packed(stack)
    card = {"schema_version": SCHEMA_VERSION, "name": "nested", "date": "2026-01-01"}
    stack = {"schema_version": SCHEMA_VERSION, "models": models}
    return _Fitted({"card": card, "stack": stack, "ranges": ranges, "quantiles": quantiles}, arrays)
