"""Replay the allocators of the runtimes: how much they take from the driver for a sequence of requests.

Both are best-fit allocators with splitting and coalescing inside segments; they differ in rounding, in pools, in how
large a new segment is and in when a block is split. Sources: PyTorch ``c10/cuda/CUDACachingAllocator.cpp`` (2.x,
default settings) and ONNX Runtime ``core/framework/bfc_arena.cc`` (``kNextPowerOfTwo``, the CUDA provider's default).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Mapping
from copy import copy

from gkestimator.core.errors import UsageError


class Allocator(ABC):
    """Serve requests by best fit with splitting and coalescing. ``reserved_bytes`` is what the driver gave so
    far; it never shrinks.

    Blocks are numbers, not objects: a block is named by its address, free ones are found by size, by where they start
    and by where they end. Segments lie one byte apart, so blocks of two segments never touch.
    """

    def __init__(self, rounding: int, small_limit: int) -> None:
        self.reserved_bytes = 0
        self.allocated_bytes = 0
        self._rounding = rounding
        self._small_limit = (
            small_limit  # requests up to it come from the first pool, larger ones from the second
        )
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])  # sorted (size, address)
        self._size_at: dict[int, int] = {}  # of free blocks
        self._start_of: dict[int, int] = {}  # end of a free block -> its address
        self._used: dict[int, tuple[int, int]] = {}  # address -> (size, pool)
        self._next_address = 0

    @abstractmethod
    def segment_bytes(self, size: int) -> int:
        """Return how much is taken from the driver when no free block holds the rounded ``size``."""

    @abstractmethod
    def splits(self, block_bytes: int, size: int, pool: int) -> bool:
        """Return whether a free block of ``block_bytes``, more than ``size``, is split to serve ``size``."""

    def copy(self) -> Allocator:
        """Return another allocator in the same state."""
        twin = copy(self)
        twin._free = (self._free[0].copy(), self._free[1].copy())
        twin._size_at = self._size_at.copy()
        twin._start_of = self._start_of.copy()
        twin._used = self._used.copy()
        return twin

    def load(self, nbytes: int) -> None:
        """Take ``nbytes`` for a weight, which stays."""
        self.allocate(nbytes)

    def keep(self) -> None:
        """Let what is in use now stay for good: it cannot be released any more, and copies do not carry it."""
        self._used.clear()

    def allocate(self, nbytes: int) -> int:
        """Serve ``nbytes``; returns a handle for :meth:`release`. A request of 0 bytes takes nothing (handle -1)."""
        if nbytes <= 0:
            return -1
        size = -(-nbytes // self._rounding) * self._rounding
        pool = 0
        if size > self._small_limit:
            pool = 1
        free = self._free[pool]
        at = bisect_left(free, (size, -1))
        if at == len(free):
            block = self.segment_bytes(size)
            address = self._next_address
            self._next_address += block + 1
            self.reserved_bytes += block
        else:
            block, address = free.pop(at)
            del self._size_at[address], self._start_of[address + block]
        rest = block - size
        if rest and self.splits(block, size, pool):
            start = address + size
            insort(free, (rest, start))
            self._size_at[start] = rest
            self._start_of[start + rest] = start
        else:
            size = block
        self._used[address] = (size, pool)
        self.allocated_bytes += size
        return address

    def release(self, handle: int) -> None:
        """Give back what :meth:`allocate` returned; merges with free neighbours."""
        if handle < 0:
            return
        size, pool = self._used.pop(handle)
        self.allocated_bytes -= size
        free = self._free[pool]
        address = handle
        end = handle + size
        after = self._size_at.pop(end, None)
        if after is not None:
            del free[bisect_left(free, (after, end))]
            end += after
        before = self._start_of.pop(address, None)
        if before is not None:
            del free[bisect_left(free, (self._size_at[before], before))]
            address = before
        insort(free, (end - address, address))
        self._size_at[address] = end - address
        self._start_of[end] = address


class CachingAllocator(Allocator):
    """Replay PyTorch's CUDA caching allocator with default settings.

    Sizes round to ``block_rounding``. Requests up to ``small_limit`` come from segments of ``small_segment`` in a small
    pool; requests under ``large_limit`` from segments of ``large_segment``; larger ones get a segment of their own,
    rounded to ``large_rounding``. A free block is split when what remains is at least ``small_remainder`` (small pool)
    or more than ``large_remainder`` (large pool).
    """

    def __init__(self, figures: Mapping[str, int]) -> None:
        super().__init__(figures["block_rounding"], figures["small_limit"])
        self._small_segment = figures["small_segment"]
        self._large_segment = figures["large_segment"]
        self._large_limit = figures["large_limit"]
        self._large_rounding = figures["large_rounding"]
        self._small_remainder = figures["small_remainder"]
        self._large_remainder = figures["large_remainder"]

    def segment_bytes(self, size: int) -> int:
        if size <= self._small_limit:
            return self._small_segment
        if size < self._large_limit:
            return self._large_segment
        return -(-size // self._large_rounding) * self._large_rounding

    def splits(self, block_bytes: int, size: int, pool: int) -> bool:
        rest = block_bytes - size
        if pool == 0:
            return rest >= self._small_remainder
        return rest > self._large_remainder


class ArenaAllocator(Allocator):
    """Replay ONNX Runtime's BFC arena with the CUDA provider's defaults.

    Sizes round to ``block_rounding``. A new region is the current region size (``initial_chunk`` at first), doubled
    until it holds the request; the region size doubles after each extension that did not already grow it, up to
    ``growth_limit``
    (``max_power_of_two_extend_bytes``): a larger one, which some request grew, serves one more region and falls back.
    A chunk is split when it is at least twice the request or leaves at least ``dead_limit``. Weights are reserved:
    they take their own size from the driver and leave the regions alone.
    """

    def __init__(self, figures: Mapping[str, int]) -> None:
        super().__init__(figures["block_rounding"], sys.maxsize)  # one pool
        self._region_bytes = figures["initial_chunk"]
        self._dead_limit = figures["dead_limit"]
        self._growth_limit = figures["growth_limit"]

    def segment_bytes(self, size: int) -> int:
        grown = False
        while size > self._region_bytes:
            self._region_bytes *= 2
            grown = True
        segment = self._region_bytes
        if not grown:
            self._region_bytes = min(self._region_bytes * 2, self._growth_limit)
        return segment

    def load(self, nbytes: int) -> None:
        size = -(-nbytes // self._rounding) * self._rounding
        self.reserved_bytes += size
        self.allocated_bytes += size

    def splits(self, block_bytes: int, size: int, pool: int) -> bool:
        return block_bytes >= 2 * size or block_bytes - size >= self._dead_limit


_ALLOCATORS: dict[str, type[CachingAllocator | ArenaAllocator]] = {
    "caching": CachingAllocator,
    "arena": ArenaAllocator,
}


def make_allocator(kind: str, figures: Mapping[str, int]) -> Allocator:
    """Return a fresh allocator of a runtime profile's kind (``caching`` or ``arena``) with the profile's
    constants in bytes.

    Raises UsageError for another kind or a missing constant.
    """
    try:
        return _ALLOCATORS[kind](figures)
    except KeyError as e:
        raise UsageError(f"allocator {kind!r} with {sorted(figures)}: {e} is not known or not given") from e
