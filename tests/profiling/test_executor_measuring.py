"""Measuring one entry: what is inside the range, how often it is called, and what is freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.executors.base import ExecutionError, Executor
from gkestimator.profiling.executors.measuring import Clocks, Effort, choose_repeats, measure
from gkestimator.profiling.plan import PlanEntry, plan_of
from gkestimator.profiling.records import EntryRecord, HostKernel


class Desk:
    """An executor, its entry, a clock and the ranges at once: writes down what happens in which order."""

    name = "desk"
    output_shapes = ((2, 3),)

    def __init__(self, *, call_us: float, fails_at: int | None = None) -> None:
        self.seen: list[str] = []
        self.now_ns, self.call_ns, self.fails_at = 0, int(call_us * 1000), fails_at
        self.pending_ns = 0

    def versions(self) -> dict[str, str]:
        return {}

    def prepare(self, entry: PlanEntry, seed: int) -> Desk:
        self.seen.append(f"prepare {seed}")
        return self

    def run(self) -> None:
        self.seen.append("run")
        if self.seen.count("run") == self.fails_at:
            raise RuntimeError("boom")
        self.now_ns += 2000  # launching takes 2 us of the host
        self.pending_ns += self.call_ns

    def synchronise(self) -> None:
        self.seen.append("wait")
        self.now_ns += self.pending_ns
        self.pending_ns = 0

    def workspace_bytes(self) -> int | None:
        return 77

    def host_kernels(self, repeats: int) -> tuple[HostKernel, ...]:
        self.seen.append(f"profile {repeats}")
        return (HostKernel(name="k", durations_us=(1.0,) * repeats),)

    def close(self) -> None:
        self.seen.append("close")

    @contextmanager
    def ranges(self, text: str) -> Iterator[None]:
        self.seen.append(f"push {text}")
        assert not gc.isenabled()
        try:
            yield
        finally:
            self.seen.append("pop")

    def measure(self, effort: Effort) -> EntryRecord:
        return measure(
            cast(Executor, self), ENTRY, effort=effort, seed=9, ranges=self.ranges, clocks=Clocks(elapsed_ns=lambda: self.now_ns, unix_ns=lambda: self.now_ns + 10**18)
        )  # fmt: skip


ENTRY = plan_of(
    [
        (
            Fragment(
                opsets={"": 17},
                nodes=(
                    FragmentNode(op_type="Relu", domain="", attributes={}, inputs=("x",), outputs=("y",)),
                ),
                tensors=(FragmentTensor(name="x", dtype=DType.FLOAT, shape=(2, 3)),),
                outputs=("y",),
            ),
            "fp32",
            "test",
        )
    ],
    runtime="torch",
).entries[0]


def test_in_the_range_are_the_repeats_and_the_wait_for_them_and_nothing_else() -> None:
    desk = Desk(call_us=10)
    record = desk.measure(Effort(warmup=2, repeats=3))
    assert desk.seen == [
        "prepare 9", "wait", "run", "wait", "run", "wait",
        f"push {ENTRY.id}#3", "run", "run", "run", "wait", "pop", "profile 3", "close",
    ]  # fmt: skip
    assert record.host_us == (2.0, 2.0, 2.0)
    assert record.elapsed_us == pytest.approx((3 * 2 + 3 * 10) / 3)
    assert (record.started_unix_ns or 0) >= 10**18
    assert (record.workspace_bytes, record.output_shapes, record.repeats) == (77, ((2, 3),), 3)


def test_the_pass_for_counters_warms_up_once_and_calls_once() -> None:
    desk = Desk(call_us=10)
    record = desk.measure(Effort(warmup=7, repeats=30, counters=True))
    assert desk.seen == [
        "prepare 9",
        "wait",
        "run",
        "wait",
        f"push {ENTRY.id}#1",
        "run",
        "wait",
        "pop",
        "close",
    ]
    assert (record.repeats, record.kernels) == (1, None)


@pytest.mark.parametrize(
    ("call_us", "min_ms", "repeats"),
    [(1, 20, 50), (1000, 20, 20), (999.5, 20, 21), (10_000, 20, 5), (1e6, 20, 5), (0, 20, 50), (10, 0, 5)],
)
def test_short_calls_are_repeated_more(call_us: float, min_ms: float, repeats: int) -> None:
    assert choose_repeats(int(call_us * 1000), min_ms) == repeats


def test_the_last_warm_up_call_sets_the_number_of_repeats() -> None:
    assert Desk(call_us=998).measure(Effort(min_ms=20)).repeats == 20


def test_a_second_of_warm_up_is_enough() -> None:
    desk = Desk(call_us=600_000)
    desk.measure(Effort(warmup=9, repeats=1))
    assert desk.seen.count("run") == 2 + 1


@pytest.mark.parametrize("fails_at", [1, 4, 6])
def test_a_failure_at_any_moment_frees_the_memory_and_closes_the_range(fails_at: int) -> None:
    desk = Desk(call_us=1, fails_at=fails_at)
    with pytest.raises(RuntimeError, match="boom"):
        desk.measure(Effort(repeats=5))
    assert desk.seen[-1] == "close"
    assert sum(s.startswith("push") for s in desk.seen) == desk.seen.count("pop")
    assert gc.isenabled()


def test_a_failure_of_the_profile_is_a_failure_of_the_entry() -> None:
    desk = Desk(call_us=1)

    def fails(repeats: int) -> tuple[HostKernel, ...]:
        raise ExecutionError("no profile")

    desk.host_kernels = fails  # type: ignore[method-assign]
    with pytest.raises(ExecutionError, match="no profile"):
        desk.measure(Effort())
    assert desk.seen[-1] == "close"
