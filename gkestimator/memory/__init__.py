"""Memory a lowered model takes on a GPU: liveness over the execution order, then the runtime's own allocator."""

from gkestimator.memory.allocators import Allocator, ArenaAllocator, CachingAllocator, make_allocator
from gkestimator.memory.engines import ENGINES
from gkestimator.memory.process import cumulative_reserved
from gkestimator.memory.profile import MemoryProfile, MemoryReplay, memory_profile

__all__ = [
    "ENGINES",
    "Allocator",
    "ArenaAllocator",
    "CachingAllocator",
    "MemoryProfile",
    "MemoryReplay",
    "cumulative_reserved",
    "make_allocator",
    "memory_profile",
]
