"""The network's delay by size, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gkestimator.core.errors import GkestimatorError
from gkestimator.simulation.network import Network, read_network

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
