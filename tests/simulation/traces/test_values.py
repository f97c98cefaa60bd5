"""Numbers and dates: what the arithmetic on whole columns gives is what Python gives, field by field."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gkestimator.core.errors import DocumentError
from gkestimator.simulation.traces.lines import Lines, RowBlock
from gkestimator.simulation.traces.values import decimals, instants, whole_numbers

CALM = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def column(tmp_path: Path, fields: list[str]) -> RowBlock:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{f},0\n" for f in fields), encoding="utf-8")
    (block,) = Lines(path).blocks()
    return block


@st.composite
def written(draw: st.DrawFn) -> str:
    if draw(st.booleans()):
        return repr(draw(st.floats(0, 1e11)))
    whole = draw(st.integers(0, 10**10))
    return draw(st.sampled_from(["{}", "{}.", "{}.5", "{}.{:09d}", "0{}.{:03d}", ".{:d}"])).format(
        whole, draw(st.integers(0, 999))
    )


@given(st.lists(written(), min_size=1, max_size=30))
@CALM
def test_decimals_are_pythons(tmp_path: Path, fields: list[str]) -> None:
    block = column(tmp_path, fields)
    assert decimals(block, 0, "x").tolist() == [float(f) for f in fields]


@given(st.lists(st.integers(0, 10**14), min_size=1, max_size=30))
@CALM
def test_whole_numbers(tmp_path: Path, numbers: list[int]) -> None:
    block = column(tmp_path, [str(n) for n in numbers])
    assert whole_numbers(block, [0, 1], "x").tolist() == [[n, 0] for n in numbers]


@given(
    st.lists(
        st.tuples(
            st.datetimes(datetime(1970, 1, 2), datetime(2199, 1, 1)),
            st.integers(0, 9),
            st.sampled_from(" T"),
            st.sampled_from(["", "Z", "+00:00", "+05:30", "-01:00"]),
        ),
        min_size=1,
        max_size=20,
    )
)
@CALM
def test_instants_are_pythons(tmp_path: Path, times: list[tuple[datetime, int, str, str]]) -> None:
    fields, expected = [], []
    for time, digits, between, zone in times:
        fraction = f"{time.microsecond * 1000:09d}"[:digits]
        fields.append(f"{time:%Y-%m-%d}{between}{time:%H:%M:%S}" + (f".{fraction}" if digits else "") + zone)
        whole = time.replace(microsecond=0, tzinfo=UTC)
        offset = {"+05:30": timedelta(minutes=330), "-01:00": timedelta(minutes=-60)}.get(zone, timedelta())
        expected.append(int((whole - offset).timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0))
    block = column(tmp_path, fields)
    assert instants(block, 0, "x").tolist() == expected


@pytest.mark.parametrize("field", ["-1", "nan", "inf", "", "1e99", "1e12", "0x10", "1_000", "１", ".", "1.2.3", "--1", "1 2"])  # fmt: skip
def test_what_is_no_number_is_named(tmp_path: Path, field: str) -> None:
    block = column(tmp_path, ["1", "2.5", field])
    with pytest.raises(DocumentError, match=r"t\.csv: line 4: x: found .*expected (a number|at most)"):
        decimals(block, 0, "x")


@pytest.mark.parametrize("field", ["-1", "1.0", "nan", "", "1e3", "1234567890123456"])
def test_what_is_no_whole_number_is_named(tmp_path: Path, field: str) -> None:
    block = column(tmp_path, ["1", field])
    with pytest.raises(DocumentError, match="line 3: x: found .*, expected a whole number"):
        whole_numbers(block, [0], "x")


@pytest.mark.parametrize(
    "field",
    ["2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-01-01 24:00:00", "2023-01-01 00:60:00", "2023-01-01", "12.5", "",
     "2023-01-01 00:00:61", "0000-01-01 00:00:00", "2023-01-01 00:00:00.1234567890", "2023-01-01 00:00:00 00:00", "x" * 200],
)  # fmt: skip
def test_what_is_no_date_is_named(tmp_path: Path, field: str) -> None:
    block = column(tmp_path, ["2023-11-16 18:17:03.9799600", field])
    with pytest.raises(DocumentError, match="line 3: x: found .*, expected a time such as"):
        instants(block, 0, "x")


def test_seven_digits_are_kept(tmp_path: Path) -> None:
    block = column(tmp_path, ["2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319601"])
    assert np.diff(instants(block, 0, "x")).tolist() == [52_000_100]


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no alarms here")
@pytest.mark.parametrize("filling", ["1", " ", "0.", "1e"])
def test_a_field_as_long_as_a_line_may_be_is_refused_at_once(tmp_path: Path, filling: str) -> None:
    """A pattern that tries every cut of 65,000 digits takes minutes; a thousandth of a second is the rule."""

    def too_long(*_: object) -> None:
        raise AssertionError("still at one field after 30 s")

    field = filling * (65_000 // len(filling)) + "x"
    block = column(tmp_path, ["1", field])
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(30)
    try:
        for read in (decimals, instants):
            with pytest.raises(DocumentError, match="line [23]: x: found "):
                read(block, 0, "x")
        with pytest.raises(DocumentError, match="line 3: x: found "):
            whole_numbers(block, [0], "x")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
