"""Checks of measured rows: what cannot be, what is odd, and what is neither."""

import math
from dataclasses import replace

import numpy as np
import pytest
from _synthetic_raw import Made, Measured, conv, entry_of, fixed, matmul, relu, sweep, write_chunk, write_run

from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.profiling.building import build_dataset
from gkestimator.profiling.building.checks import NEAR, NEIGHBOURS, _neighbourhood
from gkestimator.profiling.building.describing import describe
from gkestimator.profiling.plan import SweepPlan

H100 = gpu_catalogue().spec("H100-SXM")


def _built(tmp_path, measured):
    raw = tmp_path / "run"
    write_run(raw, SweepPlan(runtime="torch", entries=tuple(m.entry for m in measured)))
    write_chunk(raw, 0, measured)
    return build_dataset([raw], tmp_path / "kernels.parquet")


def _check(result, start):
    (found,) = [c for c in result.checks if c.name.startswith(start)]
    return found


def _timed(fragment, us):
    return Measured(entry=entry_of(fragment), kernels=fixed(("kernel", (us, us))), repeats=2)


def test_faster_than_the_memory_can_be(tmp_path):
    # 2 x 400 MB at 3.35 TB/s are 239 us; the 50 MB of L2 can save 16 of them.
    result = _built(tmp_path, [_timed(relu(1000, 100_000), 150.0), _timed(relu(1000, 100_001), 245.0)])
    check = _check(result, "faster than")
    assert (check.count, check.of) == (1, 2) and result.exit_status == 0
    assert "150 us, at least" in check.line()
    # The row stays, marked so that training leaves it out.
    assert [(r.duration_us, r.quality) for r in result.rows] == [(150.0, "noisy"), (245.0, "ok")]


def test_what_fits_into_l2_may_be_faster_than_dram(tmp_path):
    # 2 x 16 MB: 9.6 us from DRAM, but repeats find them in the 50 MB of L2.
    result = _built(tmp_path, [_timed(relu(1000, 4000), 5.0)])
    assert _check(result, "faster than").count == 0
    described = describe(entry_of(relu(1000, 4000)), "torch", H100)
    assert described.roofline_us == pytest.approx(2 * 16e6 / H100.dram_bytes_per_s * 1e6)
    assert described.floor_us < 1


def test_winograd_may_do_a_quarter_of_the_products(tmp_path):
    fragment = conv(32, 256, 56, 3, 256)
    described = describe(entry_of(fragment), "torch", H100)
    flops = 2 * 32 * 56 * 56 * 256 * 256 * 9
    assert described.floor_us == pytest.approx(flops / 4 / H100.peak("fp32") * 1e6)
    product = describe(entry_of(matmul(4096, 4096, 4096)), "torch", H100)
    assert product.floor_us == pytest.approx(2 * 4096**3 / H100.peak("fp32") * 1e6)
    below, above = described.floor_us * 0.9, described.floor_us * 1.1
    assert _check(_built(tmp_path / "a", [_timed(fragment, below)]), "faster than").count == 1
    assert _check(_built(tmp_path / "b", [_timed(fragment, above)]), "faster than").count == 0


def test_zero_durations_are_marked(tmp_path):
    name = "void vectorized_elementwise_kernel<4>(int)"
    one = Measured(entry=entry_of(relu(8, 8)), kernels=fixed((name, (0, 0)), (name, (3, 3))), repeats=2)
    result = _built(tmp_path, [one])
    assert _check(result, "launches of zero").count == 1
    assert {r.quality for r in result.rows} == {"noisy"}


@pytest.mark.slow
def test_an_outlier_is_found_and_kept_and_a_law_has_none(tmp_path):
    measured = sweep(300, repeats=3, seed=5)
    assert _check(_built(tmp_path / "lawful", measured), "outliers").count == 0
    # One matrix product of four times the time that its neighbours lead to expect.
    at = next(i for i, m in enumerate(measured) if m.entry.fragment.op_type == "MatMul")
    (kernel,) = measured[at].kernels
    slow = Made(
        name=kernel.name,
        grid=kernel.grid,
        block=kernel.block,
        durations_ns=tuple(4 * d for d in kernel.durations_ns),
    )
    measured[at] = replace(measured[at], kernels=(slow,))
    result = _built(tmp_path / "odd", measured)
    check = _check(result, "outliers")
    assert check.entries == (measured[at].entry.id,) and result.exit_status == 0
    kept = [r for r in result.rows if r.entry_id == measured[at].entry.id]
    assert [r.quality for r in kept] == ["ok"]


def test_neighbours_are_the_nearest():
    rng = np.random.default_rng(3)
    places, residuals = rng.normal(size=(700, 3)), rng.normal(size=700)
    places[:100] += 50 * np.arange(100)[:, None]  # far from everyone
    typical, spread = _neighbourhood(places, residuals)
    judged = 0
    for i in range(0, 700, 13):
        far = ((places - places[i]) ** 2).sum(axis=1)
        far[i] = np.inf
        nearest = np.argsort(far)[:NEIGHBOURS]
        near = residuals[nearest[far[nearest] <= NEAR**2]]
        if len(near) < 8:
            assert np.isnan(typical[i]) and np.isnan(spread[i])
            continue
        judged += 1
        assert typical[i] == pytest.approx(np.median(near))
        assert spread[i] == pytest.approx(1.4826 * np.median(np.abs(near - np.median(near))))
    assert 20 < judged < 50


def test_checks_say_their_counts(tmp_path):
    result = _built(tmp_path, [_timed(relu(1000, 1000), 20.0)])
    lines = [c.line() for c in result.checks]
    assert "faster than physically possible: none of 1" in lines
    assert all("\n" not in line for line in lines) and len(lines) == 8
    assert not any(math.isnan(r.duration_us) for r in result.rows)
