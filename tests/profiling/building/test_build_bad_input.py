"""Raw folders that are broken in one way or another: the good rows, and one line for what could not be used."""

import errno
import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from _synthetic_raw import (
    Measured,
    conv,
    entry_of,
    fixed,
    relu,
    small_measured,
    small_run,
    write_chunk,
    write_run,
)

from gkestimator.core.errors import OutputError, TableError, UsageError
from gkestimator.profiling.building import build_dataset
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.records import record_line


def _build(raw):
    return build_dataset([raw], raw.parent / "kernels.parquet")


@pytest.fixture
def two_chunks(raw):
    """A run whose second chunk can be broken: it holds a relu more."""
    entry = entry_of(relu(100, 200))
    measured = small_measured()
    write_run(raw, SweepPlan(runtime="torch", entries=(*(m.entry for m in measured), entry)))
    one = Measured(entry=entry, kernels=fixed(("vectorized_elementwise_kernel", (3, 3))), repeats=2)
    return raw, write_chunk(raw, 1, [one])


def _assert_first_chunk_alone(result, *words):
    assert len(result.rows) == 5 and result.exit_status == 1
    (problem,) = result.problems
    assert all(word in problem for word in words), problem
    assert "\n" not in problem


def test_a_truncated_export(two_chunks):
    raw, chunk = two_chunks
    path = chunk / "capture.sqlite"
    path.write_bytes(path.read_bytes()[:9000])
    _assert_first_chunk_alone(_build(raw), "capture.sqlite")


def test_an_export_that_is_gone(two_chunks):
    raw, chunk = two_chunks
    (chunk / "capture.sqlite").unlink()
    _assert_first_chunk_alone(_build(raw), "capture.sqlite")


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("collector", "vtune", "vtune"),
        ("collector", 7, "found 7, expected one of nsys"),
        ("files", ["../../run.json.sqlite"], "names of files beside it"),
        ("files", ["capture.txt"], "expected a .sqlite"),
        ("files", [], "the capture holds no NVTX range"),
        ("attempt", "first", "attempt"),
        ("surprise", 1, "ChunkInfo"),
    ],
)
def test_a_chunk_that_is_not_what_it_should_be(two_chunks, field, value, word):
    raw, chunk = two_chunks
    document = json.loads((chunk / "chunk.json").read_text())
    (chunk / "chunk.json").write_text(json.dumps(document | {field: value}))
    _assert_first_chunk_alone(_build(raw), word)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"device": {}}', '{"device": null}'])
def test_a_chunk_description_that_is_no_description(two_chunks, text):
    raw, chunk = two_chunks
    (chunk / "chunk.json").write_text(text)
    _assert_first_chunk_alone(_build(raw), "chunk.json")


def test_half_chunks_are_left_to_the_next_run(two_chunks):
    raw, chunk = two_chunks
    chunk.rename(chunk.with_name(".aside-1234"))
    result = _build(raw)
    assert result.exit_status == 0 and len(result.rows) == 5
    (note,) = result.notes
    assert "1 of 4 planned operators not measured yet, 1 unfinished chunks" in note


def test_records_without_an_entry_or_a_range(raw):
    entry, stranger = entry_of(relu(100, 200)), entry_of(conv(1, 3, 8, 3, 8))
    write_run(raw, SweepPlan(runtime="torch", entries=(*(m.entry for m in small_measured()), entry)))
    kernels = fixed(("vectorized_elementwise_kernel", (3, 3)))
    write_chunk(
        raw,
        1,
        [
            Measured(entry=stranger, kernels=kernels, repeats=2),
            Measured(entry=entry, kernels=kernels, repeats=2, in_capture=False),
        ],
    )
    result = _build(raw)
    assert result.exit_status == 1 and len(result.rows) == 5
    assert sorted(p.split(": ", 1)[1].split(":")[0] for p in result.problems) == [
        "a record for an entry that is not in the plan",
        "measured, but the capture holds no NVTX range of it",
    ]


def test_many_alike_are_one_line(raw):
    entries = [entry_of(relu(8, n)) for n in range(1, 41)]
    write_run(raw, SweepPlan(runtime="torch", entries=(*(m.entry for m in small_measured()), *entries)))
    kernels = fixed(("vectorized_elementwise_kernel", (3, 3)))
    write_chunk(raw, 1, [Measured(entry=e, kernels=kernels, repeats=2, in_capture=False) for e in entries])
    (problem,) = _build(raw).problems
    assert "40 times, first" in problem and len(problem) < 300


def test_record_and_range_that_disagree(two_chunks):
    raw, chunk = two_chunks
    record = json.loads((chunk / "records.jsonl").read_text())
    (chunk / "records.jsonl").write_text(json.dumps(record | {"repeats": 7}) + "\n")
    _assert_first_chunk_alone(_build(raw), "disagree about the repeats", "2 and 7")


@pytest.mark.parametrize(
    "change",
    [
        {"repeats": 0},
        {"repeats": "2"},
        {"elapsed_us": 1e308},
        {"host_us": [-1.0, 2.0]},
        {"started_unix_ns": 1.5},
        {"reason": 7},
    ],
)
def test_records_with_impossible_numbers(two_chunks, change):
    raw, chunk = two_chunks
    record = json.loads((chunk / "records.jsonl").read_text())
    (chunk / "records.jsonl").write_text(json.dumps(record | change) + "\n")
    _assert_first_chunk_alone(_build(raw), "a record whose times or repeats")


def test_repeats_that_launch_different_kernels_are_listed(tmp_path):
    raw = tmp_path / "run"
    measured = small_measured()
    entry = entry_of(relu(100, 200))
    write_run(raw, SweepPlan(runtime="torch", entries=(*(m.entry for m in measured), entry)))
    odd = Measured(entry=entry, kernels=fixed(("vectorized_elementwise_kernel", (3, 3))), repeats=2)
    chunk = write_chunk(raw, 0, [*measured, odd])
    with closing(sqlite3.connect(chunk / "capture.sqlite")) as file, file:
        last = file.execute("SELECT max(correlationId) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 7 WHERE correlationId = ?", (last,))
    result = _build(raw)
    assert list(result.varying) == [entry.id] and len(result.rows) == 5
    document = json.loads((tmp_path / "kernels.lowering.json").read_text())
    assert list(document["varying_between_repeats"]) == [entry.id]


def test_failed_and_skipped_entries_are_counted_not_errors(tmp_path):
    raw = tmp_path / "run"
    measured = small_measured()
    lost = replace(measured[0], status="failed", reason="out of memory", in_capture=False)
    write_run(raw, SweepPlan(runtime="torch", entries=tuple(m.entry for m in measured)))
    write_chunk(raw, 0, [lost, *measured[1:]])
    result = _build(raw)
    assert result.exit_status == 0 and len(result.rows) == 2
    assert (
        "1 attempts failed, 0 operators were skipped" in result.notes[0]
        and "out of memory" in result.notes[0]
    )


def test_a_lost_capture_of_failed_entries_is_a_note(two_chunks):
    raw, chunk = two_chunks
    record = json.loads((chunk / "records.jsonl").read_text())
    (chunk / "records.jsonl").write_text(
        json.dumps(record | {"status": "failed", "reason": "its capture was lost"}) + "\n"
    )
    document = json.loads((chunk / "chunk.json").read_text())
    (chunk / "chunk.json").write_text(
        json.dumps(document | {"files": [], "problems": ["nsys: no range was recorded"]})
    )
    result = _build(raw)
    assert result.exit_status == 0 and len(result.rows) == 5
    assert any("nsys: no range was recorded" in note for note in result.notes)


def test_nothing_measured_is_one_line(tmp_path):
    raw = tmp_path / "run"
    lost = [replace(m, status="failed", reason="out of memory", in_capture=False) for m in small_measured()]
    write_run(raw, SweepPlan(runtime="torch", entries=tuple(m.entry for m in lost)))
    write_chunk(raw, 0, lost)
    with pytest.raises(
        TableError, match="no operator was measured; 3 failed or were skipped, first .*out of"
    ):
        _build(raw)
    assert not list(tmp_path.glob("kernels*"))


def test_another_version_beside_a_good_run(tmp_path):
    small_run(tmp_path / "all" / "good")
    shutil.copytree(tmp_path / "all" / "good", tmp_path / "all" / "old")
    path = tmp_path / "all" / "old" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))
    result = build_dataset([tmp_path / "all"], tmp_path / "kernels.parquet")
    _assert_first_chunk_alone(result, "schema_version: found 99")
    with pytest.raises(TableError, match="schema_version: found 99"):
        build_dataset([tmp_path / "all" / "old"], tmp_path / "kernels.parquet")


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(TableError, match=r"no run\.json"):
        build_dataset([tmp_path], tmp_path / "kernels.parquet")


@pytest.mark.parametrize("name", ["kernels.json", "kernels", "kernels.parquet.gz"])
def test_names_that_are_no_dataset(raw, name):
    with pytest.raises(UsageError, match=r"expected \.parquet or \.csv"):
        build_dataset([raw], raw.parent / name)


def test_a_full_disk_changes_nothing(raw, monkeypatch):
    _build(raw)
    before = {p.name: p.read_bytes() for p in raw.parent.iterdir() if p.is_file()}
    real = os.fsync
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) == 3:  # the dataset itself: provenance and lowering table are aside already
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        _build(raw)
    assert {p.name: p.read_bytes() for p in raw.parent.iterdir() if p.is_file()} == before


def test_negative_durations_are_in_no_row(two_chunks):
    raw, chunk = two_chunks
    with closing(sqlite3.connect(chunk / "capture.sqlite")) as file, file:
        file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5")
    result = _build(raw)
    assert len(result.rows) == 5 and all(r.duration_us > 0 for r in result.rows)
    told = [c.line() for c in result.checks if c.count] + list(result.problems)
    assert told, "the launches that were dropped are said"


def test_a_record_cut_short_by_a_kill_is_dropped(two_chunks):
    raw, chunk = two_chunks
    with open(chunk / "records.jsonl", "a") as stream:
        stream.write(record_line_of(chunk)[:40])
    assert len(_build(raw).rows) == 6


def record_line_of(chunk):
    from gkestimator.profiling.records import read_records

    return record_line(next(iter(read_records(chunk / "records.jsonl"))))
