"""What measuring a whole model takes: its latency and memory by the estimator, and the seconds of both passes.

The seconds follow what the runner and its child do: in the latency pass calls for a fifth of a second to warm up, then
20 to 50 of them, fewer of slow ones; in the timeline pass a few under the profiler; in each the model is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.core.fragments import Fragment
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.records import frozen
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.profiling.executors.measuring import LEAST_REPEATS, choose_calls
from gkestimator.profiling.sweep.cost import COSTS, GENERIC_GPU, Costs, cpu_s, cpu_slowness
from gkestimator.profiling.sweep.planning import PlanRequest

_WARM_CALLS = 3
_WARM_S = 0.2
_TIMELINE_WARM = 3
"""The child's own: calls of the latency pass to warm up (and for how long), and of the timeline pass."""
_NODE_S = 1e-3
"""To build a node: measured on two shared cores, torch takes 0.1 to 0.2 ms (28 models), onnxruntime up to 1 ms."""
_LAUNCH_S = 1e-4
"""To trace a launch and to read it from the capture: assumed, for want of a GPU."""


@frozen
class ModelPrice:
    """Hold the price of a model. ``latency_s``: of a call, estimated; ``seconds`` that measuring takes;
    ``mreq_pct``: how much of the GPU's memory the process takes, None where no GPU is named or nothing can
    say."""

    latency_s: float
    seconds: float
    mreq_pct: float | None


@frozen
class Prices:
    """Hold the estimator for every precision wanted, on the GPU that is named or the one that stands in for it."""

    request: PlanRequest
    gpu: GpuSpec
    engines: Mapping[str, Engine]
    note: str | None

    @classmethod
    def of(cls, request: PlanRequest, paths: Sequence[Path], dtypes: Sequence[str]) -> Prices:
        """Raise GkestimatorError: a GPU or bundle that cannot be had, a precision that the GPU lacks."""
        engines = {
            dtype: Engine(
                EstimateRequest(
                    models=list(paths),
                    gpus=[request.gpu or GENERIC_GPU],
                    runtime=request.runtime,
                    dtype=dtype,
                    gpu_specs=list(request.gpu_specs),
                    bundles=list(request.bundles),
                )
            )
            for dtype in dtypes
        }
        target = next(iter(engines.values())).targets[0]
        return cls(request=request, gpu=target.gpu, engines=engines, note=target.note)

    def price(self, graph: OperatorGraph, fragment: Fragment, dtype: str) -> ModelPrice:
        """Return what measuring ``graph`` takes, whose fragment in ``dtype`` is ``fragment``. Raises
        UnsupportedOperatorError, and UsageError for a model that launches nothing."""
        engine = self.engines[dtype]
        try:
            lowered = engine.lower_graphs(graph.name, [graph])
            (estimated,) = engine.estimate([lowered])
            row = requirement_row(engine, estimated)
            steps = estimated.lowering.graph.steps
        finally:
            engine.forget()
        launches = sum(step.repeat * len(step.kernels) for step in steps)
        if not launches or row.latency_ms is None:
            raise UsageError(f"{graph.name}: launches nothing: every operator is a view, or known beforehand")
        latency_s = row.latency_ms / 1e3
        if self.request.cpu:
            latency_s = 0.0
            for step in steps:
                for kernel in step.kernels:
                    moved = kernel.read_bytes + kernel.write_bytes
                    latency_s += step.repeat * cpu_s(kernel.flops, moved)
            latency_s *= cpu_slowness(dtype)
        seconds = model_s(
            latency_s,
            nbytes=sum(t.nbytes for t in fragment.tensors),
            nodes=len(fragment.nodes),
            launches=launches,
            costs=COSTS[self.request.runtime],
            repeats=self.request.repeats,
        )
        known = self.request.gpu is not None
        return ModelPrice(latency_s=latency_s, seconds=seconds, mreq_pct=row.mreq_pct if known else None)


def model_s(
    latency_s: float, *, nbytes: int, nodes: int, launches: int, costs: Costs, repeats: int | None = None
) -> float:
    """Return the seconds of the latency pass and the timeline pass of a model, their part of the chunks'
    overhead included.

    ``nbytes``: of inputs and weights; ``launches``: kernels of one call.
    """
    load_s = costs.prepare_s + nodes * _NODE_S + nbytes / costs.fill_bytes_per_s
    warm_s = max(_WARM_CALLS * latency_s, _WARM_S)
    calls = repeats or choose_calls(int(latency_s * 1e9))
    latency = load_s + warm_s + calls * latency_s
    traced_calls = _TIMELINE_WARM + (repeats or LEAST_REPEATS)  # a number that run is told goes for both
    traced_s = latency_s + launches * _LAUNCH_S
    timeline = load_s + traced_calls * traced_s
    chunks = 0.0
    for own_s in (latency, timeline):
        chunks += max(own_s / costs.chunk_work_s, 1.0 / costs.chunk_entries)
    return latency + timeline + chunks * costs.chunk_s
