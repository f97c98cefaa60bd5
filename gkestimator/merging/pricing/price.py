"""What a graph, or a part of one, costs on a GPU as the estimator sees it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from gkestimator.core.errors import ModelError
from gkestimator.core.kernels import Kernel
from gkestimator.core.records import frozen
from gkestimator.estimation.engine import Estimated
from gkestimator.estimation.timeline import schedule


@frozen
class Price:
    """One inference of a graph, or what a part of it adds to that.

    ``latency_ms``: from the first launch to the end of the last kernel, the host's time to issue calls included; of a
    part: how much shorter the whole would be without it. ``latency_low_ms`` and ``latency_high_ms`` are the ends of
    the 90 % interval (:mod:`gkestimator.estimation.intervals`); None for a part, and the high end where an operator
    is unknown. ``gpu_ms``: sum of the kernels' durations. ``dram_bytes``: every operand of every kernel once,
    ``weight_bytes`` the weights among what is read. ``flops`` counts a multiply-add as two. ``kernels``: launches,
    ``calls``: framework calls. ``resident_bytes``: weights that lie in memory (None for a part).
    """

    latency_ms: float
    gpu_ms: float
    dram_bytes: int
    weight_bytes: int
    flops: int
    kernels: int
    calls: int
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    resident_bytes: int | None = None

    def measure(self, which: str) -> float:
        """``latency_ms`` for ``latency``, ``gpu_ms`` for ``gpu`` (``MergeOptions.price``)."""
        if which == "gpu":
            return self.gpu_ms
        return self.latency_ms


class Priced:
    """A graph lowered, predicted and laid out in time, so that any part of it has a price.

    ``groups``: the operators that a call stands for, by the name of its step, where they are several.
    ``unknown_operators``: those whose time is not counted, because nobody knows it or because they run on the CPU.
    """

    def __init__(
        self,
        estimated: Estimated,
        *,
        kernels: list[Kernel],
        host_overhead_us: float,
        streams: int,
    ) -> None:
        self._program = estimated.lowering.program
        self._host_overhead_us = host_overhead_us
        self._streams = streams
        self._duration_us = estimated.predictions.duration_us[self._program.kernel]
        self._timeline = estimated.measures.timeline
        self._kernels = [kernels[row] for row in estimated.lowering.rows.tolist()]
        self._steps_of: dict[str, list[int]] = {}
        graph = estimated.lowering.graph
        self.groups: Mapping[str, tuple[str, ...]] = graph.groups
        for at, step in enumerate(self._program.steps):
            for name in graph.groups.get(step.name, (step.name,)):
                self._steps_of.setdefault(name, []).append(at)
        launches = self._program.kernel
        work = np.array(
            [(k.read_bytes + k.write_bytes, k.weight_bytes, k.flops) for k in self._kernels], dtype=np.float64
        ).reshape(-1, 3)
        self._work = work[launches] * self._program.repeat[:, None]
        self.unknown_operators = tuple(
            sorted({*graph.unknown_operators, *estimated.lowering.lowered.host_operators})
        )
        m = estimated.measures
        self.price = Price(
            latency_ms=m.latency_ms,
            latency_low_ms=m.latency_low_ms,
            latency_high_ms=None if self.unknown_operators else m.latency_high_ms,
            gpu_ms=m.gpu_ms,
            dram_bytes=m.dram_bytes,
            weight_bytes=int(self._work[:, 1].sum()),
            flops=m.flops,
            kernels=m.kernels,
            calls=round(float(self._program.calls.sum())),
            resident_bytes=sum(graph.weights.values()),
        )
        if not (0 <= m.latency_ms < math.inf and 0 <= m.gpu_ms < math.inf):
            raise ModelError(
                f"{graph.name}: estimated at {m.latency_ms} ms ({m.gpu_ms} ms of kernels): expected a time from 0"
            )

    def starts(self) -> dict[str, float]:
        """Start of every operator's first kernel in ms; operators that launch nothing are left out.

        Those of one fused call start together.
        """
        first = np.searchsorted(self._program.step, np.arange(len(self._program.steps) + 1))
        return {
            name: float(self._timeline.start_us[first[steps[0]]]) / 1e3
            for name, steps in self._steps_of.items()
            if first[steps[0]] < first[steps[0] + 1]
        }

    def piece(self, operators: Collection[str]) -> Price:
        """What the calls that stand for ``operators`` cost where they are: the whole less the whole without them.

        So the host's time counts where the host sets the pace, and the kernels' where the GPU does.
        """
        taken = np.zeros(len(self._program.steps), dtype=bool)
        taken[self._steps(operators)] = True
        launches = taken[self._program.step]
        rest = schedule(
            self._program.only(~taken),
            self._duration_us[~launches],
            host_overhead_us=self._host_overhead_us,
            streams=self._streams,
        )
        repeat = self._program.repeat[launches]
        moved, weights, flops = self._work[launches].sum(axis=0)
        return Price(
            latency_ms=max(0.0, self._timeline.total_us - rest.total_us) / 1e3,
            gpu_ms=float(np.dot(self._duration_us[launches], repeat)) / 1e3,
            dram_bytes=int(moved),
            weight_bytes=int(weights),
            flops=int(flops),
            kernels=int(repeat.sum()),
            calls=round(float(self._program.calls[taken].sum())),
        )

    def flops(self, operators: Collection[str]) -> int:
        """The work of the calls that stand for ``operators``."""
        return int(self._work[self._launches(operators), 2].sum())

    def largest_kernel(self, operators: Collection[str]) -> Kernel | None:
        """The kernel with most FLOPs among those of ``operators``; None where they launch none."""
        rows = self._program.kernel[self._launches(operators)].tolist()
        return max((self._kernels[row] for row in rows), key=lambda kernel: kernel.flops, default=None)

    def _launches(self, operators: Collection[str]) -> np.ndarray:
        """For each launch whether it is of a call that stands for one of ``operators``."""
        return np.isin(self._program.step, self._steps(operators))

    def _steps(self, operators: Collection[str]) -> list[int]:
        return sorted({at for name in operators for at in self._steps_of.get(name, ())})
