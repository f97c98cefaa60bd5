"""Rows of structured arrays with their fields as attributes, in plain Python as in compiled code."""

from __future__ import annotations

import numpy as np

from gkestimator.simulation.engine.records import Record, joined, row, rows, with_zeros


class SizedRecord(Record):
    # `size` and `copy` are attributes of numpy's own scalars: the fields must win.
    size: int
    copy: int
    took_ms: float


def test_a_field_is_read_and_written_in_place() -> None:
    many = rows(SizedRecord, 3)
    one = many[1]
    one.size += 4
    one.copy = 2
    one.took_ms = 1.5
    assert many["size"].tolist() == [0, 4, 0]
    assert (many[1].size, many[1].copy, many[1].took_ms) == (4, 2, 1.5)
    many["took_ms"] = [1.0, 2.0, 3.0]
    assert [each.took_ms for each in many] == [1.0, 2.0, 3.0]
    assert one.took_ms == 2.0


def test_rows_put_together_keep_their_fields() -> None:
    one = row(SizedRecord)
    one.size = 7
    first = rows(SizedRecord, 1)
    first[0].size = 5
    both = with_zeros(joined([first, rows(SizedRecord, 1)]), 2)
    first[0].size = 6
    # Again and again, of one array too: numpy alone forgets the attributes then.
    assert joined([joined([first]), rows(SizedRecord, 1)])[0].size == 6
    assert (len(both), both[0].size, both[3].size, one.size) == (4, 5, 0, 7)
    assert both["took_ms"].dtype == np.float64 and both["size"].dtype == np.int64
