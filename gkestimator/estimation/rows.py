"""From what the engine measured to rows of the requirement table and of the kernel table."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.prediction import KernelPredictions
from gkestimator.tables import KernelRow, Requirement

__all__ = ["answers_within", "fits", "kernel_rows", "requirement_row"]

_WORTH_SAYING_PCT = 5.0
_MOSTLY_PCT = 50.0


def fits(row: Requirement) -> bool:
    """Whether the row's memory is known to fit: neither null nor the lower bound that unknown operators leave."""
    return row.mreq_pct is not None and row.mreq_pct <= 100 and not row.unknown_kernels


def answers_within(row: Requirement, slo_ms: float) -> bool:
    """Whether the row's latency is known to meet ``slo_ms``; a lower bound (no upper end) is no answer."""
    return row.latency_ms is not None and row.latency_high_ms is not None and row.latency_ms <= slo_ms


def requirement_row(engine: Engine, e: Estimated) -> Requirement:
    """The requirement table's row of one answer. What is not known is None."""
    m, memory, gpu = e.measures, e.memory, e.target.gpu
    lowering = e.lowering
    unknown = len(lowering.graph.unknown_operators) > 0
    partial = unknown or bool(lowering.lowered.host_operators)
    moved = memory.input_bytes + memory.output_bytes
    copy_ms = moved / engine.copy_bytes_per_s * 1e3
    extra = copy_ms if engine.request.include_copy else 0.0
    latency = m.latency_ms + extra
    context = engine.context_bytes(gpu)
    mreq = None if context is None else memory.reserved_bytes + context
    batch = lowering.lowered.batch_size
    warnings = tuple(_warnings(engine, e, mreq))
    # Where all of the work is unknown or on the CPU, nothing is known of the time that shares would be means over.
    mean = _unknown if partial and m.kernels == 0 else _known
    trained = m.trained_pct >= 50 if not math.isnan(m.trained_pct) else False
    return Requirement(
        model=lowering.model,
        gpu=gpu.name,
        runtime=engine.request.runtime,
        dtype=lowering.lowered.dtype,
        batch_size=batch,
        dims=lowering.lowered.dims,
        sm_share_pct=float(e.sm_share_pct),
        latency_ms=latency,
        latency_low_ms=m.latency_low_ms + extra,
        latency_high_ms=None if partial else m.latency_high_ms + extra,
        copy_ms=copy_ms,
        host_overhead_us=engine.host_overhead_us,
        throughput_rps=None if partial or latency <= 0 or batch is None else batch / latency * 1e3,
        host_bound=None if partial else m.host_ms > m.gpu_ms,
        occupancy_max_pct=_known(m.occupancy_max_pct),
        occupancy_mean_pct=mean(m.occupancy_mean_pct),
        sm_util_max_pct=_known(m.sm_util_max_pct),
        sm_util_mean_pct=mean(m.sm_util_mean_pct),
        sm_util_busy_mean_pct=_known(m.sm_util_busy_mean_pct),
        dram_util_mean_pct=mean(m.dram_util_mean_pct),
        l2_util_mean_pct=mean(m.l2_util_mean_pct),
        power_w=None,
        mreq_bytes=mreq,
        mreq_pct=None if mreq is None else 100 * mreq / gpu.memory_visible_bytes,
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
        unknown_kernels=sum(1 for s in lowering.graph.steps if s.unknown),
        source=f"trained:{e.estimator}" if trained else "analytical",
        occupancy_source="analytical",
        memory_source="analytical",
        coverage_pct=_known(m.coverage_pct),
        warnings="; ".join(warnings),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _unknown(_: float) -> None:
    return None


def _warnings(engine: Engine, e: Estimated, mreq: int | None) -> Iterator[str]:
    lowering, m = e.lowering, e.measures
    if lowering.graph.unknown_operators:
        names = ", ".join(lowering.graph.unknown_operators)
        yield f"unknown operators left out ({names}): time, work and memory are lower bounds"
    if lowering.lowered.host_operators:
        yield f"runs on the CPU, its time not counted: {', '.join(lowering.lowered.host_operators)}"
    elif m.kernels == 0 and not lowering.graph.unknown_operators:
        yield "launches nothing on the GPU: every operator is a view or known before the model runs"
    yield from lowering.lowered.warnings
    calculated = sorted(name for name, share in m.analytical_families.items() if share >= _WORTH_SAYING_PCT)
    if calculated:
        yield f"calculated, not learned: {', '.join(calculated)}"
    if not m.coverage_pct >= _MOSTLY_PCT and m.kernels:
        yield "most of the time is predicted outside the trained range (coverage_pct)"
    if mreq is not None and mreq > e.target.gpu.memory_visible_bytes:
        yield f"does not fit: needs {mreq / 2**30:.1f} GiB of {e.target.gpu.memory_visible_bytes / 2**30:.1f} GiB"
    if engine.streams > 1:
        yield f"{engine.streams} streams: overlapping kernels are assumed not to slow each other down"


def kernel_rows(engine: Engine, e: Estimated) -> Iterator[KernelRow]:
    """Every launch of one answer in order, with its operator, duration, share and what bounds it."""
    lowering, p = e.lowering, e.predictions
    program, timeline = lowering.program, e.measures.timeline
    durations = p.duration_us[program.kernel] * program.repeat
    busy = float(durations.sum())
    for i, row in enumerate(program.kernel):
        step = program.steps[program.step[i]]
        kernel = engine.pool.kernels[int(lowering.rows[row])]
        yield KernelRow(
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
            launches=int(program.repeat[i]),
            duration_us=float(p.duration_us[row]),
            duration_low_us=float(p.low_us[row]),
            duration_high_us=float(p.high_us[row]),
            start_us=float(timeline.start_us[i]),
            stream=int(timeline.stream[i]),
            share_pct=100 * float(durations[i]) / busy if busy > 0 else None,
            bound_by=_bound_by(p, int(row), engine.host_overhead_us * step.host_calls / len(step.kernels)),
            flops=kernel.flops,
            dram_bytes=kernel.read_bytes + kernel.write_bytes,
            grid_blocks=_count(p.grid_blocks[row]),
            block_threads=_count(p.block_threads[row]),
            registers_per_thread=_count(p.registers_per_thread[row]),
            shared_bytes=_count(p.shared_bytes[row]),
            occupancy_pct=_known(float(p.occupancy_pct[row])),
            sm_util_pct=_known(float(p.sm_util_pct[row])),
            source=f"trained:{e.estimator}" if p.trained[row] else "analytical",
        )


def _count(value: np.floating) -> int | None:
    return None if math.isnan(value) else int(value)


def _bound_by(p: KernelPredictions, row: int, host_us: float) -> str:
    """``host`` when issuing takes longer than running, ``latency`` when the roofline is under a third of the time."""
    duration = float(p.duration_us[row])
    if host_us > duration:
        return "host"
    if float(p.roofline_us[row]) < duration / 3:
        return "latency"
    return "compute" if p.compute_us[row] >= p.memory_us[row] else "memory"
