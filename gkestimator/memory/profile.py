"""Replay a lowered model's allocations and say what they add up to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gkestimator.kernels import Family, Kernel, KernelGraph
from gkestimator.memory.allocators import Allocator, make_allocator

__all__ = ["MemoryProfile", "MemoryReplay", "memory_profile"]

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
    ``allocator`` and ``figures`` are the runtime profile's; ``library_workspace_bytes`` (cuBLAS) is allocated at the
    first matrix product and stays.
    """
    return MemoryReplay(allocator, figures).profile(graph, library_workspace_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """What a graph asks of the allocator after its weights, and the figures that do not depend on the allocator.

    ``peak_before`` and ``peak_after``: the most that is live with scratch memory, and where, before the library's
    workspace exists and from then on. ``events``: a request's bytes; ``~n`` gives back request n.
    The library workspace is requested before event ``product``, the first matrix product (None: there is none).
    """

    weights: tuple[int, ...]
    events: tuple[int, ...]
    product: int | None
    peak_live: int
    peak_before: tuple[int, str]
    peak_after: tuple[int, str]
    largest_moved: int


class MemoryReplay:
    """:func:`memory_profile` for many graphs on one kind of allocator; what two of them share is replayed once.

    Lowerings of one binding for two GPUs often differ in kernels alone, and all bindings of a model load the same
    weights. Holds on to the graphs it was given.
    """

    def __init__(self, allocator: str, figures: Mapping[str, int]) -> None:
        self._allocator = allocator
        self._figures = figures
        self._traces: dict[
            int, tuple[KernelGraph, _Trace]
        ] = {}  # by id, which names the graph while it is held
        self._loaded: dict[tuple[int, ...], Allocator] = {}  # by weights
        self._begun: dict[
            tuple[object, ...], tuple[Allocator, list[int]]
        ] = {}  # up to the first matrix product
        self._reserved: dict[tuple[object, ...], int] = {}

    def profile(self, graph: KernelGraph, library_workspace_bytes: int) -> MemoryProfile:
        """As :func:`memory_profile`."""
        held = self._traces.get(id(graph))
        if held is None:
            held = self._traces[id(graph)] = (graph, _trace(graph))
        trace = held[1]
        library = 0 if trace.product is None else library_workspace_bytes
        key = (trace.weights, trace.events, trace.product, library)
        reserved = self._reserved.get(key)
        if reserved is None:
            reserved = self._reserved[key] = self._replay(trace, library)
        weights = sum(trace.weights)
        if self._allocator not in _SERVES_LIBRARIES:
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

    def _replay(self, trace: _Trace, library: int) -> int:
        """The bytes that the allocator ends up holding."""
        events = trace.events
        product = trace.product if self._allocator in _SERVES_LIBRARIES else None
        first = len(events) if product is None else product
        start = (trace.weights, events[:first])
        begun = self._begun.get(start)
        if begun is None:
            handles: list[int] = []
            arena = self._with_weights(trace.weights)
            _run(arena, handles, start[1])
            begun = self._begun[start] = (arena, handles)
        if product is None:
            return begun[0].reserved_bytes
        arena = begun[0].copy()
        arena.allocate(library)
        _run(arena, begun[1].copy(), events[first:])
        return arena.reserved_bytes

    def _with_weights(self, weights: tuple[int, ...]) -> Allocator:
        loaded = self._loaded.get(weights)
        if loaded is None:
            loaded = self._loaded[weights] = make_allocator(self._allocator, self._figures)
            for nbytes in weights:
                loaded.allocate(nbytes)
            loaded.keep()
        return loaded.copy()


def _run(arena: Allocator, handles: list[int], events: tuple[int, ...]) -> None:
    """Replay ``events``; ``handles`` are those of the requests so far."""
    allocate, release = arena.allocate, arena.release
    for event in events:
        if event >= 0:
            handles.append(allocate(event))
        else:
            release(handles[~event])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Liveness:
    """Per step: the places among its writes that are new storages, and the storages that die after it (numbered in
    the order in which they are born, inputs first). Names alone decide, so graphs of one wiring share it.
    """

    births: tuple[tuple[int, ...], ...]
    deaths: tuple[tuple[int, ...], ...]


_LIVENESS: WeakKeyDictionary[object, _Liveness] = WeakKeyDictionary()


def _liveness(graph: KernelGraph) -> _Liveness:
    known = _LIVENESS.get(graph.wiring) if graph.wiring is not None else None
    if known is not None:
        return known
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
    numbers = {name: n for n, name in enumerate(graph.inputs)}
    born = len(numbers)
    births, deaths = [], []
    for at, step in enumerate(graph.steps):
        new = []
        for place, (storage, _) in enumerate(step.writes):
            if storage not in numbers:
                numbers[storage] = born
                born += 1
                new.append(place)
        births.append(tuple(new))
        deaths.append(tuple(numbers.pop(storage) for storage in dying[at] if storage in numbers))
    liveness = _Liveness(births=tuple(births), deaths=tuple(deaths))
    if graph.wiring is not None:
        _LIVENESS[graph.wiring] = liveness
    return liveness


def _trace(graph: KernelGraph) -> _Trace:
    liveness = _liveness(graph)
    events = list(graph.inputs.values())
    requests = list(range(len(events)))  # storage number -> its request
    sizes = list(events)
    made = len(events)
    live = sum(sizes)
    peak_live = live
    peaks = [(live, "the inputs"), (0, "the inputs")]
    largest = 0
    product: int | None = None
    # Repeated operators share their kernels: a tuple's id names it while the graph holds it.
    known: dict[int, tuple[int, int, bool]] = {}
    for step, births, deaths in zip(graph.steps, liveness.births, liveness.deaths, strict=True):
        kernels = step.kernels
        counted = known.get(id(kernels))
        if counted is None:
            counted = known[id(kernels)] = _counted(kernels)
        scratch, moved, multiplies = counted
        if moved > largest:
            largest = moved
        if multiplies and product is None:
            product = len(events)
        at = made
        if scratch:
            events.append(scratch)
            made += 1
        for place in births:
            nbytes = step.writes[place][1]
            events.append(nbytes)
            requests.append(made)
            sizes.append(nbytes)
            made += 1
            live += nbytes
        if live > peak_live:
            peak_live = live
        side = 0 if product is None else 1
        if live + scratch > peaks[side][0]:
            peaks[side] = (live + scratch, step.name)
        if scratch:
            events.append(~at)
        for number in deaths:
            events.append(~requests[number])
            live -= sizes[number]
    return _Trace(
        weights=tuple(graph.weights.values()),
        events=tuple(events),
        product=product,
        peak_live=peak_live,
        peak_before=peaks[0],
        peak_after=peaks[1],
        largest_moved=largest,
    )


def _counted(kernels: tuple[Kernel, ...]) -> tuple[int, int, bool]:
    """Of one call: scratch bytes, the largest input and output of a kernel, and whether a matrix product is in it."""
    scratch = max((k.workspace_bytes for k in kernels), default=0)
    moved = max((k.read_bytes - k.weight_bytes + k.write_bytes for k in kernels), default=0)
    if len(kernels) > 1:
        scratch = max(scratch, _handed_on(kernels))
    return scratch, moved, any(k.family in _GEMM_FAMILIES for k in kernels)


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
