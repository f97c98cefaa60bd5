"""Calculate how much longer kernels take on a part of a GPU's SMs.

What a kernel loses with SMs depends on what it is made of:

- Starting it, or each step of a recurrent layer, takes as long on a part.
- Its arithmetic goes in rounds: the busiest SM has ceil(blocks / SMs) blocks, so that a kernel with fewer blocks than
  the part has SMs loses nothing.
- Its traffic is bound by the memory or by what its own blocks have in flight (Little's law), and a part holds as many
  of those as fit on its SMs.
- What a kernel of less than one wave takes beyond all this is latency, which blocks that share an SM wait for together.

Nobody has published times of single kernels under MPS, so the rules are derived. No kernel is faster on a part, nor
slower than by the inverse of the share, which is what work that only SMs bound would lose.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import TILED, Sides, analytical_sides
from gkestimator.kernel_models.launch import LONG_BLOCKS, Launch, blocks_per_sm
from gkestimator.kernel_models.roofline import DRAWN_BYTES_PER_S, confined
from gkestimator.kernel_models.tiles import pieces


def slowdown_on_part(
    table: KernelTable, launch: Launch, gpu: GpuSpec, sm_share_pct: float, whole_us: Array
) -> Array:
    """Return how many times longer each kernel takes with ``sm_share_pct`` percent of the SMs, from 1 to 100 / share.

    ``launch`` says how many blocks it has, ``whole_us`` how long it takes on the whole GPU. A larger share never has
    the larger slowdown.
    """
    part = confined(gpu, sm_share_pct)
    sides = analytical_sides(table, gpu)
    expected_us = sides.duration_us
    confined_us = _sides_on_part(table, launch, gpu, part, sides).duration_us
    ratio = np.divide(confined_us, expected_us, out=np.ones(len(table)), where=expected_us > 0)
    longer = np.maximum(ratio, 1.0) - 1.0
    slowdown = 1.0 + longer * _scaling_share(launch, gpu, expected_us, whole_us)
    return np.asarray(np.minimum(slowdown, 100.0 / sm_share_pct))


def _scaling_share(launch: Launch, gpu: GpuSpec, expected_us: Array, whole_us: Array) -> Array:
    """Return the share of each kernel's time that grows on a part: all of it from a full wave of blocks on, and less
    than a wave only what its work explains."""
    wave = gpu.sms * np.nan_to_num(blocks_per_sm(launch, gpu), nan=1.0)
    filled = np.minimum(1.0, _blocks(launch) / wave)
    explained = np.divide(expected_us, whole_us, out=np.ones(len(whole_us)), where=whole_us > 0)
    return np.asarray(filled + (1 - filled) * np.minimum(1.0, explained))


def _sides_on_part(table: KernelTable, launch: Launch, gpu: GpuSpec, part: GpuSpec, whole: Sides) -> Sides:
    """Return what bounds each kernel on ``part``, a part of ``gpu``, from what does on the whole."""
    blocks = _blocks(launch)
    rounds = pieces(blocks, part.sms) / pieces(blocks, gpu.sms)
    compute = whole.compute_us * rounds
    bandwidth_lost = _reached_bytes_per_s(table, launch, gpu) / _reached_bytes_per_s(table, launch, part)
    memory = whole.memory_us * bandwidth_lost
    # The library chooses tiles by the SMs that a kernel may use, and their registers hold a recurrent layer's weights.
    tiled = table.is_of(TILED)
    compute[tiled] = analytical_sides(table.take(tiled), part).compute_us
    layers = table.family == Family.RNN
    memory[layers] = analytical_sides(table.take(layers), part).memory_us
    return Sides(compute_us=compute, memory_us=memory, fixed_us=whole.fixed_us)


def _blocks(launch: Launch) -> Array:
    return np.asarray(np.maximum(np.nan_to_num(launch.grid_blocks), 1.0))


def _reached_bytes_per_s(table: KernelTable, launch: Launch, gpu: GpuSpec) -> Array:
    """Return what each kernel's blocks can draw from the memory of ``gpu``, or of a part of one.

    Blocks that each last a large part of the kernel keep whole SMs busy; of short ones only their threads count.
    """
    blocks = _blocks(launch)
    resident = gpu.warps_per_sm * 32.0
    threads = blocks * np.maximum(np.nan_to_num(launch.block_threads), 1.0)
    in_flight = np.minimum(threads, gpu.sms * resident)
    long = table.is_of(LONG_BLOCKS)
    in_flight[long] = resident * np.minimum(blocks, gpu.sms)[long]
    return np.asarray(np.minimum(gpu.dram_bytes_per_s, in_flight * DRAWN_BYTES_PER_S))
