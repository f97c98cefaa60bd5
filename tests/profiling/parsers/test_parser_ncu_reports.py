"""The reports that Nsight Compute ships, read by NVIDIA's library and through ``ncu --import``: equal values.

They are read where they are installed ($GKEST_NSIGHT); NVIDIA's licence does not let them be part of this project.
``ncu`` prints two decimals at the least, so values agree to half a unit of the second.
"""

from __future__ import annotations

import csv
import io
import subprocess
from pathlib import Path

import pytest
from nsys_samples import nsight_tools

from gkestimator.core.errors import TableError
from gkestimator.profiling.parsers import parse_ncu
from gkestimator.profiling.parsers.ncu import DURATION, read_report_by_library, read_report_by_tool
from gkestimator.profiling.parsers.ncu_csv import read_csv

_PRINTED = 0.005 * (1 + 1e-9)


def shipped() -> list[tuple[Path, Path]]:
    """(ncu, report) of every installation."""
    return [
        (ncu, report)
        for ncu in nsight_tools("ncu")
        for report in sorted(ncu.parent.parent.glob("root/usr/**/*.ncu-rep"))
    ]


CASES = shipped()


@pytest.fixture(
    params=CASES or [None], ids=lambda c: "none" if c is None else f"{c[0].parts[-3]}-{c[1].stem}"
)
def case(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    if request.param is None:
        pytest.skip("no reports of Nsight Compute: $GKEST_NSIGHT names no installation with ncu")
    pytest.importorskip("ncu_report", reason="pip install ncu-report")
    return request.param  # type: ignore[no-any-return]


def test_library_and_tool_agree(case: tuple[Path, Path], record_property: pytest.RecordProperty) -> None:
    ncu, path = case
    ours, theirs = read_report_by_library(path), read_report_by_tool(path, ncu=ncu)
    assert len(ours.actions) == len(theirs.actions) >= 1
    compared = 0
    for a, b in zip(ours.actions, theirs.actions, strict=True):
        assert a.name == b.name
        assert a.metrics.keys() == b.metrics.keys()
        assert len(a.metrics) > 500
        for name, value in a.metrics.items():
            assert abs(value - b.metrics[name]) <= _PRINTED + 1e-12 * abs(value), name
        compared += len(a.metrics)
    record_property("values", compared)
    print(f"{path.stem}: {len(ours.actions)} kernel, {compared} metrics equal")


@pytest.mark.parametrize("mark", [".", ","])
def test_scaled_units_and_other_locales_come_to_the_same(
    case: tuple[Path, Path], tmp_path: Path, mark: str
) -> None:
    """Mbyte, msecond, cycle/nsecond; and the page as a German locale would print it."""
    ncu, path = case
    command = [str(ncu), "--import", str(path), "--page", "raw", "--csv", "--print-units", "auto"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    if mark == ",":
        header, units, *rows = csv.reader(io.StringIO(printed))
        identity = header.index("Kernel Name")
        rows = [row[:identity] + [_german(field) for field in row[identity:]] for row in rows]
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([header, units, *rows])
        printed = text.getvalue()
    page = tmp_path / "page.csv"
    page.write_text(f"==PROF== Connected to process 1\n{printed}")
    exact, scaled = read_report_by_library(path).actions[0], read_csv(page).actions[0]
    assert exact.metrics.keys() == scaled.metrics.keys()
    for name, value in exact.metrics.items():
        # Scaled to 1 to 1000 with two decimals: half a percent, where 1024 for 1000 would be 2.4.
        assert abs(value - scaled.metrics[name]) <= max(_PRINTED, 0.00501 * abs(value)), name


def _german(field: str) -> str:
    try:
        value = float(field)
    except ValueError:
        return field
    if "." not in field:
        return f"{int(value):,}".replace(",", ".")
    decimals = len(field.partition(".")[2])
    return f"{value:,.{decimals}f}".translate(str.maketrans(",.", ".,"))


def test_details_page_is_refused(case: tuple[Path, Path], tmp_path: Path) -> None:
    ncu, path = case
    command = [str(ncu), "--import", str(path), "--page", "details", "--csv"]
    page = tmp_path / "page.csv"
    page.write_text(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
    with pytest.raises(TableError, match="this is the details page of ncu, expected --page raw"):
        parse_ncu(page)


def test_a_report_as_a_capture(case: tuple[Path, Path]) -> None:
    """NVIDIA's samples were recorded without ranges of ours: the kernels are counted, and their device is told."""
    capture = parse_ncu(case[1])
    assert capture.tool == "ncu" and capture.schema is not None and capture.schema.startswith("ncu_report 20")
    assert capture.ranges == () and capture.unjoined == {"outside the ranges of entries": 1}
    sms = capture.device["device__attribute_multiprocessor_count"]
    assert isinstance(sms, int) and 1 < sms < 200
    assert str(capture.device["device__attribute_display_name"]).startswith("NVIDIA")


def test_without_the_library_the_tool_reads(case: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ncu, path = case
    monkeypatch.setattr("gkestimator.profiling.parsers.ncu._CHILD", "no_such_module")
    assert parse_ncu(path, ncu=ncu).schema == "ncu --import"


@pytest.mark.parametrize("share", [0.1, 0.9, 0.999])
def test_a_truncated_report_is_refused_in_one_line(
    case: tuple[Path, Path], tmp_path: Path, share: float
) -> None:
    """NVIDIA's library reads each of them without a word, and gives no kernel or one without metrics. A cut that falls
    between two blocks after the last result takes nothing away that is read."""
    ncu, path = case
    content = path.read_bytes()
    cut = tmp_path / path.name
    cut.write_bytes(content[: int(len(content) * share)])
    try:
        read = read_report_by_library(cut)
    except TableError as e:
        assert "\n" not in str(e) and str(cut) in str(e)
        with pytest.raises(TableError):
            parse_ncu(cut, ncu=ncu)
    else:
        assert share > 0.99
        assert read.actions == read_report_by_library(path).actions


def test_kernels_have_a_duration(case: tuple[Path, Path]) -> None:
    (action,) = read_report_by_library(case[1]).actions
    assert 1e3 < action.metrics[DURATION] < 1e9
