"""Raw folders that are broken in one way or another: the good rows, and one line for what could not be used."""

import json

import pytest
from _synthetic_raw import H100, Measured, entry_of, relu, write_chunk, write_run
from tabling_samples import latency_record, launches, model_entry, whole_run, write_latency

from gkestimator.core.errors import OutputError, TableError, UsageError
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.tabling import build_table


def _table(raw, name="measured.csv"):
    return build_table([raw], raw.parent / name)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("latency_us", ["1"] * 21, "latency_us"),
        ("latency_us", [-1.0] * 21, "latency_us"),
        ("latency_us", [1e300] * 21, "latency_us"),
        ("latency_us", [], "latency_us"),
        ("latency_us", 5, "latency_us"),
        ("latency_us", None, "without latencies above 0"),
        ("latency_us", [0.0] * 21, "without latencies above 0"),
        ("repeats", 3, "latency_us"),
        ("memory", {"reserved_bytes": -1}, "memory.reserved_bytes"),
        ("memory", {"reserved_bytes": "1"}, "memory.reserved_bytes"),
        ("memory", {"other": 1}, "memory"),
        ("host_us", [-5.0] * 21, "times or repeats"),
        ("entry_id", "nobody", "not in the plan"),
    ],
)
def test_a_record_of_a_stranger(raw, field, value, words):
    whole_run(raw)
    other = model_entry(name="other")
    write_run(raw, SweepPlan(runtime="torch", entries=(model_entry(), other)))
    write_latency(raw, 2, [latency_record(other, chunk=2)])
    path = raw / "chunks" / "000002-cuda0-latency" / "records.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}) + "\n")
    result = _table(raw)
    assert [row.model for row in result.rows] == ["mlp"] and result.exit_status == 1
    (problem,) = result.problems
    assert words in problem and "\n" not in problem


def test_a_capture_that_is_lost_does_not_lose_the_latency(raw):
    whole_run(raw)
    (raw / "chunks" / "000001-cuda0-timeline" / "capture.sqlite").write_bytes(b"no database")
    result = _table(raw)
    (row,) = result.rows
    assert row.latency_ms == 0.1 and "no timeline" in row.warnings and row.sm_util_mean_pct is None
    assert result.exit_status == 1 and "capture.sqlite" in result.problems[0]


def test_what_failed_was_skipped_or_is_left_is_said(raw):
    failed, left = model_entry(name="failed"), model_entry(name="left")
    whole_run(raw, failed, left)
    record = EntryRecord(entry_id=failed.id, status="failed", reason="out of memory")
    write_latency(raw, 2, [record])
    result = _table(raw)
    assert [row.model for row in result.rows] == ["mlp"] and result.exit_status == 0
    assert any("1 attempts at whole models failed" in n and "out of memory" in n for n in result.notes)
    assert any("1 of 3 planned whole models have no latency yet" in n for n in result.notes)


def test_a_folder_of_operators_alone(raw):
    operator = entry_of(relu(64, 64))
    write_run(raw, SweepPlan(runtime="torch", entries=(operator,)))
    with pytest.raises(TableError, match="no whole model in its plan; gkest profile plan --whole"):
        _table(raw)


def test_nothing_measured_yet(raw):
    write_run(raw, SweepPlan(runtime="torch", entries=(model_entry(),)))
    with pytest.raises(TableError, match="no whole model was measured yet; gkest profile run goes on"):
        _table(raw)


def test_everything_failed(raw):
    entry = model_entry()
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    write_latency(raw, 0, [EntryRecord(entry_id=entry.id, status="failed", reason="out of memory")])
    with pytest.raises(TableError, match="no whole model was measured; 1 failed .*: out of memory"):
        _table(raw)


def test_timelines_without_any_latency(raw):
    entry = model_entry()
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    write_chunk(raw, 0, [Measured(entry=entry, kernels=launches(), repeats=3)])
    with pytest.raises(TableError, match="a timeline without a latency"):
        _table(raw)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(TableError, match="no raw folder of gkest profile run"):
        build_table([tmp_path], tmp_path / "measured.csv")


@pytest.mark.parametrize("name", ["measured", "measured.xlsx", "measured.md"])
def test_a_suffix_that_is_no_table(raw, name):
    whole_run(raw)
    with pytest.raises(UsageError, match=r"expected \.csv or \.json or \.parquet"):
        _table(raw, name)


def test_a_folder_that_is_not_there(raw):
    whole_run(raw)
    with pytest.raises(OutputError, match="folder does not exist"):
        build_table([raw], raw.parent / "nowhere" / "measured.csv")


def test_a_file_that_is_no_provenance_is_kept(raw):
    whole_run(raw)
    mine = raw.parent / "measured.provenance.json"
    mine.write_text('{"mine": 1}')
    with pytest.raises(UsageError, match="something else than the provenance"):
        _table(raw)
    assert mine.read_text() == '{"mine": 1}' and not (raw.parent / "measured.csv").exists()


def test_a_device_that_cannot_be_told(raw):
    from dataclasses import replace

    entry = model_entry()
    bare = replace(H100, name="NVIDIA Nothing", limits={}, compute_capability=None, clocks_mhz={})
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)), device=bare)
    write_latency(raw, 0, [latency_record(entry)], device=bare)
    with pytest.raises(TableError, match="NVIDIA Nothing"):
        _table(raw)
