"""Runtimes from rows of a requirement table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import TableError, UsageError
from gkestimator.simulation.lengths.runtimes import Runtime, ladder_of, runtimes_of
from gkestimator.tables import REQUIREMENTS, Requirement, read_table

TABLE = Path(__file__).parents[3] / "examples" / "lengths" / "bert-base.csv"
ROWS = read_table(TABLE, REQUIREMENTS)


def found(rows: list[Requirement], **given: Any) -> list[Runtime]:
    return runtimes_of(rows, **{"model": "bert-base", "gpu": "RTX-3090", "table": "t.csv"} | given)


def test_the_example_s_runtimes() -> None:
    runtimes = found(list(ROWS))
    assert [r.length for r in runtimes] == list(range(64, 513, 64))
    assert [r.latency_ms for r in runtimes] == [r.latency_ms for r in ROWS]
    assert found(list(ROWS), gpu="rtx 3090", lengths=[512, 64]) == [runtimes[-1], runtimes[0]]


def changed(number: int, **fields: Any) -> list[Requirement]:
    return [replace(r, **fields) if i == number else r for i, r in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("rows", "given", "words"),
    [
        (list(ROWS), {"model": "bert"}, "found no rows"),
        (list(ROWS), {"gpu": "T4"}, "bert on T4|bert-base on T4"),
        (list(ROWS), {"lengths": [64, 100]}, "no row for length 100; found 64"),
        (list(ROWS), {"runtime": "torch"}, "found no rows"),
        (list(ROWS), {"dimension": "seq"}, "expected seq=LENGTH"),
        (changed(1, dims="sequence=64"), {}, "two rows for length 64"),
        (changed(1, dims="sequence=abc"), {}, "expected NAME=NUMBER"),
        (changed(1, dims="heads=2,sequence=128"), {"dimension": "sequence"}, "expected one length to differ"),
        (changed(1, dims="heads=2,sequence=128"), {}, "expected one dimension"),
        (changed(1, dims="sequence=" + "9" * 5000), {}, "at most 10,000,000$"),
        (changed(1, dims="sequence=10000001"), {}, "at most 10,000,000$"),
        (changed(1, dims="sequence=128,sequence=129"), {}, "sequence stands twice"),
        (changed(1, latency_ms=None), {}, "length 128: found no latency"),
        ([replace(r, batch_size=8) for r in ROWS], {}, "found no rows"),
    ],
)
def test_wrong_tables_are_refused(rows: list[Requirement], given: dict[str, Any], words: str) -> None:
    with pytest.raises(TableError, match=words) as e:
        found(rows, **given)
    assert str(e.value).startswith("t.csv: ")


def test_capacities_count_what_fits_exactly() -> None:
    ladder = ladder_of([Runtime(length=64, latency_ms=0.1), Runtime(length=128, latency_ms=0.3)], 0.3)
    assert ladder.capacities == (3, 1)  # 0.3 / 0.1 is 2.9999999999999996


@pytest.mark.parametrize(
    ("runtimes", "words"),
    [
        ([], "no lengths"),
        ([(64, 1.0), (64, 2.0)], "stands twice"),
        ([(0, 1.0)], "at least 1"),
        ([(64, 0.0)], "above 0"),
        ([(64, float("inf"))], "above 0"),
        ([(64, 11.0)], "above the SLO of 10 ms"),
        ([(64, 1e-320)], "at most 1,000,000,000 requests"),
    ],
)
def test_wrong_ladders_are_refused(runtimes: list[tuple[int, float]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ladder_of([Runtime(length=n, latency_ms=t) for n, t in runtimes], 10.0)
