"""Nsight Compute's raw page, its units and locales, and reports through a library that stands for NVIDIA's."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gkestimator.core.errors import TableError
from gkestimator.profiling.parsers import parse_ncu
from gkestimator.profiling.parsers.ncu import read_report_by_library, read_report_by_tool
from gkestimator.profiling.parsers.ncu_blocks import count_results
from gkestimator.profiling.parsers.ncu_child import report_lines
from gkestimator.profiling.parsers.ncu_values import decimal_mark, number, unit_factor

NVTX = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
COLUMNS = {
    "ID": "", "Process ID": "", "Process Name": "", "Host Name": "", "Kernel Name": "", "Context": "", "Stream": "",
    "Block Size": "", "Grid Size": "", "Device": "", "CC": "", NVTX: "",
    "gpu__time_duration.sum": "usecond", "dram__bytes.sum": "Mbyte",
    "launch__registers_per_thread": "register/thread", "launch__shared_mem_per_block_static": "Kbyte/block",
    "launch__shared_mem_per_block_dynamic": "byte/block",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "%", "launch__func_cache_config": "",
    "device__attribute_display_name": "", "device__attribute_multiprocessor_count": "",
}  # fmt: skip


def row(position: int, entry: str | None = "conv#1", **values: str) -> dict[str, str]:
    ranges = (
        ""
        if entry is None
        else f"77 other:conv#9:none:none:none:none:none:none gkestimator:{entry}:none:none:none:none:none:none"
    )
    given = {
        "ID": str(position), "Process ID": "4711", "Process Name": "python", "Host Name": "127.0.0.1",
        "Kernel Name": "void k<float, 4>(float *, int)", "Context": "1", "Stream": "7", "Block Size": "(16, 8, 1)",
        "Grid Size": "(64, 2, 1)", "Device": "0", "CC": "9.0", NVTX: ranges, "gpu__time_duration.sum": "12.34",
        "dram__bytes.sum": "1.27", "launch__registers_per_thread": "22", "launch__shared_mem_per_block_static": "1.02",
        "launch__shared_mem_per_block_dynamic": "512", "sm__warps_active.avg.pct_of_peak_sustained_active": "83.84",
        "launch__func_cache_config": "CachePreferNone", "device__attribute_display_name": "NVIDIA Test",
        "device__attribute_multiprocessor_count": "132",
    }  # fmt: skip
    return {**given, **values}


def page(*rows: dict[str, str], units: dict[str, str] | None = None) -> str:
    lines = [list(COLUMNS), [{**COLUMNS, **(units or {})}[c] for c in COLUMNS]]
    lines += [[r[c] for c in COLUMNS] for r in rows]
    return "".join(",".join('"' + v.replace('"', '""') + '"' for v in line) + "\n" for line in lines)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "counters.csv"
    path.write_text(text)
    return path


def test_kernels_of_a_range_with_counters_in_base_units(tmp_path: Path) -> None:
    text = page(row(0), row(1, **{"Kernel Name": 'k<"x", 2>(int)'}), row(2, "relu#1"), row(3, None))
    capture = parse_ncu(written(tmp_path, text))
    assert [(r.entry_id, r.repeats, len(r.launches)) for r in capture.ranges] == [
        ("conv", 1, 2),
        ("relu", 1, 1),
    ]
    first, second = capture.ranges[0].launches
    assert (first.start_ns, second.start_ns) == (0, 1)
    assert second.name == 'k<"x", 2>(int)'
    assert (first.grid, first.block, first.stream, first.device) == ((64, 2, 1), (16, 8, 1), 7, 0)
    assert (first.duration_ns, first.registers_per_thread) == (12340, 22)
    assert (first.static_smem_bytes, first.dynamic_smem_bytes, first.smem_bytes) == (1020, 512, 1532)
    assert first.counters is not None
    assert first.counters["dram__bytes.sum"] == 1.27e6
    assert first.counters["sm__warps_active.avg.pct_of_peak_sustained_active"] == 83.84
    assert not any(name.startswith("device__") or "cache_config" in name for name in first.counters)
    assert capture.device == {
        "device__attribute_display_name": "NVIDIA Test",
        "device__attribute_multiprocessor_count": 132,
    }
    assert capture.unjoined == {"outside the ranges of entries": 1}
    assert capture.problems == ()


def test_ranges_of_other_domains_and_two_of_ours_do_not_count(tmp_path: Path) -> None:
    two = row(0)
    two[NVTX] += " gkestimator:relu#1:none:none:none:none:none:none"
    other = row(1, None, **{NVTX: "77 notgkestimator:conv#1:none:none <default domain>:conv#1:none"})
    capture = parse_ncu(written(tmp_path, page(two, other)))
    assert capture.ranges == ()
    assert capture.unjoined == {"in several ranges of ours": 1, "outside the ranges of entries": 1}
    assert "no kernel lies in an NVTX range of ours" in capture.problems[0]


def test_output_between_the_rows_is_passed_over(tmp_path: Path) -> None:
    header, units, first, second = page(row(0), row(1)).splitlines()
    noise = [
        "==PROF== Connected to process 4711",
        'my program, "says", hello',
        '"quoted","but no","row"',
        "",
        "==WARNING== No metrics",
    ]
    text = "\n".join([*noise, header, *noise, units, *noise, f"50 %{first}", *noise, second, *noise]) + "\n"
    capture = parse_ncu(written(tmp_path, text))
    assert len(capture.ranges[0].launches) == 2
    assert "==WARNING== No metrics" in capture.problems


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gpu__time_duration.sum": "1,234.56", "dram__bytes.sum": "2,000"}, (1234560, 2e9)),
        ({"gpu__time_duration.sum": "1.234,56", "dram__bytes.sum": "2.000"}, (1234560, 2e9)),
        ({"gpu__time_duration.sum": "1,234,567", "dram__bytes.sum": "0.5"}, (1234567000, 5e5)),
        ({"gpu__time_duration.sum": "0,5", "dram__bytes.sum": "1.234"}, (500, 1.234e9)),
        ({"gpu__time_duration.sum": "7", "dram__bytes.sum": "1e3"}, (7000, 1e9)),
    ],
)
def test_the_locale_is_told_by_the_numbers(
    tmp_path: Path, values: dict[str, str], expected: tuple[int, float]
) -> None:
    plain = {
        "sm__warps_active.avg.pct_of_peak_sustained_active": "83",
        "launch__shared_mem_per_block_static": "1",
    }
    (launch,) = parse_ncu(written(tmp_path, page(row(0, **plain, **values)))).ranges[0].launches
    assert (launch.duration_ns, (launch.counters or {})["dram__bytes.sum"]) == expected


def test_numbers_that_may_be_either_are_refused(tmp_path: Path) -> None:
    plain = {
        "sm__warps_active.avg.pct_of_peak_sustained_active": "83",
        "launch__shared_mem_per_block_static": "1",
    }
    text = page(row(0, **plain, **{"gpu__time_duration.sum": "1,234", "dram__bytes.sum": "2"}))
    with pytest.raises(
        TableError, match=r"gpu__time_duration.sum: number '1,234' may have decimals or thousands"
    ):
        parse_ncu(written(tmp_path, text))


def test_locales_that_disagree_are_refused(tmp_path: Path) -> None:
    text = page(row(0, **{"gpu__time_duration.sum": "1,5", "dram__bytes.sum": "1.5"}))
    with pytest.raises(TableError, match="has another decimal mark than those before"):
        parse_ncu(written(tmp_path, text))


def test_a_unit_that_is_not_understood_is_left_out_and_told(tmp_path: Path) -> None:
    capture = parse_ncu(written(tmp_path, page(row(0), units={"dram__bytes.sum": "Zbyte²"})))
    assert "dram__bytes.sum" not in (capture.ranges[0].launches[0].counters or {})
    assert capture.problems == ("metrics in units that are not understood were left out: 'Zbyte²'",)


def test_columns_of_any_length_are_read_in_time(tmp_path: Path) -> None:
    text = page(row(0)).replace("launch__func_cache_config", "a" + "_" * 100_000 + "!")
    assert len(parse_ncu(written(tmp_path, text)).ranges) == 1


def test_values_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    capture = parse_ncu(
        written(tmp_path, page(row(0, **{"dram__bytes.sum": "", "launch__registers_per_thread": "n/a"})))
    )
    launch = capture.ranges[0].launches[0]
    assert launch.registers_per_thread is None
    assert "dram__bytes.sum" not in (launch.counters or {})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no raw page of ncu"),
        ("==ERROR== ERR_NVGPUCTRPERM\n", "no raw page of ncu"),
        (page(row(0)).splitlines()[0], "cut short: no row of units"),
        ("\n".join(page(row(0)).splitlines()[::2]), "expected the row of units first"),
        (page(row(0))[:-30], "cut short, or output of the program within"),
        (page(row(0)).replace('"7"', '"7"oops'), "found no CSV"),
        (page(row(0)).replace("dram__bytes.sum", "gpu__time_duration.sum"), "occurs twice"),
        (page(row(0)).replace("Host Name", "Metric Name"), "this is the details page"),
        (page(row(0, **{"gpu__time_duration.sum": ""})), "lacks gpu__time_duration.sum"),
    ],
)
def test_pages_that_are_none_are_refused(tmp_path: Path, text: str, match: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TableError, match=match) as caught:
        parse_ncu(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("", 1), ("%", 1), ("inst", 1), ("register/thread", 1), ("byte", 1), ("Kbyte", 1e3), ("Gbyte/second", 1e9),
        ("nsecond", 1), ("ns", 1), ("usecond", 1e3), ("msecond", 1e6), ("second", 1e9), ("hz", 1), ("Ghz", 1e9),
        ("cycle/nsecond", 1e9), ("cycle/usecond", 1e6), ("cycle/second", 1), ("sector/nsecond", 1e9), ("Mbyte/s", 1e6),
        ("Zbyte²", None), ("1/0", None),
    ],
)  # fmt: skip
def test_units(unit: str, factor: float | None) -> None:
    assert unit_factor(unit) == factor


@given(st.floats(-1e15, 1e15).map(lambda v: round(v, 2)), st.booleans())
def test_numbers_are_read_as_they_are_printed(value: float, german: bool) -> None:
    text = f"{value:,.2f}"
    text = text.translate(str.maketrans(",.", ".,")) if german else text
    assert decimal_mark([text, "n/a", "12"]) == ("," if german else ".")
    assert number(text, "," if german else ".") == value


@pytest.mark.parametrize(
    "text", ["nan", "inf", "", "(!) n/a", "1e999", "1.2.3,4", "12 apples", "--5", "0x10"]
)
def test_what_is_no_number(text: str) -> None:
    assert number(text, ".") is None


def test_an_aggregate_before_its_instances_is_the_value() -> None:
    assert number("12.5 (1.5; 11)", ".") == 12.5


class Library:
    """Stands for ncu_report: one range with the given actions."""

    def __init__(self, *actions: Any) -> None:
        self._range = SimpleNamespace(num_actions=lambda: len(actions), action_by_idx=lambda i: actions[i])

    def load_report(self, path: str) -> Any:
        return SimpleNamespace(
            get_version=lambda: "2026.9", num_ranges=lambda: 1, range_by_idx=lambda i: self._range
        )


def action(
    metrics: dict[str, tuple[Any, str]], ranges: dict[str, tuple[str, ...]] | None, workload: int = 0
) -> Any:
    def metric(name: str) -> Any:
        value, unit = metrics[name]
        return SimpleNamespace(value=lambda: value, unit=lambda: unit, has_value=lambda: value is not None)

    state = None
    if ranges is not None:
        domains = [
            SimpleNamespace(name=lambda n=n: n, push_pop_ranges=lambda r=r: r) for n, r in ranges.items()
        ]
        state = SimpleNamespace(domains=lambda: tuple(range(len(domains))), domain_by_id=lambda i: domains[i])
    return SimpleNamespace(
        NameBase_DEMANGLED=1, WorkloadType_KERNEL=0, WorkloadType_GRAPH=3, name=lambda base: f"k{base}",
        workload_type=lambda: workload, nvtx_state=lambda: state, metric_names=lambda: tuple(metrics), metric_by_name=metric,
    )  # fmt: skip


def test_the_child_prints_what_the_library_says() -> None:
    metrics = {
        "t": (5, "ns"),
        "u": (1.5, "%"),
        "w": ("words", ""),
        "none": (None, "%"),
        "nan": (float("nan"), "%"),
    }
    lines = list(
        report_lines(Library(action(metrics, {"gkestimator": ("a#1", "b#1")}), action({}, None, 3)), "x")
    )
    assert lines == [
        {"version": "2026.9"},
        {"name": "k1", "workload": "kernel", "ranges": [("gkestimator", "a#1"), ("gkestimator", "b#1")], "numbers": {"t": [5, "ns"], "u": [1.5, "%"]}, "words": {"w": "words"}},
        {"name": "k1", "workload": "graph", "ranges": [], "numbers": {}, "words": {}},
    ]  # fmt: skip


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(blocks((b"", 0), (b"payload", 3)))
    return path


def blocks(*payloads: tuple[bytes, int]) -> bytes:
    """A report of blocks with (payload, number of results)."""
    text = b"NVR\0" + (2).to_bytes(4, "little") + b"\x08\x07"
    for payload, results in payloads:
        # Fields: 1 sources, 2 results, 3 details of the session, 5 bytes of payload, and one of 8 bytes.
        header = (
            b"\x08\x01\x10"
            + bytes([results])
            + b"\x1a\x02ab\x28"
            + bytes([len(payload)])
            + b"\x49"
            + bytes(8)
        )
        text += len(header).to_bytes(4, "little") + header + payload
    return text


def test_results_of_all_blocks_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(blocks((b"", 0), (b"payload", 3), (b"more", 2)))
    assert count_results(path) == 5


def test_a_report_cut_anywhere_but_between_blocks_is_refused(tmp_path: Path) -> None:
    whole = blocks((b"", 0), (b"payload", 3), (b"more", 2))
    ends = {len(blocks(*given)) for given in ((), ((b"", 0),), ((b"", 0), (b"payload", 3)))}
    path = tmp_path / "a.ncu-rep"
    for length in set(range(len(whole))) - ends:
        path.write_bytes(whole[:length])
        with pytest.raises(TableError, match=r"a\.ncu-rep: "):
            count_results(path)


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    (tmp_path / "stand_in_child.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("gkestimator.profiling.parsers.ncu._CHILD", "stand_in_child")


def test_a_report_of_unknown_format_is_for_its_reader_to_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"\x28\xb5\x2f\xfd packed")
    one = '{"name": "k", "workload": "kernel", "ranges": [["gkestimator", "a#1"]], "numbers": {"gpu__time_duration.sum": [5, "ns"]}, "words": {}}'
    child(tmp_path, monkeypatch, f"print('{{\"version\": \"1\"}}'); print('''{one}''')")
    capture = parse_ncu(path)
    assert [r.entry_id for r in capture.ranges] == ["a"]
    assert any("unknown format" in line for line in capture.problems)
    child(tmp_path, monkeypatch, 'print(\'{"version": "1"}\')')
    monkeypatch.setattr("gkestimator.profiling.parsers.ncu.find_tool", lambda name: None)
    with pytest.raises(TableError, match="gave 0 kernels, .* expected at least 1"):
        parse_ncu(path)


def test_a_report_through_the_child(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = '{"name": "k", "workload": "kernel", "ranges": [["gkestimator", "a#1"]], "numbers": {"gpu__time_duration.sum": [5.4, "ns"], "dram__bytes.sum": [2, "Kbyte"]}, "words": {}}'
    graph = one.replace('"kernel"', '"graph"')
    child(
        tmp_path,
        monkeypatch,
        f"print('{{\"version\": \"1\"}}'); print('''{one}'''); print('''{graph}'''); print('''{one}''')",
    )
    capture = parse_ncu(report)
    assert capture.schema == "ncu_report 1"
    assert [(r.entry_id, r.launches[0].duration_ns) for r in capture.ranges] == [("a", 5), ("a", 5)]
    assert capture.ranges[0].launches[0].counters == {
        "gpu__time_duration.sum": 5.4,
        "dram__bytes.sum": 2000.0,
    }
    assert capture.unjoined == {"profiled as a whole (graph)": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("import os; os.kill(os.getpid(), 11)", r"ncu_report cannot read it \(signal 11\)"),
        ("raise SystemExit('bad\\nreport')", r"ncu_report cannot read it \(status 1\): report"),
        (
            'print(\'{"version": "1"}\')',
            "ncu_report 1 gave 0 kernels, 0 of them without a metric, expected 3",
        ),
        ("print('no json')", "ncu_report gave no actions"),
        ("", "ncu_report gave no actions"),
        ("import time; time.sleep(60)", "took more than 2 s; ended"),
    ],
)
def test_a_library_that_fails_is_told_in_one_line(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, match: str
) -> None:
    child(tmp_path, monkeypatch, code)
    with pytest.raises(TableError, match=match) as caught:
        read_report_by_library(report, limit_s=2 if "sleep" in code else 60)
    assert "\n" not in str(caught.value)


def fake_ncu(tmp_path: Path, code: str) -> Path:
    path = tmp_path / "ncu"
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_neither_library_nor_tool_is_told(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(tmp_path, monkeypatch, "raise SystemExit(3)")
    for name in ("GKEST_NCU", "GKEST_NSIGHT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("gkestimator.profiling.parsers.ncu.find_tool", lambda name: None)
    with pytest.raises(TableError, match=r"neither ncu_report \(pip install ncu-report\) nor ncu is here"):
        parse_ncu(report)


def test_the_tool_is_found_and_its_page_read(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(tmp_path, monkeypatch, "raise SystemExit(3)")
    (tmp_path / "bin").mkdir()
    fake_ncu(tmp_path / "bin", f"print({page(row(0), row(1), row(2))!r})")
    monkeypatch.delenv("GKEST_NCU", raising=False)
    monkeypatch.setenv("GKEST_NSIGHT", str(tmp_path))
    assert parse_ncu(report).schema == "ncu --import"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "match"),
    [
        (
            "print('==ERROR== Failed to load report file')",
            "ncu cannot read it: ==ERROR== Failed to load report file",
        ),
        ("raise SystemExit(1)", "ncu cannot read it: status 1"),
        (
            f"print({page(row(0))!r})",
            "ncu --import gave 1 kernels, 0 of them without a metric, expected 3 with metrics",
        ),
        ("print('hello')", "as ncu prints it: no raw page of ncu"),
        ("import time; time.sleep(60)", "ncu took more than 1 s; ended"),
    ],
)
def test_a_tool_that_fails_is_told_in_one_line(report: Path, tmp_path: Path, code: str, match: str) -> None:
    with pytest.raises(TableError, match=match):
        read_report_by_tool(report, ncu=fake_ncu(tmp_path, code), limit_s=1 if "sleep" in code else 60)


@pytest.mark.slow
def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(b"QDSS" + bytes(100))
    with pytest.raises(TableError, match="cannot read it|neither ncu_report|gave 0 kernels"):
        parse_ncu(path)
    with pytest.raises(TableError, match="No such file"):
        parse_ncu(tmp_path / "none.ncu-rep")
    os.mkdir(tmp_path / "folder.csv")
    with pytest.raises(TableError, match="cannot be read"):
        parse_ncu(tmp_path / "folder.csv")
