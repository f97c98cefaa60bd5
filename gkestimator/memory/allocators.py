"""The allocators of the runtimes, replayed: how much they take from the driver for a sequence of requests.

Both are best-fit allocators with splitting and coalescing inside segments; they differ in rounding, in pools, in how
large a new segment is and in when a block is split. Sources: PyTorch ``c10/cuda/CUDACachingAllocator.cpp`` (2.x,
default settings) and ONNX Runtime ``core/framework/bfc_arena.cc`` (``kNextPowerOfTwo``, the CUDA provider's default).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Mapping

from gkestimator.errors import UsageError

__all__ = ["Allocator", "ArenaAllocator", "CachingAllocator", "make_allocator"]


class _Block:
    """A piece of a segment, in use or free; ``before`` and ``after`` are its neighbours in the segment."""

    __slots__ = ("address", "after", "before", "free", "pool", "size")

    def __init__(self, address: int, size: int, pool: int) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.free = True
        self.before: _Block | None = None
        self.after: _Block | None = None


class Allocator(ABC):
    """Best fit with splitting and coalescing. ``reserved_bytes`` is what the driver gave so far; it never shrinks."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self.allocated_bytes = 0
        self._free: dict[int, list[tuple[int, int]]] = {}  # pool -> sorted (size, address)
        self._by_address: dict[int, _Block] = {}
        self._next_address = 0

    @abstractmethod
    def round(self, nbytes: int) -> int:
        """The size that a request of ``nbytes`` really occupies."""

    @abstractmethod
    def pool_of(self, size: int) -> int:
        """Which pool serves a rounded ``size``."""

    @abstractmethod
    def segment_bytes(self, size: int) -> int:
        """How much is taken from the driver when no free block holds the rounded ``size``."""

    @abstractmethod
    def splits(self, block_bytes: int, size: int, pool: int) -> bool:
        """Whether a free block of ``block_bytes`` is split to serve ``size``."""

    def allocate(self, nbytes: int) -> int:
        """Serve ``nbytes``; returns a handle for :meth:`release`. A request of 0 bytes takes nothing (handle -1)."""
        if nbytes <= 0:
            return -1
        size = self.round(nbytes)
        pool = self.pool_of(size)
        free = self._free.setdefault(pool, [])
        at = bisect_left(free, (size, -1))
        if at == len(free):
            segment = self.segment_bytes(size)
            block = _Block(self._next_address, segment, pool)
            self._next_address += segment + 1  # one byte apart, so that segments never touch
            self._by_address[block.address] = block
            self.reserved_bytes += segment
        else:
            block = self._by_address[free.pop(at)[1]]
        if self.splits(block.size, size, pool):
            rest = _Block(block.address + size, block.size - size, pool)
            rest.before, rest.after = block, block.after
            if block.after is not None:
                block.after.before = rest
            block.after = rest
            block.size = size
            self._by_address[rest.address] = rest
            insort(free, (rest.size, rest.address))
        block.free = False
        self.allocated_bytes += block.size
        return block.address

    def release(self, handle: int) -> None:
        """Give back what :meth:`allocate` returned; merges with free neighbours."""
        if handle < 0:
            return
        block = self._by_address[handle]
        self.allocated_bytes -= block.size
        block.free = True
        free = self._free[block.pool]
        after = block.after
        if after is not None and after.free:
            self._drop(free, after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        before = block.before
        if before is not None and before.free:
            self._drop(free, before)
            before.size += block.size
            before.after = block.after
            if block.after is not None:
                block.after.before = before
            del self._by_address[block.address]
            block = before
            self._by_address[block.address] = block
        insort(free, (block.size, block.address))

    def _drop(self, free: list[tuple[int, int]], block: _Block) -> None:
        del free[bisect_left(free, (block.size, block.address))]
        del self._by_address[block.address]


class CachingAllocator(Allocator):
    """PyTorch's CUDA caching allocator with default settings.

    Sizes round to ``block_rounding``. Requests up to ``small_limit`` come from segments of ``small_segment`` in a small
    pool; requests under ``large_limit`` from segments of ``large_segment``; larger ones get a segment of their own,
    rounded to ``large_rounding``. A free block is split when what remains is at least ``small_remainder`` (small pool)
    or more than ``large_remainder`` (large pool).
    """

    def __init__(self, figures: Mapping[str, int]) -> None:
        super().__init__()
        self._rounding = figures["block_rounding"]
        self._small_limit = figures["small_limit"]
        self._small_segment = figures["small_segment"]
        self._large_segment = figures["large_segment"]
        self._large_limit = figures["large_limit"]
        self._large_rounding = figures["large_rounding"]
        self._small_remainder = figures["small_remainder"]
        self._large_remainder = figures["large_remainder"]

    def round(self, nbytes: int) -> int:
        return -(-nbytes // self._rounding) * self._rounding

    def pool_of(self, size: int) -> int:
        return 0 if size <= self._small_limit else 1

    def segment_bytes(self, size: int) -> int:
        if size <= self._small_limit:
            return self._small_segment
        if size < self._large_limit:
            return self._large_segment
        return -(-size // self._large_rounding) * self._large_rounding

    def splits(self, block_bytes: int, size: int, pool: int) -> bool:
        rest = block_bytes - size
        return rest >= self._small_remainder if pool == 0 else rest > self._large_remainder


class ArenaAllocator(Allocator):
    """ONNX Runtime's BFC arena with the CUDA provider's defaults.

    Sizes round to ``block_rounding``. A new region is the current region size (``initial_chunk`` at first), doubled
    until it holds the request; the region size doubles after each extension that did not already grow it, up to 1 GiB
    (``max_power_of_two_extend_bytes``). A chunk is split when it is at least twice the request or leaves at least
    ``dead_limit``.
    """

    MAX_GROWTH = 1 << 30

    def __init__(self, figures: Mapping[str, int]) -> None:
        super().__init__()
        self._rounding = figures["block_rounding"]
        self._region_bytes = figures["initial_chunk"]
        self._dead_limit = figures["dead_limit"]

    def round(self, nbytes: int) -> int:
        return -(-nbytes // self._rounding) * self._rounding

    def pool_of(self, size: int) -> int:
        return 0

    def segment_bytes(self, size: int) -> int:
        grown = False
        while size > self._region_bytes:
            self._region_bytes *= 2
            grown = True
        segment = self._region_bytes
        if not grown:
            self._region_bytes = min(self._region_bytes * 2, max(self.MAX_GROWTH, self._region_bytes))
        return segment

    def splits(self, block_bytes: int, size: int, pool: int) -> bool:
        return block_bytes >= 2 * size or block_bytes - size >= self._dead_limit


_ALLOCATORS: dict[str, type[CachingAllocator | ArenaAllocator]] = {
    "caching": CachingAllocator,
    "arena": ArenaAllocator,
}


def make_allocator(kind: str, figures: Mapping[str, int]) -> Allocator:
    """A fresh allocator of a runtime profile's kind (``caching`` or ``arena``) with the profile's constants in bytes.

    Raises UsageError for another kind or a missing constant.
    """
    try:
        return _ALLOCATORS[kind](figures)
    except KeyError as e:
        raise UsageError(f"allocator {kind!r} with {sorted(figures)}: {e} is not known or not given") from e
