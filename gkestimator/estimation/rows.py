"""Make rows of the requirement table and of the kernel listing of what the engine measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import ModelError
from gkestimator.core.kernels import Kernel
from gkestimator.core.records import NamedNumbers, NamedValues
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.power import model_power
from gkestimator.estimation.remarks import capture_remark
from gkestimator.kernel_models.prediction import KernelPredictions, MeasuredLaunch
from gkestimator.tables import REQUIREMENTS, KernelRow, Requirement

# A family with less of the time moves the sum by less than the sum is uncertain.
_WORTH_SAYING_PCT = 5.0
_MOSTLY_PCT = 50.0
_ROUNDING = 1e-6
_FASTER = "some kernels were learned to be faster at this size"
_SMALLER = "the allocator's segments fit this size better (allocator_bytes)"
MEASURED = "measured"


def fits(row: Requirement) -> bool:
    """Return whether the row's memory is known to fit: neither null nor the lower bound of unknown operators.

    Of a model that runs on the CPU alone it is not said.
    """
    known = row.mreq_pct is not None and row.mreq_pct <= 100
    return known and not row.unknown_kernels and not row.runs_on_cpu_alone


def answers_within(row: Requirement, slo_ms: float) -> bool:
    """Return whether the row's latency is known to meet ``slo_ms``; a lower bound (no upper end) is no answer."""
    return row.latency_ms is not None and row.latency_high_ms is not None and row.latency_ms <= slo_ms


def requirement_row(engine: Engine, e: Estimated) -> Requirement:
    """Return the requirement table's row of one answer. What is not known is None.

    Raises ModelError where a figure is none that a table holds: beyond 64 bits, or not finite.
    """
    m = e.measures
    memory = e.memory
    gpu = e.target.gpu
    lowered = e.lowering.lowered
    copy_ms = (memory.input_bytes + memory.output_bytes) / engine.copy_bytes_per_s * 1e3
    extra = copy_ms if engine.request.include_copy else 0.0
    latency_ms = m.latency_ms + extra
    context = engine.context_bytes(gpu)
    mreq = None
    mreq_pct = None
    if context is not None:
        mreq = memory.reserved_bytes + context
        if gpu.memory_visible_bytes is not None:
            mreq_pct = 100 * mreq / gpu.memory_visible_bytes
    row = Requirement(
        model=e.lowering.model,
        gpu=gpu.name,
        runtime=engine.request.runtime,
        dtype=lowered.dtype,
        batch_size=lowered.batch_size,
        dims=lowered.dims,
        sm_share_pct=float(e.sm_share_pct),
        latency_ms=latency_ms,
        latency_low_ms=m.latency_low_ms + extra,
        latency_high_ms=m.latency_high_ms + extra,
        gpu_ms=m.gpu_ms,
        gpu_low_ms=m.gpu_low_ms,
        gpu_high_ms=m.gpu_high_ms,
        host_ms=m.host_ms,
        host_low_ms=m.host_low_ms,
        host_high_ms=m.host_high_ms,
        copy_ms=copy_ms,
        host_overhead_us=engine.host_overhead_us,
        throughput_rps=_rate(lowered.batch_size, latency_ms),
        host_bound=m.host_ms > m.gpu_ms,
        occupancy_max_pct=_known(m.occupancy_max_pct),
        occupancy_mean_pct=_known(m.occupancy_mean_pct),
        sm_util_max_pct=_known(m.sm_util_max_pct),
        sm_util_mean_pct=_known(m.sm_util_mean_pct),
        sm_util_busy_mean_pct=_known(m.sm_util_busy_mean_pct),
        dram_util_mean_pct=_known(m.dram_util_mean_pct),
        l2_util_mean_pct=_known(m.l2_util_mean_pct),
        **_power(engine, e, extra),
        mreq_bytes=mreq,
        mreq_pct=mreq_pct,
        reserved_bytes=memory.reserved_bytes,
        weights_bytes=memory.weights_bytes,
        activations_bytes=memory.activations_bytes,
        workspace_bytes=memory.workspace_bytes,
        allocator_bytes=memory.allocator_bytes,
        context_bytes=context,
        input_bytes=memory.input_bytes,
        output_bytes=memory.output_bytes,
        flops=m.flops,
        dram_bytes=m.dram_bytes,
        kernels=m.kernels,
        unknown_kernels=sum(step.unknown for step in e.lowering.graph.steps),
        source=_source(e),
        occupancy_source=_mostly(m.occupancy_source_us) or "analytical",
        memory_source="analytical",
        coverage_pct=_known(m.coverage_pct),
        warnings="; ".join(_warnings(engine, e, mreq)),
    )
    problem = REQUIREMENTS.first_problem(row)
    if problem is not None:
        raise ModelError(f"{row.model}: on {gpu.name}: {problem}")
    unknown = _untold(e)
    if unknown:
        return replace(row, **unknown)
    return row


def with_falls_said(rows: Sequence[Requirement]) -> list[Requirement]:
    """Return the rows of one model, with a remark where one needs less than a smaller batch that was asked for too.

    Both happen: libraries choose kernels by size, which regressors learn, and what an allocator leaves unused hangs on
    how requests fit into its segments (powers of two in ONNX Runtime's arena).
    """
    remarked = list(rows)
    by_batch = sorted(range(len(rows)), key=lambda at: rows[at].batch_size or 0)
    smaller: dict[tuple[object, ...], Requirement] = {}
    for at in by_batch:
        row = rows[at]
        key = (row.gpu, row.sm_share_pct, row.dims)
        before = smaller.setdefault(key, row)
        remarks = [row.warnings] if row.warnings else []
        if _falls(before.latency_ms, row.latency_ms):
            remarks.append(f"faster than batch {before.batch_size}: {_FASTER}")
        if _falls(before.mreq_bytes, row.mreq_bytes):
            remarks.append(f"less memory than batch {before.batch_size}: {_SMALLER}")
        remarked[at] = replace(row, warnings="; ".join(remarks))
        smaller[key] = row
    return remarked


def _falls(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < before * (1 - _ROUNDING)


def _power(engine: Engine, e: Estimated, copy_ms: float) -> NamedValues:
    """Return the columns of power and energy; none where they are unknown."""
    if engine.streams > 1 or e.lowering.graph.unknown_operators or e.lowering.lowered.host_operators:
        return {}
    known = model_power(e.lowering.program, e.predictions, e.measures, copy_ms=copy_ms)
    if known is None:
        return {}
    return {
        "power_w": known.watts.value,
        "power_low_w": known.watts.low,
        "power_high_w": known.watts.high,
        "energy_j": known.joules.value,
        "energy_low_j": known.joules.low,
        "energy_high_j": known.joules.high,
    }


# A CPU has neither warps nor SMs.
_OF_SMS = (
    "occupancy_max_pct",
    "occupancy_mean_pct",
    "sm_util_max_pct",
    "sm_util_mean_pct",
    "sm_util_busy_mean_pct",
)
# Operators that are left out or run on the CPU take time that nobody counted.
_OF_ALL_WORK = ("latency_high_ms", "gpu_high_ms", "host_high_ms", "throughput_rps", "host_bound")
_MEANS_OVER_TIME = ("occupancy_mean_pct", "sm_util_mean_pct", "dram_util_mean_pct", "l2_util_mean_pct")


def _untold(e: Estimated) -> NamedValues:
    """Return the columns that are null in this row, though there is a figure: it says nothing here."""
    names: list[str] = []
    if e.lowering.graph.unknown_operators or e.lowering.lowered.host_operators:
        names += _OF_ALL_WORK
        # Where all of the work is unknown or on the CPU, nothing is known of the time that shares would be means over.
        if e.measures.kernels == 0:
            names += _MEANS_OVER_TIME
    if e.target.gpu.stands_in:
        names += [*_OF_SMS, "occupancy_source"]
    return dict.fromkeys(names)


def _rate(batch: int | None, latency_ms: float) -> float | None:
    if batch is None or latency_ms <= 0:
        return None
    return batch / latency_ms * 1e3


def _source(e: Estimated) -> str:
    """Return the bundle behind most of the time; ``analytical`` unless bundles answered half of it.

    Measured kernels are the bundle's: the row as a whole was not measured.
    """
    if math.isnan(e.measures.trained_pct) or e.measures.trained_pct < 50:
        return "analytical"
    own = f"trained:{e.estimator}"
    by: NamedNumbers = {}
    for source, us in e.measures.source_us.items():
        bundle = own if source == MEASURED else source
        by[bundle] = by.get(bundle, 0.0) + us
    by.pop("analytical", None)
    return _mostly(by) or own


def _mostly(us: Mapping[str, float]) -> str | None:
    if us:
        return max(sorted(us), key=lambda word: us[word])
    return None


def _known(value: float) -> float | None:
    if math.isnan(value):
        return None
    return float(value)


def _warnings(engine: Engine, e: Estimated, mreq: int | None) -> Iterator[str]:
    lowering = e.lowering
    m = e.measures
    if lowering.graph.unknown_operators:
        names = ", ".join(lowering.graph.unknown_operators)
        yield f"unknown operators left out ({names}): time, work and memory are lower bounds"
    if lowering.lowered.host_operators:
        yield f"runs on the CPU, its time not counted: {', '.join(lowering.lowered.host_operators)}"
    elif m.kernels == 0 and not lowering.graph.unknown_operators:
        yield "launches nothing on the GPU: every operator is a view or known before the model runs"
    yield from lowering.lowered.warnings
    if engine.request.cuda_graph:
        yield capture_remark(lowering.lowered.not_captured)
    calculated = sorted(name for name, share in m.analytical_families.items() if share >= _WORTH_SAYING_PCT)
    if calculated:
        yield f"calculated, not learned: {', '.join(calculated)}"
    if not m.coverage_pct >= _MOSTLY_PCT and m.kernels:
        yield "most of the time is predicted outside the trained range (coverage_pct)"
    visible = e.target.gpu.memory_visible_bytes
    if visible is None:
        yield "whether it fits is not known: no source states the memory that programs see on this GPU"
    elif mreq is not None and mreq > visible:
        yield f"does not fit: needs {mreq / 2**30:.1f} GiB of {visible / 2**30:.1f} GiB"
    if e.target.gpu.stands_in:
        yield "a CPU stands in for a GPU: no occupancy, no SM utilisation, and memory as a GPU would need it"
    if engine.streams > 1:
        yield (
            f"{engine.streams} streams: overlapping kernels share SMs and bandwidth, and are assumed not to slow "
            "each other down while these suffice"
        )


def kernel_rows(engine: Engine, e: Estimated) -> Iterator[KernelRow]:
    """Yield every launch of one answer in order, with its operator, duration, share and what bounds it."""
    index = 0
    detail = e.predictions.detail
    for i, row in enumerate(e.lowering.program.kernel.tolist()):
        whole = _kernel_row(engine, e, i, row)
        sequence = None if detail is None else detail.sequence[row]
        launches = iter((whole,))
        if sequence is not None:
            launches = _launch_rows(whole, sequence)
        for launch in launches:
            yield replace(launch, index=index)
            index += 1


def _kernel_row(engine: Engine, e: Estimated, i: int, row: int) -> KernelRow:
    """Return launch ``i`` of the program, row ``row`` of the predictions, as the rules see it."""
    lowering = e.lowering
    p = e.predictions
    program = lowering.program
    timeline = e.measures.timeline
    step = program.steps[program.step[i]]
    kernel = engine.pool.kernels[int(lowering.rows[row])]
    source = f"trained:{e.estimator}" if p.trained[row] else "analytical"
    if p.detail is not None:
        source = str(p.detail.source[row])
    share = None
    if timeline.busy_us > 0:
        share = 100 * float(p.duration_us[row] * program.repeat[i]) / timeline.busy_us
    geometry: NamedValues = {}
    if not e.target.gpu.stands_in:  # a CPU launches no blocks
        for name in ("grid_blocks", "block_threads", "registers_per_thread", "shared_bytes"):
            geometry[name] = _count(getattr(p, name)[row])
        geometry["occupancy_pct"] = _known(p.occupancy_pct[row])
        geometry["sm_util_pct"] = _known(p.sm_util_pct[row])
    return KernelRow(
        model=lowering.model,
        gpu=e.target.gpu.name,
        runtime=engine.request.runtime,
        dtype=lowering.lowered.dtype,
        batch_size=lowering.lowered.batch_size,
        dims=lowering.lowered.dims,
        sm_share_pct=float(e.sm_share_pct),
        index=i,
        operator=step.name,
        op_type=step.op_type,
        kernel=kernel.name,
        family=kernel.family.value,
        precision=kernel.precision.value if p.precision is None else str(p.precision[row]),
        launches=int(program.repeat[i]),
        duration_us=float(p.duration_us[row]),
        duration_low_us=float(p.low_us[row]),
        duration_high_us=float(p.high_us[row]),
        start_us=float(timeline.start_us[i]),
        stream=int(timeline.stream[i]),
        share_pct=share,
        bound_by=bound_by(engine, e, i),
        flops=kernel.flops,
        dram_bytes=_moved_bytes(p, row, kernel),
        source=source,
        **geometry,
    )


def _moved_bytes(predictions: KernelPredictions, row: int, kernel: Kernel) -> int:
    """Return what a kernel reads and writes in the precision that it was predicted in."""
    if predictions.moved_bytes is None:
        return kernel.read_bytes + kernel.write_bytes
    return round(float(predictions.moved_bytes[row]))


def bound_by(engine: Engine, e: Estimated, launch: int) -> str:
    """Return what sets the time of one launch of an answer: ``compute``, ``memory``, ``latency`` or ``host``."""
    program = e.lowering.program
    step = program.steps[program.step[launch]]
    calls = program.calls[program.step[launch]] / step.repeat
    host_us = engine.host_overhead_us * calls / len(step.kernels)
    return _bound_by(e.predictions, int(program.kernel[launch]), host_us)


def _launch_rows(whole: KernelRow, sequence: Sequence[MeasuredLaunch]) -> Iterator[KernelRow]:
    """Yield a row per launch that was measured, in place of the one of the rules.

    Work is told of the whole call, so it stands with the longest launch alone.
    """
    # Any other choice would count the work of one call several times.
    longest = max(range(len(sequence)), key=lambda i: sequence[i].share)
    total = sum(launch.share for launch in sequence) or 1.0
    start = whole.start_us
    for i, launch in enumerate(sequence):
        share = launch.share / total
        row = replace(
            whole,
            kernel=launch.name,
            duration_us=share * (whole.duration_us or 0.0),
            duration_low_us=_part(share, whole.duration_low_us),
            duration_high_us=_part(share, whole.duration_high_us),
            start_us=start,
            share_pct=_part(share, whole.share_pct),
            grid_blocks=_count(launch.grid_blocks),
            block_threads=_count(launch.block_threads),
            registers_per_thread=_count(launch.registers_per_thread),
            shared_bytes=_count(launch.shared_bytes),
            occupancy_pct=launch.occupancy_pct,
            sm_util_pct=launch.sm_util_pct,
        )
        yield row if i == longest else replace(row, flops=None, dram_bytes=None)
        if start is not None:
            start += share * (whole.duration_us or 0.0)


def _part(share: float, value: float | None) -> float | None:
    return None if value is None else share * value


def _count(value: float | np.floating | None) -> int | None:
    if value is None or math.isnan(value):
        return None
    return int(value)


def _bound_by(p: KernelPredictions, row: int, host_us: float) -> str:
    """Return what sets the kernel's time.

    ``host`` when issuing takes longer than running, ``latency`` when the roofline is under a third of the time.
    """
    duration = float(p.duration_us[row])
    if host_us > duration:
        return "host"
    if float(p.roofline_us[row]) < duration / 3:
        return "latency"
    if p.compute_us[row] >= p.memory_us[row]:
        return "compute"
    return "memory"
