"""Fit :class:`gkestimator.kernel_models.geometry.Geometry` on rows whose kernel and grid were recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import UsageError
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
from gkestimator.kernel_models.tiles import Tile, tile_blocks
from gkestimator.training.members import from_xgboost
from gkestimator.training.rows import TrainingRows, shape_hash

ROWS = 30_000
"""Most rows a picker learns from."""
_LEAST_ROWS = 300
_LEAST_OF_TILE = 20  # rows of a class below this teach nothing and would be candidates everywhere
_LEAST_SHARE = 0.002  # of a chip's rows, to count as offered there
_TILE_TREES = 40
_SPLIT_TREES = 20


def fit_geometry(rows: Sequence[TrainingRows], gpus: Mapping[str, GpuSpec], *, seed: int = 0) -> Geometry:
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
        if parts and (picker := fit_picker(TrainingRows.concatenate(parts), gpus, seed=seed)) is not None:
            pickers[family.value] = picker
    return Geometry(pickers=pickers)


def fit_picker(rows: TrainingRows, gpus: Mapping[str, GpuSpec], *, seed: int = 0) -> Picker | None:
    """Return one family's picker; None for too few rows or only one class."""
    counts = Counter(rows.kernel_class.tolist())
    names = sorted(name for name, count in counts.items() if count >= _LEAST_OF_TILE)
    rows = rows.take(np.flatnonzero(np.isin(rows.kernel_class.astype(str), names)))
    if len(rows) < _LEAST_ROWS or len(names) < 2:
        return None
    tiles = tiles_named(names)
    chips = sorted({_chip(gpus[g]) for g in rows.gpu.tolist()})
    label = np.array([names.index(c) for c in rows.kernel_class.tolist()])
    chip = np.array([chips.index(_chip(gpus[g])) for g in rows.gpu.tolist()])
    offered = np.zeros((len(chips), len(tiles)), dtype=bool)
    for i in range(len(chips)):
        seen = np.bincount(label[chip == i], minlength=len(tiles))
        offered[i] = seen >= max(1.0, _LEAST_SHARE * seen.sum())
    rng = np.random.default_rng(seed)
    if len(rows) > ROWS:
        # Evenly over chips, and in an order that the rows' own order does not decide.
        each = 1.0 / np.bincount(chip)[chip]
        pick = np.sort(rng.choice(len(rows), ROWS, replace=False, p=each / each.sum()))
        rows = rows.take(pick)
        label = label[pick]
        chip = chip[pick]
    order = np.argsort(shape_hash(rows.table), kind="stable")
    rows = rows.take(order)
    label = label[order]
    features, lengths, wanted = _tile_problem(rows, label, tiles, gpus)
    tile = _rank(features, wanted, lengths, trees=_TILE_TREES, seed=seed)
    blocks = np.stack([tile_blocks(t, rows.table) for t in tiles], axis=1)[np.arange(len(rows)), label]
    split = rows.grid_blocks / blocks
    forest = None
    if np.mean(split > 1) > 0.01:
        known = np.flatnonzero(np.isin(split, SPLITS))
        features, lengths, wanted = _split_problem(rows.take(known), label[known], split[known], tiles, gpus)
        forest = _rank(features, wanted, lengths, trees=_SPLIT_TREES, seed=seed)
    return Picker(tiles=tiles, chips=tuple(chips), offered=offered, tile=tile, split=forest)


def _chip(gpu: GpuSpec) -> tuple[int, int, int]:
    return (*gpu.compute_capability, gpu.sms)


def _tile_problem(
    rows: TrainingRows, label: np.ndarray, tiles: Sequence[Tile], gpus: Mapping[str, GpuSpec]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features of every candidate of every row, candidates a row, and whether a candidate was the
    pick.
    """
    features = []
    wanted = []
    for name in sorted(set(rows.gpu.tolist())):
        mine = np.flatnonzero(rows.gpu == name)
        part = tile_features(tiles, rows.table.take(mine), gpus[name])
        features.append(part.reshape(-1, part.shape[-1]))
        wanted.append((np.arange(len(tiles)) == label[mine, None]).ravel())
    return np.concatenate(features), np.full(len(rows), len(tiles)), np.concatenate(wanted)


def _split_problem(
    rows: TrainingRows,
    label: np.ndarray,
    split: np.ndarray,
    tiles: Sequence[Tile],
    gpus: Mapping[str, GpuSpec],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    features = []
    wanted = []
    for name in sorted(set(rows.gpu.tolist())):
        mine = np.flatnonzero(rows.gpu == name)
        part, _ = split_features(tiles, label[mine], rows.table.take(mine), gpus[name])
        features.append(part.reshape(-1, part.shape[-1]))
        wanted.append((np.array(SPLITS) == split[mine, None]).ravel())
    return np.concatenate(features), np.full(len(rows), len(SPLITS)), np.concatenate(wanted)


def _rank(features: np.ndarray, wanted: np.ndarray, lengths: np.ndarray, *, trees: int, seed: int) -> Forest:
    """Fit XGBoost, pairwise ranking within each row: depth 6, rate 0.3, 80 % of rows, 60 % of features."""
    try:
        import xgboost
    except ImportError as e:
        raise UsageError(
            f"training the launch geometry needs {e.name}: pip install 'gkestimator[train]'"
        ) from e
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
