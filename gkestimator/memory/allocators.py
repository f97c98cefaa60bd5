"""The allocators of the runtimes, replayed: how much they take from the driver for a sequence of requests.

Both are best-fit allocators with splitting and coalescing inside segments; they differ in rounding, in pools, in how
large a new segment is and in when a block is split. Sources: PyTorch ``c10/cuda/CUDACachingAllocator.cpp`` (2.x, default
settings) and ONNX Runtime ``core/framework/bfc_arena.cc`` (``kNextPowerOfTwo``, the CUDA provider's default).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort

from gkestimator.errors import UsageError

__all__ = ["Allocator", "ArenaAllocator", "CachingAllocator", "make_allocator"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


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

    Rounds to 512 B. Requests up to 1 MiB come from 2 MiB segments of a small pool; requests under 10 MiB from 20 MiB
    segments; larger ones get a segment of their own, rounded to 2 MiB. A free block is split when what remains is at
    least 512 B (small pool) or more than 1 MiB (large pool).
    """

    MIN_BLOCK = 512
    SMALL_SIZE = MIB
    SMALL_SEGMENT = 2 * MIB
    LARGE_SEGMENT = 20 * MIB
    MIN_LARGE = 10 * MIB
    ROUND_LARGE = 2 * MIB

    def round(self, nbytes: int) -> int:
        return -(-nbytes // self.MIN_BLOCK) * self.MIN_BLOCK

    def pool_of(self, size: int) -> int:
        return 0 if size <= self.SMALL_SIZE else 1

    def segment_bytes(self, size: int) -> int:
        if size <= self.SMALL_SIZE:
            return self.SMALL_SEGMENT
        if size < self.MIN_LARGE:
            return self.LARGE_SEGMENT
        return -(-size // self.ROUND_LARGE) * self.ROUND_LARGE

    def splits(self, block_bytes: int, size: int, pool: int) -> bool:
        rest = block_bytes - size
        return rest >= self.MIN_BLOCK if pool == 0 else rest > self.SMALL_SIZE


class ArenaAllocator(Allocator):
    """ONNX Runtime's BFC arena with the CUDA provider's defaults.

    Rounds to 256 B. A new region is the current region size (1 MiB at first), doubled until it holds the request; the
    region size doubles after each extension that did not already grow it, up to 1 GiB. A chunk is split when it is at
    least twice the request or leaves at least 128 MiB.
    """

    ALIGNMENT = 256
    INITIAL_REGION = MIB
    MAX_GROWTH = GIB
    MAX_DEAD = 128 * MIB

    def __init__(self) -> None:
        super().__init__()
        self._region_bytes = self.INITIAL_REGION

    def round(self, nbytes: int) -> int:
        return -(-nbytes // self.ALIGNMENT) * self.ALIGNMENT

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
        return block_bytes >= 2 * size or block_bytes - size >= self.MAX_DEAD


_ALLOCATORS: dict[str, type[Allocator]] = {"caching": CachingAllocator, "arena": ArenaAllocator}


def make_allocator(kind: str) -> Allocator:
    """A fresh allocator of a runtime profile's kind: ``caching`` or ``arena``. Raises UsageError for another word."""
    try:
        return _ALLOCATORS[kind]()
    except KeyError as e:
        raise UsageError(f"allocator {kind!r} is not known: expected one of {', '.join(_ALLOCATORS)}") from e
