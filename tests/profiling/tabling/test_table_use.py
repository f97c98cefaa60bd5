"""What launches say of the GPU, from captures in the formats of nsys and torch.profiler, against arithmetic by hand."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from _synthetic_raw import Measured, write_chunk, write_run
from tabling_samples import (
    OCCUPANCY,
    SM_UTIL,
    latency_record,
    launches,
    model_entry,
    row_of,
    table_of,
    trace_of_gpu,
    whole_run,
    write_latency,
)

from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.profiling.building.entries import RepeatedLaunch
from gkestimator.profiling.parsers import parse_kineto
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.tabling.use import launch_use


def test_use_of_the_gpu_follows_the_launches_by_hand(raw):
    whole_run(raw)
    row = row_of(raw)
    assert row.kernels == 3
    assert row.sm_util_max_pct == 100.0
    used = 20 * SM_UTIL[0] + 10 * SM_UTIL[1] + 20 * SM_UTIL[2]
    assert row.sm_util_busy_mean_pct == pytest.approx(used / 50)
    assert row.sm_util_mean_pct == pytest.approx(used / 100)  # half of the latency nothing runs
    assert row.occupancy_max_pct == pytest.approx(OCCUPANCY[1])
    held = 20 * OCCUPANCY[0] + 10 * OCCUPANCY[1] + 20 * OCCUPANCY[2]
    assert row.occupancy_mean_pct == pytest.approx(held / 100)


def test_a_kernel_without_geometry_leaves_use_unknown(raw):
    entry = whole_run(raw)
    folder = raw / "chunks" / "000001-cuda0-timeline"
    (folder / "capture.sqlite").unlink()
    trace_of_gpu(folder / "trace.json", entry.id, registers=None)
    _as_kineto(folder)
    row = row_of(raw)
    assert row.kernels == 4 and row.sm_util_max_pct is None and row.occupancy_mean_pct is None
    assert row.occupancy_source is None and "geometry of 1 of 2 kernels not told" in row.warnings


def _as_kineto(folder):
    info = json.loads((folder / "chunk.json").read_text())
    info |= {"collector": "kineto", "files": ["trace.json"]}
    (folder / "chunk.json").write_text(json.dumps(info))
    record = json.loads((folder / "records.jsonl").read_text())
    record |= {"repeats": 1, "host_us": [20.0]}
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")


def test_a_torch_trace_with_copies_and_two_streams(raw):
    entry = whole_run(raw)
    folder = raw / "chunks" / "000001-cuda0-timeline"
    (folder / "capture.sqlite").unlink()
    trace_of_gpu(folder / "trace.json", entry.id)
    _as_kineto(folder)
    row = row_of(raw)
    # A product of 33 SMs (20 us) and, beside it on another stream, an activation of 83 (10 us); a copy and a fill of
    # 5 us each use none. Time and launches of the copies count, as in measured calls of estimates.
    assert row.kernels == 4
    assert row.sm_util_max_pct == pytest.approx(SM_UTIL[0] + SM_UTIL[1])
    assert row.sm_util_busy_mean_pct == pytest.approx((20 * SM_UTIL[0] + 10 * SM_UTIL[1]) / 40)
    assert row.sm_util_mean_pct == pytest.approx((20 * SM_UTIL[0] + 10 * SM_UTIL[1]) / 100)
    assert row.occupancy_max_pct == pytest.approx(OCCUPANCY[0] + OCCUPANCY[1])


def test_calls_that_differ_tell_their_mean(raw):
    entry = model_entry()
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    write_latency(raw, 0, [latency_record(entry)])
    first, second, third = launches(1)
    # Two calls: product, activation, product; then a smaller grid in the last place.
    other = replace(third, grid=(66, 1, 1))
    kernels = (first, second, third, first, second, other)
    folder = write_chunk(raw, 1, [Measured(entry=entry, kernels=kernels, repeats=1)])
    _relabel(folder, entry.id, 2)
    result = table_of(raw)
    (row,) = result.rows
    assert result.exit_status == 0 and any("different kernels from call to call" in n for n in result.notes)
    assert row.kernels == 3 and "mean of 2 calls" in row.warnings
    used = 20 * SM_UTIL[0] + 10 * SM_UTIL[1] + 20 * (SM_UTIL[2] + SM_UTIL[0]) / 2
    assert row.sm_util_mean_pct == pytest.approx(used / 100)


def _relabel(folder, entry_id, repeats):
    """Say that the range of one call held ``repeats``."""
    with closing(sqlite3.connect(folder / "capture.sqlite")) as file:
        file.execute(
            "UPDATE StringIds SET value = ? WHERE value = ?", (f"{entry_id}#{repeats}", f"{entry_id}#1")
        )
        file.commit()
    record = json.loads((folder / "records.jsonl").read_text())
    record |= {"repeats": repeats, "host_us": [20.0] * repeats}
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")


def test_the_trace_is_read_as_it_was_meant(tmp_path):
    capture = parse_kineto(trace_of_gpu(tmp_path / "trace.json", "some-entry"))
    (found,) = capture.ranges
    assert [(k.kind, k.stream, k.duration_ns) for k in found.launches] == [
        ("kernel", 7, 20_000), ("kernel", 20, 10_000), ("memcpy", 7, 5_000), ("memset", 7, 5_000),
    ]  # fmt: skip
    assert capture.problems == () and capture.unjoined == {}


def _of_a_trace(path):
    (found,) = parse_kineto(path).ranges
    return [
        RepeatedLaunch(kind=k.kind, name=k.name, durations_us=(k.duration_ns / 1e3,), launch=k)
        for k in found.launches
    ]


def test_launches_that_took_longer_than_the_call_are_not_more_than_all_of_it(tmp_path):
    kernels = _of_a_trace(trace_of_gpu(tmp_path / "trace.json", "some-entry"))
    h100 = gpu_catalogue().spec("H100-SXM")
    one = launch_use(kernels[:1], h100, latency_us=10.0)
    assert one.busy_us == 20.0 and one.sm_util_mean_pct == one.sm_util_busy_mean_pct == 25.0


def test_copies_alone_tell_nothing_of_the_sms(tmp_path):
    kernels = _of_a_trace(trace_of_gpu(tmp_path / "trace.json", "some-entry"))
    use = launch_use(kernels[2:], gpu_catalogue().spec("H100-SXM"), latency_us=10.0)
    assert (use.kernels, use.busy_us) == (2, 10.0)
    assert use.sm_util_max_pct is use.sm_util_mean_pct is use.occupancy_mean_pct is None
