"""Say what a compiled engine of TensorRT holds: weights, one planned block for all that lives inside, and bindings.

An engine knows every tensor's life before it runs. Its builder lays intermediates and the scratch memory of its kernels
into one block ("Total Activation Memory" in its log, ``getDeviceMemorySizeV2``), which an execution context takes when
it is made; inputs and outputs are the program's own memory (TensorRT developer guide, "How TensorRT Uses Memory").
TensorRT's log names its planner (``[BlockAssignment] Algorithm ShiftNTopDown``) and not how it works; here blocks are
placed greedily by size, as Y. Pisarchyk and J. Lee do ("Efficient Memory Management for Deep Neural Net Inference",
2020: greedy by size for offsets), and in two other orders, and the best plan counts: it mostly reaches the lower bound,
the most that lives at one time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.kernels import Array, KernelGraph
from gkestimator.core.records import frozen
from gkestimator.memory.allocators import ArenaAllocator
from gkestimator.memory.trace import AllocationTrace, trace_of

ENGINE = "engine"
"""TensorRT alone: a program takes inputs and outputs from the driver."""
ARENA_ENGINE = "arena_engine"
"""Inside ONNX Runtime, whose arena serves inputs and outputs. The engine's own memory is from the driver, as by default
(``trt_context_memory_sharing_enable`` would take the planned block from the arena)."""
ENGINES = frozenset((ENGINE, ARENA_ENGINE))


@frozen
class EngineBytes:
    """Hold bytes of one engine: its weights, the planned block, and inputs and outputs."""

    weights: int
    planned: int
    bindings: int

    @property
    def reserved(self) -> int:
        """Return all that it holds of the driver."""
        return self.weights + self.planned + self.bindings


@frozen
class Lives:
    """Hold what is planned, one entry a block: its bytes, and from which event to which it lives (the last one
    excluded).
    """

    sizes: Array
    births: Array
    deaths: Array

    @classmethod
    def of(cls, trace: AllocationTrace) -> Lives:
        """Return the lives of all requests of ``trace`` but inputs and outputs."""
        apart = {*range(trace.inputs), *trace.left}
        sizes: dict[int, int] = {}
        births: dict[int, int] = {}
        deaths: dict[int, int] = {}
        number = 0
        for at, event in enumerate(trace.events):
            if event < 0:
                deaths[~event] = at
                continue
            if event and number not in apart:
                sizes[number] = event
                births[number] = at
            number += 1
        last = [deaths.get(number, len(trace.events)) for number in sizes]
        return cls(
            sizes=np.array(list(sizes.values()), dtype=np.int64),
            births=np.array(list(births.values()), dtype=np.int64),
            deaths=np.array(last, dtype=np.int64),
        )


def engine_bytes(trace: AllocationTrace, allocator: str, figures: Mapping[str, int]) -> EngineBytes:
    """Return what an engine with the lives of ``trace`` holds; ``allocator`` is one of :data:`ENGINES`, ``figures``
    its constants by :data:`~gkestimator.hardware.runtimes.profiles.ALLOCATOR_FIGURES`.
    """
    rounding = figures["block_rounding"]
    bound = [event for event in trace.events[: trace.inputs] if event > 0]
    requests = [event for event in trace.events if event >= 0]
    bound += [requests[number] for number in trace.left]
    bindings = sum(rounded(nbytes, rounding) for nbytes in bound)
    if allocator == ARENA_ENGINE:
        arena = ArenaAllocator(figures)
        for nbytes in bound:
            arena.allocate(nbytes)
        bindings = arena.reserved_bytes
    return EngineBytes(
        weights=sum(rounded(nbytes, rounding) for nbytes in trace.weights),
        planned=planned_block_bytes(Lives.of(trace), rounding),
        bindings=bindings,
    )


def engines_reserved(
    graphs: Sequence[KernelGraph], allocator: str, figures: Mapping[str, int], most_scratch: int | None
) -> tuple[int, ...]:
    """Return what one engine holds that was built for the first of ``graphs``, for the first two, and so on: the
    weights of all of them, and the most that any of them needs beside.
    """
    loaded: dict[str, int] = {}
    beside = 0
    reserved = []
    for graph in graphs:
        loaded.update(graph.weights)
        own = engine_bytes(trace_of(graph, most_scratch), allocator, figures)
        beside = max(beside, own.planned + own.bindings)
        weights = sum(rounded(nbytes, figures["block_rounding"]) for nbytes in loaded.values())
        reserved.append(weights + beside)
    return tuple(reserved)


def rounded(nbytes: int, rounding: int) -> int:
    """Return ``nbytes`` rounded up to a multiple of ``rounding``."""
    return -(-nbytes // rounding) * rounding


def planned_block_bytes(lives: Lives, rounding: int) -> int:
    """Return the size of one block in which all ``lives`` fit, none over another that lives at the same time.

    The best of three plans: the largest first, the largest and longest first, and in order of birth. No less than the
    most that lives at one time, no more than all sizes together.
    """
    if not lives.sizes.size:
        return 0
    sizes = -(-lives.sizes // rounding) * rounding
    rounded_lives = replace(lives, sizes=sizes)
    spans = sizes * (lives.deaths - lives.births)
    orders = (
        np.lexsort((lives.births, -sizes)),
        np.lexsort((lives.births, -spans)),
        np.argsort(lives.births),
    )
    return min(_planned_in_order(rounded_lives, order) for order in orders)


def _planned_in_order(lives: Lives, order: Array) -> int:
    """Return the size of the block where each, in ``order``, goes into the smallest gap between those already placed
    that live when it does, else behind them.
    """
    births, deaths, sizes = lives.births[order], lives.deaths[order], lives.sizes[order]
    starts = np.zeros(sizes.size, dtype=np.int64)
    for at in range(sizes.size):
        meets = (births[:at] < deaths[at]) & (deaths[:at] > births[at])
        placed = np.flatnonzero(meets)
        if placed.size:
            starts[at] = _smallest_gap(starts[placed], sizes[placed], int(sizes[at]))
    return int((starts + sizes).max())


def _smallest_gap(starts: Array, sizes: Array, size: int) -> int:
    """Return where ``size`` bytes go beside blocks at ``starts``: the smallest gap that holds them, or behind all."""
    order = np.argsort(starts, kind="stable")
    begins = starts[order]
    covered = np.maximum.accumulate(begins + sizes[order])
    free_from = np.concatenate(([0], covered[:-1]))
    gaps = begins - free_from
    fitting = np.flatnonzero(gaps >= size)
    if not fitting.size:
        return int(covered[-1])
    return int(free_from[fitting[np.argmin(gaps[fitting])]])
