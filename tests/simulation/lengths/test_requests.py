"""Lengths by their quantiles, streams that divide them, traces with lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.replay import Replay
from gkestimator.simulation.lengths.requests import Drawn, Lengths, ReplayedRequests, RequestsInMemory

TWEETS = Lengths.lognormal(median=21, quantile=0.98, value=72, maximum=512)


def test_the_two_quantiles_hold() -> None:
    upto = dict(zip(TWEETS.values.tolist(), TWEETS.below.tolist(), strict=True))
    assert upto[21] == pytest.approx(0.5, abs=1e-12) and upto[72] == pytest.approx(0.98, abs=1e-12)
    drawn = TWEETS.at(np.random.default_rng(0).random(200_000))
    assert np.mean(drawn <= 21) == pytest.approx(0.5, abs=0.004)
    assert np.mean(drawn <= 72) == pytest.approx(0.98, abs=0.001)
    assert drawn.min() >= 1 and drawn.max() <= 512
    cut = Lengths.lognormal(median=21, quantile=0.98, value=72, maximum=72)
    assert cut.below[-1] == 1.0 and cut.shares([64, 72]).sum() == pytest.approx(1.0)


def test_shares_by_runtime() -> None:
    listed = Lengths.listed([10, 64, 65, 200], [1, 2, 3, 4])
    assert listed.shares([64, 128, 256]).tolist() == pytest.approx([0.3, 0.3, 0.4])
    assert listed.at(np.array([0.0, 0.1, 0.11, 1.0])).tolist() == [10, 10, 64, 200]
    with pytest.raises(UsageError, match="longest runtime, 128"):
        listed.shares([64, 128])


def test_streams_divide_the_distribution_and_move_the_mix() -> None:
    """Four streams have the distribution together; the mix of a second moves more than that of one stream."""

    def lengths(streams: int) -> tuple[np.ndarray, float]:
        arrivals = make_arrivals("mmpp", [2000 / streams] * streams, [str(k) for k in range(streams)], seed=3)
        (times, found) = zip(
            *[(c.times_ms, c.lengths) for c in Drawn(arrivals, TWEETS, seed=3).chunks(100e3)], strict=True
        )
        time, length = np.concatenate(times), np.concatenate(found)
        assert (np.diff(time) >= 0).all()
        means = [length[(time >= 1e3 * s) & (time < 1e3 * (s + 1))].mean() for s in range(100)]
        return length, float(np.std(means))

    (one, still), (four, moved) = lengths(1), lengths(4)
    assert np.mean(one <= 21) == pytest.approx(0.5, abs=0.01)
    assert np.mean(four <= 21) == pytest.approx(0.5, abs=0.1)
    assert moved > 3 * still


def test_the_same_seed_gives_the_same_requests() -> None:
    def drawn(seed: int, until_ms: float) -> list[int]:
        arrivals = make_arrivals("poisson", [1e5], ["x"], seed=0)
        chunks = Drawn(arrivals, TWEETS, seed=seed).chunks(until_ms)
        return [int(n) for c in chunks for n in c.lengths]

    long = drawn(1, 6e3)
    assert len(long) > 500_000  # several chunks
    assert drawn(1, 6e3) == long
    assert drawn(1, 1e3) == long[: len(drawn(1, 1e3))] and drawn(2, 1e3) != drawn(1, 1e3)


def trace(path: Path) -> Path:
    """Made up, in the form of the Azure LLM traces of 2023."""
    rows = [f"2023-11-16 18:15:{s:02d}.0000000,{n},5" for s, n in ((1, 30), (2, 700), (3, 64), (59, 10))]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def test_a_trace_is_cut_or_refused(tmp_path: Path) -> None:
    path = trace(tmp_path / "llm.csv")

    def replayed(truncate: bool) -> ReplayedRequests:
        return ReplayedRequests(path, replay=Replay(), rate_rps=None, seed=0, longest=512, truncate=truncate)

    cut = replayed(True)
    chunks = list(cut.chunks(30e3))
    assert [int(n) for c in chunks for n in c.lengths] == [30, 512, 64] and cut.truncated == 1
    assert [float(t) for c in chunks for t in c.times_ms] == pytest.approx([0.0, 1000.0, 2000.0])
    assert chunks[-1].end_ms == 30e3
    with pytest.raises(DocumentError, match=r"llm\.csv: found a request of 700 tokens, expected at most 512"):
        list(replayed(False).chunks(30e3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"median": 72, "value": 21}, {"quantile": 0.5}, {"quantile": 1.0}, {"maximum": 50}, {"median": 0.5},
        {"maximum": 10**8}, {"value": float("nan")},
    ],
)  # fmt: skip
def test_wrong_quantiles_are_refused(wrong: dict[str, float]) -> None:
    given = {"median": 21, "quantile": 0.98, "value": 72, "maximum": 512} | wrong
    with pytest.raises(UsageError, match="expected"):
        Lengths.lognormal(**given)  # type: ignore[arg-type]


def test_wrong_lists_are_refused() -> None:
    for lengths, weights in (
        ([], []),
        ([1], [1, 2]),
        ([0], [1]),
        ([5, 5], [1, 1]),
        ([1, 2], [0, 0]),
        ([1], [-1]),
    ):
        with pytest.raises(UsageError, match="expected"):
            Lengths.listed(lengths, weights)
    for times, sizes in (
        ([0.0], []),
        ([1.0, 0.5], [1, 1]),
        ([-1.0], [1]),
        ([0.0], [0]),
        ([float("nan")], [1]),
    ):
        with pytest.raises(UsageError, match="expected"):
            RequestsInMemory(times, sizes)
