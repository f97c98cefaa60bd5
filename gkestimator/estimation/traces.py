"""Write estimates for other programs' eyes: a Chrome trace (Perfetto, chrome://tracing) and Model Explorer's node data.

Chrome's format: "Trace Event Format" of the Catapult project, complete events (``ph`` X) in microseconds. Model
Explorer's: ``GraphNodeData`` of its ``node_data_builder``, values by node name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.records import NamedValues, frozen
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.lowering.wiring import UNFOLDED_NORM

_HOST_LANE, _FIRST_GPU_LANE = 0, 1
_COLOURS = (
    {"stop": 0.0, "bgColor": "#f6f8fa"},
    {"stop": 0.3, "bgColor": "#f2c879"},
    {"stop": 1.0, "bgColor": "#c8553d"},
)


@frozen
class LaneSpan:
    """Hold what one lane is busy with for a while: the host with an operator's calls, a stream of the GPU (from 0) with
    the launches of a kernel; ``times``: how many. Microseconds from the host's first call."""

    stream: int | None
    name: str
    operator: str
    op_type: str
    times: float
    start_us: float
    duration_us: float


def host_spans(engine: Engine, answer: Estimated) -> Iterator[LaneSpan]:
    """Yield what the host issues: each operator's calls, one after another, or the launch of a CUDA graph."""
    program = answer.lowering.program
    begin = 0.0
    for step, calls in zip(program.steps, program.calls.tolist(), strict=True):
        duration = calls * engine.host_overhead_us
        name, times = step.name, calls
        if program.one_graph:
            name, times = "CUDA graph", 1.0
        if duration > 0:
            yield LaneSpan(
                stream=None,
                name=name,
                operator=step.name,
                op_type=step.op_type,
                times=times,
                start_us=begin,
                duration_us=duration,
            )
        begin += duration


def gpu_spans(engine: Engine, answer: Estimated) -> Iterator[LaneSpan]:
    """Yield the kernels of the timeline, in the order of their launches; the trips of a loop are one span."""
    program = answer.lowering.program
    timeline = answer.measures.timeline
    for launch, row in enumerate(program.kernel.tolist()):
        step = program.steps[program.step[launch]]
        times = float(program.repeat[launch])
        yield LaneSpan(
            stream=int(timeline.stream[launch]),
            name=engine.pool.kernels[int(answer.lowering.rows[row])].name,
            operator=step.name,
            op_type=step.op_type,
            times=times,
            start_us=float(timeline.start_us[launch]),
            duration_us=float(answer.predictions.duration_us[row]) * times,
        )


class ChromeTrace:
    """Gather answers as processes of a trace: a lane for the host's calls, and one for each stream of the GPU."""

    def __init__(self) -> None:
        self._events: list[NamedValues] = []
        self._processes = 0

    def add(self, engine: Engine, answer: Estimated) -> None:
        """Take in one answer."""
        process = self._processes
        self._processes += 1
        name = (
            f"{answer.lowering.model} on {answer.target.gpu.name}, batch {answer.lowering.lowered.batch_size}"
        )
        if answer.sm_share_pct < 100:
            name = f"{name}, {answer.sm_share_pct:g} % of the SMs"
        self._name("process_name", process, 0, name)
        self._lane(process, _HOST_LANE, "host")
        timeline = answer.measures.timeline
        for stream in sorted(set(timeline.stream.tolist())):
            self._lane(process, _FIRST_GPU_LANE + stream, f"GPU, stream {stream}")
        for span in host_spans(engine, answer):
            self._event(process, _HOST_LANE, span, {"type": span.op_type, "calls": span.times})
        self._gpu(process, engine, answer)

    def _lane(self, process: int, lane: int, name: str) -> None:
        """Name a lane. Viewers sort lanes by name unless told: the host stands above the GPU that waits for it."""
        self._name("thread_name", process, lane, name)
        sort = {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": lane}
        self._events.append({**sort, "args": {"sort_index": lane}})

    def _name(self, kind: str, process: int, lane: int, name: str) -> None:
        self._events.append({"ph": "M", "name": kind, "pid": process, "tid": lane, "args": {"name": name}})

    def _gpu(self, process: int, engine: Engine, answer: Estimated) -> None:
        predictions = answer.predictions
        rows = answer.lowering.program.kernel.tolist()
        for span, row in zip(gpu_spans(engine, answer), rows, strict=True):
            kernel = engine.pool.kernels[int(answer.lowering.rows[row])]
            told: NamedValues = {
                "operator": span.operator,
                "low_us": float(predictions.low_us[row]) * span.times,
                "high_us": float(predictions.high_us[row]) * span.times,
                "roofline_us": float(predictions.roofline_us[row]) * span.times,
                "in_trained_range": bool(predictions.in_range[row] and predictions.trained[row]),
                "flops": kernel.flops,
                "bytes": kernel.read_bytes + kernel.write_bytes,
            }
            self._event(process, _FIRST_GPU_LANE + (span.stream or 0), span, told)

    def _event(self, process: int, lane: int, span: LaneSpan, told: NamedValues) -> None:
        event = {"ph": "X", "name": span.name, "pid": process, "tid": lane}
        self._events.append({**event, "ts": span.start_us, "dur": span.duration_us, "args": told})

    def page(self, messages: Sequence[str]) -> bytes:
        """Return the trace as JSON; ``messages`` stand among its metadata."""
        document = {
            "displayTimeUnit": "ms",
            "otherData": {
                "made by": "gkestimator: an estimate, not a measurement",
                "notes": " · ".join(messages),
            },
            "traceEvents": self._events,
        }
        return (json.dumps(document, allow_nan=False) + "\n").encode()


class NodeData:
    """Gather one answer as an overlay of Model Explorer: microseconds on the GPU by node.

    Model Explorer shows one number a node, so a second answer is refused.
    """

    def __init__(self) -> None:
        self._document: NamedValues | None = None

    def add(self, engine: Engine, answer: Estimated) -> None:
        """Take in the answer. Raises UsageError for a second one."""
        if self._document is not None:
            raise UsageError(
                "model-explorer shows one model on one GPU at one batch size; found more, expected one of each"
            )
        lowering = answer.lowering
        program = lowering.program
        spent: dict[str, float] = {}
        for launch, row in enumerate(program.kernel.tolist()):
            # A normalisation that the exporter folded into its convolution is no node of the file.
            node = program.steps[program.step[launch]].name.removesuffix(UNFOLDED_NORM)
            duration = float(answer.predictions.duration_us[row]) * float(program.repeat[launch])
            spent[node] = spent.get(node, 0.0) + duration
        results: dict[str, Any] = {name: {"value": round(us, 3)} for name, us in spent.items()}
        name = f"us on {answer.target.gpu.name}, batch {lowering.lowered.batch_size} (gkestimator)"
        self._document = {"name": name, "results": results, "gradient": list(_COLOURS)}

    def page(self, messages: Sequence[str]) -> bytes:
        """Return the overlay as JSON."""
        return (json.dumps(self._document or {}, allow_nan=False) + "\n").encode()
