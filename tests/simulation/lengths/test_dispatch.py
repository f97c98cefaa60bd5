"""Who serves a request: figure 5's example, and every scheme against a simulation that keeps every request."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from gkestimator.core.compiled import COMPILED
from gkestimator.simulation.lengths import dispatch as module
from gkestimator.simulation.lengths.dispatch import CONGESTED, SCHEMES, dispatch, outstanding
from gkestimator.simulation.lengths.fleet import InstanceFleet
from gkestimator.simulation.lengths.runtimes import Ladder, Runtime, ladder_of


def sent(
    ladder: Ladder,
    fleet: InstanceFleet,
    times: list[float],
    lengths: list[int],
    scheme: str = "arlo",
    **other: Any,
) -> tuple[list[int], list[float]]:
    """Level of each request and its response."""
    responses, levels = np.empty(len(times)), np.empty(len(times), np.int64)
    dispatch(
        np.array(times), np.searchsorted(ladder.lengths, lengths), SCHEMES.index(scheme),
        other.get("threshold", 0.85), other.get("decay", 0.9), other.get("levels", 6),
        CONGESTED.index(other.get("congested", "ideal")), np.array(ladder.latencies_ms), np.empty(0),
        np.array(ladder.capacities, np.float64), fleet.heaps, fleet.sizes, fleet.free_ms, responses, levels,
    )  # fmt: skip
    return levels.tolist(), responses.tolist()


def loaded(ladder: Ladder, requests: tuple[int, ...]) -> InstanceFleet:
    """One instance of each runtime with so many requests outstanding at time 0."""
    fleet = InstanceFleet(ladder, (1,) * len(ladder.runtimes))
    for level, count in enumerate(requests):
        fleet.free_ms[fleet.heaps[level, 0]] = count * ladder.latencies_ms[level]
    return fleet


# An SLO of 240 ms: capacities 120, 60 and 48 for lengths 128, 256 and 512.
FIGURE_5 = ladder_of(
    [Runtime(length=n, latency_ms=t) for n, t in ((128, 2.0), (256, 4.0), (512, 5.0))], 240.0
)


def test_figure_5_sends_a_request_of_length_200_to_the_third_queue() -> None:
    """Its levels are 256 and 512. 54 / 60 = 0.9 is not below 0.85; 28 / 48 = 0.583 is below 0.85 x 0.9 = 0.765."""
    assert FIGURE_5.capacities == (120, 60, 48)
    for first in (0, 119):  # the first queue is too short for the request, whatever its load
        assert sent(FIGURE_5, loaded(FIGURE_5, (first, 54, 28)), [0.0], [200])[0] == [2]


@pytest.mark.parametrize(
    ("requests", "level"),
    [
        ((0, 50, 28), 1),  # 0.833: below 0.85
        ((0, 51, 28), 2),  # 0.85 is not below 0.85
        ((0, 54, 36), 2),  # 0.75: below 0.765
        ((0, 54, 37), 1),  # 0.771: all congested, the first level takes it
    ],
)
def test_the_thresholds_of_algorithm_1(requests: tuple[int, ...], level: int) -> None:
    assert sent(FIGURE_5, loaded(FIGURE_5, requests), [0.0], [200])[0] == [level]


def test_where_all_are_congested_and_how_far_is_looked() -> None:
    full = (0, 54, 37)
    assert sent(FIGURE_5, loaded(FIGURE_5, full), [0.0], [200], congested="least-load")[0] == [2]
    assert sent(FIGURE_5, loaded(FIGURE_5, (119, 59, 0)), [0.0], [100], levels=2)[0] == [0]
    assert sent(FIGURE_5, loaded(FIGURE_5, (119, 59, 0)), [0.0], [100], levels=3)[0] == [2]


def test_infaas_takes_the_least_loaded_variant_for_what_it_can_do() -> None:
    """54 of 60 is more than 28 of 48; and of 12 of 120, 7 of 60 and 6 of 48 the first is least, though it is most."""
    assert sent(FIGURE_5, loaded(FIGURE_5, (0, 54, 28)), [0.0], [200], "infaas")[0] == [2]
    crowded = (12, 7, 6)
    assert sent(FIGURE_5, loaded(FIGURE_5, crowded), [0.0], [100], "infaas")[0] == [0]
    assert sent(FIGURE_5, loaded(FIGURE_5, crowded), [0.0], [100], "least-load")[0] == [2]


def test_levels_without_instances_are_not_there() -> None:
    fleet = InstanceFleet(FIGURE_5, (1, 0, 1))
    fleet.free_ms[fleet.heaps[0, 0]] = 119 * 2.0
    fleet.free_ms[fleet.heaps[2, 0]] = 36 * 5.0  # 0.75 < 0.765: it is the second level looked at
    assert sent(FIGURE_5, fleet, [0.0, 0.0], [200, 100])[0] == [2, 0]


class Queues:
    """Every request of every instance, kept and counted: the slow way."""

    def __init__(self, ladder: Ladder, counts: tuple[int, ...]) -> None:
        self.ladder = ladder
        self.ends: list[list[deque[float]]] = [[deque() for _ in range(n)] for n in counts]
        self.free = [[0.0] * n for n in counts]

    def send(self, now: float, length: int, scheme: str, congested: str) -> tuple[int, float]:
        able = [
            i for i, n in enumerate(self.ladder.lengths) if n >= length and self.ends[i]
        ]  # levels that take it
        for level in able:
            for queue in self.ends[level]:
                while queue and queue[0] <= now + 1e-9:
                    queue.popleft()
        # The head: least to do; of equals the one that has been free longest.
        heads = {i: min(range(len(self.free[i])), key=lambda j, i=i: (self.free[i][j], j)) for i in able}
        counts = {i: len(self.ends[i][heads[i]]) for i in able}
        shares = {i: counts[i] / self.ladder.capacities[i] for i in able}
        if scheme == "least-padding":
            level = able[0]
        elif scheme == "least-load":
            level = min(able, key=lambda i: (counts[i], i))
        elif scheme == "infaas":
            level = min(able, key=lambda i: (shares[i], i))
        elif scheme == "earliest":
            level = min(
                able, key=lambda i: (max(self.free[i][heads[i]], now) + self.ladder.latencies_ms[i], i)
            )
        else:
            fits = [i for k, i in enumerate(able[:6]) if shares[i] < 0.85 * 0.9**k]
            fallback = able[0] if congested == "ideal" else min(able[:6], key=lambda i: (shares[i], i))
            level = fits[0] if fits else fallback
        head = heads[level]
        self.free[level][head] = max(self.free[level][head], now) + self.ladder.latencies_ms[level]
        self.ends[level][head].append(self.free[level][head])
        return level, self.free[level][head] - now


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("congested", CONGESTED)
def test_as_a_simulation_that_keeps_every_request(scheme: str, congested: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        latencies = np.cumsum(rng.uniform(0.3, 2, 8))
        ladder = ladder_of(
            [Runtime(length=64 * (i + 1), latency_ms=float(t)) for i, t in enumerate(latencies)],
            float(latencies[-1] * rng.uniform(2, 6)),
        )
        counts = (*(int(n) for n in rng.integers(0, 4, 7)), int(rng.integers(1, 3)))
        mean_gap = float(latencies.mean() / sum(counts)) / rng.uniform(0.7, 1.5)
        times = np.cumsum(rng.exponential(mean_gap, 1500)).tolist()
        lengths = rng.integers(1, 513, 1500).tolist()
        slow = Queues(ladder, counts)
        expected = [slow.send(t, n, scheme, congested) for t, n in zip(times, lengths, strict=True)]
        levels, responses = sent(
            ladder, InstanceFleet(ladder, counts), times, lengths, scheme, congested=congested
        )
        assert levels == [level for level, _ in expected]
        assert responses == pytest.approx([r for _, r in expected], rel=1e-12)


def test_outstanding_counts_whole_requests() -> None:
    assert outstanding(10.0, 10.0, 3.0) == 0
    assert outstanding(10.0, 9.9, 3.0) == 1
    assert outstanding(0.1 + 0.2, 0.0, 0.1) == 3  # 0.30000000000000004: not a fourth
    assert outstanding(9.0, 2.9, 3.0) == 3


@pytest.mark.skipif(
    not (COMPILED and hasattr(dispatch, "py_func")), reason="numba is not installed, or does not compile"
)
def test_compiled_and_plain_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    times = np.cumsum(rng.exponential(0.4, 800)).tolist()
    lengths = rng.integers(1, 513, 800).tolist()
    compiled = sent(FIGURE_5, InstanceFleet(FIGURE_5, (2, 1, 3)), times, lengths)
    fleet = InstanceFleet(FIGURE_5, (2, 1, 3))
    for name in ("outstanding", "_before", "_sink"):
        monkeypatch.setattr(module, name, getattr(module, name).py_func)
    monkeypatch.setitem(globals(), "dispatch", dispatch.py_func)  # type: ignore[attr-defined]
    assert sent(FIGURE_5, fleet, times, lengths) == compiled
