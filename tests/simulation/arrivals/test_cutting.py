"""Arrivals cut at other times are the same arrivals."""

from __future__ import annotations

import numpy as np

from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.streams import Cutter, TimesInMemory


def test_a_request_at_the_cut_comes_after_it() -> None:
    cutter = Cutter(TimesInMemory([[0.0, 5.0, 5.0, 9.0], []]), 10.0)
    assert [t.tolist() for t in cutter.take(5.0).times_ms] == [[0.0], []]
    assert [t.tolist() for t in cutter.take(5.0).times_ms] == [[], []]
    chunk = cutter.take(10.0)
    assert chunk.end_ms == 10.0
    assert chunk.times_ms[0].tolist() == [5.0, 5.0, 9.0]
    assert cutter.take(99.0).times_ms[0].tolist() == []


def test_however_it_is_cut_nothing_is_lost_or_moved() -> None:
    arrivals = make_arrivals("poisson", [300.0, 50.0], ["a", "b"], seed=3)
    whole = [np.concatenate(s) for s in zip(*(c.times_ms for c in arrivals.chunks(4000.0)), strict=True)]
    for seed in range(5):
        cuts = np.sort(np.random.default_rng(seed).uniform(0, 4000, 30))
        cutter = Cutter(arrivals, 4000.0)
        parts = [cutter.take(c).times_ms for c in [*cuts.tolist(), 4000.0]]
        for source, times in enumerate(whole):
            assert np.array_equal(np.concatenate([p[source] for p in parts]), times)
        for cut, part in zip(cuts, parts, strict=False):
            assert all(t.max() < cut for t in part if len(t))
