"""Learn which kernel a matrix library picks: tile and split of k for products and convolutions.

For every kernel class that a library has (a *candidate*), a forest of trees scores how likely the library is to
pick it for this shape on this GPU, from what its heuristics look at: waves and their fill, padding, the tile
itself and its work relative to the best candidate. The highest score is the pick; a second forest chooses the
split of k in the same way. The grid then follows exactly from tile and split
(:mod:`gkestimator.kernel_models.tiles`). The forests are fitted by :mod:`gkestimator.training.geometry` on kernels
whose names and grids were recorded, in FP32; nothing public has them for tensor cores, so other precisions keep the
rules of :mod:`gkestimator.kernel_models.launch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.core.stored import StoredArrays, StoredObject
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.columns import fill, lowest_bit
from gkestimator.kernel_models.launch import ArrayPair, Launch, blocks_per_sm
from gkestimator.kernel_models.regressors import Forest
from gkestimator.kernel_models.regressors.stack import read_trees
from gkestimator.kernel_models.tiles import Tile, parse_tile, tile_blocks

PICKED = (Family.LINEAR, Family.BMM, Family.CONV)
"""Families whose kernel is learned, one picker each."""
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 20, 40)
"""Parts that k may be split into (98 % of those recorded)."""
_THINNEST_PART = 48  # of k; the thinnest recorded has 56
TILE_FEATURES = 30
SPLIT_FEATURES = 14
_SAME_CHIP_SMS = 0.10
_LARGEST_TREES = 1000
_MOST_TILES = 64
_MOST_CHIPS = 64
SCHEMA_VERSION = 1  # of geometry.json; a change of tile_features or split_features raises it


def _per_tile(tiles: Sequence[Tile], name: str) -> Array:
    return np.array([float(getattr(tile, name)) for tile in tiles])


def tile_launch(tiles: Sequence[Tile], gpu: GpuSpec) -> tuple[Launch, Array]:
    """Return one block of each tile as a launch, and how many of its blocks fit on an SM of ``gpu``."""
    launch = Launch(
        grid_blocks=np.ones(len(tiles)),
        block_threads=_per_tile(tiles, "threads"),
        registers_per_thread=_per_tile(tiles, "registers"),
        shared_bytes=_per_tile(tiles, "shared_bytes"),
    )
    return launch, blocks_per_sm(launch, gpu)


def _blocks(tiles: Sequence[Tile], table: KernelTable) -> Array:
    """Return (rows, tiles) blocks of the grid without a split of k."""
    return np.stack([tile_blocks(tile, table) for tile in tiles], axis=1)


def _assembled(columns: Sequence[Array | float], rows: int, candidates: int) -> Array:
    """Return (rows, candidates, features) float32; a column may be the same for all rows or for all candidates."""
    features = np.empty((rows, candidates, len(columns)), dtype=np.float32)
    for place, column in enumerate(columns):
        features[:, :, place] = column
    return features


def _capability(gpu: GpuSpec) -> float:
    major, minor = gpu.compute_capability
    return major + minor / 10


def _over_least(work: Array) -> Array:
    """Return the logarithm of each candidate's work over the least among a row's candidates."""
    log_work = np.log(work)
    least = log_work.min(axis=1, keepdims=True, initial=np.inf)
    return np.asarray(log_work - least)


def tile_features(tiles: Sequence[Tile], table: KernelTable, gpu: GpuSpec) -> Array:
    """Return (rows, tiles, features) float32: what a library's heuristic can weigh of each candidate."""
    _, fit = tile_launch(tiles, gpu)
    blocks = _blocks(tiles, table)
    area = _per_tile(tiles, "outputs")
    batch, m, n, k = table.gemm_sizes()
    waves = blocks / gpu.sms
    resident = blocks / (fit * gpu.sms)
    bandwidth = gpu.dram_bytes_per_s / gpu.sms / gpu.boost_clock_mhz  # of an SM, a clock
    shape = [
        *map(np.log, (batch, m, n, k)),
        *[np.log(table.size(name)) for name in ("conv_batch", "conv_out_h", "conv_in_channels")],
        lowest_bit(n, 4),
        lowest_bit(k, 4),
    ]
    columns: list[Array | float] = [
        _per_tile(tiles, "algorithm_number"),
        np.log2(_per_tile(tiles, "m")),
        np.log2(_per_tile(tiles, "n")),
        _per_tile(tiles, "threads"),
        _per_tile(tiles, "slices"),
        *np.array([tile.cover for tile in tiles], dtype=np.float64).T,
        *[column[:, None] for column in shape],
        _capability(gpu),
        np.log(gpu.sms),
        np.log(bandwidth),
        np.log(gpu.l2_bytes),
        np.log(blocks),
        np.log(waves),
        fill(waves),
        np.log(resident),
        fill(resident),
        (batch * m * n)[:, None] / (blocks * area),
        _over_least(np.ceil(waves) * area),
        _over_least(np.ceil(resident) * fit * area),
        fit,
    ]
    return _assembled(columns, len(table), len(tiles))


def split_features(tiles: Sequence[Tile], pick: Array, table: KernelTable, gpu: GpuSpec) -> ArrayPair:
    """Return (rows, splits, features) float32 of every split of the picked tiles, and the (rows,) blocks
    before a split.

    ``pick`` indexes ``tiles``.
    """
    _, fit = tile_launch(tiles, gpu)
    blocks = _blocks(tiles, table)[np.arange(len(table)), pick]
    parts = np.array(SPLITS, dtype=np.float64)
    _, m, n, k = table.gemm_sizes()
    fitting = fit[pick]
    area = _per_tile(tiles, "outputs")[pick]
    split_blocks = blocks[:, None] * parts
    waves = split_blocks / gpu.sms
    resident = split_blocks / (fitting * gpu.sms)[:, None]
    per_row = (np.log(blocks), fill(blocks / gpu.sms), np.log(k), np.log(m * n), area, fitting)
    columns: list[Array | float] = [
        np.log(parts),
        np.log(waves),
        fill(waves),
        np.log(resident),
        fill(resident),
        np.log(k[:, None] / parts),
        *[column[:, None] for column in per_row],
        _capability(gpu),
        gpu.sms,
    ]
    return _assembled(columns, len(table), len(parts)), blocks


@frozen
class Picker:
    """Hold the learned choice of one family.

    ``tiles``: the candidates. ``chips``: (major, minor, SMs) of the GPUs it was trained on, and ``offered``
    (chips, tiles): the tiles that the library was seen to launch there. ``tile`` and ``split`` score
    candidates; no ``split``: k is never split.
    """

    tiles: tuple[Tile, ...]
    chips: tuple[tuple[int, int, int], ...]
    offered: Array
    tile: Forest
    split: Forest | None

    def candidates(self, gpu: GpuSpec) -> Array:
        """Return the mask of the tiles the library may launch on ``gpu``: those of its chip; on a chip not trained on,
        every one (its scores know compute capability and SMs; a guess of the nearest chip's list did worse with
        each GPU left out)."""
        same_chip = []
        for major, minor, sms in self.chips:
            capability = (major, minor) == tuple(gpu.compute_capability)
            same_chip.append(capability and abs(sms / gpu.sms - 1) <= _SAME_CHIP_SMS)
        known = self.offered
        if any(same_chip):
            known = self.offered[np.array(same_chip)]
        return np.asarray(known.any(axis=0))

    def pick(self, table: KernelTable, gpu: GpuSpec) -> tuple[Array, Array, Array]:
        """Return (tile index, blocks of the grid, split of k) of every row of ``table``."""
        rows = len(table)
        features = tile_features(self.tiles, table, gpu)
        allowed = self._allowed(table, self.candidates(gpu))
        score = np.full((rows, len(self.tiles)), -np.inf)
        score[allowed] = self.tile.predict(features[allowed])[:, 0]
        tile = np.argmax(score, axis=1)
        if self.split is None:
            return tile, _blocks(self.tiles, table)[np.arange(rows), tile], np.ones(rows)
        choices, blocks = split_features(self.tiles, tile, table, gpu)
        splits = np.array(SPLITS, dtype=np.float64)
        thick = table.size("gemm_k")[:, None] / splits >= _THINNEST_PART
        thick[:, 0] = True
        thick &= thick[:, 1:2]  # nothing to choose where not even halves are thick enough
        ranked = np.full((rows, len(SPLITS)), -np.inf)
        ranked[:, 0] = 0.0
        ranked[thick] = self.split.predict(choices[thick])[:, 0]
        parts = splits[np.argmax(ranked, axis=1)]
        return tile, blocks * parts, parts

    def _allowed(self, table: KernelTable, offered: Array) -> Array:
        """Return (rows, tiles): candidates that can calculate the row at all.

        Winograd kernels are for dense 3 x 3 filters of stride 1 (the training data has no other), transforms
        for stride 1 and filters beyond 1 x 1.
        """
        result = np.broadcast_to(offered, (len(table), len(self.tiles))).copy()
        height = table.columns["conv_kernel_h"]
        width = table.columns["conv_kernel_w"]
        if np.isnan(height).all():
            return result
        steps = table.size("conv_stride_h") * table.size("conv_stride_w")
        unit = steps * table.size("conv_dilation_h") * table.size("conv_dilation_w") == 1
        winograd = unit & (height == 3) & (width == 3)
        fits = {"fused": winograd, "nonfused": winograd, "fft": unit & (height * width > 1)}
        for place, tile in enumerate(self.tiles):
            if tile.algorithm in fits:
                result[:, place] &= fits[tile.algorithm]
        none = ~result.any(axis=1)
        direct = np.array([tile.algorithm in ("direct", "simple") for tile in self.tiles])
        result[none] = direct | ~direct.any()
        return result


@frozen
class Geometry:
    """Hold pickers by family (a value of :data:`PICKED`)."""

    pickers: Mapping[str, Picker]

    def document(self) -> dict[str, Any]:
        """Return tiles and chips of every picker as a JSON object (what :meth:`read` takes, with :meth:`arrays`)."""
        pickers = {}
        for family, picker in self.pickers.items():
            pickers[family] = {
                "tiles": [t.name for t in picker.tiles],
                "chips": [list(c) for c in picker.chips],
                "offered": picker.offered.astype(int).tolist(),
                "splits_k": picker.split is not None,
            }
        return {"schema_version": SCHEMA_VERSION, "splits": list(SPLITS), "pickers": pickers}

    def arrays(self) -> dict[str, Array]:
        """Return the forests as named arrays."""
        arrays = {}
        for family, picker in self.pickers.items():
            for name, forest in (("tile", picker.tile), ("split", picker.split)):
                if forest is None:
                    continue
                at = f"{family}.{name}"
                arrays[f"{at}.feature"] = forest.feature.astype(np.uint8)
                arrays[f"{at}.threshold"] = forest.threshold.astype(np.float32)
                arrays[f"{at}.leaf"] = forest.leaf.astype(np.float32)
        return arrays

    @classmethod
    def read(cls, document: StoredObject, arrays: StoredArrays) -> Geometry:
        """Return what :meth:`document` and :meth:`arrays` gave; files from strangers are checked.

        Raises BundleError, naming file and field, for anything that does not fit.
        """
        document.version(SCHEMA_VERSION)
        if document.numbers("splits", len(SPLITS)) != SPLITS:
            raise document.unfit("splits", "those of this version; train the bundle again")
        listed = document.by_name("pickers", PICKED)
        return cls(pickers={family: _read_picker(family, entry, arrays) for family, entry in listed.items()})

    def apply(self, launch: Launch, table: KernelTable, gpu: GpuSpec) -> Launch:
        """Return ``launch`` with the learned picks in place of the rules, where a picker knows family and precision.

        The recorded linear layers multiply by a transposed weight, the recorded batched products by a plain
        one; a single product by a plain matrix (``matmul_nn``) is answered as one of the latter.
        """
        learned = launch.copy()
        answers = table.family
        if Family.BMM in self.pickers:
            plain = (table.family == Family.LINEAR) & (table.variant == "matmul_nn")
            answers = np.where(plain, Family.BMM.value, table.family)
        known = (table.precision == "fp32") & np.isfinite(table.columns["gemm_m"])
        for family, picker in self.pickers.items():
            rows = np.flatnonzero((answers == family) & known)
            if not rows.size:
                continue
            tile, blocks, _ = picker.pick(table.take(rows), gpu)
            block, _ = tile_launch(picker.tiles, gpu)
            learned.grid_blocks[rows] = blocks
            learned.block_threads[rows] = block.block_threads[tile]
            learned.registers_per_thread[rows] = block.registers_per_thread[tile]
            learned.shared_bytes[rows] = block.shared_bytes[tile]
        return learned


def tiles_named(names: Sequence[str]) -> tuple[Tile, ...]:
    """Return tiles by their names. Raises ValueError, naming it, for one that is none."""
    tiles = []
    for name in names:
        tile = parse_tile(name)
        if tile is None:
            raise ValueError(f"{name!r} is no kernel class")
        tiles.append(tile)
    return tuple(tiles)


def _read_picker(family: str, entry: StoredObject, arrays: StoredArrays) -> Picker:
    names = entry.texts("tiles", least=2, most=_MOST_TILES)
    if len(set(names)) != len(names):
        raise entry.unfit("tiles", "distinct names")
    try:
        tiles = tiles_named(names)
    except ValueError as e:
        raise entry.unfit("tiles", f"kernel classes; {e}") from e
    chips = entry.whole_rows("chips", 3, 10_000, most=_MOST_CHIPS)
    offered = np.array(
        entry.whole_rows("offered", len(tiles), 1, least=len(chips), most=len(chips)), dtype=bool
    )
    if not offered.any(axis=1).all():
        raise entry.unfit("offered", "a 1 in every row")
    split = None
    if entry.truth("splits_k"):
        split = _read_forest(f"{family}.split", arrays, SPLIT_FEATURES)
    return Picker(
        tiles=tiles,
        chips=tuple((major, minor, sms) for major, minor, sms in chips),
        offered=offered,
        tile=_read_forest(f"{family}.tile", arrays, TILE_FEATURES),
        split=split,
    )


def _read_forest(name: str, arrays: StoredArrays, width: int) -> Forest:
    return Forest.of_trees(*read_trees(arrays, name, features=width, most=_LARGEST_TREES))
