"""Systems and arrivals that the loop cannot take: one line, naming what is wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from _runs import replica, system

from gkestimator.core.errors import UsageError
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.engine.checking import check_room
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.system import SimGpu, SimReplica, SimSource, SimStage, System


def application(stage: SimStage, *replicas: SimReplica) -> System:
    """One application of one stage."""
    asked = SimSource(name="app", application=True, rate_rps=1.0, slo_ms=1.0, stages=(stage,))
    return dataclasses.replace(system(replicas), sources=(asked,))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"duty_cycle_ms": 0.0}, "'0@0': duty_cycle_ms is 0.0, expected 1e-06 to 1e.09 ms"),
        ({"duty_cycle_ms": 1e-300}, "duty_cycle_ms is 1e-300, expected 1e-06 to"),
        ({"weight": 0.0}, "weight is 0.0, expected more than 0"),
        ({"batch_size": 0}, "batch_size is 0, expected 1 to 100,000"),
        ({"batch_size": 10**9}, "batch_size is 1000000000, expected 1 to 100,000"),
        ({"max_wait_ms": float("inf")}, "max_wait_ms is inf, expected 0 to 1e.09 ms"),
        ({"latencies_ms": (1.0, float("nan"))}, "latencies_ms is .*, expected 2 times of 0 to 1e.09 ms"),
        ({"latencies_ms": (1.0, 1e300)}, "latencies_ms is .*, expected 2 times of 0 to 1e.09 ms"),
        ({"latencies_ms": (1.0,)}, "latencies_ms is .*, expected 2 times of 0 to 1e.09 ms"),
        ({"sigma_above": 1e6}, "sigma_above is 1000000.0, expected 0 to 50"),
        (
            {"features": ((0.0,) * 8, (float("nan"),) * 8)},
            "features is .*, expected 2 times 8 finite numbers",
        ),
        ({"features": ((0.0,) * 8,)}, "features is .*, expected 2 times 8 finite numbers"),
        ({"batches": (4, 1)}, "batches is .4, 1., expected ascending sizes"),
        ({"gpu": 3}, "gpu is 3, expected one of 1 GPUs"),
        ({"model": 1}, "model is 1, expected one of 1 models"),
    ],
)
def test_replicas(values: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Simulator(system([replica(**{"id": "0@0", **values})]), Options(duration_ms=1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"model": 2}, "source 'app', stage 0: found model 2, expected one of 1 models"),
        ({"model": -1}, "found model -1"),
        ({"model": 0, "fan_out": float("nan")}, "found fan_out nan"),
        ({"model": 0, "after": (1,)}, "found after .1,., expected some of 1 stages"),
    ],
)
def test_sources(stage: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Simulator(application(SimStage(**stage)), Options(duration_ms=1.0))  # type: ignore[arg-type]


def test_more_at_once_than_there_is_memory_for() -> None:
    asked = application(SimStage(model=0, fan_out=1e6), replica(batch_size=64))
    with pytest.raises(
        UsageError, match="a batch of 64 requests, .* asks for 64,000,064 at once, expected at most"
    ):
        Simulator(asked, Options(duration_ms=1.0))
    # Fifty curves of 100,001 sizes.
    with pytest.raises(
        UsageError, match="curves over 5,000,050 batch sizes in all, expected at most 5,000,000"
    ):
        check_room(100_000, 1, 50 * 100_001)


def test_gpus_and_times_of_availability() -> None:
    plain = system([replica()])
    nan = SimGpu(id="g0", type="any", price_per_hour=None, terms=(float("nan"),) * 8)
    with pytest.raises(UsageError, match="GPU 'g0': terms are .*, expected 8 finite numbers"):
        Simulator(dataclasses.replace(plain, gpus=(nan,)), Options(duration_ms=1.0))
    simulator = Simulator(plain, Options(duration_ms=1.0))
    for never in (float("inf"), float("nan")):
        with pytest.raises(UsageError, match=f"available from {never} ms, expected 0 or more"):
            simulator.add([replica()], [never])


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
