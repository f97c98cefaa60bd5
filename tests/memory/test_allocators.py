"""The replayed allocators against figures worked out by hand from the runtimes' sources, and against invariants."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.core.errors import UsageError
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.memory import Allocator, make_allocator

MIB = 1 << 20


def caching() -> Allocator:
    return make_allocator("caching", load_runtime("torch").allocator_bytes)


def arena() -> Allocator:
    return make_allocator("arena", load_runtime("onnxruntime").allocator_bytes)


def test_caching_allocator_takes_a_two_mib_segment_for_a_small_request() -> None:
    a = caching()
    a.allocate(1)
    assert (a.allocated_bytes, a.reserved_bytes) == (512, 2 * MIB)
    a.allocate(MIB)  # 512 B are gone, so 1 MiB still fits into the same segment
    assert a.reserved_bytes == 2 * MIB
    a.allocate(MIB)  # now it does not
    assert a.reserved_bytes == 4 * MIB


def test_caching_allocator_segments_by_size_class() -> None:
    for nbytes, segment in (
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB + 1, 12 * MIB),
    ):
        a = caching()
        a.allocate(nbytes)
        assert a.reserved_bytes == segment, nbytes


def test_caching_allocator_does_not_split_off_a_megabyte_or_less_of_a_large_block() -> None:
    a = caching()
    first = a.allocate(12 * MIB)
    a.release(first)
    a.allocate(11 * MIB)  # leaves exactly 1 MiB: not split
    assert a.allocated_bytes == 12 * MIB
    b = caching()
    b.release(b.allocate(14 * MIB))
    b.allocate(11 * MIB)  # leaves 3 MiB: split
    assert b.allocated_bytes == 11 * MIB


def test_freed_neighbours_merge_and_serve_a_larger_request() -> None:
    a = caching()
    handles = [a.allocate(4 * MIB) for _ in range(5)]  # exactly one 20 MiB segment
    assert a.reserved_bytes == 20 * MIB
    for h in (handles[1], handles[3], handles[2]):
        a.release(h)
    a.allocate(9 * MIB)
    assert a.reserved_bytes == 20 * MIB


def test_arena_doubles_its_regions() -> None:
    a = arena()
    a.allocate(1000)
    assert a.reserved_bytes == 1 * MIB  # first region 1 MiB, next 2 MiB
    a.allocate(MIB)
    assert a.reserved_bytes == 3 * MIB
    a.allocate(33 * MIB)  # region size 4 MiB doubles to 64 MiB
    assert a.reserved_bytes == 67 * MIB


def test_arena_falls_back_to_a_gibibyte_after_a_larger_region() -> None:
    a = arena()
    a.allocate(4096 * MIB)  # grown to 4 GiB, which serves one more region
    a.allocate(MIB)
    a.allocate(4095 * MIB)
    before = a.reserved_bytes
    assert before == 8192 * MIB
    a.allocate(300 * MIB)
    assert a.reserved_bytes - before == 1024 * MIB


def test_arena_reserves_weights_at_their_own_size() -> None:
    a = arena()
    a.load(100 * MIB + 1)
    assert a.reserved_bytes == 100 * MIB + 256
    a.allocate(1000)
    assert a.reserved_bytes == 101 * MIB + 256  # the regions begin with the first


def test_arena_keeps_a_chunk_whole_below_twice_the_request() -> None:
    a = arena()
    a.allocate(600 * 1024)
    assert a.allocated_bytes == MIB


def test_zero_bytes_take_nothing() -> None:
    a = caching()
    a.release(a.allocate(0))
    assert (a.allocated_bytes, a.reserved_bytes) == (0, 0)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UsageError, match="slab"):
        make_allocator("slab", {})
    with pytest.raises(UsageError, match="block_rounding"):
        make_allocator("caching", {})


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["caching", "arena"]),
    st.lists(st.tuples(st.integers(0, 40 * MIB), st.booleans()), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_reserved_covers_what_is_held_and_everything_can_be_given_back(kind, requests, rng) -> None:
    a = caching() if kind == "caching" else arena()
    held: list[tuple[int, int]] = []
    for nbytes, free_one in requests:
        if free_one and held:
            a.release(held.pop(rng.randrange(len(held)))[0])
        held.append((a.allocate(nbytes), nbytes))
        assert a.reserved_bytes >= a.allocated_bytes >= sum(n for _, n in held)
    for handle, _ in held:
        a.release(handle)
    assert a.allocated_bytes == 0
    before = a.reserved_bytes
    sizes = sorted(n for pool in a._free for n, _ in pool)
    assert sum(sizes) == before  # every byte is free again, merged back to whole segments


@pytest.mark.parametrize("make", [caching, arena])
def test_a_copy_after_keep_goes_on_as_the_original_would(make) -> None:
    a = make()
    for nbytes in (3000, 5 * MIB, 700 * 1024, 12 * MIB):
        a.allocate(nbytes)
    twin = a.copy()
    a.keep()
    kept = a.copy()
    for each in (twin, kept):
        handles = [each.allocate(n) for n in (100, 2 * MIB, 9 * MIB)]
        each.release(handles[1])
        each.release(handles[0])
        each.allocate(4 * MIB)
    assert kept.reserved_bytes == twin.reserved_bytes > a.reserved_bytes
    assert kept.allocated_bytes == twin.allocated_bytes
