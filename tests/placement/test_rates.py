"""Rates that vary: written, measured, and planned for."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from _problems import problem, row

from gkestimator.core.errors import UsageError
from gkestimator.placement.gkest.policy import GkestPolicy
from gkestimator.placement.rates import expected_over, mean_factor, measured, moments_of

ROWS = [row("m", 1, 4.0), row("m", 8, 10.0), row("n", 1, 3.0), row("n", 8, 12.0)]


def test_pairs_are_read_and_parts_sum_to_one() -> None:
    assert moments_of("1:9,4:1") == ((1.0, 0.9), (4.0, 0.1))
    assert moments_of([(4, 1), (1, 9)]) == ((1.0, 0.9), (4.0, 0.1))
    assert moments_of(3) == ((3.0, 1.0),)
    assert moments_of("2") == ((2.0, 1.0),)


@pytest.mark.parametrize("rates", ["", "1:x", "0:1", "1:-1", True, "nan:1", [], object()])
def test_what_is_no_distribution_is_refused(rates: object) -> None:
    with pytest.raises(UsageError, match="rates"):
        moments_of(rates)


def test_a_trace_is_measured_by_windows(tmp_path: Path) -> None:
    # One request a second, and from second 90 to 99 ten a second.
    times = [float(i) for i in range(90)]
    times += [90 + i / 10 for i in range(100)]
    path = tmp_path / "trace.csv"
    path.write_text("time_s\n" + "\n".join(map(str, times)) + "\n")
    moments = measured(path)
    assert mean_factor(moments) == pytest.approx(1.0)
    assert math.fsum(part for _, part in moments) == pytest.approx(1.0)
    assert moments[0] == pytest.approx((100 / 190, 0.72)), "three levels of one request a second"
    assert moments[-1] == pytest.approx((1000 / 190, 0.09))
    dates = tmp_path / "azure.csv"
    lines = [f"2023-11-16 18:{int(t) // 60:02d}:{t % 60:09.6f}0,1,2" for t in times]
    dates.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    assert moments_of(str(dates)) == moments


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "time_s\n1\nx\n", "time_s\n1\n", "time_s\n" + "nan\n" * 9]
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match="rates"):
        measured(path)
    with pytest.raises(UsageError, match="nowhere"):
        measured(tmp_path / "nowhere.csv")


def test_years_without_a_request_are_no_list_of_seconds(tmp_path: Path) -> None:
    path = tmp_path / "far.csv"
    path.write_text("time_s\n" + "".join(f"{second}\n" for second in (*range(7), 99_999_999)))
    moments = measured(path)
    assert sum(factor * part for factor, part in moments) == pytest.approx(1.0)
    assert sum(part for _, part in moments) == pytest.approx(1.0)
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="other than a regular file"):
        measured(pipe)


@pytest.mark.parametrize("batching", ["early", "late"])
def test_more_is_expected_over_the_rates_than_by_a_plan_for_their_mean(batching: str) -> None:
    given = problem(ROWS, {"m": (300.0, 50.0), "n": (300.0, 50.0)}, 6, batching=batching)
    moments = moments_of("0.5:0.8,5:0.2")
    told = GkestPolicy(rates="0.5:0.8,5:0.2", spare=False).place(given)
    untold = GkestPolicy(spare=False).place(given)
    over = expected_over(given, told.placed, moments)
    assert over is not None
    assert over > (expected_over(given, untold.placed, moments) or 1) + 0.02
    assert "planned for 2 rates of 0.5 to 5 times" in told.notes[-1]


def test_one_factor_is_a_plan_for_so_many_times_the_rates() -> None:
    loads = {"m": (300.0, 50.0), "n": (300.0, 50.0)}
    thrice = problem(ROWS, {name: (3 * rate, slo) for name, (rate, slo) in loads.items()}, 6)
    ours = GkestPolicy(rates=3).place(problem(ROWS, loads, 6)).placed
    plain = GkestPolicy().place(thrice).placed
    assert [(p.gpu.id, p.model, p.candidate.batch_size) for p in ours] == [
        (p.gpu.id, p.model, p.candidate.batch_size) for p in plain
    ]


def test_burst_and_rates_are_not_both_taken() -> None:
    with pytest.raises(UsageError, match="one of them"):
        GkestPolicy(burst=2.0, rates=3)
