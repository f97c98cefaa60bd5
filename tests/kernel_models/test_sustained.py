"""What a GPU sustains follows from its specification: power balance, kinds of memory, published measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gkestimator.core.errors import SpecError
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue, load_gpu_file
from gkestimator.kernel_models.sustained import (
    issue_fraction,
    l2_bytes_per_s,
    library_generation,
    sustained_bytes_per_s,
    sustained_clock_mhz,
    sustained_flops_per_s,
)

NAMES = gpu_catalogue().complete_names()


def spec(name: str) -> GpuSpec:
    return gpu_catalogue().spec(name)


@pytest.mark.parametrize("name", NAMES)
def test_sustained_lies_below_nominal(name: str) -> None:
    gpu = spec(name)
    assert 0.4 * gpu.boost_clock_mhz < sustained_clock_mhz(gpu) <= gpu.boost_clock_mhz
    assert 0.6 * gpu.dram_bytes_per_s < sustained_bytes_per_s(gpu) < gpu.dram_bytes_per_s
    assert sustained_flops_per_s(gpu, "fp32") <= gpu.peak("fp32")
    assert l2_bytes_per_s(gpu) > sustained_bytes_per_s(gpu)


def test_a_board_at_its_limit_balances_power() -> None:
    """T4: 70 W less 12 % less 10 W = 51.6 W for 2,560 lanes; the V100-PCIE (250 W, 5,120 lanes, 1,380 MHz of 1,600)
    sets the energy. Worked out here from the formula, not from the code."""

    def relative(clock: float) -> float:
        return clock * (0.65 + 0.35 * clock / 1600) ** 2

    energy = (250 * 0.88 - 10) / (5120 * relative(1380))
    clock = sustained_clock_mhz(spec("T4"))
    assert 2560 * energy * relative(clock) == pytest.approx(70 * 0.88 - 10, rel=1e-6)
    assert clock == pytest.approx(870, abs=1)


@pytest.mark.parametrize(
    "name", ["V100-PCIE-32GB", "A100-PCIE-40GB", "RTX-3090", "RTX-4090", "H100-SXM", "P100-PCIE-16GB"]
)
def test_boards_with_power_to_spare_hold_their_boost_clock(name: str) -> None:
    assert sustained_clock_mhz(spec(name)) == pytest.approx(spec(name).boost_clock_mhz, rel=1e-3)


@pytest.mark.parametrize("name", ["T4", "P4", "L4", "A40"])
def test_boards_short_of_power_do_not(name: str) -> None:
    assert sustained_clock_mhz(spec(name)) < 0.9 * spec(name).boost_clock_mhz


@pytest.mark.parametrize("name", NAMES)
def test_more_watts_never_slow_and_more_power_per_clock_never_speeds(name: str) -> None:
    gpu = spec(name)
    clocks = [
        sustained_clock_mhz(replace(gpu, power_limit_w=gpu.power_limit_w * f)) for f in (0.2, 0.5, 1, 2)
    ]
    assert clocks == sorted(clocks)
    assert clocks[0] < clocks[-1]
    work = [sustained_clock_mhz(gpu, activity=a) for a in (0.5, 1.0, 2.0, 8.0)]
    assert work == sorted(work, reverse=True)
    assert work[-1] < work[0]


def test_copies_of_a_specification_do_not_share_a_clock() -> None:
    gpu = spec("L4")
    assert sustained_clock_mhz(replace(gpu, power_limit_w=300.0)) == gpu.boost_clock_mhz
    assert sustained_clock_mhz(gpu) < 0.65 * gpu.boost_clock_mhz


def test_kinds_of_memory() -> None:
    share = {n: sustained_bytes_per_s(spec(n)) / spec(n).dram_bytes_per_s for n in NAMES}
    assert share["V100-PCIE-32GB"] == share["A100-SXM4-80GB"] == share["H100-SXM"] == pytest.approx(0.9)
    assert share["T4"] == share["P4"] == pytest.approx(0.75)  # ECC in the memory itself, to Turing
    assert share["L4"] == share["A40"] == pytest.approx(0.82)  # the same, from Ampere on
    assert share["RTX-3090"] == share["RTX-4090"] == pytest.approx(0.94)
    assert sustained_bytes_per_s(spec("P100-PCIE-16GB")) == 510e9  # published, in its file


def test_a_published_figure_beats_the_formula_but_not_the_nominal_rate() -> None:
    gpu = spec("V100-PCIE-32GB")
    assert sustained_bytes_per_s(replace(gpu, dram_sustained_bytes_per_s=750e9)) == 750e9
    part = replace(gpu, dram_sustained_bytes_per_s=750e9, dram_bytes_per_s=100e9)  # a share of the SMs
    assert sustained_bytes_per_s(part) == 100e9


def test_a_published_figure_beyond_the_nominal_rate_is_refused(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "data" / "flat_gpus" / "P100-PCIE-16GB.toml").read_text(
        encoding="utf-8"
    )
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text.replace("value = 510", "value = 800"), encoding="utf-8")
    with pytest.raises(SpecError, match="dram_sustained_bytes_per_s"):
        load_gpu_file(wrong)


def test_issue_slots_and_library_generations() -> None:
    assert [issue_fraction(spec(n)) for n in ("P4", "V100-PCIE-32GB", "A100-PCIE-40GB")] == [1, 1, 1]
    assert issue_fraction(spec("RTX-4090")) == issue_fraction(spec("H100-SXM")) == 0.8
    assert [library_generation(spec(n)) for n in ("P4", "T4", "A100-PCIE-40GB", "H100-SXM")] == [1, 2, 3, 3]


def test_rates_of_power_limited_boards_fall_in_order() -> None:
    rates = [sustained_flops_per_s(spec(n), "fp32") for n in ("T4", "L4", "A10G", "RTX-4090")]
    assert rates == sorted(rates)
