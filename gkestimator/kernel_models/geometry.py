"""Which kernel a matrix library picks, learned: tile and split of k for products and convolutions.

For every kernel class that a library has (a *candidate*), a forest of trees scores how likely the library is to
pick it for this shape on this GPU, from what its heuristics look at: waves and their fill, padding, the tile
itself and its work relative to the best candidate. The highest score is the pick; a second forest chooses the
split of k in the same way. The grid then follows exactly from tile and split (:mod:`gkestimator.kernel_models.tiles`). The
forests are fitted by :mod:`gkestimator.training.geometry` on kernels whose names and grids were recorded, in
FP32; nothing public has them for tensor cores, so other precisions keep the rules of
:mod:`gkestimator.kernel_models.launch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import Launch, blocks_per_sm
from gkestimator.kernel_models.regressors import Forest
from gkestimator.kernel_models.tiles import ALGORITHMS, Tile, parse_tile, tile_blocks

PICKED = (Family.LINEAR, Family.BMM, Family.CONV)
"""Families whose kernel is learned, one picker each."""
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 20, 40)
"""Parts that k may be split into (98 % of those recorded)."""
_THINNEST_PART = 48  # of k; the thinnest recorded has 56
TILE_FEATURES = 30
SPLIT_FEATURES = 14
_SAME_CHIP_SMS = 0.10
_LARGEST_TREES = 1000
_LARGEST_DEPTH = 10
_MOST_TILES = 64
_MOST_CHIPS = 64
SCHEMA_VERSION = 1  # of geometry.json; a change of tile_features or split_features raises it


def tile_launch(tiles: Sequence[Tile], gpu: GpuSpec) -> tuple[Launch, np.ndarray]:
    """One block of each tile as a launch, and how many of its blocks fit on an SM of ``gpu``."""
    launch = Launch(
        grid_blocks=np.ones(len(tiles)),
        block_threads=np.array([float(t.threads) for t in tiles]),
        registers_per_thread=np.array([float(t.registers) for t in tiles]),
        shared_bytes=np.array([float(t.shared_bytes) for t in tiles]),
    )
    return launch, blocks_per_sm(launch, gpu)


def _size(table: KernelTable, name: str) -> np.ndarray:
    return np.asarray(np.maximum(np.nan_to_num(table.columns[name], nan=1.0), 1.0))


def _waves(blocks: np.ndarray, slots: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    waves = blocks / slots
    return np.log(waves), waves / np.ceil(waves)


def tile_features(tiles: Sequence[Tile], table: KernelTable, gpu: GpuSpec) -> np.ndarray:
    """(rows, tiles, features) float32: what a library's heuristic can weigh of each candidate."""
    count = len(table)
    kinds = len(tiles)
    _, fit = tile_launch(tiles, gpu)
    blocks = np.stack([tile_blocks(t, table) for t in tiles], axis=1)
    area = np.array([float(t.m * t.n) for t in tiles])
    batch, m, n, k = (_size(table, f"gemm_{c}") for c in ("batch", "m", "n", "k"))
    own = np.array(
        [
            [ALGORITHMS.index(t.algorithm), np.log2(t.m), np.log2(t.n), t.threads, t.slices, *t.cover]
            for t in tiles
        ],
        dtype=np.float64,
    )
    shape = np.stack(
        [
            *(np.log(v) for v in (batch, m, n, k)),
            *(np.log(_size(table, f"conv_{c}")) for c in ("batch", "out_h", "in_channels")),
            np.minimum(_lowest_bit(n), 4.0),
            np.minimum(_lowest_bit(k), 4.0),
            np.full(count, gpu.compute_capability[0] + gpu.compute_capability[1] / 10),
            np.full(count, np.log(gpu.sms)),
            np.full(count, np.log(gpu.dram_bytes_per_s / gpu.sms / gpu.boost_clock_mhz)),
            np.full(count, np.log(float(gpu.l2_bytes))),
        ],
        axis=1,
    )
    log_waves, fill = _waves(blocks, gpu.sms)
    log_resident, resident_fill = _waves(blocks, fit * gpu.sms)
    useful = (batch * m * n)[:, None] / (blocks * area)
    work = np.log(np.ceil(blocks / gpu.sms) * area)
    resident_work = np.log(np.ceil(blocks / (fit * gpu.sms)) * fit * area)
    each = (
        np.log(blocks),
        log_waves,
        fill,
        log_resident,
        resident_fill,
        useful,
        work - work.min(axis=1, keepdims=True, initial=np.inf),
        resident_work - resident_work.min(axis=1, keepdims=True, initial=np.inf),
        np.broadcast_to(fit, (count, kinds)),
    )
    result = np.empty((count, kinds, own.shape[1] + shape.shape[1] + len(each)), dtype=np.float32)
    result[:, :, : own.shape[1]] = own[None]
    result[:, :, own.shape[1] : own.shape[1] + shape.shape[1]] = shape[:, None]
    for i, value in enumerate(each):
        result[:, :, own.shape[1] + shape.shape[1] + i] = value
    return result


def _lowest_bit(values: np.ndarray) -> np.ndarray:
    whole = values.astype(np.int64)
    return np.asarray(whole & -whole, dtype=np.float64)


def split_features(
    tiles: Sequence[Tile], pick: np.ndarray, table: KernelTable, gpu: GpuSpec
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, splits, features) float32 of every split of the picked tiles, and the (rows,) blocks before a
    split.

    ``pick`` indexes ``tiles``.
    """
    count = len(table)
    _, fit = tile_launch(tiles, gpu)
    blocks = np.stack([tile_blocks(t, table) for t in tiles], axis=1)[np.arange(count), pick]
    parts = np.array(SPLITS, dtype=np.float64)
    k = _size(table, "gemm_k")
    resident = fit[pick]
    area = np.array([float(t.m * t.n) for t in tiles])[pick]
    log_waves, fill = _waves(blocks[:, None] * parts, gpu.sms)
    log_resident, resident_fill = _waves(blocks[:, None] * parts, (resident * gpu.sms)[:, None])
    per_row = (
        np.log(blocks),
        _waves(blocks, gpu.sms)[1],
        np.log(k),
        np.log(_size(table, "gemm_m") * _size(table, "gemm_n")),
        area,
        resident,
        np.full(count, gpu.compute_capability[0] + gpu.compute_capability[1] / 10),
        np.full(count, float(gpu.sms)),
    )
    each = (
        np.broadcast_to(np.log(parts), (count, len(parts))),
        log_waves,
        fill,
        log_resident,
        resident_fill,
        np.log(k[:, None] / parts),
    )
    result = np.empty((count, len(parts), len(per_row) + len(each)), dtype=np.float32)
    for i, value in enumerate(each):
        result[:, :, i] = value
    for i, value in enumerate(per_row):
        result[:, :, len(each) + i] = value[:, None]
    return result, blocks


@frozen
class Picker:
    """The learned choice of one family.

    ``tiles``: the candidates. ``chips``: (major, minor, SMs) of the GPUs it was trained on, and ``offered``
    (chips, tiles): the tiles that the library was seen to launch there. ``tile`` and ``split`` score
    candidates; no ``split``: k is never split.
    """

    tiles: tuple[Tile, ...]
    chips: tuple[tuple[int, int, int], ...]
    offered: np.ndarray
    tile: Forest
    split: Forest | None

    def candidates(self, gpu: GpuSpec) -> np.ndarray:
        """Mask of the tiles the library may launch on ``gpu``: those of its chip; on a chip not trained on,
        every one (its scores know compute capability and SMs; a guess of the nearest chip's list did worse with
        each GPU left out)."""
        rows = [
            (major, minor) == tuple(gpu.compute_capability) and abs(sms / gpu.sms - 1) <= _SAME_CHIP_SMS
            for major, minor, sms in self.chips
        ]
        if any(rows):
            known = self.offered[np.array(rows)]
        else:
            known = self.offered
        return np.asarray(known.any(axis=0))

    def pick(self, table: KernelTable, gpu: GpuSpec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(tile index, blocks of the grid, split of k) of every row of ``table``."""
        rows = len(table)
        features = tile_features(self.tiles, table, gpu)
        allowed = self._allowed(table, self.candidates(gpu))
        score = np.full((rows, len(self.tiles)), -np.inf)
        score[allowed] = self.tile.predict(features[allowed])[:, 0]
        tile = np.argmax(score, axis=1)
        if self.split is None:
            blocks = np.stack([tile_blocks(t, table) for t in self.tiles], axis=1)[np.arange(rows), tile]
            return tile, blocks, np.ones(rows)
        choices, blocks = split_features(self.tiles, tile, table, gpu)
        thick = _size(table, "gemm_k")[:, None] / np.array(SPLITS) >= _THINNEST_PART
        thick[:, 0] = True
        thick &= thick[:, 1:2]  # nothing to choose where not even halves are thick enough
        ranked = np.full((rows, len(SPLITS)), -np.inf)
        ranked[:, 0] = 0.0
        ranked[thick] = self.split.predict(choices[thick])[:, 0]
        parts = np.array(SPLITS, dtype=np.float64)[np.argmax(ranked, axis=1)]
        return tile, blocks * parts, parts

    def _allowed(self, table: KernelTable, offered: np.ndarray) -> np.ndarray:
        """(rows, tiles): candidates that can calculate the row at all.

        Winograd kernels are for dense 3 x 3 filters of stride 1 (the training data has no other), transforms
        for stride 1 and filters beyond 1 x 1.
        """
        result = np.broadcast_to(offered, (len(table), len(self.tiles))).copy()
        columns = table.columns
        if np.isnan(columns["conv_kernel_h"]).all():
            return result
        unit = (_size(table, "conv_stride_h") == 1) & (_size(table, "conv_stride_w") == 1)
        dense = (_size(table, "conv_dilation_h") == 1) & (_size(table, "conv_dilation_w") == 1)
        three = (columns["conv_kernel_h"] == 3) & (columns["conv_kernel_w"] == 3)
        larger = columns["conv_kernel_h"] * columns["conv_kernel_w"] > 1
        fits = {
            "fused": unit & dense & three,
            "nonfused": unit & dense & three,
            "fft": unit & dense & larger,
        }
        for j, tile in enumerate(self.tiles):
            if tile.algorithm in fits:
                result[:, j] &= fits[tile.algorithm]
        none = ~result.any(axis=1)
        direct = np.array([t.algorithm in ("direct", "simple") for t in self.tiles])
        result[none] = direct if direct.any() else True
        return result


@frozen
class Geometry:
    """Pickers by family (a value of :data:`PICKED`)."""

    pickers: Mapping[str, Picker]

    def document(self) -> dict[str, Any]:
        """Tiles and chips of every picker as a JSON object (what :meth:`read` takes, with :meth:`arrays`)."""
        return {
            "schema_version": SCHEMA_VERSION,
            "splits": list(SPLITS),
            "pickers": {
                family: {
                    "tiles": [t.name for t in p.tiles],
                    "chips": [list(c) for c in p.chips],
                    "offered": p.offered.astype(int).tolist(),
                    "splits_k": p.split is not None,
                }
                for family, p in self.pickers.items()
            },
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The forests as named arrays."""
        result = {}
        for family, picker in self.pickers.items():
            for name, forest in (("tile", picker.tile), ("split", picker.split)):
                if forest is None:
                    continue
                at = f"{family}.{name}"
                result[f"{at}.feature"] = forest.feature.astype(np.uint8)
                result[f"{at}.threshold"] = forest.threshold.astype(np.float32)
                result[f"{at}.leaf"] = forest.leaf.astype(np.float32)
        return result

    @classmethod
    def read(cls, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], *, where: str) -> Geometry:
        """What :meth:`document` and :meth:`arrays` gave; files from strangers are checked.

        Raises BundleError, naming ``where``, for anything that does not fit.
        """
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise BundleError(f"{where}: schema_version is {version!r}; expected {SCHEMA_VERSION}")
        if document.get("splits") != list(SPLITS):
            raise BundleError(f"{where}: splits differ from this version's; train the bundle again")
        listed = document.get("pickers")
        if not isinstance(listed, dict) or not set(listed) <= {f.value for f in PICKED}:
            raise BundleError(f"{where}: pickers is no object of families {', '.join(PICKED)}")
        return cls(
            pickers={family: _read_picker(family, entry, arrays, where) for family, entry in listed.items()}
        )

    def apply(self, launch: Launch, table: KernelTable, gpu: GpuSpec) -> Launch:
        """``launch`` with the learned picks in place of the rules, where a picker knows family and
        precision.

        The recorded linear layers multiply by a transposed weight, the recorded batched products by a plain
        one; a single product by a plain matrix (``matmul_nn``) is answered as one of the latter.
        """
        grid, threads, registers, shared = (
            getattr(launch, name).copy()
            for name in ("grid_blocks", "block_threads", "registers_per_thread", "shared_bytes")
        )
        plain = (table.family == Family.LINEAR) & (table.variant == "matmul_nn")
        answers = np.where(plain & (Family.BMM.value in self.pickers), Family.BMM.value, table.family)
        known = (table.precision == "fp32") & np.isfinite(table.columns["gemm_m"])
        for family, picker in self.pickers.items():
            rows = np.flatnonzero((answers == family) & known)
            if not rows.size:
                continue
            tile, blocks, _ = picker.pick(table.take(rows), gpu)
            block, _ = tile_launch(picker.tiles, gpu)
            grid[rows] = blocks
            threads[rows] = block.block_threads[tile]
            registers[rows] = block.registers_per_thread[tile]
            shared[rows] = block.shared_bytes[tile]
        return Launch(
            grid_blocks=grid, block_threads=threads, registers_per_thread=registers, shared_bytes=shared
        )


def tiles_named(names: Sequence[str]) -> tuple[Tile, ...]:
    """Tiles by their names. Raises ValueError, naming it, for one that is none."""
    tiles = []
    for name in names:
        tile = parse_tile(name)
        if tile is None:
            raise ValueError(f"{name!r} is no kernel class")
        tiles.append(tile)
    return tuple(tiles)


def _read_picker(family: str, entry: Any, arrays: Mapping[str, np.ndarray], where: str) -> Picker:
    at = f"{where}: picker {family}"
    if not isinstance(entry, dict):
        raise BundleError(f"{at} is a {type(entry).__name__}; expected an object")
    names, chips, offered = (entry.get(k) for k in ("tiles", "chips", "offered"))
    if not isinstance(names, list) or not 2 <= len(names) <= _MOST_TILES:
        raise BundleError(f"{at}: tiles is no list of 2 to {_MOST_TILES} names")
    if not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
        raise BundleError(f"{at}: tiles is no list of distinct names")
    try:
        tiles = tiles_named(names)
    except ValueError as e:
        raise BundleError(f"{at}: {e}") from e
    if (
        not isinstance(chips, list)
        or not 1 <= len(chips) <= _MOST_CHIPS
        or not all(
            isinstance(c, list) and len(c) == 3 and all(type(v) is int and 0 <= v <= 10_000 for v in c)
            for c in chips
        )
    ):
        raise BundleError(f"{at}: chips is no list of [major, minor, SMs]")
    if (
        not isinstance(offered, list)
        or len(offered) != len(chips)
        or not all(
            isinstance(r, list) and len(r) == len(tiles) and any(r) and all(v in (0, 1) for v in r)
            for r in offered
        )
    ):
        raise BundleError(f"{at}: offered is no table of 0 and 1, chips x tiles, with a 1 in every row")
    splits = entry.get("splits_k")
    if not isinstance(splits, bool):
        raise BundleError(f"{at}: splits_k is {splits!r}; expected true or false")
    return Picker(
        tiles=tiles,
        chips=tuple((c[0], c[1], c[2]) for c in chips),
        offered=np.array(offered, dtype=bool),
        tile=_read_forest(f"{family}.tile", arrays, TILE_FEATURES, where),
        split=_read_forest(f"{family}.split", arrays, SPLIT_FEATURES, where) if splits else None,
    )


def _read_forest(name: str, arrays: Mapping[str, np.ndarray], width: int, where: str) -> Forest:
    parts = [arrays.get(f"{name}.{part}") for part in ("feature", "threshold", "leaf")]
    feature, threshold, leaf = parts
    if feature is None or threshold is None or leaf is None:
        raise BundleError(f"{where}: an array of {name} is missing; expected feature, threshold and leaf")
    trees, leaves = leaf.shape if leaf.ndim == 2 else (0, 0)
    if (
        not 1 <= trees <= _LARGEST_TREES
        or leaves < 2
        or leaves & (leaves - 1)
        or leaves > 1 << _LARGEST_DEPTH
    ):
        raise BundleError(
            f"{where}: array {name}.leaf has shape {leaf.shape}; expected trees x a power of two"
        )
    if any(a.shape != (trees, leaves - 1) for a in (feature, threshold)):
        raise BundleError(f"{where}: arrays of {name} do not describe the same trees")
    if feature.dtype.kind not in "iu" or np.any(feature < 0) or np.any(feature >= width):
        raise BundleError(f"{where}: array {name}.feature leaves the range 0 .. {width - 1}")
    if (
        threshold.dtype.kind != "f"
        or leaf.dtype.kind != "f"
        or np.isnan(threshold).any()
        or np.isneginf(threshold).any()
        or not np.isfinite(leaf).all()
    ):
        raise BundleError(f"{where}: array {name} has values that are no finite numbers")
    return Forest(
        feature=feature.astype(np.intp),
        threshold=threshold.astype(np.float32),
        leaf=leaf.astype(np.float32),
        starts=np.array([0]),
        base=np.zeros(1),
    )
