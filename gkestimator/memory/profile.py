"""Replay a lowered model's allocations and say what they add up to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from gkestimator.kernels import Family, Kernel, KernelGraph
from gkestimator.memory.allocators import make_allocator

__all__ = ["MemoryProfile", "memory_profile"]

_IN_PLACE = frozenset(("bias_add",))
# torch hands cuBLAS a workspace from its own allocator; ONNX Runtime lets cuBLAS take it from the driver.
_SERVES_LIBRARIES = frozenset(("caching",))
_GEMM_FAMILIES = frozenset((Family.LINEAR, Family.BMM))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Bytes on the GPU, without the CUDA context.

    ``weights_bytes`` + ``activations_bytes`` (peak of live inputs, intermediates and outputs) + ``workspace_bytes``
    (what scratch memory and the library's standing workspace add to the peak) + ``allocator_bytes`` (rounding,
    segments, fragmentation) = ``reserved_bytes``, what the runtime's allocator holds of the driver. ``peak_step``
    is where the peak is reached. ``usher_mreq_bytes`` is USHER's Mreq (section 3.2): weights plus the largest input
    and output data of one kernel (of one set of concurrent kernels; this is the single-stream value).
    """

    weights_bytes: int
    activations_bytes: int
    workspace_bytes: int
    allocator_bytes: int
    reserved_bytes: int
    input_bytes: int
    output_bytes: int
    peak_step: str
    usher_mreq_bytes: int


def memory_profile(
    graph: KernelGraph, *, allocator: str, figures: Mapping[str, int], library_workspace_bytes: int
) -> MemoryProfile:
    """Replay ``graph`` in a fresh process: weights, then inputs, then every step in order.

    A storage lives from the step that writes it to the last step that touches it; inputs and outputs to the end.
    ``allocator`` and ``figures`` are the runtime profile's; ``library_workspace_bytes`` (cuBLAS) is allocated at
    the first matrix product and stays.
    """
    arena = make_allocator(allocator, figures)
    for nbytes in graph.weights.values():
        arena.allocate(nbytes)
    held: dict[str, tuple[int, int]] = {}  # storage -> (handle, bytes)
    live = 0
    for name, nbytes in graph.inputs.items():
        held[name] = (arena.allocate(nbytes), nbytes)
        live += nbytes

    dying = _deaths(graph)
    peak_live = peak_total = live
    peak_step = "the inputs"
    usher = 0
    library = outside = 0
    allocate, release = arena.allocate, arena.release
    for at, step in enumerate(graph.steps):
        kernels = step.kernels
        scratch = 0
        for kernel in kernels:
            if kernel.workspace_bytes > scratch:
                scratch = kernel.workspace_bytes
            moved = kernel.read_bytes - kernel.weight_bytes + kernel.write_bytes
            if moved > usher:
                usher = moved
            if library == 0 and library_workspace_bytes and kernel.family in _GEMM_FAMILIES:
                library = library_workspace_bytes
                if allocator in _SERVES_LIBRARIES:
                    allocate(library)
                else:
                    outside = library
        if len(kernels) > 1:
            scratch = max(scratch, _handed_on(kernels))
        handle = allocate(scratch) if scratch else -1
        for storage, nbytes in step.writes:
            if storage not in held:
                held[storage] = (allocate(nbytes), nbytes)
                live += nbytes
        if live > peak_live:
            peak_live = live
        total = live + scratch + library
        if total > peak_total:
            peak_total = total
            peak_step = step.name
        if handle >= 0:
            release(handle)
        for storage in dying[at]:
            entry = held.pop(storage, None)
            if entry is not None:
                release(entry[0])
                live -= entry[1]

    weights = sum(graph.weights.values())
    reserved = arena.reserved_bytes + outside
    workspace = peak_total - peak_live
    return MemoryProfile(
        weights_bytes=weights,
        activations_bytes=peak_live,
        workspace_bytes=workspace,
        allocator_bytes=reserved - weights - peak_live - workspace,
        reserved_bytes=reserved,
        input_bytes=sum(graph.inputs.values()),
        output_bytes=sum(graph.outputs.values()),
        peak_step=peak_step,
        usher_mreq_bytes=weights + usher,
    )


def _deaths(graph: KernelGraph) -> list[list[str]]:
    """For each step the storages that nothing touches after it; inputs, outputs and weights outlive every step."""
    last: dict[str, int] = {}
    for at, step in enumerate(graph.steps):
        for storage in step.reads:
            last[storage] = at
        for storage, _ in step.writes:
            last[storage] = at
    dying: list[list[str]] = [[] for _ in graph.steps]
    for storage, at in last.items():
        if storage not in graph.inputs and storage not in graph.outputs and storage not in graph.weights:
            dying[at].append(storage)
    return dying


def _handed_on(kernels: tuple[Kernel, ...]) -> int:
    """Largest intermediate inside a call. A bias is added in place, so it hands on nothing new."""
    return max(
        (
            first.write_bytes
            for first, second in itertools.pairwise(kernels)
            if second.variant not in _IN_PLACE
        ),
        default=0,
    )
