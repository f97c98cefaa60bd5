"""Replay a lowered model's allocations and say what they add up to."""

from __future__ import annotations

from collections.abc import Mapping

from gkestimator.core.kernels import KernelGraph
from gkestimator.core.records import frozen
from gkestimator.memory.allocators import Allocator, make_allocator
from gkestimator.memory.engines import ENGINES, engine_bytes
from gkestimator.memory.process import INFERENCES, Process, run, serves_libraries
from gkestimator.memory.trace import AllocationTrace, trace_of


@frozen
class MemoryProfile:
    """Hold bytes on the GPU, without the CUDA context.

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
    """Replay ``graph`` in a fresh process: weights, then inputs, then every step in order, and once more with the
    next inputs (those of the previous inference are let go of only then).

    A storage lives from the step that writes it to the last step that touches it; inputs and outputs to the end.
    ``allocator`` and ``figures`` are the runtime profile's; ``library_workspace_bytes`` (cuBLAS) is allocated at the
    first matrix product and stays.
    """
    return MemoryReplay(allocator, figures).profile(graph, library_workspace_bytes)


class MemoryReplay:
    """:func:`memory_profile` for many graphs on one kind of allocator; what two of them share is replayed once.

    ``most_scratch`` is the most scratch memory that a kernel may take (bytes; None: no limit).
    Lowerings of one binding for two GPUs often differ in kernels alone, and all bindings of a model load the same
    weights. Holds on to the graphs it was given.
    """

    def __init__(self, allocator: str, figures: Mapping[str, int], most_scratch: int | None = None) -> None:
        self._allocator = allocator
        self._most_scratch = most_scratch
        self._figures = figures
        self._traces: dict[
            int, tuple[KernelGraph, AllocationTrace]
        ] = {}  # by id, which names the graph while it is held
        self._loaded: dict[tuple[int, ...], Allocator] = {}  # by weights
        self._begun: dict[
            tuple[object, ...], tuple[Allocator, list[int]]
        ] = {}  # up to the first matrix product
        self._reserved: dict[tuple[object, ...], int] = {}

    def profile(self, graph: KernelGraph, library_workspace_bytes: int) -> MemoryProfile:
        """Return what :func:`memory_profile` does."""
        held = self._traces.get(id(graph))
        if held is None:
            held = self._traces[id(graph)] = (graph, trace_of(graph, self._most_scratch))
        trace = held[1]
        library = 0
        if trace.product is not None:
            library = library_workspace_bytes
        key = (trace.weights, trace.events, trace.product, library)
        reserved = self._reserved.get(key)
        if reserved is None:
            reserved = self._reserved[key] = self._replay(trace, library)
        weights = sum(trace.weights)
        if not serves_libraries(self._allocator):
            reserved += library
        after, where = trace.peak_after
        peak_total, peak_step = max(trace.peak_before, (after + library, where), key=lambda peak: peak[0])
        workspace = peak_total - trace.peak_live
        return MemoryProfile(
            weights_bytes=weights,
            activations_bytes=trace.peak_live,
            workspace_bytes=workspace,
            allocator_bytes=reserved - weights - trace.peak_live - workspace,
            reserved_bytes=reserved,
            input_bytes=sum(graph.inputs.values()),
            output_bytes=sum(graph.outputs.values()),
            peak_step=peak_step,
            usher_mreq_bytes=weights + trace.largest_moved,
        )

    def _replay(self, trace: AllocationTrace, library: int) -> int:
        """Return the bytes that the allocator ends up holding."""
        if self._allocator in ENGINES:
            return engine_bytes(trace, self._allocator, self._figures).reserved
        events = trace.events
        serves = serves_libraries(self._allocator)
        if serves and trace.product is not None:
            first = trace.product
        else:
            first = len(events)
        start = (trace.weights, events[:first])
        begun = self._begun.get(start)
        if begun is None:
            handles: list[int] = []
            arena = self._with_weights(trace.weights)
            run(arena, handles, start[1])
            begun = self._begun[start] = (arena, handles)
        process = Process(begun[0].copy(), self._allocator, library)
        process.go_on(trace, begun[1].copy(), first)
        process.infer(trace, INFERENCES - 1)
        return process.arena.reserved_bytes

    def _with_weights(self, weights: tuple[int, ...]) -> Allocator:
        loaded = self._loaded.get(weights)
        if loaded is None:
            loaded = self._loaded[weights] = make_allocator(self._allocator, self._figures)
            for nbytes in weights:
                loaded.load(nbytes)
            loaded.keep()
        return loaded.copy()
