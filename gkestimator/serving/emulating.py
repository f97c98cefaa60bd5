"""Emulate GPUs: a batch takes the table's time, and longer while others run beside it, by the interference law."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gkestimator.interference.base import FEATURES, TERMS
from gkestimator.interference.laws import slowdown
from gkestimator.serving.backend import Arrays, ServedSignature
from gkestimator.serving.served import ServedReplica

_ELEMENTS = {
    "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip
_NOTHING = np.zeros(FEATURES)
# A loop wakes up to a millisecond late. A batch that begins within so much of the end of the one before on its lane has
# that time taken off, so that lateness does not add up from batch to batch.
_NEXT_S = 0.001
# Beyond, the machine itself stood still, which no batch makes up for.
_MOST_LATE_S = 0.02


class EmulatedBatch:
    """Hold a batch under way: ``work_s`` is what was left of it at ``since``, alone on the GPU; since then it advances
    at 1 / ``slow`` of its speed alone.
    """

    __slots__ = ("changed", "features", "since", "slow", "work_s")

    def __init__(self, work_s: float, features: NDArray[np.float64], now: float) -> None:
        self.work_s = work_s
        self.features = features
        self.since = now
        self.slow = 1.0
        self.changed = asyncio.Event()

    @property
    def ends(self) -> float:
        """Return when it ends, if its company stays as it is."""
        return self.since + self.work_s * self.slow

    def set_slow(self, slow: float, now: float) -> None:
        """Let it go on at another speed."""
        if slow != self.slow:
            self.work_s -= (now - self.since) / self.slow
            self.since = now
            self.slow = slow
            self.changed.set()


class EmulatedGpu:
    """Keep the batches that run on one GPU, and slow each by the others as the simulator's engine does.

    ``law`` is the number by which :func:`gkestimator.interference.laws.slowdown` knows the law.
    """

    def __init__(self, law: int) -> None:
        self._law = law
        self._running: list[EmulatedBatch] = []
        self._ended: dict[str, tuple[float, float]] = {}  # by lane: when its last batch did, and how late

    async def run(
        self, lane: str, work_ms: float, features: NDArray[np.float64], terms: NDArray[np.float64]
    ) -> None:
        """Return once a batch on ``lane`` has run that takes ``work_ms`` alone on the GPU."""
        now = time.monotonic()
        ended, late_s = self._ended.get(lane, (0.0, 0.0))
        if now - ended > _NEXT_S:
            late_s = 0.0
        batch = EmulatedBatch(work_ms / 1e3 - min(late_s, _MOST_LATE_S), features, now)
        self._running.append(batch)
        self._change(terms)
        try:
            while (left_s := batch.ends - time.monotonic()) > 0:
                batch.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(batch.changed.wait(), left_s)
        finally:
            now = time.monotonic()
            self._ended[lane] = (now, max(0.0, now - batch.ends))
            self._running.remove(batch)
            self._change(terms)

    def _change(self, terms: NDArray[np.float64]) -> None:
        """Set the speed of every batch by its company now."""
        now = time.monotonic()
        together = sum((batch.features for batch in self._running), _NOTHING)
        count = len(self._running) - 1
        for batch in self._running:
            # What is left of a sum may be off 0 by a rounding error.
            others = together - batch.features
            others[np.abs(others) <= 1e-12 * (np.abs(together) + np.abs(batch.features))] = 0.0
            batch.set_slow(slowdown(self._law, batch.features, others, count, terms), now)


class EmulatedReplica:
    """Answer batches of one replica with zeros, after the time that they would take."""

    def __init__(self, replica: ServedReplica, gpu: EmulatedGpu, signature: ServedSignature) -> None:
        self._replica = replica
        self._gpu = gpu
        self._terms = np.array(replica.terms or (0.0,) * TERMS)
        self._zeros: Arrays = {}
        for tensor in signature.outputs:
            # An axis whose length nobody knows before the run is answered as one of length 1.
            shape = [1 if size is None else size for size in tensor.shape]
            filler: Any = b"" if tensor.datatype == "BYTES" else 0
            self._zeros[tensor.name] = np.full(shape, filler, dtype=_ELEMENTS[tensor.datatype])

    async def run(self, samples: Sequence[Arrays]) -> list[Arrays]:
        """Return zeros for each sample once the batch has run."""
        size = len(samples)
        replica = self._replica
        await self._gpu.run(replica.lane, replica.time_ms(size), self._features(size), self._terms)
        return [self._zeros] * size

    def _features(self, size: int) -> NDArray[np.float64]:
        known = self._replica.features
        if known is None:
            return _NOTHING
        columns = np.array(known).T
        return np.array([np.interp(size, self._replica.batches, column) for column in columns])
