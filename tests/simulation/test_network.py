"""The network's delay by size, and its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _plans import plan, replica, row

from gkestimator.core.errors import GkestimatorError
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.building import build_system
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.network import Network, read_network
from gkestimator.simulation.options import Options

EXAMPLE = Path(__file__).parents[2] / "examples" / "network.toml"


def test_points() -> None:
    found = Network(source="t", points=((0.0, 1.0), (100.0, 2.0), (300.0, 8.0)))
    asked = [0.0, 50.0, 100.0, 200.0, 300.0, 400.0]
    assert [found.delay_ms(b) for b in asked] == [1.0, 1.5, 2.0, 5.0, 8.0, 11.0]
    late = Network(source="t", points=((100.0, 2.0), (300.0, 8.0)))
    assert late.delay_ms(10.0) == 2.0  # no delay below the shortest that was measured


def test_line() -> None:
    assert Network(source="t", base_ms=0.5, bytes_per_s=1e9).delay_ms(2_000_000) == pytest.approx(2.5)
    assert Network(source="t", base_ms=0.5).delay_ms(1e12) == 0.5


def test_the_example_is_read() -> None:
    found = read_network(EXAMPLE)
    assert "example" in found.source
    assert 0 < found.delay_ms(600_000) < found.delay_ms(6_000_000)


HEAD = 'schema_version = 1\nsource = "t"\n'
WRONG = {
    "neither": (HEAD, "neither points nor base_ms nor bytes_per_s"),
    "both": (HEAD + "base_ms = 1\npoints = [{bytes = 0, ms = 1}]\n", "both points and a line"),
    "one point": (HEAD + "points = [{bytes = 0, ms = 1}]\n", "points: found 1, expected at least two"),
    "not ascending": (
        HEAD + "points = [{bytes = 9, ms = 1}, {bytes = 9, ms = 2}]\n",
        "found 9 bytes in 2 ms after 9 bytes in 1 ms, expected more bytes and no less time",
    ),
    "faster when larger": (HEAD + "points = [{bytes = 1, ms = 2}, {bytes = 9, ms = 1}]\n", "no less time"),
    "negative": (HEAD + "base_ms = -1\n", "base_ms: found -1"),
    "nan": (HEAD + "base_ms = nan\n", "base_ms: found nan"),
    "no speed": (HEAD + "bytes_per_s = 0\n", "bytes_per_s: found 0, expected a number above 0"),
    "unknown field": (HEAD + "base_ms = 1\njitter_ms = 3\n", "'jitter_ms' is not a field of a file of a network"),
    "point's field": (HEAD + "points = [{bytes = 1, s = 2}, {bytes = 2, ms = 1}]\n", "points[0]: ms is missing"),
    "no source": ("schema_version = 1\nbase_ms = 1\n", "source is missing"),
    "version": ('schema_version = 3\nsource = "t"\nbase_ms = 1\n', "schema_version: found 3"),
    "points a number": (HEAD + "points = 3\n", "points: found 3, expected a list"),
    "not TOML": ("}{", "not a file of a network's delay"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files(case: str, tmp_path: Path) -> None:
    text, words = WRONG[case]
    path = tmp_path / "net.toml"
    path.write_text(text)
    with pytest.raises(GkestimatorError) as e:
        read_network(path)
    assert words in str(e.value) and "net.toml" in str(e.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GkestimatorError, match="No such file"):
        read_network(tmp_path / "none.toml")


def test_the_host_does_one_request_at_a_time_before_it_routes() -> None:
    """Requests of two models share the host: what one does holds up the other, over the ends of chunks too."""
    models = [("a", 100.0, 300.0), ("b", 100.0, 300.0)]
    placed = plan([replica("a", batch=1)], [replica("b", batch=1)], models=models)
    table = [row(name, batch, 0.001) for name in ("a", "b") for batch in (1, 2, 4)]
    for batching in ("early", "late"):
        system = build_system(replace(placed, batching=batching), table, interference=None, batching=batching)
        times = (np.array([0.0, 1.0, 50.0]), np.array([0.5, 49.0]))
        options = Options(duration_ms=100.0, keep_requests=True, batching=batching)
        simulator = Simulator(replace(system, host_ms=2.0), options)
        for begin, end in ((0.0, 50.0), (50.0, 100.0)):
            here = tuple(t[(t >= begin) & (t < end)] for t in times)
            simulator.advance(Chunk(end_ms=end, times_ms=here))
        kept = simulator.finish().requests
        assert kept is not None
        order = np.argsort(kept.arrived_ms)
        assert kept.arrived_ms[order].tolist() == [0.0, 0.5, 1.0, 49.0, 50.0]
        waits = (kept.router_ms + kept.network_ms + kept.queue_ms)[order]
        assert waits == pytest.approx([2.0, 3.5, 5.0, 2.0, 3.0], abs=1e-2)


def test_more_requests_together_take_longer() -> None:
    assert Network(source="t", base_ms=0.5, per_request_ms=0.1).delay_ms(1e9, 4) == pytest.approx(0.9)
    found = Network(source="t", points=((0.0, 1.0), (100.0, 2.0)), per_request_ms=0.5)
    assert found.delay_ms(50.0, 2) == 2.5 and found.by_bytes
