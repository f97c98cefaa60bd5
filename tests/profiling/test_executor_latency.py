"""The latency pass: how often a whole model is called, what its record says, and the child that writes it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from latency_models import model_entry, small_network
from torch_fragments import entry, fragment, node, tensor

from gkestimator.profiling.executors import child, make_executor
from gkestimator.profiling.executors.base import Executor
from gkestimator.profiling.executors.measuring import (
    Clocks,
    Effort,
    choose_calls,
    measure,
    measure_latency,
)
from gkestimator.profiling.executors.nvtx_ranges import NvtxRanges
from gkestimator.profiling.plan import PlanEntry, SweepPlan, write_plan
from gkestimator.profiling.records import EntryRecord, HostKernel, MemoryUse, read_records

MODEL = model_entry(small_network())
MEMORY = MemoryUse(reserved_bytes=3, allocated_bytes=2, device_bytes=9)


class Bench:
    """An executor, its entry and a clock at once. A call takes the host 30 us and the device ``call_us``."""

    name = "bench"
    output_shapes = ((2, 10),)
    cpu_nodes = 4

    def __init__(self, *, call_us: float, first_us: float = 0.0, fails_at: int = 0) -> None:
        self.seen: list[str] = []
        self.collecting: list[bool] = []  # at each look at the clock
        self.calls = 0
        self.now_ns = 0
        self.call_us, self.first_us, self.fails_at = call_us, first_us, fails_at
        self.pending_us = 0.0

    def versions(self) -> dict[str, str]:
        return {}

    def prepare(self, entry: PlanEntry, seed: int) -> Bench:
        self.seen.append(f"prepare {seed}")
        return self

    def run(self) -> None:
        self.seen.append("run")
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("boom")
        self.now_ns += 30_000
        self.pending_us += self.call_us + (self.first_us if self.calls == 1 else 0)

    def synchronise(self) -> None:
        self.seen.append("wait")
        self.now_ns += round(self.pending_us * 1000)
        self.pending_us = 0.0

    def workspace_bytes(self) -> int | None:
        raise AssertionError("one more call, which would begin another account of memory")

    def memory(self) -> MemoryUse:
        assert self.pending_us == 0.0
        self.seen.append("memory")
        return MEMORY

    def host_kernels(self, repeats: int) -> tuple[HostKernel, ...]:
        raise AssertionError("a profiler")

    def close(self) -> None:
        self.seen.append("close")

    def time(self) -> int:
        self.collecting.append(gc.isenabled())
        return self.now_ns

    def measure(self, effort: Effort) -> EntryRecord:
        return measure_latency(
            cast(Executor, self),
            MODEL,
            effort=effort,
            seed=9,
            clocks=Clocks(elapsed_ns=self.time, unix_ns=lambda: self.now_ns + 10**18),
        )


def test_each_call_is_timed_alone_until_the_device_is_done() -> None:
    bench = Bench(call_us=99_970, first_us=5e5)
    record = bench.measure(Effort(warmup=3, repeats=4))
    assert bench.seen == ["prepare 9", "wait", *["run", "wait"] * 3, *["run", "wait"] * 4, "memory", "close"]
    assert record.latency_us == (100_000.0,) * 4
    assert record.host_us == (30.0,) * 4
    assert record.elapsed_us == pytest.approx(100_000)
    assert not any(bench.collecting[-3 * 4 :])
    assert (record.repeats, record.memory, record.cpu_nodes) == (4, MEMORY, 4)
    assert (record.output_shapes, record.workspace_bytes, record.kernels) == (((2, 10),), None, None)
    assert record.started_unix_ns is not None
    assert (record.ended_unix_ns or 0) - record.started_unix_ns == 400_000_000


@pytest.mark.parametrize(
    ("call_ms", "warm"),
    [
        (0.03, 6_667),  # 0.2 s of calls
        (10, 20),
        (100, 3),  # at least three
        (600, 3),
        (800, 3),
        (1100, 2),  # 2 s at most
        (3000, 1),
    ],
)
def test_a_warm_up_is_three_calls_and_a_fifth_of_a_second_and_no_more_than_two(
    call_ms: float, warm: int
) -> None:
    bench = Bench(call_us=call_ms * 1000 - 30)
    record = bench.measure(Effort(repeats=1))
    assert bench.calls - 1 == warm
    assert record.latency_us is not None


@pytest.mark.parametrize(
    ("call_ms", "calls"),
    [(0, 50), (1, 50), (20, 50), (25, 40), (40, 25), (49, 20), (50, 20), (200, 20), (201, 19), (500, 8), (900, 5), (60_000, 5)],
)  # fmt: skip
def test_twenty_calls_more_of_short_ones_fewer_of_long_ones(call_ms: float, calls: int) -> None:
    assert choose_calls(int(call_ms * 1e6)) == calls
    if call_ms:
        assert Bench(call_us=call_ms * 1000 - 30).measure(Effort()).repeats == calls


def test_a_model_s_timeline_has_few_repeats_unless_told_otherwise() -> None:
    class Timeline(Bench):
        def workspace_bytes(self) -> int | None:
            self.seen.append("workspace")
            return 5

        def host_kernels(self, repeats: int) -> tuple[HostKernel, ...]:
            return ()

    def repeats(chosen: PlanEntry, effort: Effort) -> int | None:
        bench = Timeline(call_us=100)
        clocks = Clocks(elapsed_ns=lambda: bench.now_ns)
        record = measure(
            cast(Executor, bench), chosen, effort=effort, seed=0, ranges=NvtxRanges("test", {}).range, clocks=clocks
        )  # fmt: skip
        # Of a model the latency pass tells the memory: no further call is traced for it.
        assert ("workspace" in bench.seen) == (record.workspace_bytes == 5) == (chosen is not MODEL)
        return record.repeats

    operator = entry(fragment([tensor("x", 2, 3)], node("Relu", "x", "y")))
    assert (repeats(operator, Effort()), repeats(MODEL, Effort())) == (50, 5)
    assert repeats(MODEL, Effort(repeats=7)) == 7
    assert repeats(MODEL, Effort(repeats=7, counters=True)) == 1


@pytest.mark.parametrize("fails_at", [1, 5])
def test_a_failure_at_any_moment_frees_the_memory(fails_at: int) -> None:
    bench = Bench(call_us=100_000, fails_at=fails_at)
    with pytest.raises(RuntimeError, match="boom"):
        bench.measure(Effort(repeats=5))
    assert bench.seen[-1] == "close"
    assert gc.isenabled()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_a_whole_model_through_the_real_child(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    larger = model_entry(small_network(4, channels=16, size=24))
    lost = model_entry(small_network(3, features=9))
    write_plan(SweepPlan(runtime=name, entries=(MODEL, lost, larger)), tmp_path / "entries.json")
    words = ["-P", "-m", "gkestimator.profiling.executors.child", "--entries", "entries.json", "--records",
             "records.jsonl", "--executor", name, "--device", "cpu", "--pass", "latency"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first, failed, second = read_records(tmp_path / "records.jsonl")
    assert [r.entry_id for r in (first, failed, second)] == [MODEL.id, lost.id, larger.id]
    assert (failed.status, failed.latency_us, failed.memory) == ("failed", None, None)
    assert "MatMul" in (failed.reason or "")
    for record in (first, second):
        assert (record.status, record.output_shapes) == ("ok", ((2, 10),))
        assert record.latency_us is not None
        assert record.host_us is not None
        assert 5 <= len(record.latency_us) <= 50
        assert all(0 < host <= call for host, call in zip(record.host_us, record.latency_us, strict=True))
        assert sum(record.latency_us) <= (record.elapsed_us or 0) * len(record.latency_us) * 1.000001
        assert (record.memory, record.cpu_nodes, record.kernels) == (None, None, None)


@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_a_whole_model_s_timeline_on_the_cpu_is_its_pieces(name: str) -> None:
    pytest.importorskip(name)
    record = measure(
        make_executor(name, "cpu"), MODEL, effort=Effort(), seed=0, ranges=NvtxRanges("test", {}).range, clocks=Clocks()
    )  # fmt: skip
    assert record.repeats == 5
    assert record.kernels is not None
    # ONNX Runtime fuses the activations and sums into the convolutions
    assert len([k for k in record.kernels if "conv" in k.name.lower()]) == 24
    assert {len(k.durations_us) for k in record.kernels} == {5}


@pytest.mark.parametrize(
    ("entries", "more", "says"),
    [
        ((MODEL, "operator"), [], "is an operator, expected whole models alone"),
        ((MODEL,), ["--kineto", "trace.json"], "--kineto: found with --pass latency"),
        ((MODEL,), ["--device", "gpu"], "found 'gpu', expected cpu or cuda:N"),
        ((MODEL,), ["--device", "cuda"], "found 'cuda', expected cpu or cuda:N"),
        ((MODEL,), ["--repeats", "0"], "--repeats: found 0"),
    ],
)
def test_wrong_usage_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entries: tuple[PlanEntry | str, ...], more: list[str], says: str
) -> None:  # fmt: skip
    operator = entry(fragment([tensor("x", 2, 3)], node("Relu", "x", "y")))
    chosen = tuple(operator if isinstance(e, str) else e for e in entries)
    write_plan(SweepPlan(runtime="torch", entries=chosen), tmp_path / "entries.json")
    words = ["--entries", str(tmp_path / "entries.json"), "--records", str(tmp_path / "records.jsonl"), "--executor",
             "torch", "--device", "cpu", "--pass", "latency", *more]  # fmt: skip
    assert child.main(words) == 2
    message = capsys.readouterr().err
    assert says in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "records.jsonl").exists()
