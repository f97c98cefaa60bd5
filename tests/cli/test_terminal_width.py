"""Tables fit the terminal that they are written to; to a file or a pipe they are always the same."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gkestimator.tables.kernel_rows import KernelRow
from gkestimator.tables.layout import TERMINAL_COLUMNS, TextColumn, text_table, width
from gkestimator.tables.requirement import Requirement
from gkestimator.tables.text import kernels_text, requirements_text

SCAN = Path(__file__).parents[1] / "data/exporters/scan.onnx"
LONG = "a_model_with_a_very_long_name_from_some_exporter"


def row(model: str, warnings: str = "") -> Requirement:
    return Requirement(
        model=model, gpu="A100-SXM4-80GB", runtime="torch", dtype="fp32", batch_size=8, latency_ms=12.34,
        latency_low_ms=11.1, latency_high_ms=13.5, gpu_ms=12.0, host_ms=3.0, host_bound=False, power_w=210.0,
        mreq_bytes=2**31, sm_util_mean_pct=55.0, coverage_pct=90.0, source="analytical", occupancy_source=None,
        memory_source=None, warnings=warnings,
    )  # fmt: skip


ROWS = [row(LONG), row("b", "a warning of some length that is said below the table and wraps there")]


def shown(columns: int | None) -> str:
    token = TERMINAL_COLUMNS.set(columns)
    try:
        return requirements_text(ROWS)
    finally:
        TERMINAL_COLUMNS.reset(token)


@pytest.mark.parametrize("columns", [72, 80, 100, 120, 150, 400])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    lines = shown(columns).splitlines()
    assert max(map(width, lines)) <= columns
    assert all("12.3 (11.1–13.5)" in line and "2.00 GiB" in line for line in lines if " 8 " in line)


def test_names_are_cut_last() -> None:
    wide, middle, narrow = shown(150), shown(110), shown(80)
    assert LONG in wide and "too narrow" not in wide and "known %" in wide
    assert LONG in middle and "too narrow for" in middle and "SM %" in middle.split("\n\n")[1]
    assert LONG not in narrow and "…" in narrow
    for heading in ("model", "GPU", "batch", "latency ms", "memory"):
        assert heading in narrow.split("\n\n")[1].splitlines()[0]


def test_a_file_is_as_it_was() -> None:
    piped = shown(None)
    assert "known %" in piped and "too narrow" not in piped and LONG not in piped
    assert any(width(line) == 110 for line in piped.splitlines())


def test_figures_are_never_cut() -> None:
    figures = TextColumn(heading="ms", cells=["123456789.25"])
    names = TextColumn(heading="name", cells=["x" * 40], right=False, shrink=7)
    token = TERMINAL_COLUMNS.set(12)
    try:
        (_, _, line) = text_table([names, figures])
    finally:
        TERMINAL_COLUMNS.reset(token)
    assert line == "xxx…xxx  123456789.25"


def test_kernels_keep_names_and_times() -> None:
    kernel = KernelRow(
        model="m", gpu="T4", runtime="torch", dtype="fp32", batch_size=1, dims="", sm_share_pct=100.0, index=0,
        operator="encoder/layer.0/attention", op_type="MatMul", kernel="linear", family="gemm", launches=1,
        duration_us=12.5, share_pct=50.0, bound_by="memory", flops=1000, dram_bytes=2000, sm_util_pct=3.0,
        source="analytical", duration_low_us=10.0, duration_high_us=15.0, start_us=0.0, stream=0,
    )  # fmt: skip
    token = TERMINAL_COLUMNS.set(60)
    try:
        text = kernels_text([kernel])
    finally:
        TERMINAL_COLUMNS.reset(token)
    assert "encoder/layer.0/attention" in text and "12.5" in text
    assert max(map(width, text.splitlines()[2:])) <= 60


def on_terminal(columns: int, *arguments: str) -> str:
    """Return what the command writes to a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [sys.executable, "-c", "from gkestimator.cli import main; main()", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env=environment,
    ):
        os.close(slave)
        written = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the program's end of the terminal is closed
                break
            if not part:
                break
            written += part
    os.close(master)
    return written.decode().replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("estimate", str(SCAN), "--gpu", "T4,A100", "--kernels"),
        ("choose", str(SCAN), "--slo-ms", "9", "--rate", "5"),
    ],
)
def test_commands_fit_a_real_terminal(arguments: tuple[str, ...]) -> None:
    narrow, wide = on_terminal(76, *arguments), on_terminal(200, *arguments)
    assert max(map(width, narrow.splitlines())) <= 76
    assert "too narrow for" in narrow and "too narrow for" not in wide


@pytest.mark.slow
def test_a_file_that_is_asked_for_on_a_terminal_is_as_for_a_pipe(tmp_path: Path) -> None:
    piped = subprocess.run(
        [
            sys.executable,
            "-c",
            "from gkestimator.cli import main; main()",
            "estimate",
            str(SCAN),
            "--gpu",
            "T4",
        ],
        capture_output=True,
        check=True,
    )
    path = tmp_path / "table.txt"
    assert on_terminal(40, "estimate", str(SCAN), "--gpu", "T4", "-o", str(path)) == ""
    assert path.read_bytes() == piped.stdout
