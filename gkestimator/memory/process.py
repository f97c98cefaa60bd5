"""Run inferences one after another in one process, the allocator's cache never emptied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import KernelGraph
from gkestimator.memory.allocators import Allocator, make_allocator
from gkestimator.memory.engines import ENGINES, engines_reserved
from gkestimator.memory.planning import planned_bytes, planned_requests
from gkestimator.memory.trace import AllocationTrace, trace_of

# From the second inference on, a torch script's new input is made while its name still holds the previous one. Later
# ones repeat the second: the cache has what they ask for.
INFERENCES = 2
# torch hands cuBLAS a workspace from its own allocator; ONNX Runtime lets cuBLAS take it from the driver.
_SERVES_LIBRARIES = frozenset(("caching",))


def serves_libraries(allocator: str) -> bool:
    """Return whether the matrix library's standing workspace comes out of this kind of allocator."""
    return allocator in _SERVES_LIBRARIES


class Process:
    """Hold a process with its weights loaded: ``arena`` holds them. ``allocator`` is its kind. ``library`` bytes are
    requested at the first matrix product and kept, where the allocator serves them.
    """

    def __init__(self, arena: Allocator, allocator: str, library: int) -> None:
        self.arena = arena
        # In torch the script makes and holds the inputs; an ONNX Runtime session copies them in and frees its copies.
        self._overlap = allocator in _SERVES_LIBRARIES
        self._library: int | None = None
        if self._overlap:
            self._library = library
        self._inputs: list[int] = []  # handles of the previous inference's
        self._seen: set[AllocationTrace] = set()

    def infer(self, trace: AllocationTrace, times: int = 1) -> None:
        """Replay ``trace`` ``times`` times. Where a script holds the inputs, new ones are made before the previous ones
        are let go of; outputs are handed on (copied to the host) before the next inference.
        """
        for _ in range(times):
            if self._overlap or trace not in self._seen:
                self.go_on(trace, [], 0)
            else:
                self._infer_planned(trace)

    def _infer_planned(self, trace: AllocationTrace) -> None:
        """Replay ``trace`` where its shapes are known: one buffer holds the intermediates (ONNX Runtime)."""
        arena = self.arena
        planned = planned_requests(trace)
        self._let_go()
        buffer = arena.allocate(planned_bytes(trace))
        handles: list[int] = []
        for event in trace.events:
            if event >= 0:
                request = 0 if len(handles) in planned else event
                handles.append(arena.allocate(request))
            else:
                arena.release(handles[~event])
        arena.release(buffer)
        for request in trace.left:
            arena.release(handles[request])
        self._inputs = handles[: trace.inputs]

    def go_on(self, trace: AllocationTrace, handles: list[int], start: int) -> None:
        """Replay ``trace`` from event ``start`` on; ``handles`` are those of the requests before."""
        self._seen.add(trace)
        arena = self.arena
        inputs = trace.inputs
        if not self._overlap:
            self._let_go()
        run(arena, handles, trace.events[start:inputs])
        self._let_go()
        start = max(start, inputs)
        if self._library is not None and trace.product is not None and trace.product >= start:
            run(arena, handles, trace.events[start : trace.product])
            arena.allocate(self._library)
            self._library = None
            start = trace.product
        run(arena, handles, trace.events[start:])
        for request in trace.left:
            arena.release(handles[request])
        self._inputs = handles[:inputs]

    def _let_go(self) -> None:
        for handle in self._inputs:
            self.arena.release(handle)
        self._inputs = []


def run(arena: Allocator, handles: list[int], events: Sequence[int]) -> None:
    """Replay ``events``; ``handles`` are those of the requests so far."""
    allocate = arena.allocate
    release = arena.release
    for event in events:
        if event >= 0:
            handles.append(allocate(event))
        else:
            release(handles[~event])


def cumulative_reserved(
    graphs: Sequence[KernelGraph],
    *,
    allocator: str,
    figures: Mapping[str, int],
    library_workspace_bytes: int,
    inferences: int = INFERENCES,
    most_scratch: int | None = None,
) -> tuple[int, ...]:
    """Return the bytes that the runtime holds of the driver after each of ``graphs``, all run in one process
    without emptying its cache (torch's ``max_memory_reserved``, read after each).

    ``graphs`` are lowerings of one model, such as its batch sizes, in the order in which they run; the weights of
    the first are loaded once, those that a later one adds (constants folded for its shape) when it comes. Each runs
    ``inferences`` times. ``allocator`` and ``figures`` are the runtime profile's, ``library_workspace_bytes`` as in
    :func:`~gkestimator.memory.memory_profile`, whose fresh process is this with one graph, ``most_scratch`` as in
    :func:`~gkestimator.memory.trace.trace_of`. Raises UsageError for no graph, and for ``inferences`` below 1.
    """
    if not graphs:
        raise UsageError("no graph to replay: expected at least one")
    if inferences < 1:
        raise UsageError(f"inferences is {inferences}: expected at least 1")
    if allocator in ENGINES:
        return engines_reserved(graphs, allocator, figures, most_scratch)
    arena = make_allocator(allocator, figures)
    serves = serves_libraries(allocator)
    process = Process(arena, allocator, library_workspace_bytes)
    loaded: dict[str, int] = {}
    beside = 0
    reserved = []
    for graph in graphs:
        for name, nbytes in graph.weights.items():
            if loaded.get(name) != nbytes:
                loaded[name] = nbytes
                arena.load(nbytes)
        trace = trace_of(graph)
        if not serves and trace.product is not None:
            beside = library_workspace_bytes
        process.infer(trace, inferences)
        reserved.append(arena.reserved_bytes + beside)
    return tuple(reserved)
