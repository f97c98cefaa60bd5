"""Define the requirement table: what one model needs on one GPU at one batch size. One row per
:class:`Requirement`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gkestimator.tables.schema import TableSchema, column, required_column, table_row, version_column

_KEY = "key"
_TIME = "time"
_COMPUTE = "compute"
_MEMORY = "memory"
_WORK = "work"
_TRUST = "trust"
_PCT_OF_GPU = "percent of the whole GPU"


@table_row
class Requirement:
    """Hold one row of the requirement table; the fields are its columns, in order, with units in
    ``docs/reference/tables.md``.

    Unknown is None, never 0. Provenance (``source``, ``occupancy_source``, ``memory_source``) has no default.
    A row is checked by ``REQUIREMENTS.check`` when it is read or written, not when it is built.
    """

    schema_version: int = version_column(lambda: REQUIREMENTS.version)
    model: str = required_column("", "File stem; after a collision `parent/stem`.", _KEY)
    gpu: str = required_column("", "Canonical GPU name, as `gkest gpus` lists it.", _KEY)
    runtime: str = required_column("", "`torch`, `onnxruntime`, ...", _KEY)
    dtype: str = required_column(
        "",
        "Effective arithmetic: `fp32`, `tf32`, `fp16`, `bf16`, `amp`, `int8`, `fp8`, `w8a16`, `w4a16`, "
        "or a mix in words.",
        _KEY,
    )
    batch_size: int | None = required_column(
        "samples", "Samples in one inference; null: no input has a batch.", _KEY, minimum=1
    )
    dims: str = column("", "Other bound dimensions, `name=value`, sorted, comma-joined.", _KEY, default="")
    sm_share_pct: float = column(
        "%", "Share of the SMs that the model may use.", _KEY, default=100.0, minimum=0, maximum=100
    )

    latency_ms: float | None = column(
        "ms",
        "One steady-state inference of the batch, inputs on the GPU, from the first launch to the end of "
        "the last kernel, host overhead included (and `copy_ms` too under `--include-copy`).",
        _TIME,
        minimum=0,
    )
    latency_low_ms: float | None = column(
        "ms",
        "Lower end of the 90 % interval; of a measured row the 5th percentile of its repeats, null for fewer than "
        "20.",
        _TIME,
        minimum=0,
    )
    latency_high_ms: float | None = column(
        "ms",
        "Upper end of the 90 % interval; null where unknown operators were let through. Of a measured row the 95th "
        "percentile of its repeats.",
        _TIME,
        minimum=0,
    )
    gpu_ms: float | None = column(
        "ms",
        "Time that the GPU needs for the kernels: the latency with an infinitely fast host. Never above `latency_ms`; "
        "of a measured row the sum of its launches.",
        _TIME,
        minimum=0,
    )
    gpu_low_ms: float | None = column("ms", "Lower end of its 90 % interval.", _TIME, minimum=0)
    gpu_high_ms: float | None = column(
        "ms", "Upper end; null where unknown operators were let through.", _TIME, minimum=0
    )
    host_ms: float | None = column(
        "ms",
        "Time that the host needs to issue all calls. Never above `latency_ms`, which is at most `gpu_ms` + `host_ms` "
        "(+ `copy_ms`). At both ends of the intervals the latency is no less than the GPU's and the host's.",
        _TIME,
        minimum=0,
    )
    host_low_ms: float | None = column("ms", "Lower end of its 90 % interval.", _TIME, minimum=0)
    host_high_ms: float | None = column(
        "ms", "Upper end; null where unknown operators were let through.", _TIME, minimum=0
    )
    copy_ms: float | None = column("ms", "Moving inputs to and outputs from the GPU.", _TIME, minimum=0)
    host_overhead_us: float | None = column(
        "us", "Host time per framework call that was assumed.", _TIME, minimum=0
    )
    throughput_rps: float | None = column(
        "requests/s", "Samples per second: batch size / latency.", _TIME, minimum=0
    )
    host_bound: bool | None = column(
        "", "What binds: True, the host (`host_ms` > `gpu_ms`); False, the GPU.", _TIME
    )

    occupancy_max_pct: float | None = column(
        "%",
        "USHER's Creq: the largest sum of achieved occupancies over sets of concurrent kernels.",
        _COMPUTE,
        minimum=0,
    )
    occupancy_mean_pct: float | None = column(
        "%", "Achieved occupancy, time-weighted over the latency.", _COMPUTE, minimum=0
    )
    sm_util_max_pct: float | None = column(
        "%", f"Largest SM utilisation over sets of concurrent kernels, {_PCT_OF_GPU}.", _COMPUTE, minimum=0
    )
    sm_util_mean_pct: float | None = column(
        "%", "SM utilisation, time-weighted over the latency, host gaps included.", _COMPUTE, minimum=0
    )
    sm_util_busy_mean_pct: float | None = column(
        "%", "SM utilisation, time-weighted over kernel time alone.", _COMPUTE, minimum=0
    )
    dram_util_mean_pct: float | None = column(
        "%", "DRAM bandwidth used, of the peak, over the latency.", _COMPUTE, minimum=0
    )
    l2_util_mean_pct: float | None = column(
        "%", "L2 bandwidth used, of the peak, over the latency.", _COMPUTE, minimum=0
    )
    power_w: float | None = column(
        "W",
        "Mean board power while inferences follow one another, host gaps included; null where no kernels near these "
        "were measured (docs/explanation/power.md).",
        _COMPUTE,
        minimum=0,
    )
    power_low_w: float | None = column("W", "Lower end of its 90 % interval.", _COMPUTE, minimum=0)
    power_high_w: float | None = column("W", "Upper end of its 90 % interval.", _COMPUTE, minimum=0)
    energy_j: float | None = column(
        "J", "Energy of one inference of the batch: `power_w` x `latency_ms`.", _COMPUTE, minimum=0
    )
    energy_low_j: float | None = column("J", "Lower end of its 90 % interval.", _COMPUTE, minimum=0)
    energy_high_j: float | None = column("J", "Upper end of its 90 % interval.", _COMPUTE, minimum=0)

    mreq_bytes: int | None = column(
        "bytes", "GPU memory: weights + activations + workspace + allocator + context.", _MEMORY, minimum=0
    )
    mreq_pct: float | None = column(
        "%", "The same, of the GPU's visible memory; above 100 does not fit.", _MEMORY, minimum=0
    )
    reserved_bytes: int | None = column(
        "bytes", "`mreq_bytes` without the context: torch's `max_memory_reserved`.", _MEMORY, minimum=0
    )
    weights_bytes: int | None = column("bytes", "Weights that some operator reads.", _MEMORY, minimum=0)
    activations_bytes: int | None = column("bytes", "Peak of live intermediate tensors.", _MEMORY, minimum=0)
    workspace_bytes: int | None = column("bytes", "Scratch memory of libraries.", _MEMORY, minimum=0)
    allocator_bytes: int | None = column(
        "bytes", "Rounding and fragmentation of the allocator.", _MEMORY, minimum=0
    )
    context_bytes: int | None = column("bytes", "CUDA context and library handles.", _MEMORY, minimum=0)
    input_bytes: int | None = column("bytes", "The model's inputs, once.", _MEMORY, minimum=0)
    output_bytes: int | None = column("bytes", "The model's outputs, once.", _MEMORY, minimum=0)

    flops: int | None = column(
        "FLOP", "Floating-point operations of the batch, a multiply-add as two.", _WORK, minimum=0
    )
    dram_bytes: int | None = column("bytes", "DRAM traffic of the batch.", _WORK, minimum=0)
    kernels: int | None = column("launches", "Kernel launches.", _WORK, minimum=0)
    unknown_kernels: int | None = column(
        "operators",
        "Operators without a rule (`--allow-unknown`); all sums are lower bounds.",
        _WORK,
        minimum=0,
    )

    source: str = required_column(
        "", "Where the times come from: `measured`, `trained:<bundle>`, `analytical`.", _TRUST
    )
    occupancy_source: str | None = required_column(
        "",
        "The same for occupancy and utilisation; null where there are none. `analytical` in a measured row: "
        "launches were measured, occupancy was calculated from them.",
        _TRUST,
    )
    memory_source: str | None = required_column("", "The same for memory; null where there is none.", _TRUST)
    coverage_pct: float | None = column(
        "%",
        "Share of the kernel time predicted inside the training range.",
        _TRUST,
        minimum=0,
        maximum=100.000001,
    )
    warnings: str = column("", "What to know before using the row, joined by `; `.", _TRUST, default="")

    @property
    def runs_on_cpu_alone(self) -> bool:
        """Return whether nothing is launched on a GPU, so that no figure is a reason to choose one."""
        return self.kernels == 0 and not self.unknown_kernels


RequirementRows: TypeAlias = Sequence[Requirement]


def cpu_lines(rows: RequirementRows) -> list[str]:
    """Return a line on each model that runs on the CPU alone."""
    models = dict.fromkeys(row.model for row in rows if row.runs_on_cpu_alone)
    return [f"{model} runs on the CPU alone: no GPU would do any of its work" for model in models]


REQUIREMENTS: TableSchema[Requirement] = TableSchema(
    "requirement table",
    Requirement,
    key=("model", "gpu", "runtime", "dtype", "batch_size", "dims", "sm_share_pct"),
)
