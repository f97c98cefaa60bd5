"""The tables for people: width, units, nulls, names from strangers; and the page generated from the
columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gkestimator.tables import KERNEL_ROWS, KernelRow, Requirement, render
from gkestimator.tables.__main__ import page
from gkestimator.tables.units import bytes_text, flops_text, number_text, percent_text

ROW = Requirement(
    model="resnet50", gpu="V100-SXM2-16GB", runtime="torch", dtype="fp32", batch_size=64, latency_ms=123.456,
    latency_low_ms=100.4, latency_high_ms=150.2, throughput_rps=8101.2, mreq_bytes=int(12.3 * 2**30), mreq_pct=99.97,
    sm_util_mean_pct=99.4, occupancy_mean_pct=55.0, dram_util_mean_pct=100.0, host_bound=True, host_overhead_us=37.0,
    source="trained:default", occupancy_source="analytical", memory_source="analytical",
)  # fmt: skip
KERNEL = KernelRow(
    model="resnet50", gpu="V100-SXM2-16GB", runtime="torch", dtype="fp32", batch_size=64, index=174,
    operator="/layer4/layer4.2/conv3/Conv_with_a_long_name", op_type="Conv", kernel="conv", family="conv", launches=1,
    duration_us=1234.5, share_pct=1.2, bound_by="compute", flops=10**9, dram_bytes=10**8, source="analytical",
)  # fmt: skip


def test_tables_fit_110_columns_and_name_their_units() -> None:
    full = replace(ROW, gpu_ms=12.345, host_ms=123.4, power_w=654.3, warnings="one")
    text = render([full, replace(ROW, dtype="tf32", model="a_very_long_model_name_" * 5, gpu="RTX-PRO-6000-WORKSTATION", latency_ms=None, latency_low_ms=None, latency_high_ms=None,
                                mreq_bytes=None, mreq_pct=None, host_bound=None)], "table", kernels=[KERNEL]).decode()  # fmt: skip
    assert max(map(len, text.splitlines())) <= 110, text
    assert "latency ms" in text
    assert "12.3 GiB" in text
    assert "–" in text, "an unknown value must show as a dash"
    assert "\x1b" not in text


def test_gpu_and_host_time_stand_side_by_side_and_the_binding_one_is_named() -> None:
    rows = [
        replace(ROW, gpu_ms=2.5, host_ms=6.25),
        replace(ROW, batch_size=128, gpu_ms=9.5, host_bound=False),
    ]
    lines = render(rows, "table").decode().splitlines()
    heading = next(line for line in lines if line.startswith("model"))
    first, second = (line.split() for line in lines if line.startswith("resnet50"))
    assert "GPU ms  host ms  binds" in heading and " W " not in heading
    assert first[first.index("host") - 2 : first.index("host")] == ["2.50", "6.25"]
    assert second[second.index("GPU") - 2 : second.index("GPU")] == ["9.50", "–"]


def test_columns_that_no_row_knows_are_left_out() -> None:
    """Tables written before GPU and host time stood apart are shown without those columns."""
    heading = next(line for line in render([ROW], "table").decode().splitlines() if line.startswith("model"))
    assert "GPU ms" not in heading and "host ms" not in heading and "binds" in heading
    known = render([ROW, replace(ROW, batch_size=1, power_w=512.0)], "table").decode()
    assert " W " in next(line for line in known.splitlines() if line.startswith("model")) and "512" in known


def test_what_differs_gets_a_column_and_warnings_footnotes() -> None:
    rows = [replace(ROW, warnings="outside; batch 1 assumed"), replace(ROW, dtype="fp16", warnings="outside")]
    lines = render(rows, "table").decode().splitlines()
    assert any("dtype" in line and "model" in line for line in lines)
    assert lines[-2:] == ["all rows: outside", "1: batch 1 assumed"]
    assert [line.split()[-1] for line in lines if line.startswith("resnet50")] == ["1", "–"], (
        "only what differs is marked"
    )


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_names_from_files_cannot_steer_the_terminal(form: str) -> None:
    text = render([replace(ROW, model="evil\x1b[2J\n|x")], form).decode()
    assert "\x1b" not in text
    if form == "markdown":
        assert r"evil\\u001b[2J\\n\|x" in text
    else:
        assert r"evil\u001b[2J\n|x" in text


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (number_text(0.012345), "0.0123"), (number_text(9.996), "10.0"), (number_text(1234567.0), "1,230,000"),
        (number_text(None), "–"), (number_text(0), "0"), (number_text(1e-7), "1.00e-07"), (number_text(99.97), "100"),
        (percent_text(9.96), "10"), (percent_text(0.04), "0.0"), (bytes_text(1023), "1023 B"),
        (bytes_text(1536), "1.50 KiB"), (bytes_text(12), "12 B"), (flops_text(8_178_000_000), "8.18 GFLOP"),
    ],
)  # fmt: skip
def test_numbers(found: str, expected: str) -> None:
    assert found == expected


def test_kernel_rows_columns() -> None:
    csv = render([ROW], "csv", kernels=[KERNEL]).decode().splitlines()
    assert csv[0].split(",") == list(KERNEL_ROWS.names)
    assert len(csv) == 2


def test_the_page_of_the_tables_is_current() -> None:
    found = (Path(__file__).parents[2] / "docs" / "reference/tables.md").read_text(encoding="utf-8")
    assert found == page(), "run: python -m gkestimator.tables > docs/reference/tables.md"
