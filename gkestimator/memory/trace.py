"""List what one inference asks of the allocator, in order: liveness of the storages of a lowered model."""

from __future__ import annotations

import itertools
from weakref import WeakKeyDictionary

from gkestimator.core.kernels import Family, Kernel, KernelGraph
from gkestimator.core.records import frozen

_IN_PLACE = frozenset(("bias_add",))
_GEMM_FAMILIES = frozenset((Family.LINEAR, Family.BMM))


@frozen
class AllocationTrace:
    """Hold what a graph asks of the allocator after its weights, and the figures that do not depend on the allocator.

    ``peak_before`` and ``peak_after``: the most that is live with scratch memory, and where, before the library's
    workspace exists and from then on. ``events``: a request's bytes; ``~n`` gives back request n.
    The library workspace is requested before event ``product``, the first matrix product (None: there is none).
    The first ``inputs`` requests are the inputs; ``left`` are the other requests that no event gives back: outputs.
    ``scratch`` are those that live for one step alone.
    """

    weights: tuple[int, ...]
    events: tuple[int, ...]
    product: int | None
    peak_live: int
    peak_before: tuple[int, str]
    peak_after: tuple[int, str]
    largest_moved: int
    inputs: int
    left: tuple[int, ...]
    scratch: tuple[int, ...]


@frozen
class _Liveness:
    """Hold, per step, the places among its writes that are new storages, and the storages that die after it
    (numbered in the order in which they are born, inputs first). Names alone decide, so graphs of one wiring share it.
    """

    births: tuple[tuple[int, ...], ...]
    deaths: tuple[tuple[int, ...], ...]


_LIVENESS: WeakKeyDictionary[object, _Liveness] = WeakKeyDictionary()


def _liveness(graph: KernelGraph) -> _Liveness:
    if graph.wiring is None:
        return _calculated_liveness(graph)
    liveness = _LIVENESS.get(graph.wiring)
    if liveness is None:
        liveness = _LIVENESS[graph.wiring] = _calculated_liveness(graph)
    return liveness


def _dying(graph: KernelGraph) -> list[list[str]]:
    """Return, per step, the storages that nothing touches after it."""
    last: dict[str, int] = {}
    for at, step in enumerate(graph.steps):
        last.update(dict.fromkeys(step.reads, at))
        for storage, _ in step.writes:
            last[storage] = at
        last.update(dict.fromkeys(step.holds, at))
    dying: list[list[str]] = [[] for _ in graph.steps]
    for storage, at in last.items():
        if storage not in graph.inputs and storage not in graph.outputs and storage not in graph.weights:
            dying[at].append(storage)
    return dying


def _calculated_liveness(graph: KernelGraph) -> _Liveness:
    numbers = {name: n for n, name in enumerate(graph.inputs)}
    born = len(numbers)
    births = []
    deaths = []
    for step, dying in zip(graph.steps, _dying(graph), strict=True):
        new = []
        for place, (storage, _) in enumerate(step.writes):
            if storage not in numbers:
                numbers[storage] = born
                born += 1
                new.append(place)
        births.append(tuple(new))
        deaths.append(tuple(numbers.pop(storage) for storage in dying if storage in numbers))
    return _Liveness(births=tuple(births), deaths=tuple(deaths))


def trace_of(graph: KernelGraph, most_scratch: int | None = None) -> AllocationTrace:
    """Return the requests of one inference of ``graph``, in order; no kernel takes more than ``most_scratch`` bytes of
    scratch memory (None: as much as it asks for).
    """
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
    alive: set[int] = set()
    scratches = []
    for step, births, deaths in zip(graph.steps, liveness.births, liveness.deaths, strict=True):
        kernels = step.kernels
        counted = known.get(id(kernels))
        if counted is None:
            counted = known[id(kernels)] = _counted(kernels, most_scratch)
        scratch, moved, multiplies = counted
        if moved > largest:
            largest = moved
        if multiplies and product is None:
            product = len(events)
        at = made
        if scratch:
            events.append(scratch)
            scratches.append(made)
            made += 1
        for place in births:
            nbytes = step.writes[place][1]
            events.append(nbytes)
            requests.append(made)
            sizes.append(nbytes)
            alive.add(made)
            made += 1
            live += nbytes
        if live > peak_live:
            peak_live = live
        if product is None:
            side = 0
        else:
            side = 1
        if live + scratch > peaks[side][0]:
            peaks[side] = (live + scratch, step.name)
        if scratch:
            events.append(~at)
        for number in deaths:
            events.append(~requests[number])
            alive.discard(requests[number])
            live -= sizes[number]
    return AllocationTrace(
        weights=tuple(graph.weights.values()),
        events=tuple(events),
        product=product,
        peak_live=peak_live,
        peak_before=peaks[0],
        peak_after=peaks[1],
        largest_moved=largest,
        inputs=len(graph.inputs),
        left=tuple(sorted(alive)),
        scratch=tuple(scratches),
    )


def _counted(kernels: tuple[Kernel, ...], most_scratch: int | None = None) -> tuple[int, int, bool]:
    """Return, of one call, scratch bytes, the largest input and output of a kernel, and whether a matrix
    product is in it."""
    scratch = max((k.workspace_bytes for k in kernels), default=0)
    if most_scratch is not None:
        scratch = min(scratch, most_scratch)
    moved = max((k.read_bytes - k.weight_bytes + k.write_bytes for k in kernels), default=0)
    if len(kernels) > 1:
        scratch = max(scratch, _handed_on(kernels))
    return scratch, moved, any(k.family in _GEMM_FAMILIES and k.conv is None for k in kernels)


def _handed_on(kernels: tuple[Kernel, ...]) -> int:
    """Return the largest intermediate inside a call. A bias is added in place, so it hands on nothing new."""
    return max(
        (
            first.write_bytes
            for first, second in itertools.pairwise(kernels)
            if second.variant not in _IN_PLACE
        ),
        default=0,
    )


@frozen
class LiveBytes:
    """Hold bytes of live inputs, intermediates and outputs during each step of a graph, in order.

    ``scratch``: what kernels need beside, for one step alone. ``peak``: the step that needs most (the first of
    several); ``alive``: the storages alive there with their bytes, the largest first.
    """

    live: tuple[int, ...]
    scratch: tuple[int, ...]
    peak: int
    alive: tuple[tuple[str, int], ...]


def live_bytes(graph: KernelGraph) -> LiveBytes:
    """Return what is alive during every step of ``graph``, weights and scratch memory apart."""
    sizes = dict(graph.inputs)
    total = sum(sizes.values())
    live: list[int] = []
    most = -1
    peak = 0
    alive = dict(sizes)
    for at, (step, dying) in enumerate(zip(graph.steps, _dying(graph), strict=True)):
        for storage, nbytes in step.writes:
            if storage not in sizes:
                sizes[storage] = nbytes
                total += nbytes
        live.append(total)
        if total > most:
            most = total
            peak = at
            alive = dict(sizes)
        for storage in dying:
            total -= sizes.pop(storage, 0)
    largest_first = sorted(alive.items(), key=lambda item: (-item[1], item[0]))
    scratch = tuple(_counted(step.kernels)[0] for step in graph.steps)
    return LiveBytes(live=tuple(live), scratch=scratch, peak=peak, alive=tuple(largest_first))
