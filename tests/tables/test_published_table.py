"""Table A.1 of the thesis as it is shipped: a measured requirement table, and every figure as published."""

from __future__ import annotations

import csv
import os
from importlib.resources import files
from pathlib import Path

import pytest

from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.tables import REQUIREMENTS, Requirement, read_table

FOLDER = Path(str(files("gkestimator.datasets"))) / "published"
DAMAGED = {("inception_v3", 128), ("mobilenet_v2", 4), ("resnext50_32x4d", 8)}
SHARED = os.environ.get("GKEST_SHARED")
SOURCE = Path(SHARED or "", "data", "ethz", "v100_profile.csv")


@pytest.fixture(scope="module")
def rows() -> tuple[Requirement, ...]:
    return read_table(FOLDER / "ethz_v100.csv", REQUIREMENTS)


def test_it_is_a_measured_table_of_one_gpu(rows: tuple[Requirement, ...]) -> None:
    assert len(rows) == 71
    assert len({r.model for r in rows}) == 13
    assert {(r.gpu, r.runtime, r.dtype, r.source, r.sm_share_pct) for r in rows} == {
        ("V100-SXM2-16GB", "torch", "fp32", "measured", 100.0)
    }
    assert {r.batch_size for r in rows} == {4, 8, 16, 32, 64, 128}


def test_latency_and_throughput_are_one_measurement(rows: tuple[Requirement, ...]) -> None:
    for r in rows:
        assert r.latency_ms is not None and r.throughput_rps is not None and r.batch_size is not None
        # The latency is printed to 0.1 ms.
        assert 1e3 * r.batch_size / r.throughput_rps == pytest.approx(r.latency_ms, abs=0.051, rel=2e-3)


def test_what_the_print_lost_is_null_and_said(rows: tuple[Requirement, ...]) -> None:
    visible = gpu_catalogue().spec("V100-SXM2-16GB").memory_visible_bytes
    for r in rows:
        known = (r.occupancy_max_pct, r.occupancy_mean_pct, r.sm_util_mean_pct, r.reserved_bytes)
        if None in known:
            assert (r.model, r.batch_size) in DAMAGED
        if (r.model, r.batch_size) in DAMAGED:
            assert "damaged in print" in (r.warnings or "")
        assert r.reserved_bytes is None or 0 < r.reserved_bytes < visible
        assert r.mreq_bytes is None  # without the CUDA context
        if r.occupancy_mean_pct is not None and r.occupancy_max_pct is not None:
            assert r.occupancy_mean_pct < r.occupancy_max_pct


def test_the_page_beside_it_names_every_column_and_damaged_row(rows: tuple[Requirement, ...]) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for column in (
        "latency_ms",
        "throughput_rps",
        "occupancy_max_pct",
        "occupancy_mean_pct",
        "sm_util_mean_pct",
        "reserved_bytes",
    ):
        assert f"`{column}`" in page
    for model, batch in DAMAGED:
        assert f"| {model}, batch {batch} |" in page
    agree = sum((r.warnings or "").endswith("copies that agree") for r in rows)
    assert agree == 9 and "Nine rows" in page


@pytest.mark.shared
@pytest.mark.skipif(not SHARED or not SOURCE.exists(), reason="set GKEST_SHARED to the public measurements")
def test_every_figure_is_the_published_one(rows: tuple[Requirement, ...]) -> None:
    with SOURCE.open(newline="", encoding="utf-8") as f:
        published = {(r["model"], int(r["batch"])): r for r in csv.DictReader(f)}
    assert set(published) == {(r.model, r.batch_size) for r in rows}

    def number(text: str) -> float | None:
        return float(text) if text else None

    for r in rows:
        mine = published[r.model, r.batch_size or 0]
        assert r.throughput_rps == number(mine["throughput_rps"])
        assert r.occupancy_max_pct == number(mine["achieved_occupancy_pct"])
        assert r.occupancy_mean_pct == number(mine["wavg_achieved_occupancy_pct"])
        assert r.sm_util_mean_pct == number(mine["wavg_sm_util_pct"])
        assert r.latency_ms == pytest.approx(1e3 * float(mine["latency_s"]))
        percent = number(mine["mem_cap_pct"])
        if percent is None:
            assert r.reserved_bytes is None
        else:
            assert r.reserved_bytes == pytest.approx(percent / 100 * 16_144 * 2**20, abs=1)
        assert (mine["status"] == "LOW") == ((r.model, r.batch_size) in DAMAGED)
