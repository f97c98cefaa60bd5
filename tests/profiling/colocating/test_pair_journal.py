"""The journal: what a killed run leaves, what a stranger writes, two runs at once."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import OutputError, TableError, UsageError
from gkestimator.profiling.colocating.journal import Header, Journal, PairRecord, SideRecord

HEADER = Header(
    executor="torch", device="NVIDIA H200", gpu="H200", driver="570", sharing="mps", sharing_note=None,
    versions={"torch": "2.9"}, seed=0, seconds=1.5, started="2026-11-22T12:00:00+00:00",
)  # fmt: skip
SIDE = SideRecord(
    entry_id="a", model="m", dtype="fp16", batch_size=8, dims="", sm_share_pct=50.0, sms=66, latency_alone_ms=2.0,
    alone_calls=100, latency_together_ms=3.0, together_calls=90, together_p90_ms=3.5,
)  # fmt: skip
PAIR = PairRecord(
    key=("a", "b", 50.0, 50.0), sides=(SIDE, replace(SIDE, entry_id="b", sms=None)), sm_clock_mhz=1980.0
)
FAILED = PairRecord(key=("a", "c", 100.0, 100.0), reason="out of memory")


def written(path: Path, *records: PairRecord) -> Path:
    with Journal(path) as journal:
        journal.begin(HEADER)
        for record in records:
            journal.add(record)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "j", FAILED, PAIR)
    with Journal(path) as journal:
        assert journal.header == HEADER
        assert journal.records == {FAILED.key: FAILED, PAIR.key: PAIR}
        assert list(journal.measured()) == [PAIR]


def test_the_last_word_on_a_pair_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "j", replace(PAIR, sides=(), reason="hung"), PAIR)
    with Journal(path) as journal:
        assert list(journal.measured()) == [PAIR]


def test_half_a_line_of_a_killed_run_goes(tmp_path: Path) -> None:
    path = written(tmp_path / "j", PAIR)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"v":1,"kind":"pair","key":["a"')
    with Journal(path) as journal:
        journal.add(FAILED)
    with Journal(path) as journal:
        assert set(journal.records) == {PAIR.key, FAILED.key}
    assert path.read_bytes().startswith(whole)


def test_two_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "j")
    with (
        Journal(path),
        pytest.raises(UsageError, match=r"process \d+ on .* \(since .* UTC\) is writing it"),
        Journal(path),
    ):
        pass


def test_a_run_that_begins_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Journal(tmp_path / "j"):
        raise ZeroDivisionError
    assert not (tmp_path / "j").exists()


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_said_of_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=re.escape(f"{tmp_path / 'j'}: cannot be written: ")),
        Journal(tmp_path / "j") as journal,
    ):
        journal.begin(HEADER)
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"executor": "onnxruntime"}, "with executor torch, found onnxruntime"),
        ({"device": "Tesla T4"}, "with device NVIDIA H200, found Tesla T4"),
        ({"sharing": "time"}, "with sharing mps, found time"),
        ({"versions": {"torch": "3.0"}}, "with versions torch 2.9, found torch 3.0"),
    ],
)
def test_another_way_of_measuring_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    path = written(tmp_path / "j", PAIR)
    before = path.read_bytes()
    with Journal(path) as journal, pytest.raises(UsageError, match=said):
        journal.begin(replace(HEADER, **changed))
    assert path.read_bytes() == before


def line(**changed: Any) -> str:
    side = {
        "entry_id": "a", "model": "m", "dtype": "fp16", "batch_size": 8, "dims": "", "sm_share_pct": 50.0, "sms": 66,
        "latency_alone_ms": 2.0, "alone_calls": 100, "latency_together_ms": 3.0, "together_calls": 90,
        "together_p90_ms": 3.5,
    }  # fmt: skip
    of_side = {k: v for k, v in changed.items() if k in side}
    rest = {k: v for k, v in changed.items() if k not in side}
    document = {
        "v": 1,
        "kind": "pair",
        "key": ["a", "b", 50, 50],
        "sides": [{**side, **of_side}, side],
        **rest,
    }
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense", "[1]", "{}", '{"v":1,"kind":"guess"}', '{"v":1,"kind":"run"}', "[" * 50_000, line(v=2),
        line(key=["a", "b"]), line(key=["a", 1, 50, 50]), line(key=["a", "b", 0, 50]), line(sides=[]), line(sides=[1, 2]),
        line(reason="both"), line(quality="fine"), line(latency_alone_ms=0), line(latency_together_ms="3"),
        line(latency_together_ms=float("nan")), line(alone_calls=0), line(model=7), line(more=1), line(sm_share_pct=-1),
        line(latency_alone_ms=10**400), line(key=["a", "b", 10**400, 50]),
    ],
)  # fmt: skip
def test_a_strangers_line_is_refused_in_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j"
    path.write_text(line() + "\n" + text + "\n")
    with pytest.raises(TableError, match="line 2: no line of a journal of pairs") as e, Journal(path):
        pass
    assert "\n" not in str(e.value)
    assert path.read_text() == line() + "\n" + text + "\n"
