"""Plan one buffer for all of an inference's intermediates, as ONNX Runtime does for shapes that it has seen before.

Source: ``core/framework/mem_pattern_planner.h`` (``TraceAllocation``): the requests of the first inference, in order,
are laid into one buffer by best fit between those that live; the next inference of equal shapes asks its arena for
that buffer and for nothing else but inputs, outputs and scratch memory.
"""

from __future__ import annotations

from bisect import insort

from gkestimator.memory.trace import AllocationTrace

_ALIGNMENT = 256  # bytes; kAllocAlignment


def planned_requests(trace: AllocationTrace) -> frozenset[int]:
    """Return the requests of ``trace`` that the buffer replaces: all but inputs, outputs and scratch memory."""
    apart = {*range(trace.inputs), *trace.left, *trace.scratch}
    count = sum(1 for event in trace.events if event >= 0)
    return frozenset(range(count)) - apart


def planned_bytes(trace: AllocationTrace) -> int:
    """Return the size of the buffer that holds the planned requests of ``trace``."""
    planned = planned_requests(trace)
    blocks: list[tuple[int, int]] = []  # (offset, end) of what lives, by offset
    placed: dict[int, tuple[int, int]] = {}
    largest = 0
    number = 0
    for event in trace.events:
        if event < 0:
            block = placed.pop(~event, None)
            if block is not None:
                blocks.remove(block)
            continue
        if number in planned and event > 0:
            size = -(-event // _ALIGNMENT) * _ALIGNMENT
            offset = _best_fit(blocks, size, largest)
            block = placed[number] = (offset, offset + size)
            insort(blocks, block)
            largest = max(largest, block[1])
        number += 1
    return largest


def _best_fit(blocks: list[tuple[int, int]], size: int, largest: int) -> int:
    """Return where ``size`` bytes go: into the gap that they fill best, else behind the last block."""
    free_from = 0
    best: tuple[int, int] | None = None
    for offset, end in (*blocks, (largest, largest)):
        gap = offset - free_from
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, free_from)
        free_from = max(free_from, end)
    if best is not None:
        return best[1]
    return max((end for _, end in blocks), default=0)
