"""The report and the commands."""

import shutil
import struct
import sys
import zlib
from dataclasses import replace

import pytest
from _synthetic_raw import START_NS, idle_sample, small_measured, sweep, write_chunk, write_run

from gkestimator.cli import run
from gkestimator.profiling.building import build_dataset
from gkestimator.profiling.building.report import write_report
from gkestimator.profiling.plan import SweepPlan
from gkestimator.tables import KERNEL_DATASET, read_table


@pytest.fixture
def eventful(tmp_path):
    """A run in which something was throttled, something failed and something was not reached."""
    measured = sweep(60, repeats=4, seed=1)
    raw = tmp_path / "run"
    write_run(raw, SweepPlan(runtime="torch", entries=tuple(m.entry for m in measured)))
    failed = [replace(m, status="failed", reason="out of memory", in_capture=False) for m in measured[20:25]]
    write_chunk(raw, 0, [*measured[:20], *failed])
    hot = [
        replace(idle_sample(START_NS + 20 * 10**9 + i * 200_000_000), throttled=("hw_thermal_slowdown",), sm_clock_mhz=1100.0 + i)
        for i in range(20)
    ]  # fmt: skip
    write_chunk(raw, 1, measured[25:50], samples=hot)
    return raw


def _pixels(data):
    """(width, height, whether anything but white is in it) of a PNG."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    at, packed = 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += 12 + length
    return width, height, len(set(zlib.decompress(packed))) > 10


@pytest.mark.slow
def test_the_report(eventful, tmp_path):
    pytest.importorskip("matplotlib")
    result = build_dataset([eventful], tmp_path / "kernels.parquet")
    files, notes = write_report(result, tmp_path / "report")
    assert not notes
    assert {f.name for f in files} == {
        "report.md", "operators.csv", "coverage.png", "roofline.png", "kernels.png", "variation.png",
        "conditions.png", "left_out.png",
    }  # fmt: skip
    for file in files:
        if file.suffix == ".png":
            width, height, drawn = _pixels(file.read_bytes())
            assert width > 300 and height > 90 and drawn, file
    text = (tmp_path / "report" / "report.md").read_text()
    for expected in ("USHER", "| failed: out of memory | 5 |", "10 of 60 planned operators not measured yet",
                     "![Kernels per operator](kernels.png)", "H100-SXM", "throttled"):  # fmt: skip
        assert expected in text, expected
    assert str(tmp_path) not in text
    assert len((tmp_path / "report" / "operators.csv").read_text().splitlines()) == 46


def test_without_matplotlib_there_is_a_line(raw, tmp_path, monkeypatch):
    result = build_dataset([raw], tmp_path / "kernels.parquet")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files, notes = write_report(result, tmp_path / "report")
    assert [f.name for f in files] == ["report.md", "operators.csv"]
    assert len(notes) == 1 and "matplotlib" in notes[0]


def test_the_commands(raw, tmp_path, capfd):
    assert run(["profile", "build", str(raw), "-o", str(tmp_path / "a.parquet")]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("3 operators in 5 launches: 3 ok, 0 noisy, 0 throttled; H100-SXM (3);")
    assert "all operators" in out and "USHER" in out
    assert "check: faster than physically possible: none of 3" in err and "gkest: wrote " in err
    shutil.copy(tmp_path / "a.parquet", tmp_path / "b.parquet")
    names = [str(tmp_path / n) for n in ("a.parquet", "b.parquet")]
    assert run(["profile", "merge", *names, "-o", str(tmp_path / "c.csv")]) == 0
    out, err = capfd.readouterr()
    assert "3 identical duplicates dropped, 0 measured differently" in err
    assert len(read_table(tmp_path / "c.csv", KERNEL_DATASET)) == 5


def test_a_report_that_cannot_be_written_does_not_hide_the_dataset(raw, tmp_path, capfd):
    (tmp_path / "report").write_text("a file")
    command = [
        "profile",
        "build",
        str(raw),
        "-o",
        str(tmp_path / "a.parquet"),
        "--report",
        str(tmp_path / "report"),
    ]
    assert run(command) == 1
    out, err = capfd.readouterr()
    assert "3 operators" in out and "report: cannot be written" in err and "a.parquet" in err


def test_exit_statuses(raw, tmp_path, capfd):
    measured = small_measured()
    chunk = write_chunk(raw, 1, measured[:1], attempt=2)
    (chunk / "capture.sqlite").write_bytes(b"SQLite format 3\0 and no more")
    assert run(["profile", "build", str(raw), "-o", str(tmp_path / "a.parquet")]) == 1
    out, err = capfd.readouterr()
    assert "3 operators" in out and err.count("gkest: error: ") == 1
    assert run(["profile", "build", str(tmp_path / "nowhere"), "-o", str(tmp_path / "b.parquet")]) == 2
    _, err = capfd.readouterr()
    assert err.count("\n") == 1 and "no run.json" in err and not (tmp_path / "b.parquet").exists()
    assert run(["profile", "build", str(raw), "-o", str(tmp_path / "b.json")]) == 2
    assert run(["profile", "merge", str(tmp_path / "no.parquet"), "-o", str(tmp_path / "c.parquet")]) == 2
    assert run(["profile", "build", str(raw), "-o", str(tmp_path / "no" / "b.parquet")]) == 2
    _, err = capfd.readouterr()
    assert err.count("gkest: error: ") == 3 and "Traceback" not in err
