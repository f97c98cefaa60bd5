"""Gather, of every answer, what the requirement table has no columns for: timeline and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas

from gkestimator.core.records import frozen
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.traces import gpu_spans, host_spans
from gkestimator.memory.trace import live_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TEXT, _WHOLE, _NUMBER = "string", "Int64", "Float64"  # types of pandas that can hold what is missing
_KEY = {
    "model": _TEXT,
    "gpu": _TEXT,
    "runtime": _TEXT,
    "dtype": _TEXT,
    "batch_size": _WHOLE,
    "dims": _TEXT,
    "sm_share_pct": _NUMBER,
}
_SPAN = {
    "stream": _WHOLE,
    "name": _TEXT,
    "operator": _TEXT,
    "op_type": _TEXT,
    "times": _NUMBER,
    "start_us": _NUMBER,
    "duration_us": _NUMBER,
}
_OVER_TIME = {
    "step": _WHOLE,
    "operator": _TEXT,
    "op_type": _TEXT,
    "start_us": _NUMBER,
    "live_bytes": _WHOLE,
}
_AT_PEAK = {"step": _WHOLE, "operator": _TEXT, "tensor": _TEXT, "bytes": _WHOLE}


@frozen
class MemoryTables:
    """Hold the memory of inputs, intermediates and outputs while a model runs; weights, scratch memory and what the
    allocator adds are columns of the requirement table.

    ``over_time``: bytes alive during every step, with the start of its first kernel (NA: it launches none).
    ``at_peak``: the tensors alive at the step that needs most (the first of several), the largest first.
    """

    over_time: pandas.DataFrame
    at_peak: pandas.DataFrame


def _key(engine: Engine, answer: Estimated) -> tuple[Any, ...]:
    lowered = answer.lowering.lowered
    return (
        answer.lowering.model,
        answer.target.gpu.name,
        engine.request.runtime,
        lowered.dtype,
        lowered.batch_size,
        lowered.dims,
        float(answer.sm_share_pct),
    )


def _frame(rows: Iterable[tuple[Any, ...]], columns: Mapping[str, str]) -> pandas.DataFrame:
    types = {**_KEY, **columns}
    return pandas.DataFrame(list(rows), columns=list(types)).astype(types)


class Lanes:
    """Gather what host and GPU are busy with, and when."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add(self, engine: Engine, answer: Estimated) -> None:
        """Take in one answer."""
        key = _key(engine, answer)
        for lane, spans in (("host", host_spans(engine, answer)), ("GPU", gpu_spans(engine, answer))):
            for span in spans:
                told = [getattr(span, name) for name in _SPAN]
                self._rows.append((*key, lane, *told))

    def table(self) -> pandas.DataFrame:
        """Return one row for each time that a lane is busy."""
        return _frame(self._rows, {"lane": _TEXT, **_SPAN})


class LiveMemory:
    """Gather what is alive in memory while a model runs."""

    def __init__(self) -> None:
        self._over_time: list[tuple[Any, ...]] = []
        self._at_peak: list[tuple[Any, ...]] = []

    def add(self, engine: Engine, answer: Estimated) -> None:
        """Take in one answer."""
        program = answer.lowering.program
        if not program.steps:
            return
        key = _key(engine, answer)
        starts: dict[int, float] = {}
        for step, start in zip(
            program.step.tolist(), answer.measures.timeline.start_us.tolist(), strict=True
        ):
            starts.setdefault(step, start)
        alive = live_bytes(answer.lowering.graph)
        for number, (step, nbytes) in enumerate(zip(program.steps, alive.live, strict=True)):
            self._over_time.append((*key, number, step.name, step.op_type, starts.get(number), nbytes))
        peak = program.steps[alive.peak].name
        self._at_peak += [(*key, alive.peak, peak, tensor, nbytes) for tensor, nbytes in alive.alive]

    def tables(self) -> MemoryTables:
        """Return both tables."""
        return MemoryTables(
            over_time=_frame(self._over_time, _OVER_TIME), at_peak=_frame(self._at_peak, _AT_PEAK)
        )
