"""Which calls count, and lines that are none of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gkestimator.profiling.colocating.process import WorkerError
from gkestimator.profiling.colocating.protocol import MOST_LINE, PREFIX, ProtocolError, decode, encode
from gkestimator.profiling.colocating.window import Loop, loop_of, side_by_side, times

MS = 1_000_000


def loop(first: int, *ends: int) -> Loop:
    return Loop(first_ns=first * MS, ends_ns=tuple(e * MS for e in ends))


def test_calls_wholly_within_the_time_in_which_both_ran() -> None:
    # Of the first, 0-10 began before the second did, and 40-60 ended after it had ended.
    one, other = loop(0, 10, 25, 40, 60), loop(5, 12, 20, 28, 50)
    assert side_by_side([one, other]) == ((15.0, 15.0), (7.0, 8.0, 8.0, 22.0))
    assert side_by_side([one]) == ((10.0, 15.0, 15.0, 20.0),)


def test_one_that_began_when_the_other_was_done() -> None:
    assert side_by_side([loop(0, 10, 20), loop(30, 40)]) == ((), ())


def test_a_neighbour_slower_than_all_there_is() -> None:
    assert side_by_side([loop(0, 1, 2, 3, 4), loop(0, 9)]) == ((1.0, 1.0, 1.0, 1.0), ())


def test_median_and_ninetieth_percentile() -> None:
    found = times([float(n) for n in range(10, 0, -1)])
    assert (found.calls, found.median_ms, found.p90_ms) == (10, 5.5, 9.0)
    one = times([3.0])
    assert (one.median_ms, one.p90_ms) == (3.0, 3.0)
    assert times([]).calls == 0


def test_what_a_worker_tells() -> None:
    assert loop_of({"first_ns": 7, "ends_ns": [1, 3]}) == Loop(first_ns=7, ends_ns=(8, 10))


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"first_ns": 1, "ends_ns": []}, {"first_ns": None, "ends_ns": [1]}, {"first_ns": -1, "ends_ns": [1]},
        {"first_ns": 1, "ends_ns": [2, 2]}, {"first_ns": 1, "ends_ns": [0]}, {"first_ns": 1, "ends_ns": [1.5]},
        {"first_ns": True, "ends_ns": [1]}, {"first_ns": 1, "ends_ns": "12"}, {"first_ns": 1, "ends_ns": [2**63]},
        {"first_ns": 1, "ends_ns": list(range(1, 100_002))},
    ],
)  # fmt: skip
def test_what_no_worker_tells(answer: dict[str, Any]) -> None:
    with pytest.raises(WorkerError, match="tells"):
        loop_of(answer)


def test_a_message_there_and_back() -> None:
    assert decode(encode({"n": 3, "do": "run"})) == {"v": 1, "n": 3, "do": "run"}


def test_a_print_of_a_library_is_no_message() -> None:
    assert decode(b'{"v": 1, "n": 1}\n') is None
    assert decode(b"warning: something\n") is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (PREFIX + b"nonsense\n", "not JSON"),
        (PREFIX + b"[1]\n", "found version None"),
        (PREFIX + json.dumps({"v": 2, "n": 1}).encode() + b"\n", "found version 2, expected 1"),
        (PREFIX + b'{"v":1,"n":-1}\n', "found number '-1'"),
        (PREFIX + b'{"v":1,"n":true}\n', "found number 'True'"),
        (PREFIX + b'{"v":1}\n', "found number 'None'"),
        (PREFIX + b'{"v":1,"n":1}', "without an end"),
        (PREFIX + b"[" * 100_000 + b"\n", "not JSON"),
    ],
)
def test_a_broken_message_is_one_line(line: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as e:
        decode(line)
    assert "\n" not in str(e.value)


def test_a_message_beyond_all_bounds_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="expected at most"):
        encode({"n": 1, "text": "x" * MOST_LINE})
