"""Fit :class:`gkestimator.kernel_models.geometry.Geometry` on rows whose kernel and grid were recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.core.kernels import Array
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.geometry import (
    PICKED,
    SPLITS,
    Geometry,
    Picker,
    split_features,
    tile_features,
    tiles_named,
)
from gkestimator.kernel_models.regressors import Forest
from gkestimator.kernel_models.tiles import tile_blocks
from gkestimator.training.members import from_xgboost
from gkestimator.training.rows import TrainingRows, by_gpu, shape_hash

ROWS = 30_000
"""Most rows a picker learns from."""
_LEAST_ROWS = 300
_LEAST_OF_TILE = 20  # rows of a class below this teach nothing and would be candidates everywhere
_LEAST_SHARE = 0.002  # of a chip's rows, to count as offered there
_TILE_TREES = 40
_SPLIT_TREES = 20


def fit_geometry(rows: Sequence[TrainingRows], gpus: GpuSpecs, *, seed: int = 0) -> Geometry:
    """Return the learned choice of kernels of each family in
    :data:`~gkestimator.kernel_models.geometry.PICKED`.

    Takes the FP32 rows of ``rows`` that name their kernel class and grid; a family with fewer than 300 has no
    picker. ``gpus`` maps the rows' names to specifications. Raises UsageError where xgboost is missing.
    """
    pickers = {}
    for family in PICKED:
        parts = []
        for part in rows:
            mask = (
                (part.table.family == family.value)
                & (part.table.precision == "fp32")
                & (part.kernel_class != "")
                & np.isfinite(part.grid_blocks)
            )
            if mask.any():
                parts.append(part.take(np.flatnonzero(mask)))
        if not parts:
            continue
        picker = fit_picker(TrainingRows.concatenate(parts), gpus, seed=seed)
        if picker is not None:
            pickers[family.value] = picker
    return Geometry(pickers=pickers)


def fit_picker(rows: TrainingRows, gpus: GpuSpecs, *, seed: int = 0) -> Picker | None:
    """Return one family's picker; None for too few rows or only one class."""
    counts = Counter(rows.kernel_class.tolist())
    names = sorted(name for name, count in counts.items() if count >= _LEAST_OF_TILE)
    rows = rows.take(np.flatnonzero(np.isin(rows.kernel_class.astype(str), names)))
    if len(rows) < _LEAST_ROWS or len(names) < 2:
        return None
    tiles = tiles_named(names)
    chips, chip = _chips(rows, gpus)
    label = np.array([names.index(c) for c in rows.kernel_class.tolist()])
    offered = np.zeros((len(chips), len(tiles)), dtype=bool)
    for i in range(len(chips)):
        seen = np.bincount(label[chip == i], minlength=len(tiles))
        # A kernel that a chip never picked may not exist there.
        offered[i] = seen >= max(1.0, _LEAST_SHARE * seen.sum())
    pick = np.arange(len(rows))
    if len(rows) > ROWS:
        # Evenly over chips, and in an order that the rows' own order does not decide.
        each = 1.0 / np.bincount(chip)[chip]
        rng = np.random.default_rng(seed)
        pick = np.sort(rng.choice(len(rows), ROWS, replace=False, p=each / each.sum()))
    pick = pick[np.argsort(shape_hash(rows.table)[pick], kind="stable")]
    rows = rows.take(pick)
    label = label[pick]

    def of_tiles(mine: Array, gpu: GpuSpec) -> Array:
        return tile_features(tiles, rows.table.take(mine), gpu)

    problem = _problem(rows, label, np.arange(len(tiles)), of_tiles, gpus)
    tile = _rank(*problem, trees=_TILE_TREES, seed=seed)
    blocks = np.stack([tile_blocks(t, rows.table) for t in tiles], axis=1)[np.arange(len(rows)), label]
    split = rows.grid_blocks / blocks
    forest = None
    if np.mean(split > 1) > 0.01:
        known = np.flatnonzero(np.isin(split, SPLITS))

        def of_splits(mine: Array, gpu: GpuSpec) -> Array:
            index = known[mine]
            return split_features(tiles, label[index], rows.table.take(index), gpu)[0]

        problem = _problem(rows.take(known), split[known], np.array(SPLITS), of_splits, gpus)
        forest = _rank(*problem, trees=_SPLIT_TREES, seed=seed)
    return Picker(tiles=tiles, chips=tuple(chips), offered=offered, tile=tile, split=forest)


def _chips(rows: TrainingRows, gpus: GpuSpecs) -> tuple[list[tuple[int, int, int]], Array]:
    """Return the distinct chips (compute capability and SMs), and which of them each row is of."""
    of_gpu = {name: (*gpus[name].compute_capability, gpus[name].sms) for name in set(rows.gpu.tolist())}
    chips = sorted(set(of_gpu.values()))
    return chips, np.array([chips.index(of_gpu[name]) for name in rows.gpu.tolist()])


def _problem(
    rows: TrainingRows,
    picks: Array,
    candidates: Array,
    features_of: Callable[[Array, GpuSpec], Array],
    gpus: GpuSpecs,
) -> tuple[Array, Array, Array]:
    """Return features of every candidate of every row, candidates a row, and whether a candidate was the pick.

    ``features_of`` gives (rows, candidates, features) of some rows on their GPU.
    """
    features = []
    wanted = []
    for name, mine in by_gpu(rows.gpu):
        part = features_of(mine, gpus[name])
        features.append(part.reshape(-1, part.shape[-1]))
        wanted.append((candidates == picks[mine, None]).ravel())
    return np.concatenate(features), np.full(len(rows), len(candidates)), np.concatenate(wanted)


def _rank(features: Array, lengths: Array, wanted: Array, *, trees: int, seed: int) -> Forest:
    """Fit XGBoost, pairwise ranking within each row: depth 6, rate 0.3, 80 % of rows, 60 % of features."""
    try:
        import xgboost
    except ImportError as e:
        raise UsageError(f"training the launch geometry needs {e.name}: {install_extra('train')}") from e
    data = xgboost.QuantileDMatrix(features, wanted.astype(np.float32), nthread=1, max_bin=256)
    data.set_group(lengths)
    options = {
        "objective": "rank:pairwise",
        "max_depth": 6,
        "eta": 0.3,
        "subsample": 0.8,
        "colsample_bytree": 0.6,
        "tree_method": "hist",
        "lambdarank_pair_method": "mean",
        "lambdarank_num_pair_per_sample": 2,
        "seed": seed,
        "nthread": 1,
        "verbosity": 0,
    }
    fitted = from_xgboost(xgboost.train(options, data, num_boost_round=trees))
    # Only the order of scores counts.
    return replace(fitted, base=np.zeros(1))
