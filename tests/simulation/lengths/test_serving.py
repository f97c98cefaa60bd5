"""A run: queueing theory, re-allocation, autoscaling, counting; Arlo's ordering on a bursty stream."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.lengths.allocation import allocate
from gkestimator.simulation.lengths.requests import Drawn, Lengths, RequestsInMemory
from gkestimator.simulation.lengths.runtimes import Runtime, ladder_of
from gkestimator.simulation.lengths.serving import (
    Autoscaling,
    Dispatching,
    Reallocation,
    Served,
    ServeOptions,
    serve,
)

ONE = ladder_of([Runtime(length=128, latency_ms=2.0)], 100.0)
TWO = ladder_of([Runtime(length=64, latency_ms=1.0), Runtime(length=128, latency_ms=2.0)], 100.0)
# As examples/lengths/bert-base.csv, rounded.
BERT = ladder_of(
    [
        Runtime(length=64 * (i + 1), latency_ms=t)
        for i, t in enumerate((1.52, 2.08, 2.90, 3.72, 4.49, 5.03, 5.99, 6.75))
    ],
    150.0,
)
# The quantiles of the paper's trace (21, and 72 at 98 %), stretched onto the ladder.
TEXTS = Lengths.lognormal(median=84, quantile=0.98, value=288, maximum=512)


def stream(kind: str, rate: float, lengths: Lengths, seed: int, streams: int = 1) -> Drawn:
    arrivals = make_arrivals(kind, [rate / streams] * streams, [f"s{k}" for k in range(streams)], seed=seed)
    return Drawn(arrivals, lengths, seed=seed)


def test_one_runtime_on_one_gpu_is_an_m_d_1() -> None:
    """Mean response of an M/D/1 at load 0.7: t (1 + rho / (2 (1 - rho)))."""
    lengths = Lengths.listed([100], [1.0])
    options = ServeOptions(gpus=1, duration_ms=400e3, reallocation=None)
    means = [serve(ONE, stream("poisson", 350, lengths, seed), options).mean_ms for seed in range(5)]
    assert np.mean(means) == pytest.approx(2.0 * (1 + 0.7 / 0.6), rel=0.02)


def test_counts_by_hand() -> None:
    """Two short requests at once and a long one, one instance each; the first comes in the warm-up."""
    requests = RequestsInMemory([0.0, 10.0, 10.0, 20.0], [5, 60, 64, 65])
    options = ServeOptions(
        gpus=2, duration_ms=50.0, warmup_ms=5.0, start=(1, 1), window_ms=15.0, keep=True,
        dispatching=Dispatching(scheme="least-padding"),
    )  # fmt: skip
    found = serve(replace(TWO, slo_ms=1.5), requests, options)
    assert found.responses_ms is not None and found.responses_ms.tolist() == [1.0, 2.0, 2.0]
    assert (found.requests, found.on_time, found.sum_ms) == (3, 1, 5.0)
    assert found.asked.tolist() == [2, 1] and found.served.tolist() == [2, 1]
    assert (found.tokens, found.padded_tokens) == (60 + 64 + 65, 64 + 64 + 128)
    assert found.gpu_ms == 100.0
    assert [(w.end_ms, w.requests, w.on_time) for w in found.windows] == [
        (15.0, 3, 2), (30.0, 1, 0), (45.0, 0, 0), (50.0, 0, 0),
    ]  # fmt: skip
    assert found.windows[2].p98_ms is None


def test_a_re_allocation_replaces_few_at_a_time_and_never_the_last_of_the_longest() -> None:
    """Eight instances of the longest runtime and only short requests: all but one are replaced, two at a time, each
    after 1 s of loading."""
    requests = stream("constant", 100, Lengths.listed([10], [1.0]), 0)
    options = ServeOptions(
        gpus=8, duration_ms=20e3, start=(0, 8), window_ms=500.0,
        reallocation=Reallocation(period_ms=5e3, at_once=2, load_ms=1e3),
    )  # fmt: skip
    found = serve(TWO, requests, options)
    assert found.replaced == 7
    counts = {w.end_ms: w.counts for w in found.windows}
    assert counts[4500.0] == (0, 8)
    # The first two answer what they were given first, so each step takes a little more than 1 s.
    assert [counts[t][0] for t in (5500.0, 6500.0, 7500.0, 8500.0, 20e3)] == [2, 4, 6, 7, 7]
    assert all(w.gpus == 8 and sum(w.counts) == 8 for w in found.windows)
    still = serve(TWO, requests, replace(options, reallocation=None))
    assert still.replaced == 0 and still.mean_ms is not None and found.mean_ms is not None
    assert found.mean_ms < still.mean_ms


def test_what_is_replaced_is_out_of_service_until_it_has_loaded() -> None:
    """Both GPUs hold the short runtime's instances save one: while the only other one loads, short requests are padded."""
    requests = RequestsInMemory(np.arange(0.0, 3000.0, 10.0), np.full(300, 10))
    options = ServeOptions(
        gpus=2, duration_ms=3000.0, start=(0, 2), keep=True,
        reallocation=Reallocation(period_ms=1000.0, at_once=5, load_ms=500.0),
    )  # fmt: skip
    found = serve(TWO, requests, options)
    assert found.responses_ms is not None
    assert set(found.responses_ms[:150].tolist()) == {2.0} and set(found.responses_ms[150:].tolist()) == {1.0}


def test_a_gpu_more_near_the_slo_and_one_less_far_below_it() -> None:
    """400 requests/s of 2 ms (0.8 of a GPU) with an SLO of 100 ms, then 1,200 (2.4), then 100."""
    times = np.concatenate(
        [np.arange(0, 60e3, 2.5), np.arange(60e3, 160e3, 1e3 / 1200), np.arange(160e3, 600e3, 10.0)]
    )
    options = ServeOptions(
        gpus=1, duration_ms=600e3, autoscaling=Autoscaling(least=1, most=8), reallocation=None
    )
    found = serve(ONE, RequestsInMemory(times, np.full(len(times), 100)), options)
    gpus = {w.end_ms / 1e3: w.gpus for w in found.windows}
    assert gpus[60.0] == 1 and max(gpus.values()) >= 3 and gpus[600.0] == 1
    assert found.added == found.removed == max(gpus.values()) - 1
    drops = [t for t, n in gpus.items() if t > 160 and n < gpus[t - 10]]
    assert all(b - a >= 60 for a, b in itertools.pairwise(drops))  # one less at most every 60 s
    assert found.gpu_ms == pytest.approx(sum(gpus.values()) * 10e3, rel=0.05)
    fixed = serve(ONE, RequestsInMemory(times, np.full(len(times), 100)), replace(options, autoscaling=None))
    assert found.on_time > 1.5 * fixed.on_time


def test_autoscaling_keeps_its_bounds() -> None:
    times = np.arange(0, 100e3, 0.25)
    lengths = np.full(len(times), 100)
    options = ServeOptions(gpus=2, duration_ms=100e3, autoscaling=Autoscaling(least=2, most=3))
    assert max(w.gpus for w in serve(ONE, RequestsInMemory(times, lengths), options).windows) == 3
    idle = serve(ONE, RequestsInMemory([5.0], [100]), replace(options, duration_ms=300e3))
    assert min(w.gpus for w in idle.windows) == 2


def test_a_burst_takes_no_gpu_away_when_there_are_as_many_as_may_be() -> None:
    """60 s of short waits, then few requests that come at once and wait long: of 60 s they are below 2 %, of the last
    5 s all."""
    times = np.concatenate([np.arange(0, 60e3, 2.0), np.full(150, 61e3)])
    lengths = np.full(len(times), 100)
    options = ServeOptions(
        gpus=2, duration_ms=66e3, autoscaling=Autoscaling(most=2, low_window_ms=65e3), reallocation=None
    )
    assert serve(ONE, RequestsInMemory(times, lengths), options).removed == 0
    roomy = replace(options, autoscaling=Autoscaling(most=3, low_window_ms=65e3))
    assert serve(ONE, RequestsInMemory(times, lengths), roomy).added == 1  # a burst it is
    assert (
        serve(ONE, RequestsInMemory(times[:-150], lengths[:-150]), options).removed == 1
    )  # without it, one less


def bursty(scheme: str, gpus: int, load: float, seed: int) -> Served:
    """Two minutes of bursts whose peak is three times the mean; the program's allocation for the mean."""
    shares = TEXTS.shares(BERT.lengths)
    rate = 1e3 * load * gpus / float(shares @ np.array(BERT.latencies_ms))
    ladder = BERT.largest() if scheme == "padding" else BERT
    start = (gpus,) if scheme == "padding" else allocate(BERT, (shares * rate * 0.15).tolist(), gpus).counts
    options = ServeOptions(
        gpus=gpus, duration_ms=120e3, start=start, keep=True, reallocation=None,
        dispatching=Dispatching(scheme="least-padding" if scheme == "padding" else scheme),
    )  # fmt: skip
    return serve(ladder, stream("mmpp", rate, TEXTS, seed), options)


def means(gpus: int, load: float) -> tuple[dict[str, float], dict[str, float]]:
    """98th percentile and share in time of each scheme, means of three seeds."""
    p98, on_time = {}, {}
    for scheme in ("arlo", "least-padding", "least-load", "padding"):
        runs = [bursty(scheme, gpus, load, seed) for seed in range(3)]
        p98[scheme] = float(np.mean([r.quantile_ms(0.98) or 0.0 for r in runs]))
        on_time[scheme] = float(np.mean([r.on_time / r.requests for r in runs]))
    return p98, on_time


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [10, 20, 40])
def test_arlo_is_at_or_below_the_simple_schemes_at_the_98th_percentile(gpus: int) -> None:
    """At a load at which all but padding keep the SLO (docs/how-to/lengths.md has the loads beyond it, where not)."""
    p98, on_time = means(gpus, 0.15)
    assert p98["arlo"] <= p98["least-padding"] and p98["arlo"] < p98["least-load"] < 20
    assert on_time["arlo"] == 1.0 and p98["padding"] > 10 * p98["arlo"]


@pytest.mark.slow
def test_arlo_answers_most_in_time_where_bursts_exceed_the_gpus() -> None:
    p98, on_time = means(10, 0.45)
    assert on_time["arlo"] > on_time["least-padding"] and on_time["arlo"] > on_time["least-load"]
    assert p98["arlo"] < p98["least-padding"] and p98["arlo"] < p98["least-load"]


def test_one_seed_one_result_and_chunks_do_not_matter() -> None:
    one, other = bursty("arlo", 10, 0.3, 1), bursty("arlo", 10, 0.3, 1)
    assert one.responses_ms is not None and other.responses_ms is not None
    assert np.array_equal(one.responses_ms, other.responses_ms)
    third = bursty("arlo", 10, 0.3, 2)
    assert third.responses_ms is not None and not np.array_equal(
        one.responses_ms[:100], third.responses_ms[:100]
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ServeOptions(gpus=0, duration_ms=1.0), "at least one GPU"),
        (lambda: ServeOptions(gpus=2, duration_ms=1.0, start=(2, 0)), "longest runtime"),
        (lambda: Dispatching(scheme="best"), "arlo, least-padding"),
        (lambda: Dispatching(decay=1.5), "decay"),
        (lambda: Autoscaling(least=3, most=2), "ascend"),
        (lambda: Autoscaling(low_pct=96.0), "ascend"),
        (lambda: Reallocation(at_once=0), "at once"),
        (
            lambda: serve(ONE, RequestsInMemory([0.0], [129]), ServeOptions(gpus=1, duration_ms=1.0)),
            "129 tokens",
        ),
        (
            lambda: serve(
                ONE, RequestsInMemory([0.0], [9]), ServeOptions(gpus=1, duration_ms=1.0, start=(0, 1))
            ),
            "2? ?counts",
        ),
    ],
)
def test_wrong_settings_are_refused(make: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()  # type: ignore[operator]
