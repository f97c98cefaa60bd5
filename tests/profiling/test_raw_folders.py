"""Records of a child, and the raw folder: there and back, cut short, and from strangers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from gkestimator.core.errors import TableError
from gkestimator.profiling.raw import (
    RAW_VERSION,
    ChunkInfo,
    DeviceFacts,
    EnvironmentSample,
    RunInfo,
    chunk_folders,
    document_of,
    read_chunk,
    read_environment,
    read_run,
    run_folders,
)
from gkestimator.profiling.records import EntryRecord, HostKernel, read_records, record_line

OK = EntryRecord(
    entry_id="Relu-fp32-0", status="ok", repeats=2, started_unix_ns=1, ended_unix_ns=9, host_us=(3.0, 4.5), elapsed_us=4.0,
    output_shapes=((2, 3), ()), workspace_bytes=0, kernels=(HostKernel(name="Relu", durations_us=(1.0, 2.0)),),
)  # fmt: skip
FAILED = EntryRecord(entry_id="Conv-fp32-1", status="failed", reason="out of memory")
GPU = DeviceFacts(
    kind="gpu", name="NVIDIA H200", compute_capability="9.0", clocks_mhz={"sm": 1980.0}, limits={"sms": 132}
)


def test_records_come_back_and_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    text = record_line(OK) + record_line(FAILED)
    for cut in (0, 1, 40):
        path.write_text(text + record_line(OK)[:cut])
        assert list(read_records(path)) == [OK, FAILED]
    path.write_text("")
    assert list(read_records(path)) == []


@pytest.mark.parametrize(
    "line", ["{}", "[]", "7", "x", '{"entry_id": "a", "status": "fine"}', '{"entry_id": "a", "status": "ok", "z": 1}',
             '{"entry_id": "a", "status": "ok", "host_us": ["x"]}', '{"entry_id": "a", "status": "ok", "kernels": [{}]}']
)  # fmt: skip
def test_a_line_that_is_no_record_is_refused_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(record_line(OK) + line + "\n")
    with pytest.raises(TableError, match="line 2 is no record"):
        list(read_records(path))


def run_info() -> RunInfo:
    return RunInfo(
        schema_version=RAW_VERSION, plan_digest="ab", executor="torch", collector="nsys", devices=(GPU,),
        versions={"torch": "2.11"}, started="2026-11-20T00:00:00Z", host="box",
    )  # fmt: skip


def chunk_info() -> ChunkInfo:
    return ChunkInfo(
        number=3, pass_name="timeline", attempt=1, executor="torch", collector="nsys", collector_version="2023.4",
        device=GPU, clock_control="none", entries=("a", "b"), files=("capture.sqlite",), started="x", ended="y",
    )  # fmt: skip


def test_run_and_chunks_come_back(tmp_path: Path) -> None:
    raw = tmp_path / "site" / "raw"
    folder = raw / "chunks" / "000003-cuda0-timeline"
    folder.mkdir(parents=True)
    (raw / "chunks" / ".aside-9").mkdir()
    (raw / "run.json").write_text(json.dumps(document_of(run_info())))
    assert chunk_folders(raw) == []  # not committed before chunk.json is there
    (folder / "chunk.json").write_text(json.dumps(document_of(chunk_info())))
    assert run_folders(tmp_path) == [raw] == run_folders(raw)
    assert read_run(raw) == run_info()
    assert chunk_folders(raw) == [folder] and read_chunk(folder) == chunk_info()


def test_environment_samples_come_back(tmp_path: Path) -> None:
    samples = [
        EnvironmentSample(unix_ns=1, sm_clock_mhz=1980.0, throttled=("power",)),
        EnvironmentSample(unix_ns=2),
    ]
    lines = [json.dumps(asdict(s)) + "\n" for s in samples]
    (tmp_path / "environment.jsonl").write_text("".join(lines) + lines[0][:10])
    assert list(read_environment(tmp_path)) == samples
    assert list(read_environment(tmp_path / "none")) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 99}', '{"schema_version": 1}',
                                     '{"schema_version": 1, "devices": [7]}'])  # fmt: skip
def test_a_strangers_run_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(TableError, match=r"run\.json"):
        read_run(tmp_path)
