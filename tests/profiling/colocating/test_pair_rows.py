"""Journal to table: times as they were, demands as the share has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gkestimator.profiling.colocating.journal import Header, PairRecord, SideRecord
from gkestimator.profiling.colocating.rows import read_demands, rows_of, slowdowns, worst_words
from gkestimator.tables import COLOCATION, REQUIREMENTS, Requirement, read_table, write_table

HEADER = Header(
    executor="torch", device="NVIDIA H200", gpu="H200", driver="570", sharing="mps", sharing_note=None,
    versions={}, seed=0, seconds=1.5, started="now",
)  # fmt: skip
A = SideRecord(
    entry_id="a8", model="a", dtype="fp16", batch_size=8, dims="", sm_share_pct=100.0, sms=132, latency_alone_ms=2.0,
    alone_calls=100, latency_together_ms=3.0, together_calls=90, together_p90_ms=3.5,
)  # fmt: skip
B = replace(A, entry_id="b8", model="b", dims="seq=128", latency_alone_ms=4.0, latency_together_ms=4.4)
ROW = Requirement(
    model="a", gpu="H200", runtime="torch", dtype="fp16", batch_size=8, latency_ms=1.8, sm_util_mean_pct=80.0,
    dram_util_mean_pct=40.0, source="measured", occupancy_source="measured", memory_source=None,
)  # fmt: skip


def pair(a: SideRecord, b: SideRecord) -> PairRecord:
    return PairRecord(key=(a.entry_id, b.entry_id, a.sm_share_pct, b.sm_share_pct), sides=(a, b))


def test_two_rows_of_one_group(tmp_path: Path) -> None:
    rows, problems = rows_of([pair(A, B), pair(A, A)], HEADER, None)
    assert not problems
    assert [r.group for r in rows] == ["a8@100+b8@100"] * 2 + ["a8@100+a8@100"] * 2
    first, second = rows[:2]
    assert (first.model, first.gpu, first.runtime, first.dtype, first.batch_size, first.dims, first.sharing) == (
        "a", "H200", "torch", "fp16", 8, "", "mps"
    )  # fmt: skip
    assert (first.latency_alone_ms, first.latency_together_ms, second.dims) == (2.0, 3.0, "seq=128")
    assert first.sm_util_mean_pct is None and first.dram_util_mean_pct is None
    write_table(COLOCATION, rows, tmp_path / "p.csv")
    # In CSV an empty text is nothing: then the one row that fits is taken.
    assert list(read_table(tmp_path / "p.csv", COLOCATION)) == [replace(r, dims=r.dims or None) for r in rows]


def demands(tmp_path: Path, *rows: Requirement) -> Path:
    write_table(REQUIREMENTS, list(rows), tmp_path / "t.csv")
    return tmp_path / "t.csv"


def test_demands_are_copied_where_nothing_confines(tmp_path: Path) -> None:
    table = demands(
        tmp_path, ROW, replace(ROW, dtype="fp32", sm_util_mean_pct=1.0), replace(ROW, sm_share_pct=50.0)
    )
    rows, problems = rows_of([pair(A, B)], HEADER, read_demands([table]))
    assert (rows[0].sm_util_mean_pct, rows[0].dram_util_mean_pct, rows[0].l2_util_mean_pct) == (
        80.0,
        40.0,
        None,
    )
    assert rows[1].sm_util_mean_pct is None
    assert problems == (
        f"{table}: no row for b on H200 (torch, fp16) at batch 8: what it asks for alone stays null",
    )


def test_the_same_work_in_a_longer_time(tmp_path: Path) -> None:
    # Alone 2 ms on the whole GPU, 2.5 ms on a half of it: 80 % of the SMs become 64, no more than the 50 it may use; 40 %
    # of the bandwidth become 32.
    half = replace(A, sm_share_pct=50.0, latency_alone_ms=2.5)
    found = read_demands([demands(tmp_path, ROW)])
    rows, _ = rows_of([pair(A, A), pair(half, half)], HEADER, found)
    assert (rows[2].sm_util_mean_pct, rows[2].dram_util_mean_pct) == (50.0, pytest.approx(32.0))
    # A tenth of the GPU in use: what it may use does not bind.
    light = replace(ROW, sm_util_mean_pct=10.0)
    rows, _ = rows_of([pair(A, A), pair(half, half)], HEADER, read_demands([demands(tmp_path, light)]))
    assert rows[2].sm_util_mean_pct == pytest.approx(8.0)
    # Never measured on the whole GPU: the row's own latency, 1.8 ms, stands in; without one nothing is known.
    rows, _ = rows_of([pair(half, half)], HEADER, found)
    assert rows[0].dram_util_mean_pct == pytest.approx(40.0 * 1.8 / 2.5)
    rows, _ = rows_of(
        [pair(half, half)], HEADER, read_demands([demands(tmp_path, replace(ROW, latency_ms=None))])
    )
    assert rows[0].dram_util_mean_pct is None and rows[0].sm_util_mean_pct is None


def test_slowdowns_and_the_worst() -> None:
    found = [pair(A, replace(B, sm_share_pct=80.0))]
    assert slowdowns(found) == (1.5, pytest.approx(1.1))
    assert worst_words(found) == "a (fp16, batch 8) by 1.50 beside b (fp16, batch 8, 80 % of the SMs)"
    assert worst_words([]) is None


def test_what_one_table_does_not_know_is_the_nexts(tmp_path: Path) -> None:
    """Measured without counters, then estimated: SM utilisation is measured, bandwidth estimated."""
    measured, estimated = tmp_path / "m.csv", tmp_path / "e.csv"
    write_table(REQUIREMENTS, [replace(ROW, dram_util_mean_pct=None)], measured)
    write_table(
        REQUIREMENTS,
        [replace(ROW, sm_util_mean_pct=1.0, dram_util_mean_pct=33.0, l2_util_mean_pct=22.0)],
        estimated,
    )
    rows, problems = rows_of([pair(A, A)], HEADER, read_demands([measured, estimated]))
    assert not problems
    assert (rows[0].sm_util_mean_pct, rows[0].dram_util_mean_pct, rows[0].l2_util_mean_pct) == (
        80.0,
        33.0,
        22.0,
    )
