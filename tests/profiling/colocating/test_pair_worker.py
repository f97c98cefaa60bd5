"""The inside of a worker: what it holds when memory runs out, and when its loop begins and ends."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import pytest
from small_models import mlp

from gkestimator.profiling.colocating.worker import Holder, call_for
from gkestimator.profiling.executors.base import EntryUnsupportedError, ExecutionError
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.records import HostKernel, MemoryUse

A, B, C = mlp("a"), mlp("b"), mlp("c")


class Room:
    """An executor with room for ``most`` models; a call takes ``call_ns`` of its clock."""

    name = "room"

    def __init__(self, most: int = 9, call_ns: int = 10) -> None:
        self.most, self.call_ns = most, call_ns
        self.now = self.calls = 0
        self.closed: list[str] = []
        self.open: list[str] = []

    def versions(self) -> Mapping[str, str]:
        return {}

    def prepare(self, entry: PlanEntry, seed: int) -> Tenant:
        if entry.source == "unknown":
            raise EntryUnsupportedError("nobody knows it")
        if len(self.open) >= self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB")
        self.open.append(entry.id)
        return Tenant(self, entry.id)


class Tenant:
    output_shapes: tuple[tuple[int, ...], ...] = ()

    def __init__(self, room: Room, name: str) -> None:
        self._room, self._name, self._waits = room, name, False

    def run(self) -> None:
        self._waits = True

    def synchronise(self) -> None:
        # As on a GPU: a call has happened when it was waited for.
        if self._waits:
            self._waits = False
            self._room.calls += 1
            self._room.now += self._room.call_ns

    def workspace_bytes(self) -> int | None:
        return None

    def memory(self) -> MemoryUse | None:
        return None

    def host_kernels(self, repeats: int) -> tuple[HostKernel, ...] | None:
        return None

    def close(self) -> None:
        self._room.open.remove(self._name)
        self._room.closed.append(self._name)


@pytest.mark.slow
def test_the_one_used_longest_ago_makes_room() -> None:
    room = Room(most=2)
    holder = Holder(room, "cpu", 0)
    for entry in (A, B):
        holder.prepare(entry)
    holder.use(A.id)
    holder.prepare(C)
    assert room.closed == [B.id] and holder.held == (A.id, C.id)
    holder.prepare(A)  # is there still
    assert room.closed == [B.id] and holder.held == (C.id, A.id)


@pytest.mark.slow
def test_what_is_to_be_kept_is_kept() -> None:
    room = Room(most=2)
    holder = Holder(room, "cpu", 0)
    holder.prepare(A)
    holder.prepare(B)
    holder.prepare(C, keep=[A.id])
    assert room.closed == [B.id]
    with pytest.raises(ExecutionError, match="out of memory: .*Tried to allocate"):
        holder.prepare(B, keep=[A.id, C.id])
    assert holder.held == (A.id, C.id)
    holder.close(keep=[C.id])
    assert holder.held == (C.id,)


def test_another_failure_costs_no_model_its_place() -> None:
    from dataclasses import replace

    room = Room()
    holder = Holder(room, "cpu", 0)
    holder.prepare(A)
    with pytest.raises(EntryUnsupportedError, match="nobody knows it"):
        holder.prepare(replace(B, source="unknown"))
    assert holder.held == (A.id,)
    with pytest.raises(ExecutionError, match="not prepared"):
        holder.use(B.id)


class Tensor:
    """Something that takes memory."""


@pytest.mark.slow
def test_the_failed_attempts_tensors_are_gone_before_the_next() -> None:
    class Leaving(Room):
        left: list[weakref.ref[Tensor]]

        def prepare(self, entry: PlanEntry, seed: int) -> Tenant:
            assert all(tensor() is None for tensor in self.left)
            here = Tensor()
            self.left.append(weakref.ref(here))
            if len(self.open) >= self.most:
                raise ExecutionError(f"out of memory: beside {here}")  # the frame lives in the traceback
            return super().prepare(entry, seed)

    room = Leaving(most=1)
    room.left = []
    holder = Holder(room, "cpu", 0)
    for entry in (A, B, C):
        holder.prepare(entry)
    assert len(room.left) == 5 and holder.held == (C.id,)


def loop(
    room: Room, *, start: int, seconds: float, least: int = 1, most: float = 0.0
) -> tuple[int, list[int]]:
    tenant = room.prepare(A, 0)
    return call_for(
        tenant,
        start_ns=start,
        seconds=seconds,
        least=least,
        most_seconds=most,
        going=lambda: room.calls < 1000,
        now=lambda: room.now,
    )


def test_warms_up_until_the_start_and_calls_until_the_end() -> None:
    # Calls of 10 from 0 on: the start at 25 is met by the third; the loop ends with the first call at or after 25 + 100.
    first, ends = loop(Room(), start=25, seconds=100e-9)
    assert first == 30
    assert ends == [10 * n for n in range(1, 11)]


def test_one_call_warms_up_even_where_the_start_is_over() -> None:
    room = Room()
    first, ends = loop(room, start=0, seconds=0.0)
    assert (first, ends, room.calls) == (10, [10], 2)


def test_goes_on_until_enough_calls_but_not_without_end() -> None:
    assert len(loop(Room(), start=0, seconds=0.0, least=5, most=1e-6)[1]) == 5
    # Ten calls fit into 100 ns, and the eleventh ends after them; the first of them warmed up.
    assert len(loop(Room(), start=0, seconds=0.0, least=50, most=100e-9)[1]) == 9


def test_ends_when_its_owner_is_gone() -> None:
    room = Room()
    assert len(loop(room, start=0, seconds=1.0)[1]) == 999 and room.calls == 1000
