"""Our reading of exports against NVIDIA's own reports on the same files, for every nsys that is here.

The exports are genuine (the real nsys recorded the ranges of two processes); kernels, copies and fills are put in, for
there is no GPU. Without nsys the tests skip and say so.
"""

from __future__ import annotations

import csv
import io
import random
import shutil
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from nsys_samples import genuine_export, insert_launches, nsight_tools, report

from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.parsers import parse_nsys
from gkestimator.profiling.parsers.joining import base_name

NSYS = nsight_tools("nsys")
REPORTS = {
    "gpu": ("cuda_gpu_trace", "gputrace"),
    "kernels": ("nvtx_kern_sum:base", "nvtxkernsum:base"),
    "projection": ("nvtx_gpu_proj_trace", "nvtxgpuproj"),
    "execution": ("cuda_kern_exec_trace", "kernexectrace"),
}
"""The names from 2023 on, and those before."""


@pytest.fixture(
    scope="module", params=NSYS or [None], ids=lambda p: "none" if p is None else str(p.parts[-3])
)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if request.param is None:
        pytest.skip("no nsys: neither in $GKEST_NSIGHT nor elsewhere")
    export = genuine_export(request.param, tmp_path_factory.mktemp("genuine"))
    if export is None:
        pytest.skip(
            f"{request.param} did not record all ranges: it takes none, or loses some on a busy machine"
        )
    return request.param, export


@pytest.fixture(scope="module", params=[1, 2, 3])
def sample(
    recorded: tuple[Path, Path], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Capture, int]:
    nsys, export = recorded
    path = tmp_path_factory.mktemp("inserted") / "capture.sqlite"
    shutil.copy(export, path)
    inserted = insert_launches(path, random.Random(request.param), calls=500)
    return nsys, path, parse_nsys(path), inserted.kernels + inserted.memory


def rows_of(sample: tuple[Path, Path, Capture, int], which: str) -> list[dict[str, str]]:
    for name in REPORTS[which]:
        text = report(sample[0], name, sample[1])
        at = text.find("\n\n") + 2 if text.startswith("\n") else 0
        rows = list(csv.DictReader(io.StringIO(text[at:].lstrip())))
        if rows:
            return rows
    raise AssertionError(f"nsys made none of the reports {REPORTS[which]}")


def launches_of(capture: Capture) -> list[CapturedLaunch]:
    return [launch for r in capture.ranges for launch in r.launches]


def label(found: EntryRange) -> str:
    return f"gkestimator:{found.entry_id}#{found.repeats}"


@pytest.mark.slow
def test_ranges_of_all_processes_and_threads_are_found(recorded: tuple[Path, Path]) -> None:
    capture = parse_nsys(recorded[1])
    ids = [r.entry_id for r in capture.ranges]
    for role in ("first", "second"):
        for thread in ("0", "1", "main"):
            assert sum(i.startswith(f"{role}-{thread}.") for i in ids) == 6
    assert len(ids) == 36
    assert {r.repeats for r in capture.ranges} == {3}
    assert capture.problems == ()
    assert capture.tool_version is not None and capture.schema is not None


def test_every_launch_is_as_the_gpu_trace_says(sample: tuple[Path, Path, Capture, int]) -> None:
    rows = rows_of(sample, "gpu")
    capture, inserted = sample[2], sample[3]
    ours = {launch.start_ns: launch for launch in launches_of(capture)}
    assert len(rows) == inserted == len(ours) + sum(capture.unjoined.values())
    assert len(ours) > 100
    compared = 0
    for row in rows:
        launch = ours.get(int(row["Start (ns)"]))
        if launch is None:
            continue
        compared += 1
        assert launch.duration_ns == int(row["Duration (ns)"])
        assert str(launch.stream) == row["Strm"]
        assert row["Device"] == f"NVIDIA Test 0 ({launch.device})"
        if launch.kind == "kernel":
            assert launch.name == row["Name"]
            assert [str(v) for v in (launch.grid or ())] == [row[f"Grd{a}"] for a in "XYZ"]
            assert [str(v) for v in (launch.block or ())] == [row[f"Blk{a}"] for a in "XYZ"]
            assert str(launch.registers_per_thread) == row["Reg/Trd"]
            assert (launch.static_smem_bytes or 0) / 1e6 == pytest.approx(
                float(row["StcSMem (MB)"]), abs=5.1e-4
            )
            assert (launch.dynamic_smem_bytes or 0) / 1e6 == pytest.approx(
                float(row["DymSMem (MB)"]), abs=5.1e-4
            )
        else:
            assert (launch.bytes_moved or 0) / 1e6 == pytest.approx(float(row["Bytes (MB)"]), abs=5.1e-4)
            assert row["Name"].startswith(f"[CUDA {launch.kind}")
    assert compared == len(ours)


def test_kernels_by_range_are_as_the_range_summary_says(sample: tuple[Path, Path, Capture, int]) -> None:
    kernels: dict[tuple[str, str], list[int]] = defaultdict(list)
    instances: dict[tuple[str, str], int] = defaultdict(int)
    for found in sample[2].ranges:
        names = [base_name(k.name) for k in found.launches if k.kind == "kernel"]
        for name, launch in zip(names, (k for k in found.launches if k.kind == "kernel"), strict=True):
            kernels[label(found), name].append(launch.duration_ns)
        for name in set(names):
            instances[label(found), name] += 1
    rows = {
        (row["NVTX Range"], row["Kernel Name"]): row
        for row in rows_of(sample, "kernels")
        if row["NVTX Range"].startswith("gkestimator:") and row["Style"] == "PushPop"
    }
    assert rows.keys() == kernels.keys()
    for key, times in kernels.items():
        row = rows[key]
        assert (int(row["Kern Inst"]), int(row["NVTX Inst"])) == (len(times), instances[key])
        assert int(row["Total Time (ns)"]) == sum(times)
        assert (int(row["Min (ns)"]), int(row["Max (ns)"])) == (min(times), max(times))
        assert float(row["Med (ns)"]) == pytest.approx(statistics.median(times), abs=0.051)


def test_ranges_projected_on_the_gpu_are_as_the_projection_says(
    sample: tuple[Path, Path, Capture, int],
) -> None:
    ours = {r.start_ns: r for r in sample[2].ranges if r.launches}
    rows = [row for row in rows_of(sample, "projection") if row["Name"].startswith("gkestimator:")]
    assert len(rows) == len(ours) > 20
    for row in rows:
        found = ours[int(row["Orig Start (ns)"])]
        assert row["Name"] == label(found)
        assert int(row["Orig Duration (ns)"]) == found.end_ns - found.start_ns
        first = min(launch.start_ns for launch in found.launches)
        last = max(launch.start_ns + launch.duration_ns for launch in found.launches)
        assert (int(row["Projected Start (ns)"]), int(row["Projected Duration (ns)"])) == (
            first,
            last - first,
        )
        if not any(launch.in_graph for launch in found.launches):
            assert int(row["NumGPUOps"]) == len(found.launches)


def test_order_of_kernels_is_that_of_the_calls(sample: tuple[Path, Path, Capture, int]) -> None:
    rows = rows_of(sample, "execution")
    called = {int(row["Kernel Start (ns)"]): row for row in rows}
    compared = 0
    for found in sample[2].ranges:
        kernels = [launch for launch in found.launches if launch.kind == "kernel"]
        compared += len(kernels)
        for launch in kernels:
            row = called[launch.start_ns]
            assert int(row["Kernel Dur (ns)"]) == launch.duration_ns
            assert tuple(map(int, row["GridXYZ"].split())) == launch.grid
            assert tuple(map(int, row["BlockXYZ"].split())) == launch.block
            assert row["Kernel Name"] == launch.name
            assert found.start_ns <= int(row["API Start (ns)"]) <= found.end_ns
        order = [(int(called[k.start_ns]["API Start (ns)"]), k.start_ns) for k in kernels]
        assert order == sorted(order)
    assert compared > 100


def test_graph_nodes_and_device_are_told(sample: tuple[Path, Path, Capture, int]) -> None:
    capture = sample[2]
    assert any(launch.in_graph for launch in launches_of(capture))
    assert any(not launch.in_graph for launch in launches_of(capture))
    assert capture.device["name"] == "NVIDIA Test 0"
    assert set(capture.unjoined) <= {
        "without the host's call that caused it",
        "outside the ranges of entries",
        "by a call that outlasts its range",
    }
    assert capture.unjoined["without the host's call that caused it"] == 10
