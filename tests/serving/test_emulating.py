"""An emulated GPU takes the table's time, and longer in company, as the simulator's engine has it."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from gkestimator.interference.laws import CONTENTION, NONE, slowdown
from gkestimator.serving.emulating import EmulatedGpu

TERMS = np.zeros(8)
# SM demand of 0.8, not confined: two of them take 1.6 times as long.
BUSY = np.array([0.8, 0.0, 0.0, 0.8, 0.0, 1.0, 1.0, 0.0])
slowdown(NONE, BUSY, BUSY, 0, TERMS)  # compiled now, where it is compiled: workers do without


async def _ran_ms(gpu: EmulatedGpu, lane: str, work_ms: float, after_ms: float = 0.0) -> float:
    await asyncio.sleep(after_ms / 1e3)
    begun = time.monotonic()
    await gpu.run(lane, work_ms, BUSY, TERMS)
    return (time.monotonic() - begun) * 1e3


def test_alone_it_takes_the_tables_time() -> None:
    took = asyncio.run(_ran_ms(EmulatedGpu(CONTENTION), "a", 100.0))
    assert took == pytest.approx(100.0, abs=8.0)


def test_company_slows_while_it_lasts() -> None:
    async def both() -> list[float]:
        gpu = EmulatedGpu(CONTENTION)
        return await asyncio.gather(_ran_ms(gpu, "a", 200.0), _ran_ms(gpu, "b", 50.0, after_ms=50.0))

    long, short = asyncio.run(both())
    # The short one runs 50 x 1.6 beside the long one, which advances by 50 in these 80.
    assert short == pytest.approx(80.0, abs=10.0)
    assert long == pytest.approx(230.0, abs=15.0)


def test_without_a_law_neighbours_cost_nothing() -> None:
    async def both() -> list[float]:
        gpu = EmulatedGpu(NONE)
        return await asyncio.gather(_ran_ms(gpu, "a", 100.0), _ran_ms(gpu, "b", 100.0))

    assert asyncio.run(both()) == [pytest.approx(100.0, abs=10.0)] * 2


def test_lateness_does_not_add_up_from_batch_to_batch() -> None:
    async def many() -> float:
        gpu = EmulatedGpu(NONE)
        begun = time.monotonic()
        for _ in range(100):
            await gpu.run("a", 3.3, BUSY, TERMS)
        return (time.monotonic() - begun) * 1e3

    # The best of three: a machine that is busy with other work may be late by more than is taken off.
    assert min(asyncio.run(many()) for _ in range(3)) == pytest.approx(330.0, rel=0.06)
