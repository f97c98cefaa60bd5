"""Judge how well grids are predicted and write docs/explanation/launch-geometry.md: ``python benchmarks/launch_geometry.py``.

Needs the extra ``train`` and GKEST_SHARED, a folder with ``data/neusight``, whose rows name kernel, grid and block of the
main kernel. Shapes whose hash lies below 0.15 are reported and teach nothing. ``--no-report`` only prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _shared import shared_dir

from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.geometry import PICKED, Picker, tile_launch
from gkestimator.kernel_models.launch import launch_geometry, memory_launch, sm_utilisation_pct
from gkestimator.kernel_models.tiles import parse_tile
from gkestimator.training.geometry import fit_picker
from gkestimator.training.importers import load_source
from gkestimator.training.rows import TrainingRows, shape_hash

REPORT = Path(__file__).parents[1] / "docs" / "explanation/launch-geometry.md"
REPORTED = 0.15
MOST = 4_000  # rows reported per family and GPU
HEAD = """# Launch geometry: what is learned, and how right it is

Written by `python benchmarks/launch_geometry.py`; do not edit.

Which kernel a matrix library launches for a shape is not published. NeuSight's rows name it, with grid and block, for
FP32 on five chips (cuBLAS and cuDNN of CUDA 12.1, cuDNN 8.9). From these:

- **The grid follows from the kernel's tile exactly** (`gkestimator/kernel_models/tiles.py`, one rule per kind, each reproducing every
  grid recorded for it but a few transforms' and batches beyond 65,535). cuBLAS: output columns / tile rows x output rows / tile columns x
  batch x parts of k. Implicit GEMM: pixels / rows x filters / columns. Winograd as 36 products (F(4x4,3x3)): the same
  over 4 x 4 output tiles, the batch padded to 16 images. Winograd in one kernel (F(2x2,3x3)): images x rows x columns
  of 2 x 2 outputs that its name gives, 32 filters a block. Transforms: filters x images per frequency.
- **The tile and the split of k are learned** (`gkestimator/kernel_models/geometry.py`): trees rank the kernels that the chip's library
  offers, per family linear (weight transposed), bmm and single products by a plain matrix, convolution (3 x 3, stride 1
  in the data: Winograd and transforms are offered where they apply, every other convolution takes a direct kernel).
- **Elementwise, softmax and layer norm** follow PyTorch's launch rules (`gkestimator/kernel_models/launch.py`).
- **Not learned**: other precisions (no public grids of tensor-core kernels), attention, recurrent layers, transposed
  convolution, pooling, batch norm: rules of `gkestimator/kernel_models/launch.py`. A Winograd convolution launches transforms beside
  its products; the row is its main kernel.
- **Registers and shared memory** are estimates from the tile (`Tile.registers`, `Tile.shared_bytes`); profilers show
  122 registers for the tiles of 64 outputs a thread, and the rule meets that figure. Everything that occupancy and
  SM utilisation say of these kernels rests on them.

`exact`: share of rows whose grid is the recorded one. `error`: mean |predicted / recorded - 1| of the grid. `SM`: mean
absolute difference in points between SM utilisation from the predicted and from the recorded kernel.
`rule`: the rule of `gkestimator/kernel_models/launch.py`, which looks at no measurement. `chip left out`: the same shapes with the chip
left out of the training too: then grids are guesses, but SM utilisation is nearer than by the rule on the mean. (Of the P4, linear
rows of the larger shapes alone are imported.) Elementwise tensors beyond 2 GiB are launched in halves, which the rule
counts as one grid.

"""


def score(
    rows: TrainingRows, gpu: GpuSpec, blocks: np.ndarray, fits: np.ndarray, used_pct: np.ndarray
) -> tuple[float, float, float]:
    """(exact share in %, mean error of the grid in %, mean error of SM utilisation in points)."""
    true = rows.grid_blocks
    recorded = np.minimum(100.0, 100.0 * np.ceil(true / fits) / gpu.sms)
    return (
        float(100 * np.mean(blocks == true)),
        float(100 * np.mean(np.abs(blocks / true - 1))),
        float(np.mean(np.abs(used_pct - recorded))),
    )


def by_picker(picker: Picker, rows: TrainingRows, gpu: GpuSpec) -> tuple[np.ndarray, np.ndarray]:
    """Blocks and SM utilisation in percent of the picked kernels."""
    tile, blocks, _ = picker.pick(rows.table, gpu)
    _, fit = tile_launch(picker.tiles, gpu)
    return blocks, np.minimum(100.0, 100.0 * np.ceil(blocks / fit[tile]) / gpu.sms)


def by_rule(rows: TrainingRows, gpu: GpuSpec) -> tuple[np.ndarray, np.ndarray]:
    """Blocks and SM utilisation in percent by the rules that look at no measurement."""
    launch = launch_geometry(rows.table, gpu)
    return launch.grid_blocks, sm_utilisation_pct(launch, gpu)


def learned(rows: TrainingRows, gpus: dict[str, GpuSpec], tell: Callable[[str], None]) -> None:
    """Table of one learned family."""
    held = shape_hash(rows.table) < REPORTED
    picker = fit_picker(rows.take(np.flatnonzero(~held)), gpus)
    assert picker is not None
    rng = np.random.default_rng(0)
    sums = []
    for name in sorted(set(rows.gpu.tolist())):
        gpu = gpus[name]
        here = np.flatnonzero(held & (rows.gpu == name))
        if len(here) > MOST:
            here = np.sort(rng.choice(here, MOST, replace=False))
        test = rows.take(here)
        tiles = [parse_tile(c) for c in test.kernel_class.tolist()]
        _, fits = tile_launch([t for t in tiles if t is not None], gpu)
        others = rows.take(np.flatnonzero(~held & (rows.gpu != name)))
        stranger = fit_picker(others, gpus)
        assert stranger is not None
        answers = (by_picker(picker, test, gpu), by_picker(stranger, test, gpu), by_rule(test, gpu))
        values = [score(test, gpu, blocks, fits, used) for blocks, used in answers]
        sums.append(values)
        tell(line(name, len(test), values))
    tell(line("**mean of GPUs**", 0, np.mean(sums, axis=0).tolist()))


def line(name: str, count: int, values: list[tuple[float, float, float]]) -> str:
    """One row of the table."""
    cells = " | ".join(f"{a:.0f} / {b:.1f} / {c:.1f}" for a, b, c in values)
    return f"| {name} | {count or ''} | {cells} |"


def followed(rows: TrainingRows, tell: Callable[[str], None]) -> None:
    """Line of one family whose launch follows the runtime's rule."""
    test = rows.take(np.flatnonzero(shape_hash(rows.table) < REPORTED))
    grid, _ = memory_launch(test.table)
    error = 100 * np.abs(grid / test.grid_blocks - 1)
    # Beyond 32-bit offsets torch cuts a tensor into halves, one launch each; the rule counts them as one.
    huge = test.table.columns["write_bytes"] > 2**31
    for words, mask in (("", ~huge), (" beyond 2 GiB", huge)):
        if mask.any():
            exact = 100 * np.mean(error[mask] == 0)
            name = f"{rows.table.family[0]}{words}"
            tell(f"| {name} | {mask.sum()} | {exact:.2f} | {error[mask].mean():.3f} |")


def main() -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-report", action="store_true")
    options = parser.parse_args()
    _, parts = load_source(shared_dir() / "data" / "neusight")
    catalogue = gpu_catalogue()
    gpus = {g: catalogue.resolve(g)[0] for p in parts for g in set(p.gpu.tolist())}
    lines: list[str] = []

    def tell(text: str) -> None:
        print(text, flush=True)
        lines.append(text)

    def all_of(family: str) -> TrainingRows:
        return TrainingRows.concatenate([p for p in parts if p.table.family[0] == family])

    for family in PICKED:
        rows = all_of(family.value)
        rows = rows.take(np.flatnonzero(rows.kernel_class != ""))
        tell(f"## {family.value}\n")
        tell("exact % / error % / SM points\n")
        tell("| GPU | rows | shapes held out | chip left out | rule |\n|---|---|---|---|---|")
        learned(rows, gpus, tell)
        tell("")
    tell("## Rules of the runtime\n\n| family | rows | exact % | error % |\n|---|---|---|---|")
    for name in ("elementwise", "softmax", "layernorm"):
        followed(all_of(name), tell)
    if not options.no_report:
        REPORT.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
