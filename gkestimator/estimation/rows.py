"""From what the engine measured to rows of the requirement table and of the kernel table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.kernel_models.prediction import KernelPredictions, MeasuredLaunch
from gkestimator.tables import KernelRow, Requirement

_WORTH_SAYING_PCT = 5.0
_MOSTLY_PCT = 50.0
MEASURED = "measured"


def fits(row: Requirement) -> bool:
    """Whether the row's memory is known to fit: neither null nor the lower bound that unknown operators leave."""
    return row.mreq_pct is not None and row.mreq_pct <= 100 and not row.unknown_kernels


def answers_within(row: Requirement, slo_ms: float) -> bool:
    """Whether the row's latency is known to meet ``slo_ms``; a lower bound (no upper end) is no answer."""
    return row.latency_ms is not None and row.latency_high_ms is not None and row.latency_ms <= slo_ms


def requirement_row(engine: Engine, e: Estimated) -> Requirement:
    """The requirement table's row of one answer. What is not known is None."""
    m = e.measures
    memory = e.memory
    gpu = e.target.gpu
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
    cpu = gpu.stands_in
    of_sms = _unknown if cpu else _known  # a CPU has neither warps nor SMs
    mean_of_sms = _unknown if cpu else mean
    if not math.isnan(m.trained_pct):
        trained = m.trained_pct >= 50
    else:
        trained = False
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
        occupancy_max_pct=of_sms(m.occupancy_max_pct),
        occupancy_mean_pct=mean_of_sms(m.occupancy_mean_pct),
        sm_util_max_pct=of_sms(m.sm_util_max_pct),
        sm_util_mean_pct=mean_of_sms(m.sm_util_mean_pct),
        sm_util_busy_mean_pct=of_sms(m.sm_util_busy_mean_pct),
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
        source=_source(e) if trained else "analytical",
        occupancy_source=None if cpu else _mostly(m.occupancy_source_us) or "analytical",
        memory_source="analytical",
        coverage_pct=_known(m.coverage_pct),
        warnings="; ".join(warnings),
    )


def _source(e: Estimated) -> str:
    """The bundle behind most of the time. Measured kernels are the bundle's: the row as a whole was not measured."""
    own = f"trained:{e.estimator}"
    by: dict[str, float] = {}
    for source, us in e.measures.source_us.items():
        by[own if source == MEASURED else source] = by.get(own if source == MEASURED else source, 0.0) + us
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


def _unknown(_: float) -> None:
    return None


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
    calculated = sorted(name for name, share in m.analytical_families.items() if share >= _WORTH_SAYING_PCT)
    if calculated:
        yield f"calculated, not learned: {', '.join(calculated)}"
    if not m.coverage_pct >= _MOSTLY_PCT and m.kernels:
        yield "most of the time is predicted outside the trained range (coverage_pct)"
    if mreq is not None and mreq > e.target.gpu.memory_visible_bytes:
        yield f"does not fit: needs {mreq / 2**30:.1f} GiB of {e.target.gpu.memory_visible_bytes / 2**30:.1f} GiB"
    if e.target.gpu.stands_in:
        yield "a CPU stands in for a GPU: no occupancy, no SM utilisation, and memory as a GPU would need it"
    if engine.streams > 1:
        yield f"{engine.streams} streams: overlapping kernels are assumed not to slow each other down"


def kernel_rows(engine: Engine, e: Estimated) -> Iterator[KernelRow]:
    """Every launch of one answer in order, with its operator, duration, share and what bounds it."""
    index = 0
    for i, row in enumerate(e.lowering.program.kernel.tolist()):
        whole = _kernel_row(engine, e, i, row)
        if e.predictions.detail is None:
            sequence = None
        else:
            sequence = e.predictions.detail.sequence[row]
        for one in (whole,) if sequence is None else _launch_rows(whole, sequence):
            yield replace(one, index=index)
            index += 1


def _kernel_row(engine: Engine, e: Estimated, i: int, row: int) -> KernelRow:
    """Launch ``i`` of the program, row ``row`` of the predictions, as the rules see it."""
    lowering = e.lowering
    p = e.predictions
    program = lowering.program
    timeline = e.measures.timeline
    step = program.steps[program.step[i]]
    kernel = engine.pool.kernels[int(lowering.rows[row])]
    busy = timeline.busy_us
    trained = f"trained:{e.estimator}" if p.trained[row] else "analytical"
    cpu = e.target.gpu.stands_in
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
        launches=int(program.repeat[i]),
        duration_us=float(p.duration_us[row]),
        duration_low_us=float(p.low_us[row]),
        duration_high_us=float(p.high_us[row]),
        start_us=float(timeline.start_us[i]),
        stream=int(timeline.stream[i]),
        share_pct=100 * float(p.duration_us[row] * program.repeat[i]) / busy if busy > 0 else None,
        bound_by=_bound_by(p, row, engine.host_overhead_us * step.host_calls / len(step.kernels)),
        flops=kernel.flops,
        dram_bytes=kernel.read_bytes + kernel.write_bytes,
        grid_blocks=None if cpu else _count(p.grid_blocks[row]),
        block_threads=None if cpu else _count(p.block_threads[row]),
        registers_per_thread=None if cpu else _count(p.registers_per_thread[row]),
        shared_bytes=None if cpu else _count(p.shared_bytes[row]),
        occupancy_pct=None if cpu else _known(float(p.occupancy_pct[row])),
        sm_util_pct=None if cpu else _known(float(p.sm_util_pct[row])),
        source=trained if p.detail is None else str(p.detail.source[row]),
    )


def _launch_rows(whole: KernelRow, sequence: Sequence[MeasuredLaunch]) -> Iterator[KernelRow]:
    """A row per launch that was measured, in place of the one of the rules. Work is told of the whole call, so it
    stands with the longest launch alone."""
    longest = max(range(len(sequence)), key=lambda i: sequence[i].share)
    total = sum(one.share for one in sequence) or 1.0
    start = whole.start_us
    for i, one in enumerate(sequence):
        share = one.share / total
        low = whole.duration_low_us
        high = whole.duration_high_us
        all_us = whole.duration_us or 0.0
        yield replace(
            whole,
            kernel=one.name,
            duration_us=share * all_us,
            duration_low_us=None if low is None else share * low,
            duration_high_us=None if high is None else share * high,
            start_us=start,
            share_pct=None if whole.share_pct is None else share * whole.share_pct,
            flops=whole.flops if i == longest else None,
            dram_bytes=whole.dram_bytes if i == longest else None,
            grid_blocks=_count(one.grid_blocks),
            block_threads=_count(one.block_threads),
            registers_per_thread=_count(one.registers_per_thread),
            shared_bytes=_count(one.shared_bytes),
            occupancy_pct=one.occupancy_pct,
            sm_util_pct=one.sm_util_pct,
        )
        start = None if start is None else start + share * all_us


def _count(value: float | np.floating | None) -> int | None:
    if value is None or math.isnan(value):
        return None
    return int(value)


def _bound_by(p: KernelPredictions, row: int, host_us: float) -> str:
    """``host`` when issuing takes longer than running, ``latency`` when the roofline is under a third of the time."""
    duration = float(p.duration_us[row])
    if host_us > duration:
        return "host"
    if float(p.roofline_us[row]) < duration / 3:
        return "latency"
    if p.compute_us[row] >= p.memory_us[row]:
        return "compute"
    return "memory"
