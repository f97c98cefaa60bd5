"""One whole model as measured, with its work by the estimator's own rules: a row of the requirement table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.kernels import Family
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.lowering import lower
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.profiling.building.describing import lowering_options
from gkestimator.profiling.building.entries import MeasuredEntry, MeasuredLatency
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.records import MemoryUse
from gkestimator.profiling.tabling.use import LaunchUse, launch_use
from gkestimator.profiling.type_names import Fields
from gkestimator.tables import Requirement


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
    flops = 0
    for step in graph.steps:
        for kernel in step.kernels:
            if kernel.family is not Family.HOST:
                flops += kernel.flops * step.repeat
    return Work(
        weights_bytes=sum(graph.weights.values()),
        input_bytes=sum(size for name, size in graph.inputs.items() if name not in made),
        output_bytes=sum(graph.outputs.values()),
        flops=flops,
    )


# Repeats below which a 5th and a 95th percentile lie beyond the least and the largest of them.
FEWEST_FOR_SPREAD = 20
_OF_USE = (
    *("occupancy_max_pct", "occupancy_mean_pct", "kernels"),
    *("sm_util_max_pct", "sm_util_mean_pct", "sm_util_busy_mean_pct"),
)
# Launches that take this much longer together than the call without a profiler are worth a word.
_LONGER = 1.05


@frozen
class MeasuredModel:
    """Hold what a row is made of: the latency that was kept, the timeline (None: there is none), the GPU type
    and the model's work."""

    latency: MeasuredLatency
    timeline: MeasuredEntry | None
    gpu: GpuSpec
    work: Work


def measured_row(measured: MeasuredModel) -> Requirement:
    """Return the row. What was not measured is None.

    ``latency_ms`` is the median of the repeats; ``latency_low_ms`` and ``latency_high_ms`` their 5th and 95th
    percentile, the spread of the repeats and no interval of confidence. ``gpu_ms``: its launches together, under
    the profiler; ``host_ms``: the median time to issue a call; ``host_bound``: the host took longer than the
    launches ran, which is what an estimate means by it. ``energy_j``: mean power over the repeats times latency.
    What the peak of allocated memory holds besides weights cannot be told apart, so activations, workspace and
    allocator stay None.
    """
    latency = measured.latency
    work = measured.work
    point = latency.entry.model
    assert point is not None, "whole models alone have latencies"
    cpu = latency.chunk.device.kind == "cpu"
    times = np.array(latency.latency_us)
    latency_ms = float(np.median(times)) / 1e3
    low = None
    high = None
    if times.size >= FEWEST_FOR_SPREAD:
        low, high = (float(np.percentile(times, q)) / 1e3 for q in (5, 95))
    throughput = None
    if point.batch_size is not None:
        throughput = point.batch_size / latency_ms * 1e3
    use = None
    memory = None
    power = None
    host_ms = None
    if not cpu:
        memory = latency.record.memory
        power = latency.power_w
        host_ms = _host_ms(latency)
    timeline = measured.timeline
    if timeline is not None and not cpu:
        use = launch_use(timeline.launches, measured.gpu, latency_us=latency_ms * 1e3, calls=timeline.calls)
    occupancy_source = None
    if use is not None and use.occupancy_max_pct is not None:
        occupancy_source = "analytical"
    return Requirement(
        model=point.name,
        gpu=measured.gpu.name,
        runtime=latency.chunk.executor,
        dtype=latency.entry.dtype,
        batch_size=point.batch_size,
        dims=",".join(f"{name}={size}" for name, size in sorted(point.dims.items())),
        latency_ms=latency_ms,
        latency_low_ms=low,
        latency_high_ms=high,
        throughput_rps=throughput,
        gpu_ms=None if use is None else use.busy_us / 1e3,
        host_ms=host_ms,
        host_bound=None if use is None or host_ms is None else host_ms * 1e3 > use.busy_us,
        **_columns(use),
        power_w=power,
        energy_j=None if power is None else power * latency_ms / 1e3,
        **_memory(memory, measured),
        weights_bytes=work.weights_bytes,
        input_bytes=work.input_bytes,
        output_bytes=work.output_bytes,
        flops=work.flops,
        source="measured",
        occupancy_source=occupancy_source,
        warnings="; ".join(_warnings(measured, use, cpu=cpu)),
    )


def _columns(use: LaunchUse | None) -> Fields:
    return {name: getattr(use, name, None) for name in _OF_USE}


def _memory(use: MemoryUse | None, measured: MeasuredModel) -> Fields:
    """Return the columns of measured memory, and what memory in the row is from."""
    reserved = None if use is None else use.reserved_bytes
    device = None if use is None else use.device_bytes
    # What the driver counts and the allocator does not: context, modules, workspaces of libraries.
    context = None
    if reserved is not None and device is not None and device >= reserved:
        context = device - reserved
    visible = measured.gpu.memory_visible_bytes
    mreq_pct = None
    if device is not None and visible is not None:
        mreq_pct = 100 * device / visible
    source = None
    if reserved is not None or device is not None:
        source = "measured"
    elif measured.work.weights_bytes is not None:
        source = "analytical"
    return {
        "mreq_bytes": device,
        "mreq_pct": mreq_pct,
        "reserved_bytes": reserved,
        "context_bytes": context,
        "memory_source": source,
    }


def _host_ms(latency: MeasuredLatency) -> float | None:
    """Return the median time that the host took to issue a call; None where nobody took it."""
    issued = latency.record.host_us
    if not issued:
        return None
    return statistics.median(issued) / 1e3


def _warnings(measured: MeasuredModel, use: LaunchUse | None, *, cpu: bool) -> Iterator[str]:
    latency = measured.latency
    if latency.quality == "noisy":
        how_much = "" if latency.cv is None else f" by {100 * latency.cv:.0f} %"
        yield f"noisy: the repeats vary{how_much}, or other processes ran"
    elif latency.quality == "throttled":
        yield "throttled: clocks were held down"
    if latency.tenants:
        yield f"{latency.tenants} other processes were on the GPU meanwhile"
    if len(latency.latency_us) < FEWEST_FOR_SPREAD:
        yield f"{len(latency.latency_us)} repeats: too few for the ends of their spread"
    if cpu:
        yield "a CPU stands in for a GPU: time alone, no memory, no occupancy, no SM utilisation"
        return
    if latency.record.cpu_nodes:
        yield f"{latency.record.cpu_nodes} nodes ran on the CPU"
    if measured.work.problem is not None:
        yield "work and tensors not known: no rule for all of its operators"
    if measured.timeline is None or use is None:
        yield "no timeline: launches, occupancy and SM utilisation not known"
    else:
        yield from _timeline_warnings(latency, measured.timeline, use)


def _timeline_warnings(latency: MeasuredLatency, timeline: MeasuredEntry, use: LaunchUse) -> Iterator[str]:
    if timeline.quality == "throttled":
        yield "throttled while launches were recorded"
    if timeline.calls > 1:
        yield f"its calls launched different kernels: use is the mean of {timeline.calls} calls"
    if use.told < use.of:
        yield f"geometry of {use.of - use.told} of {use.of} kernels not told: no occupancy, no SM utilisation"
    if use.streams == 1 and use.busy_us > _LONGER * statistics.median(latency.latency_us):
        yield "launches took longer under the profiler than the call without it"
