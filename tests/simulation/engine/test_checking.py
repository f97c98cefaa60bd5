"""Systems and arrivals that the loop cannot take: one line, naming what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from _runs import replica, system

from gkestimator.errors import UsageError
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"duty_cycle_ms": 0.0}, "'0@0': duty_cycle_ms is 0.0, expected more than 0 ms"),
        ({"weight": 0.0}, "weight is 0.0, expected more than 0"),
        ({"batch_size": 0}, "batch_size is 0, expected 1 or more"),
        ({"max_wait_ms": float("inf")}, "max_wait_ms is inf, expected 0 ms or more"),
        ({"latencies_ms": (1.0, float("nan"))}, "latencies_ms is .*, expected 2 times of 0 ms or more"),
        ({"latencies_ms": (1.0,)}, "latencies_ms is .*, expected 2 times of 0 ms or more"),
        ({"batches": (4, 1)}, "batches is .4, 1., expected ascending sizes"),
        ({"gpu": 3}, "gpu is 3, expected one of 1 GPUs"),
        ({"model": 1}, "model is 1, expected one of 1 models"),
    ],
)
def test_replicas(values: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Simulator(system([replica(**{"id": "0@0", **values})]), Options(duration_ms=1.0))  # type: ignore[arg-type]


def test_a_partition_lies_on_one_gpu() -> None:
    with pytest.raises(UsageError, match="partition 7 is on GPU 0, found 1"):
        Simulator(
            system([replica(0, 0, partition=7), replica(0, 1, partition=7)], gpus=2), Options(duration_ms=1.0)
        )


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([3.0, 2.0], "source 0: expected ascending times from 0 to below 10 ms, found 2 to 3 unsorted"),
        ([-1.0], "found -1 to -1"),
        ([10.0], "found 10 to 10"),
        ([float("nan")], "found nan to nan"),
    ],
)
def test_arrivals(times: list[float], said: str) -> None:
    simulator = Simulator(system([replica()]), Options(duration_ms=100.0))
    with pytest.raises(UsageError, match=said):
        simulator.advance(Chunk(end_ms=10.0, times_ms=(np.array(times),)))
    with pytest.raises(UsageError, match="of 0 sources, expected 1"):
        simulator.advance(Chunk(end_ms=10.0, times_ms=()))
