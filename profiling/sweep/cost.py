"""How long measuring takes: one table of what a sweep costs beyond the kernels themselves.

Measured on two cores shared with other work, November 2026: a child of onnxruntime takes 46 ms per small entry (400
entries of the catalogue in 18.5 s, 5 ms of calls each), torch 9 ms to prepare and call once; a child of onnxruntime
under nsys 2023.4 with its export 2.1 s, importing torch another 2.2 s. :data:`COSTS` rounds these up. Assumed, for
want of a GPU here: creating a CUDA context and loading its libraries (5 s of ``chunk_s``), what a kernel's replays
take (``replay_s``) and the counter tool's start (``counter_chunk_s``). Rounded up, a budget is kept rather than
missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.profiling.sweep.precision import HALVES

Numbers = TypeVar("Numbers", float, np.ndarray)
GENERIC_GPU = "A10G"
"""Whose durations stand in for a GPU that is not known: slower than most that are bought today."""
GENERIC_KERNELS = "A100-PCIE-40GB"
"""Whose kernels an unknown GPU is planned for: every precision, TF32 with a rate of its own."""

CPU_FLOPS_PER_S = 1e10
CPU_BYTES_PER_S = 2e9
CPU_LONGEST_S = 0.2
"""A slow processor, for plans that try the chain without a GPU, and the longest call worth trying there."""
CPU_HALF_SLOWER = 50.0
"""Half precision is emulated there: 250 such entries, 20 s in fp32, were not done after 5 minutes."""


@frozen
class Costs:
    """Hold seconds, calls and bytes per second.

    ``prepare_s``: building the operator (a session of onnxruntime, module look-ups of torch), the first call's library
    set-up, the record, the range; ``fill_bytes_per_s``: making data and moving it to the device; ``call_us``: time of
    the host per call, below which no call gets; ``warmup`` calls, then as many as take ``enough_ms``, at least
    ``least_repeats`` and at most ``most_repeats`` (the child's own defaults); ``chunk_s``: starting a child under the
    profiler, exporting and reading its capture, once per ``chunk_entries`` entries or ``chunk_work_s`` of work;
    ``replay_s``: a kernel's replays under the counter tool; ``counter_chunk_s``: starting that.
    """

    prepare_s: float
    chunk_s: float
    fill_bytes_per_s: float = 1.0e9
    call_us: float = 30.0
    warmup: int = 3
    enough_ms: float = 20.0
    least_repeats: int = 5
    most_repeats: int = 50
    chunk_entries: int = 200
    chunk_work_s: float = 20.0
    replay_s: float = 0.6
    counter_chunk_s: float = 12.0


COSTS: Mapping[str, Costs] = MappingProxyType(
    {
        name: Costs(prepare_s=traits.sweep_prepare_s, chunk_s=traits.sweep_chunk_s)
        for name, traits in RUNTIMES.items()
        if traits.executor is not None
    }
)


def cpu_s(flops: Numbers, nbytes: Numbers) -> Numbers:
    """Return the seconds that a slow processor takes for so many operations and bytes moved."""
    return flops / CPU_FLOPS_PER_S + nbytes / CPU_BYTES_PER_S


def cpu_slowness(dtype: str) -> float:
    """Return how many times slower a slow processor is in ``dtype`` than in fp32."""
    if dtype in HALVES:
        return CPU_HALF_SLOWER
    return 1.0


def repeats_of(call_s: np.ndarray, costs: Costs, repeats: int | None = None) -> np.ndarray:
    """Return how often calls of ``call_s`` seconds are repeated; ``repeats`` fixes it."""
    if repeats is not None:
        return np.full(call_s.shape, float(repeats))
    # The child repeats short calls until they take long enough to be timed.
    wanted = np.ceil(costs.enough_ms / 1e3 / np.maximum(call_s, 1e-9))
    return np.asarray(np.clip(wanted, costs.least_repeats, costs.most_repeats))


def entry_s(
    kernel_us: np.ndarray, nbytes: np.ndarray, costs: Costs, *, repeats: int | None = None
) -> np.ndarray:
    """Return the seconds per entry of the timeline pass, its part of the chunk's overhead included.

    ``kernel_us``: predicted GPU microseconds of one call; ``nbytes``: bytes of inputs and weights.
    """
    call_s = np.maximum(kernel_us, costs.call_us) * 1e-6
    calls = costs.warmup + repeats_of(call_s, costs, repeats)
    # Values are drawn on the host and copied: large entries cost more than their calls.
    fill_s = nbytes / costs.fill_bytes_per_s
    own = costs.prepare_s + fill_s + calls * call_s
    chunks = np.maximum(own / costs.chunk_work_s, 1.0 / costs.chunk_entries)
    return np.asarray(own + chunks * costs.chunk_s)


def counters_s(kernels: np.ndarray, own_s: np.ndarray, costs: Costs) -> np.ndarray:
    """Return the seconds that the counter pass adds to entries of ``kernels`` kernels and ``own_s`` seconds
    of timeline pass."""
    replays = kernels * costs.replay_s
    chunk = np.maximum((own_s + replays) / costs.chunk_work_s, 1.0 / costs.chunk_entries)
    return np.asarray(costs.prepare_s + replays + chunk * costs.counter_chunk_s)
