"""The kineto parser: a genuine trace of torch on the CPU, and a trace of a GPU by hand.

The hand-made one has what a trace of torch.profiler on an A100 has: categories, fields of ``args`` and their spelling.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import TableError
from gkestimator.profiling.parsers import parse_kineto, split_repeats

KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::relu<float>, std::array<char*, 2> >(int)"
)


def event(category: str, name: str, ts: str, dur: str, *, tid: Any = 100, pid: Any = 100, **args: Any) -> str:
    head = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    # Times as text: they have more digits than a float.
    return json.dumps(head)[:-1] + f', "ts": {ts}, "dur": {dur}, "args": {json.dumps(args)}}}'


def kernel(correlation: int, ts: str, dur: str = "4.128", **args: Any) -> str:
    given = {
        "External id": 3, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": correlation,
        "registers per thread": 26, "shared memory": 48, "blocks per SM": 1.18, "warps per SM": 4.74,
        "grid": [128, 1, 1], "block": [64, 2, 1], "est. achieved occupancy %": 7,
    }  # fmt: skip
    return event("kernel", args.pop("name", KERNEL), ts, dur, pid=0, tid=7, **{**given, **args})


def call(correlation: int, ts: str, dur: str = "3.0", **where: Any) -> str:
    return event("cuda_runtime", "cudaLaunchKernel", ts, dur, cbid=211, correlation=correlation, **where)


def annotation(text: str, ts: str, dur: str, **where: Any) -> str:
    return event("user_annotation", text, ts, dur, **where)


def trace(path: Path, *events: str, **rest: Any) -> Path:
    devices = [
        {
            "id": i,
            "name": f"NVIDIA A100-SXM4-40GB {i}",
            "totalGlobalMem": 42505273344,
            "computeMajor": 8,
            "numSms": 108,
        }
        for i in (0, 1)
    ]
    head = {
        "schemaVersion": 1,
        "deviceProperties": devices,
        "cupti_version": 18,
        "cuda_runtime_version": 11070,
        **rest,
    }
    body = (
        json.dumps(head, indent=1)[:-2]
        + ',\n "traceEvents": ['
        + ",\n".join(events)
        + '],\n "traceName": "x"}'
    )
    path.write_bytes(gzip.compress(body.encode()) if path.suffix == ".gz" else body.encode())
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_kernels_by_range_with_their_geometry(tmp_path: Path, name: str) -> None:
    events = [
        kernel(8, "4347229352250.500", grid=[1, 2, 3]),
        annotation("gkestimator:conv#2", "4347229352202.067", "100.333"),
        annotation("ProfilerStep#3", "4347229352000.0", "1000"),
        annotation("gkestimator:copy#1", "4347229352400", "50"),
        call(7, "4347229352210.001"),
        call(8, "4347229352210.000"),
        call(9, "4347229352410.5"),
        kernel(7, "4347229352290.001"),
        event(
            "gpu_memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            "4347229352500",
            "9.5",
            pid=0,
            tid=7,
            device=0,
            stream=7,
            correlation=9,
            bytes=4096,
        ),
        '{"ph": "i", "name": "Iteration Start", "s": "g", "ts": 1}',
        event("gpu_user_annotation", "gkestimator:conv#2", "4347229352250", "60", pid=0, tid=7),
        event("cpu_op", "aten::conv2d", "4347229352205", "20"),
    ]
    capture = parse_kineto(trace(tmp_path / name, *events))
    assert [(r.entry_id, r.repeats, len(r.launches)) for r in capture.ranges] == [
        ("conv", 2, 2),
        ("copy", 1, 1),
    ]
    assert (capture.ranges[0].start_ns, capture.ranges[0].end_ns) == (4347229352202067, 4347229352302400)
    first, second = capture.ranges[0].launches
    assert (first.start_ns, first.duration_ns, first.grid) == (4347229352250500, 4128, (1, 2, 3))
    assert (second.name, second.grid, second.block, second.stream) == (KERNEL, (128, 1, 1), (64, 2, 1), 7)
    assert (second.registers_per_thread, second.smem_bytes, second.static_smem_bytes) == (26, 48, None)
    (copy,) = capture.ranges[1].launches
    assert (copy.kind, copy.bytes_moved, copy.grid, copy.duration_ns) == ("memcpy", 4096, None, 9500)
    assert capture.device == {
        "id": 0, "name": "NVIDIA A100-SXM4-40GB 0", "totalGlobalMem": 42505273344, "computeMajor": 8, "numSms": 108,
        "cupti_version": 18, "cuda_runtime_version": 11070,
    }  # fmt: skip
    assert capture.schema == "1" and capture.problems == () and capture.unjoined == {}


def test_what_cannot_be_joined_is_counted_by_reason(tmp_path: Path) -> None:
    events = [
        annotation("gkestimator:conv#1", "100", "100"),
        call(1, "110"), call(1, "310"), call(2, "310"), call(3, "150", tid=101), call(4, "199.5"), call(5, "120"),
        *(kernel(i, "400") for i in (1, 2, 3, 4, 5, 77)),
    ]  # fmt: skip
    capture = parse_kineto(trace(tmp_path / "t.json", *events))
    assert capture.unjoined == {
        "with several calls that may have caused it": 1,
        "outside the ranges of entries": 3,
        "without the host's call that caused it": 1,
    }
    assert len(capture.ranges[0].launches) == 1


def test_a_graph_launch_causes_several_kernels(tmp_path: Path) -> None:
    events = [annotation("gkestimator:conv#1", "100", "100"), call(1, "110")]
    events += [kernel(1, "400", **{"graph node id": 12}), kernel(1, "300", **{"graph node id": 11})]
    capture = parse_kineto(trace(tmp_path / "t.json", *events))
    assert [(k.start_ns, k.in_graph) for k in capture.ranges[0].launches] == [(300000, True), (400000, True)]


def test_ranges_without_work_and_files_without_ranges(tmp_path: Path) -> None:
    capture = parse_kineto(
        trace(tmp_path / "t.json", annotation("gkestimator:view#3", "1", "2"), call(1, "10"))
    )
    assert [(r.entry_id, r.launches) for r in capture.ranges] == [("view", ())]
    assert parse_kineto(trace(tmp_path / "u.json")).problems == (
        "no range of ours was recorded (record_function)",
    )


def test_host_operators_count_the_time_of_their_own(tmp_path: Path) -> None:
    events = [
        annotation("gkestimator:conv#1", "100", "100"),
        event("cpu_op", "aten::conv2d", "110", "50"),
        event("cpu_op", "aten::convolution", "115", "40"),
        event("cpu_op", "aten::empty", "120", "10"),
        event("cpu_op", "aten::relu", "160", "5"),
        event("cpu_op", "elsewhere", "130", "5", tid=101),
        event("cpu_op", "later", "300", "5"),
    ]
    capture = parse_kineto(trace(tmp_path / "t.json", *events))
    assert [(k.kind, k.name, k.duration_ns) for k in capture.ranges[0].launches] == [
        ("host", "aten::conv2d", 10_000),
        ("host", "aten::convolution", 30_000),
        ("host", "aten::empty", 10_000),
        ("host", "aten::relu", 5_000),
    ]
    assert capture.unjoined == {"outside the ranges of entries": 2}


_PROGRAM = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, record_function
torch.set_num_threads(1)
x = torch.randn(16, 16)
for _ in range(2):
    torch.relu(x @ x)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for i in range(3):
        with record_function(f"gkestimator:entry{i}#4"):
            for _ in range(4):
                torch.relu(x @ x)
profiler.export_chrome_trace(sys.argv[1])
"""


def test_a_genuine_trace_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install torch")
    path = tmp_path / "trace.json.gz"
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    capture = parse_kineto(path)
    assert [(r.entry_id, r.repeats) for r in capture.ranges] == [(f"entry{i}", 4) for i in range(3)]
    assert capture.problems == ()
    for found in capture.ranges:
        repeats, problem = split_repeats(found)
        assert repeats is not None and problem is None
        names = [k.name for k in repeats[0]]
        assert "aten::mm" in names and "aten::clamp_min" in names
        assert all(k.kind == "host" and k.duration_ns >= 0 for k in found.launches)
        assert 0 < sum(k.duration_ns for k in found.launches) <= found.end_ns - found.start_ns


def test_launches_of_which_the_kernel_is_missing_are_told(tmp_path: Path) -> None:
    lost = trace(
        tmp_path / "t.json",
        annotation("gkestimator:e1#2", "10", "50"),
        call(1, "11"),
        kernel(1, "12"),
        call(2, "20"),
    )
    assert "1 of 2 launches without a kernel: CUPTI dropped records" in parse_kineto(lost).problems


@pytest.mark.parametrize("word", ["nan", "-nan", "inf", "-inf"])
def test_what_cpp_prints_for_no_number_does_not_cost_the_trace(tmp_path: Path, word: str) -> None:
    bad = kernel(1, "12").replace('"blocks per SM": 1.18', f'"blocks per SM": {word}')
    assert word in bad
    path = trace(tmp_path / "t.json", annotation("gkestimator:e1#1", "10", "50"), call(1, "11"), bad)
    assert [k.grid for k in parse_kineto(path).ranges[0].launches] == [(128, 1, 1)]
    path = trace(
        tmp_path / "u.json", annotation("gkestimator:e1#1", "10", "50"), call(1, "11"), kernel(1, word)
    )
    with pytest.raises(TableError, match="ts: found 'None', expected microseconds"):
        parse_kineto(path)


@pytest.mark.parametrize(
    ("events", "match"),
    [
        (
            [kernel(1, "1").replace("[128, 1, 1]", "[128, 1]")],
            "grid: found '.*', expected three whole numbers",
        ),
        ([kernel(1, "1").replace("[128, 1, 1]", "[0, 1, 1]")], "expected three whole numbers"),
        ([kernel(1, '"soon"')], "ts: found 'soon', expected microseconds"),
        ([kernel(1, "1e999999999")], "ts: found '1E.999999999', expected microseconds"),
        ([kernel(1, "NaN")], "found NaN, expected a finite number"),
        ([kernel(1, "1", "-5")], "dur: found '-5', expected a duration of at least 0"),
        ([kernel(1, "1", device="first")], "device: found 'first', expected a whole number"),
        ([kernel(2**70, "1")], "correlation: found"),
        ([call(1, "1").replace('"tid": 100', '"tid": null')], "pid and tid: found"),
        (
            [kernel(1, "1").replace('"args": {', '"args": [], "x": {')],
            r"args: found '\[\]', expected an object",
        ),
        (['{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}'], "name: found 'None', expected text"),
        (["17"], "event 1: expected an object"),
        (["[" * 100_000], "no trace in JSON"),
    ],
)
def test_events_that_are_none_are_refused(tmp_path: Path, events: list[str], match: str) -> None:
    path = trace(tmp_path / "t.json", *events)
    with pytest.raises(TableError, match=match) as caught:
        parse_kineto(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "found its end, expected {"),
        ("[1]", r"found '\[', expected {"),
        ('{"a" 1}', "found '1', expected :"),
        ("{1: 1}", "expected the name of a field"),
        ('{"traceEvents": [1 2]}', "expected an object"),
        ('{"traceEvents": [] "x": 1}', "expected , or }"),
        ('{"traceEvents": []} tail', "after the object's end"),
        ('{"x": nothing}', "cut short or no JSON"),
    ],
)
def test_files_that_are_no_trace_are_refused(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TableError, match=match):
        parse_kineto(path)


def test_any_cut_is_noticed(tmp_path: Path) -> None:
    whole = trace(
        tmp_path / "t.json", annotation("gkestimator:a#1", "1", "2"), call(1, "1"), kernel(1, "5")
    ).read_bytes()
    zipped = gzip.compress(whole)
    path = tmp_path / "cut.json"
    for content in (whole, zipped):
        for length in range(0, len(content), 7):
            path.write_bytes(content[:length])
            with pytest.raises(TableError, match=r"cut\.json: "):
                parse_kineto(path)


def test_windows_of_any_size_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        annotation("gkestimator:a#1", "1.5", "20"),
        call(1, "2"),
        kernel(1, "5.125"),
        call(12345, "3"),
        kernel(12345, "9"),
    ]
    path = trace(tmp_path / "t.json", *events, count=1234567890)
    expected = parse_kineto(path)
    assert len(expected.ranges[0].launches) == 2
    for window in (1, 2, 3, 7, 64):
        monkeypatch.setattr("gkestimator.profiling.parsers.json_stream._CHUNK", window)
        assert parse_kineto(path) == expected


@pytest.mark.slow
def test_bombs_and_slow_files_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 30_000_000))
    monkeypatch.setenv("GKEST_LIMITS", "trace_characters=1e7")
    with pytest.raises(TableError, match="trace_characters"):
        parse_kineto(path)
    with pytest.raises(TableError, match="took more than 0 s"):
        parse_kineto(path, limit_s=0)
    path.write_bytes(gzip.compress(b'{"x": "' + b"a" * 30_000_000))
    monkeypatch.setenv("GKEST_LIMITS", "trace_characters=1e9")
    with pytest.raises(TableError, match="no JSON value of at most 16,777,216 characters"):
        parse_kineto(path)
