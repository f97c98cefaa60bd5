"""Traces replayed: which source gets which request, rates scaled both ways, rounds, parts, lengths; what is refused."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.simulation.arrivals import spool, streams
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.replay import Replay, ReplayedArrivals, replay_lengths

Floats = NDArray[np.float64]
AS_IS = Replay(rates="trace")


def put(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def plain(tmp_path: Path, times: list[float]) -> Path:
    return put(tmp_path, "time_s\n" + "".join(f"{t!r}\n" for t in times))


def replayed(path: Path, rates: list[float], replay: Replay = AS_IS, **more: object) -> ReplayedArrivals:
    names = [f"m{i}" for i in range(len(rates))]
    found = make_arrivals(path, rates, names, replay=replay, **more)  # type: ignore[arg-type]
    assert isinstance(found, ReplayedArrivals)
    return found


def times_of(arrivals: Arrivals, until_ms: float | None = None) -> list[Floats]:
    if until_ms is None:
        assert isinstance(arrivals, ReplayedArrivals)
        until_ms = arrivals.length_ms
    chunks = list(arrivals.chunks(until_ms))
    before = 0.0
    for chunk in chunks:
        for times in chunk.times_ms:
            assert len(times) == 0 or (times[0] >= before and times[-1] < chunk.end_ms)
            assert (np.diff(times) >= 0).all()
        before = chunk.end_ms
    assert before == until_ms
    return [np.concatenate(parts) for parts in zip(*(c.times_ms for c in chunks), strict=True)]


def bursty(seconds: int, seed: int = 0) -> list[float]:
    """A recorded trace for tests: bursts of theory, drawn by the MMPP of this package."""
    (times,) = times_of(make_arrivals("mmpp", [4.0], ["m"], seed=seed), seconds * 1e3)
    return [float(t) for t in times / 1e3]


def test_requests_go_in_turn_where_the_trace_has_no_streams(tmp_path: Path) -> None:
    arrivals = replayed(plain(tmp_path, [0, 1, 2, 3, 4, 5, 6]), [1.0, 1.0, 1.0])
    assert [t.tolist() for t in times_of(arrivals)] == [[0, 3000, 6000], [1000, 4000], [2000, 5000]]
    assert arrivals.length_ms == 7000.0  # to the last request and a mean gap


def test_models_by_name(tmp_path: Path) -> None:
    path = put(tmp_path, "time_s,model\n0,m1\n1,m0\n2,m1\n")
    assert [t.tolist() for t in times_of(replayed(path, [1.0, 1.0]))] == [[1000], [0, 2000]]
    with pytest.raises(
        DocumentError, match=r"line 3: model: found 'm0', expected one of the workload's: m1 \("
    ):
        make_arrivals(path, [1.0], ["m1"], replay=AS_IS)
    by_stream = replayed(path, [1.0, 1.0], Replay(rates="trace", assign="streams"))
    assert [t.tolist() for t in times_of(by_stream)] == [[0, 2000], [1000]]
    in_turn = replayed(path, [1.0, 1.0], Replay(rates="trace", assign="requests"))
    assert [t.tolist() for t in times_of(in_turn)] == [[0, 2000], [1000]]


def test_streams_go_round_robin_in_order_of_appearance(tmp_path: Path) -> None:
    rows = [("f0", 0), ("f1", 1), ("f0", 2), ("f2", 3), ("f3", 4), ("f2", 5), ("f4", 6)]
    path = put(tmp_path, "app,func,end_timestamp,duration\n" + "".join(f"a,{f},{t},0\n" for f, t in rows))
    found = [(t / 1e3).tolist() for t in times_of(replayed(path, [1.0, 1.0]))]
    assert found == [[0, 2, 3, 5, 6], [1, 4]]


def test_fewer_streams_than_models_are_shared_in_turn(tmp_path: Path) -> None:
    rows = [("a", 0), ("b", 1), ("a", 2), ("a", 3), ("b", 4), ("a", 5), ("a", 6)]
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path = put(tmp_path, text + "".join(f"{t},{m},1,1,2,x\n" for m, t in rows))
    found = [(t / 1e3).tolist() for t in times_of(replayed(path, [1.0] * 3))]
    assert found == [[0, 3, 6], [1, 4], [2, 5]]  # stream a: m0 and m2 in turn


@pytest.mark.parametrize("scaling", ["copies", "time"])
@pytest.mark.parametrize("rates", [[50.0, 5.0], [0.3, 0.4], [3.0, 0.5]])
def test_means_are_the_plans_rates(tmp_path: Path, scaling: str, rates: list[float]) -> None:
    path = plain(tmp_path, bursty(1000))
    arrivals = replayed(path, rates, Replay(scaling=scaling))
    for times, rate in zip(times_of(arrivals), rates, strict=True):
        expected = rate * arrivals.length_ms / 1e3
        assert len(times) == pytest.approx(expected, abs=4 * math.sqrt(expected) + 1)


def test_time_scaling_shrinks_every_gap_alike(tmp_path: Path) -> None:
    times = bursty(500)
    arrivals = replayed(plain(tmp_path, times), [40.0], Replay(scaling="time"))
    speed = 40.0 * arrivals.length_ms / 1e3 / len(times) * (times[-1] / 500)  # near 10
    found = times_of(arrivals)[0]
    assert len(found) == len(times)
    factor = found[-1] / times[-1]
    np.testing.assert_allclose(found, np.array(times) * factor)
    assert len(times) / (arrivals.length_ms / 1e3) == pytest.approx(40.0)
    assert speed > 0


def test_copies_keep_the_requests_and_fill_their_gaps(tmp_path: Path) -> None:
    times = [0.0, 1.0, 1.5, 5.0]
    arrivals = replayed(plain(tmp_path, times), [4.0 * 3 / (5 + 5 / 3)], Replay())
    found = times_of(arrivals)[0] / 1e3
    assert set(times) <= set(found.tolist())
    assert np.histogram(found, [*times, 5 + 5 / 3])[0].tolist() == [3, 3, 3, 3]


def dispersion(times_ms: Floats, seconds: int) -> float:
    counts = np.bincount((times_ms / 1e3).astype(int), minlength=seconds)
    return float(counts.var() / counts.mean())


def test_bursts_survive_copies(tmp_path: Path) -> None:
    """Counts per 5 s: their share of variance that is not Poisson's, (variance - mean) / mean^2, is that of the trace."""

    def excess(times: Floats) -> float:
        counts = np.bincount((times / 5e3).astype(int), minlength=400)[:400]
        return float((counts.var() - counts.mean()) / counts.mean() ** 2)

    times = np.array(bursty(2000)) * 1e3
    recorded = excess(times)
    assert recorded > 0.4
    for rate in (1.0, 200.0):
        (scaled,) = times_of(replayed(plain(tmp_path, (times / 1e3).tolist()), [rate], Replay()))
        assert excess(scaled) == pytest.approx(recorded, rel=0.3)


def test_a_loop_goes_on_and_no_loop_is_refused(tmp_path: Path) -> None:
    path = plain(tmp_path, [0.0, 1.0, 2.0])
    with pytest.raises(
        DocumentError, match=r"replayed ends after 3 s, expected 9 s \(a shorter duration, or"
    ):
        times_of(replayed(path, [1.0]), 9e3)
    found = times_of(replayed(path, [1.0], Replay(rates="trace", loop=True)), 7.5e3)[0]
    assert found.tolist() == [0, 1000, 2000, 3000, 4000, 5000, 6000, 7000]
    more = times_of(replayed(path, [10.0], Replay(loop=True)), 300e3)[0]
    assert len(more) == 3000


def test_a_loop_that_is_thinned_to_nothing_ends(tmp_path: Path) -> None:
    path = put(tmp_path, "time_s,length\n0,1\n1,1\n")
    loop = Replay(loop=True)
    assert len(times_of(replayed(path, [1e-9], loop), 50e3)[0]) == 0
    assert list(replay_lengths(path, replay=loop, rate_rps=1e-9, until_ms=50e3)) == []
    assert [len(t) for t in times_of(replayed(minutes(tmp_path, [[1], [1]]), [1e-9, 0.0], loop), 240e3)] == [
        0,
        0,
    ]


def test_a_part(tmp_path: Path) -> None:
    path = plain(tmp_path, [float(t) for t in range(100)])
    part = replayed(path, [1.0], Replay(rates="trace", start_s=10.5, duration_s=20.0))
    assert times_of(part)[0].tolist() == [500 + 1e3 * i for i in range(20)]
    assert part.length_ms == 20e3
    late = replayed(path, [1.0], Replay(rates="trace", start_s=90.0, duration_s=1e3))
    assert late.length_ms == 10e3
    for how, message in (
        (Replay(start_s=500.0), r"found no request from 500 s to inf s \(the last comes at 99 s\)"),
        (Replay(start_s=98.5), "found 1 requests, all at one time"),
    ):
        with pytest.raises(DocumentError, match=message):
            replayed(path, [1.0], how)


def minutes(tmp_path: Path, rows: list[list[int]]) -> Path:
    header = "HashOwner,HashApp,HashFunction,Trigger," + ",".join(str(i + 1) for i in range(len(rows[0])))
    body = "".join(f"o,a,f{i},http,{','.join(map(str, r))}\n" for i, r in enumerate(rows))
    return put(tmp_path, f"{header}\n{body}", f"minutes{len(list(tmp_path.iterdir()))}.csv")


def test_counts_per_minute_are_spread_over_their_minute(tmp_path: Path) -> None:
    path = minutes(tmp_path, [[600, 0, 60], [0, 30, 0], [0, 0, 40]])
    arrivals = replayed(path, [1.0, 1.0])
    found = times_of(arrivals)
    assert [np.histogram(t, [0, 60e3, 120e3, 180e3])[0].tolist() for t in found] == [
        [600, 0, 100],
        [0, 30, 0],
    ]
    assert arrivals.length_ms == 180e3
    first = found[0][:600] / 60e3
    assert abs(first.mean() - 0.5) < 4 / math.sqrt(12 * 600)
    np.testing.assert_array_equal(found[0], times_of(replayed(path, [1.0, 1.0]))[0])
    assert not np.array_equal(found[0], times_of(replayed(path, [1.0, 1.0], seed=1))[0])
    shared = times_of(replayed(minutes(tmp_path, [[7, 2]]), [1.0, 1.0]))
    assert [np.histogram(t, [0, 60e3, 120e3])[0].tolist() for t in shared] == [[4, 1], [3, 1]]
    part = replayed(path, [1.0, 1.0], Replay(rates="trace", start_s=60.0, duration_s=60.0), rate_scale=1.0)
    assert part.recordings()[1].requests == 30


def test_counts_per_minute_are_scaled(tmp_path: Path) -> None:
    path = minutes(tmp_path, [[600, 0, 60, 5]])
    for rate in (0.5, 100.5):
        (times,) = times_of(replayed(path, [rate], Replay()))
        assert len(times) == pytest.approx(rate * 240, abs=4 * math.sqrt(rate * 240))
        assert np.sum((times >= 60e3) & (times < 120e3)) == 0
    with pytest.raises(DocumentError, match="no request for 'm1'"):
        replayed(minutes(tmp_path, [[1], [0]]), [1.0, 1.0], Replay())
    with pytest.raises(UsageError, match="expected whole minutes"):
        replayed(path, [1.0], Replay(start_s=30.0))
    with pytest.raises(DocumentError, match="found no request from minute 2"):
        replayed(minutes(tmp_path, [[5, 0]]), [1.0], Replay(start_s=60.0))
    with pytest.raises(DocumentError, match="found 30,000,000 requests to one model in a minute"):
        replayed(minutes(tmp_path, [[30_000_000]]), [1.0], Replay())


def test_recordings(tmp_path: Path) -> None:
    (even,) = replayed(plain(tmp_path, [float(t) for t in range(50)]), [10.0], Replay()).recordings()
    assert (even.requests, even.mean_rps, even.gap_cv, even.factor) == (
        50,
        1.0,
        pytest.approx(0, abs=1e-9),
        10.0,
    )
    times = bursty(3000)
    (found,) = replayed(plain(tmp_path, times), [10.0]).recordings()
    gaps = np.diff(times)
    assert found.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    assert found.gap_cv > 1.2


@pytest.mark.slow
def test_the_temporary_file_gives_what_memory_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plain(tmp_path, bursty(20_000))
    kept = times_of(replayed(path, [10.0] * 3, Replay()))
    monkeypatch.setattr(spool, "_IN_MEMORY", 1000)
    monkeypatch.setattr(streams, "CHUNK_REQUESTS", 5000)
    for a, b in zip(kept, times_of(replayed(path, [10.0] * 3, Replay())), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_all_requests_in_a_moment_of_a_long_trace_come_in_chunks(tmp_path: Path) -> None:
    """By the mean rate alone, the first chunk would hold them all."""
    times = np.concatenate([np.linspace(0, 1, 800_000), [1e6]])
    path = tmp_path / "trace.csv"
    np.savetxt(path, times, fmt="%.7f", header="time_s", comments="")
    arrivals = replayed(path, [1.0])
    sizes = [len(c.times_ms[0]) for c in arrivals.chunks(arrivals.length_ms)]
    assert sum(sizes) == 800_001
    assert max(sizes) < 2 * streams.CHUNK_REQUESTS + 2 * spool._PIECE


def test_requests_of_one_time_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They all are in one chunk, so in memory."""
    monkeypatch.setattr(streams, "CHUNK_REQUESTS", 1000)
    monkeypatch.setattr(streams, "MAX_AT_ONCE", 200_000)
    path = plain(tmp_path, [1.0] + [5.0] * 400_000 + [9.0])
    arrivals = replayed(path, [1.0])
    with pytest.raises(
        UsageError, match="found more than 200,000 requests at 5 s, expected fewer at one time"
    ):
        list(arrivals.chunks(arrivals.length_ms))


@pytest.mark.parametrize("scaling", ["copies", "time"])
def test_a_trace_that_begins_after_the_simulation_is_refused(tmp_path: Path, scaling: str) -> None:
    path = plain(tmp_path, [5000.0, 5001.0, 5002.0])
    for loop in (False, True):
        found = replayed(path, [1.0], Replay(rates="trace", scaling=scaling, loop=loop))
        with pytest.raises(
            DocumentError, match=r"first request comes 5000 s after the start .* 60 s that are sim"
        ):
            found.chunks(60e3)
        assert sum(len(c.times_ms[0]) for c in found.chunks(5001.5e3)) == 2
    with_lengths = put(tmp_path, "time_s,length\n5000,20\n5001,30\n", "lengths.csv")
    with pytest.raises(DocumentError, match="first request comes 5000 s after"):
        replay_lengths(with_lengths, until_ms=60e3)
    later = replayed(path, [1.0], Replay(rates="trace", start_s=5000.0))
    assert sum(len(c.times_ms[0]) for c in later.chunks(2.5e3)) == 3
    counts = replayed(minutes(tmp_path, [[0, 0, 7]]), [1.0])
    with pytest.raises(DocumentError, match="first request comes 120 s after"):
        counts.chunks(120e3)


@pytest.mark.slow
def test_reading_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    with path.open("w") as stream:
        stream.write("time_s,model,length\n")
        for start in range(0, 300_000, 1000):
            stream.write("".join(f"{start + i}.25,m{i % 2},{i}\n" for i in range(1000)))
    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "_IN_MEMORY", 2**20)
        arrivals = replayed(path, [1.0, 1.0])
        assert sum(sum(map(len, c.times_ms)) for c in arrivals.chunks(arrivals.length_ms)) == 300_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * 2**20


def test_lengths_stay_with_their_requests(tmp_path: Path) -> None:
    path = put(tmp_path, "time_s,length\n" + "".join(f"{i},{i * 7}\n" for i in range(100)))
    times, lengths = (np.concatenate(p) for p in zip(*replay_lengths(path), strict=True))
    assert (times.tolist(), lengths.tolist()) == ([1e3 * i for i in range(100)], [7 * i for i in range(100)])
    times, lengths = (np.concatenate(p) for p in zip(*replay_lengths(path, rate_rps=20.0), strict=True))
    assert len(times) == 2000
    np.testing.assert_array_equal(lengths, (times // 1000).astype(int) * 7)
    looped = list(replay_lengths(path, replay=Replay(loop=True, scaling="time"), rate_rps=2.0, until_ms=75e3))
    times, lengths = (np.concatenate(p) for p in zip(*looped, strict=True))
    assert times.tolist() == [500.0 * i for i in range(150)]
    assert lengths.tolist() == [7 * (i % 100) for i in range(150)]
    with pytest.raises(DocumentError, match="ends after 100 s, expected 101 s"):
        replay_lengths(path, until_ms=101e3)
    with pytest.raises(DocumentError, match="found no column of lengths"):
        replay_lengths(plain(tmp_path, [1.0, 2.0]))


def test_profiles_from_a_file(tmp_path: Path) -> None:
    path = put(tmp_path, "model,time_s,rate_rps\na,0,100\nb,0,1000\na,10,0\na,20,300\n", "rates.csv")
    a, b, c = times_of(make_arrivals(path, [1.0, 1.0, 50.0], ["a", "b", "c"]), 30e3)
    counts = np.histogram(a, [0, 10e3, 20e3, 30e3])[0]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(1000, abs=130)
    assert counts[2] == pytest.approx(3000, abs=220)
    assert len(b) == pytest.approx(30_000, abs=700)
    assert len(c) == pytest.approx(1500, abs=160)  # not in the file: its mean rate
    ramp = put(tmp_path, "time_s,model,ramp_rps\n0,a,0\n10,a,200\n", "ramp.csv")
    (a,) = times_of(make_arrivals(ramp, [1.0], ["a"]), 10e3)
    assert np.sum(a < 5e3) == pytest.approx(250, abs=64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_s,model,rate_rps\n0,z,1\n", "line 2: model: found 'z', expected one of m0"),
        ("time_s,model,rate_rps\n0,m0,1\n0,m0,2\n", "line 3: time_s: found 0, expected more than 0"),
        ("time_s,model,rate_rps\n0,m0,-1\n", "line 2: rate_rps: found '-1'"),
        ("time_s,model,rate_rps\n", "found no points"),
        ("time_s\n", "found no request from 0 s to inf s, expected at least one"),
        ("time_s\n3\n3\n", "found 2 requests, all at one time"),
        ("HashOwner,HashApp,HashFunction,Trigger,1\n", "found no request from minute 1 on"),
        ("app,func,end_timestamp,duration\n", "found no request"),
    ],
)
def test_what_has_too_little_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        make_arrivals(put(tmp_path, text), [1.0], ["m0"])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"assign": "x"}, "assign 'x' is not known, expected one of auto"),
        ({"rates": "x"}, "rates 'x' is not known, expected one of plan"),
        ({"scaling": "x"}, "scaling 'x' is not known, expected one of copies"),
        ({"start_s": -1.0}, "found a start of -1 s"),
        ({"duration_s": 0.0}, "found a duration of 0 s"),
    ],
)
def test_wrong_options(how: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Replay(**how)  # type: ignore[arg-type]


def test_what_else_is_refused(tmp_path: Path) -> None:
    path = plain(tmp_path, [0.0, 1.0])
    with pytest.raises(
        UsageError,
        match="arrivals 'poison': found neither a process nor a file, expected one of poisson, mmpp",
    ):
        make_arrivals("poison", [1.0], ["a"])  # fmt: skip
    with pytest.raises(UsageError, match="expected a factor of at most 1e"):
        replayed(path, [1e8], Replay())
    with pytest.raises(UsageError, match="expected a plain CSV with a column model"):
        replayed(path, [1.0], Replay(assign="names"))
    with pytest.raises(UsageError, match="dealt by streams"):
        replayed(minutes(tmp_path, [[1]]), [1.0], Replay(assign="requests"))
    with pytest.raises(DocumentError, match="no request for 'm2'"):
        replayed(path, [1.0] * 3, Replay())
    assert len(times_of(replayed(path, [1.0, 1.0, 0.0], Replay()), 1e3)) == 3
