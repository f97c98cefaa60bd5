"""What a whole model is, whatever it was measured on: its work and its tensors, by the estimator's own rules."""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.kernels import Family
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.lowering import lower
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.profiling.building.describing import lowering_options
from gkestimator.profiling.plan import PlanEntry


@frozen
class Work:
    """Hold columns of the requirement table that follow from the model alone; all None where ``problem`` says
    why."""

    weights_bytes: int | None = None
    input_bytes: int | None = None
    output_bytes: int | None = None
    flops: int | None = None
    problem: str | None = None


def work_of(entry: PlanEntry, runtime: str, gpu: GpuSpec) -> Work:
    """Return the work of a whole model under ``runtime`` on ``gpu``, as an estimate of it counts work.
    Executors run a convolution with a folded BatchNorm as the file has it, so it is not unfolded here."""
    options = replace(lowering_options(runtime, entry.dtype, gpu), unfold_batchnorm=False)
    try:
        graph = lower(fragment_graph(entry.fragment), options)
    except GkestimatorError as e:
        return Work(problem=str(e))
    # What the file makes of shapes (position ids) goes in with its values: no input of the model's user.
    made = {t.name for t in entry.fragment.tensors if t.role == "input" and t.values is not None}
    return Work(
        weights_bytes=sum(graph.weights.values()),
        input_bytes=sum(size for name, size in graph.inputs.items() if name not in made),
        output_bytes=sum(graph.outputs.values()),
        flops=sum(
            kernel.flops * step.repeat
            for step in graph.steps
            for kernel in step.kernels
            if kernel.family is not Family.HOST
        ),
    )
