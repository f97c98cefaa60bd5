"""Drawn arrivals: the rates and spreads of their theory, seeds, chunks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from gkestimator.core.errors import UsageError
from gkestimator.simulation.arrivals import streams
from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.processes import ArrivalProcess
from gkestimator.simulation.arrivals.rates import Bursts, Profile
from gkestimator.simulation.arrivals.streams import TimesInMemory


def all_times(arrivals: Arrivals, until_ms: float) -> list[NDArray[np.float64]]:
    """Every source's times; the chunks are checked on the way."""
    return joined(list(arrivals.chunks(until_ms)), until_ms)


def joined(chunks: list[Chunk], until_ms: float) -> list[NDArray[np.float64]]:
    before = 0.0
    for chunk in chunks:
        assert chunk.end_ms > before
        for times in chunk.times_ms:
            assert times.dtype == np.float64
            assert len(times) == 0 or (times[0] >= before and times[-1] < chunk.end_ms)
            assert (np.diff(times) >= 0).all()
        before = chunk.end_ms
    assert before == until_ms
    return [np.concatenate(parts) for parts in zip(*(c.times_ms for c in chunks), strict=True)]


def test_poisson_has_its_rate_and_exponential_gaps() -> None:
    (times,) = all_times(make_arrivals("poisson", [2000.0], ["m"]), 200e3)
    assert len(times) == pytest.approx(400_000, abs=4 * math.sqrt(400_000))
    gaps = np.diff(times)
    for at in (0.1, 0.5, 1.0, 2.0):
        share = math.exp(-2 * at)
        assert np.mean(gaps > at) == pytest.approx(share, abs=4 * math.sqrt(share / len(gaps)))
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / math.sqrt(len(gaps))


def test_constant_is_even() -> None:
    first, second = all_times(make_arrivals("constant", [100.0, 100.0], ["a", "b"]), 1000.0)
    assert len(first) == len(second) == 100
    np.testing.assert_allclose(np.diff(first), 10.0)
    assert 0 <= first[0] < 10
    assert first[0] != second[0]


def test_mmpp_has_the_mean_that_was_asked_for_and_the_spread_of_theory() -> None:
    """Counts of one second: the rate's covariance is p q (burst - calm)^2 exp(-s u), s the sum of the rates of leaving;
    twice its integral over the second's pairs is added to the Poisson variance."""
    bursts = Bursts.of(factor=3.0, share=0.2, burst_s=2.0)
    assert bursts.sojourns_s == pytest.approx(Bursts().sojourns_s)
    assert bursts.factors == pytest.approx(Bursts().factors)
    rate, seconds = 50.0, 40_000
    (times,) = all_times(make_arrivals("mmpp", [rate], ["m"], bursts=bursts), seconds * 1e3)
    counts = np.bincount((times / 1e3).astype(int), minlength=seconds)
    calm, burst = (f * rate for f in bursts.relative)
    s1, s2 = 1 / 8, 1 / 2  # rates of leaving calm and burst
    s = s1 + s2
    variance = rate + 2 * s1 * s2 * (burst - calm) ** 2 / s**3 * (1 - (1 - math.exp(-s)) / s)
    assert counts.mean() == pytest.approx(rate, rel=0.03)
    assert counts.var() == pytest.approx(variance, rel=0.06)


def test_three_states_share_the_time_by_their_sojourns() -> None:
    bursts = Bursts(factors=(0.0, 1.0, 4.0), sojourns_s=(1.0, 2.0, 1.0))
    assert bursts.relative == pytest.approx((0, 2 / 3, 8 / 3))
    (times,) = all_times(make_arrivals("mmpp", [100.0], ["m"], bursts=bursts), 4_000e3)
    assert len(times) == pytest.approx(400_000, rel=0.04)
    counts = np.bincount((times / 100).astype(int), minlength=40_000)
    assert np.mean(counts == 0) == pytest.approx(0.25, abs=0.03)


def test_a_ramp_follows_its_line() -> None:
    ramp = Profile(times_s=(0.0, 100.0, 150.0, 200.0), rates_rps=(0.0, 2000.0, 2000.0, 0.0), ramp=True)
    (times,) = all_times(make_arrivals("poisson", [1.0], ["m"], profiles={"m": ramp}), 300e3)
    for until, expected in (
        (50.0, 25_000),
        (100.0, 100_000),
        (150.0, 200_000),
        (175.0, 237_500),
        (300.0, 250_000),
    ):
        assert np.sum(times < until * 1e3) == pytest.approx(expected, abs=4 * math.sqrt(expected))


def test_an_even_stream_on_a_ramp_comes_when_the_integral_says() -> None:
    ramp = Profile(times_s=(1.0, 11.0, 12.0), rates_rps=(0.0, 20.0, 5.0), ramp=True)
    (times,) = all_times(make_arrivals("constant", [1.0], ["m"], profiles={"m": ramp}), 20e3)
    t = times / 1e3 - 1
    up, down, after = (t <= 10), (t > 10) & (t <= 11), t > 11
    integral = np.empty(len(t))
    integral[up] = t[up] ** 2
    integral[down] = 100 + 20 * (t[down] - 10) - 7.5 * (t[down] - 10) ** 2
    integral[after] = 112.5 + 5 * (t[after] - 11)
    np.testing.assert_allclose(np.diff(integral), 1.0, atol=1e-9)
    assert integral[-1] == pytest.approx(112.5 + 40, abs=1)


def test_steps_hold_until_the_next_and_the_last_for_ever() -> None:
    steps = Profile(times_s=(1.0, 2.0, 3.0), rates_rps=(100.0, 0.0, 10.0))
    (times,) = all_times(make_arrivals("constant", [1.0], ["m"], profiles={"m": steps}), 100e3)
    counts = np.bincount((times / 1e3).astype(int), minlength=100)
    assert counts[0] == 0
    assert counts[1] == 100
    assert counts[2] == 0
    assert (counts[3:] == 10).all()


def test_one_seed_one_stream_and_sources_do_not_disturb_each_other() -> None:
    def made(seed: int, rates: list[float]) -> list[NDArray[np.float64]]:
        names = [f"m{i}" for i in range(len(rates))]
        return all_times(make_arrivals("mmpp", rates, names, seed=seed), 60e3)

    alone, pair = made(1, [300.0]), made(1, [300.0, 500.0])
    np.testing.assert_array_equal(alone[0], pair[0])
    np.testing.assert_array_equal(made(1, [300.0, 500.0])[1], pair[1])
    assert not np.array_equal(made(2, [300.0])[0][:100], alone[0][:100])
    same = made(3, [200.0, 200.0])
    assert not np.array_equal(same[0][:100], same[1][:100])


@pytest.mark.parametrize("kind", ["poisson", "mmpp", "constant", "ramp"])
def test_the_times_do_not_depend_on_the_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = Profile(times_s=(0.0, 7.0, 20.0), rates_rps=(500.0, 1500.0, 30.0), ramp=True)
    profiles = {"a": profile} if kind == "ramp" else None
    arrivals = [
        (monkeypatch.setattr(streams, "CHUNK_REQUESTS", n), make_arrivals("poisson" if kind == "ramp" else kind, [700.0, 3.0], ["a", "b"], seed=5, profiles=profiles))[1]
        for n in (262_144, 977)
    ]  # fmt: skip
    whole, cut = (all_times(a, 30e3) for a in arrivals)
    assert len(list(arrivals[1].chunks(30e3))) > 10
    shorter = all_times(arrivals[0], 11e3)
    for a, b, c in zip(whole, cut, shorter, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a[a < 11e3], c)


def test_chunks_keep_below_a_million() -> None:
    arrivals = make_arrivals("mmpp", [50_000.0] * 20, [f"m{i}" for i in range(20)])
    sizes = [sum(map(len, c.times_ms)) for c in arrivals.chunks(3e3)]
    assert sum(sizes) > 1_500_000
    assert max(sizes) < 1_000_000


def test_no_rate_no_requests_and_a_tiny_rate_ends() -> None:
    none, tiny = all_times(make_arrivals("mmpp", [0.0, 1e-9], ["a", "b"]), 1e6)
    assert len(none) == 0
    assert len(tiny) <= 1
    (never,) = all_times(
        make_arrivals("poisson", [5.0], ["a"], profiles={"a": Profile(times_s=(0.0,), rates_rps=(0.0,))}), 1e6
    )
    assert len(never) == 0


def test_rate_scale() -> None:
    single, double = (
        all_times(make_arrivals("constant", [10.0], ["m"], rate_scale=s), 10e3)[0] for s in (1.0, 2.0)
    )
    assert (len(single), len(double)) == (100, 200)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_arrivals("poisson", [1.0], ["a", "b"]), "1 rates and 2 names"),
        (lambda: make_arrivals("poisson", [-1.0], ["a"]), "expected at least 0"),
        (lambda: make_arrivals("poisson", [math.nan], ["a"]), "expected at least 0"),
        (lambda: make_arrivals("poisson", [1.0], ["a"], seed=-1), "seed of arrivals: found -1"),
        (lambda: make_arrivals("poisson", [1.0], ["a"], rate_scale=0.0), "rate scale: found 0"),
        (lambda: make_arrivals("poisson", [1.0], ["a"], profiles={"b": Profile(times_s=(0.0,), rates_rps=(1.0,))}), "rate profile for 'b'"),
        (lambda: make_arrivals("mmpp", [1.0], ["a"], profiles={"a": Profile(times_s=(0.0,), rates_rps=(1.0,))}), "mmpp take a mean rate"),
        (lambda: ArrivalProcess(kind="x", rate=1.0, source=0, seed=0), "'x' are not known"),
        (lambda: Profile(times_s=(), rates_rps=()), "found 0 times"),
        (lambda: Profile(times_s=(1.0, 1.0), rates_rps=(1.0, 1.0)), "ascending"),
        (lambda: Profile(times_s=(0.0,), rates_rps=(math.inf,)), "finite rates"),
        (lambda: Bursts(factors=(1.0,), sojourns_s=(1.0,)), "at least two"),
        (lambda: Bursts(factors=(0.0, 0.0), sojourns_s=(1.0, 1.0)), "one of them above 0"),
        (lambda: Bursts(sojourns_s=(0.0, 1.0)), "above 0 s"),
        (lambda: Bursts.of(factor=6.0, share=0.2, burst_s=1.0), "product at most 1"),
        (lambda: TimesInMemory([[2.0, 1.0]]), "source 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(make: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()  # type: ignore[operator]
