"""Describe kernels that matrix libraries launch: how a product or a convolution is cut into blocks.

cuBLAS and cuDNN name their kernels after their tiles, and the grid follows from tile and shape exactly: each
rule below reproduces every grid that NeuSight recorded for its kind (tests/training/test_fit_geometry.py). Which
kernel is picked is learned (:mod:`gkestimator.kernel_models.geometry`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import frozen

ALGORITHMS = ("gemm", "direct", "simple", "nonfused", "fused", "fft")
"""gemm: a matrix product, one block per tile of the output (and per part of a split k). direct: implicit GEMM
over images x output pixels. simple: the same without offsets calculated before (32 x 32 tiles). nonfused:
Winograd F(4x4, 3x3) as 36 products of transformed tiles. fused: Winograd F(2x2, 3x3) in one kernel, whose
block covers ``images x rows x columns`` output tiles of 2 x 2 and 32 filters. fft: products per frequency of
32 x 32 transforms."""

TILE_RATE = MappingProxyType(
    {
        (128, 128): 1.0,
        (128, 64): 0.95,
        (64, 64): 0.85,
        (128, 32): 0.75,
        (32, 128): 0.75,
        (64, 32): 0.6,
        (32, 32): 0.45,
    }
)
"""Rate of a tile (rows, columns) of single-precision products relative to 128 x 128: each step of k loads rows +
columns operands for rows x columns multiply-adds, and smaller tiles hide less latency."""
PROLOGUE_K = 16.0
"""A tile's first loads and last stores cost about so many steps of k."""
_FUSED_FILTERS = 32
_FFT_FREQUENCIES = 32 * 17  # of a real 32 x 32 transform


def pieces(total: Array, size: Array | float) -> Array:
    """Return how many pieces of ``size`` cover ``total``: their ratio, rounded up."""
    count: Array = np.ceil(total / size)
    return count


@frozen
class Tile:
    """Hold a kernel class: ``algorithm`` of :data:`ALGORITHMS`, ``m`` x ``n`` outputs a block, ``threads`` of it.

    ``m`` runs over pixels (convolutions) or, in a column-major matrix library, over output columns (gemm).
    ``slices``: groups of threads that share a tile and each take a part of k. ``cover``: of a fused Winograd
    kernel, the images, rows and columns of 2 x 2 outputs that one block covers.
    """

    algorithm: str
    m: int
    n: int
    threads: int
    slices: int = 1
    cover: tuple[int, int, int] = (0, 0, 0)

    @property
    def name(self) -> str:
        """Return ``algorithm_MxN_threads`` with ``_sS`` for slices; fused kernels are named after their cover."""
        if self.algorithm == "fused":
            cover = "".join(map(str, self.cover))
            return f"fused_{cover}_{self.threads}"
        name = f"{self.algorithm}_{self.m}x{self.n}_{self.threads}"
        if self.slices > 1:
            name += f"_s{self.slices}"
        return name

    @property
    def algorithm_number(self) -> int:
        """Return the place of the algorithm among :data:`ALGORITHMS`."""
        return ALGORITHMS.index(self.algorithm)

    @property
    def outputs(self) -> int:
        """Return the outputs of a block."""
        return self.m * self.n

    @property
    def outputs_per_thread(self) -> float:
        """Return the accumulators of a thread."""
        return self.outputs * self.slices / self.threads

    @property
    def registers(self) -> int:
        """Return registers per thread, an estimate: the accumulators, about a third as many again for the operand
        fragments they need, and forty for addresses and loops (64 accumulators: 122, the figure that profilers
        show for 128 x 64 and 128 x 128 FP32 tiles; 16: about 60)."""
        if self.algorithm == "fused":
            return 126
        return min(255, round(40 + 1.28 * self.outputs_per_thread))

    @property
    def shared_bytes(self) -> int:
        """Return the static shared memory of a block, an estimate: two stages of 8-deep FP32 slices of both operands
        (16-deep where slices share k), a full 48 KiB of transformed inputs and filters for fused Winograd."""
        if self.algorithm == "fused":
            return 48 * 1024
        return 2 * (self.m + self.n) * 8 * self.slices * 4


_NAME = re.compile(r"(gemm|direct|simple|nonfused|fft)_(\d{1,3})x(\d{1,3})_(\d{2,4})(?:_s(\d))?\Z")
_FUSED = re.compile(r"fused_(\d)(\d)(\d)_(\d{2,4})\Z")


@lru_cache(maxsize=256)
def parse_tile(name: str) -> Tile | None:
    """Return the tile that :attr:`Tile.name` wrote; None for any other text."""
    if match := _FUSED.match(name):
        images, rows, cols, threads = map(int, match.groups())
        least = min(images, rows, cols)
        tile = Tile(algorithm="fused", m=128, n=128, threads=threads, cover=(images, rows, cols))
    elif match := _NAME.match(name):
        slices = int(match[5] or 1)
        tile = Tile(
            algorithm=match[1], m=int(match[2]), n=int(match[3]), threads=int(match[4]), slices=slices
        )
        least = min(tile.m, tile.n, slices)
    else:
        return None
    if least >= 1 and 32 <= tile.threads <= 1024:
        return tile
    return None


_SGEMM = re.compile(r"sgemm_(\d+)x(\d+)(?:x\d+)?(?:_sliced1x(\d))?_(?:nn|tn|nt|NN|TN|NT)")
_SCUDNN = re.compile(r"scudnn_(\d+)x(\d+)_(?:sliced1x(\d)_)?\w*(?:relu|3dconv)")
_WINOGRAD = re.compile(r"winograd_128x128_\w*tile(\d)(\d)(\d)")
_SIMPLE = re.compile(r"(?:implicit|explicit)_convolve_sgemm<float, (?:float|int), \d+, 5, 5,")
_FFT = re.compile(r"gcgemm_(\d+)x(\d+)")


def recorded_tile(kernel_name: str, threads: int, *, convolution: bool) -> str:
    """Return the class of a kernel by its name in the binary and its block; empty where the name says no tile."""
    slices = None
    if match := _WINOGRAD.search(kernel_name):
        return f"fused_{''.join(match.groups())}_{threads}"
    if match := _SCUDNN.search(kernel_name):
        algorithm = "direct"
        m, n, slices = match.groups()
    elif match := _SGEMM.search(kernel_name):
        if convolution:
            algorithm = "nonfused"
        else:
            algorithm = "gemm"
        m, n, slices = match.groups()
    elif match := _FFT.search(kernel_name):
        algorithm = "fft"
        m, n = match.groups()
    elif _SIMPLE.search(kernel_name):
        # Blocks of 8 x 8 threads with 4 x 4 outputs each (the rare other shapes follow no rule known here).
        algorithm = "simple"
        m = n = "32"
    else:
        return ""
    name = f"{algorithm}_{m}x{n}_{threads}"
    if slices:
        name += f"_s{slices}"
    if parse_tile(name) is None:
        return ""
    return name


def tile_blocks(tile: Tile, table: KernelTable) -> Array:
    """Return the blocks of ``tile`` for every row of ``table`` (float64), without a split of k; at least 1."""
    return np.asarray(_tile_blocks(tile, table))


def _tile_blocks(tile: Tile, table: KernelTable) -> Any:
    size = table.size
    batch, m, filters, _ = table.gemm_sizes()
    if tile.algorithm == "gemm":
        return pieces(filters, tile.m) * pieces(m, tile.n) * batch
    images = size("conv_batch")
    height = size("conv_out_h")
    width = size("conv_out_w")
    if tile.algorithm == "fused":
        n, h, w = tile.cover
        covers = pieces(images, n) * pieces(filters, _FUSED_FILTERS)
        return covers * pieces(height, 2 * h) * pieces(width, 2 * w) * batch
    if tile.algorithm == "nonfused":
        # The transforms pad the batch to a multiple of 16 images.
        pixels = pieces(images, 16) * 16 * pieces(height, 4) * pieces(width, 4)
        return pieces(pixels, tile.m) * pieces(filters, tile.n) * 36 * batch
    if tile.algorithm == "fft":
        # Images of up to 16 (filter overlap included) are transformed whole as 16 x 16; those beyond 32 are cut
        # into overlapping tiles, one product after another.
        padded = np.maximum(height, width) + size("conv_kernel_h") - 1
        frequencies = np.where(padded <= 16, 16 * 9, _FFT_FREQUENCIES)
        return pieces(filters, tile.m) * pieces(images, tile.n) * frequencies * batch
    return pieces(m, tile.m) * pieces(filters, tile.n) * batch
