"""Define the requirement table: what one model needs on one GPU at one batch size. One row per
:class:`Requirement`."""

from __future__ import annotations

from dataclasses import field

from gkestimator.core.records import frozen
from gkestimator.tables.schema import TableSchema, spec

_KEY = "key"
_TIME = "time"
_COMPUTE = "compute"
_MEMORY = "memory"
_WORK = "work"
_TRUST = "trust"
_PCT_OF_GPU = "percent of the whole GPU"


@frozen
class Requirement:
    """Hold one row of the requirement table; the fields are its columns, in order, with units in
    ``docs/tables.md``.

    Unknown is None, never 0. Provenance (``source``, ``occupancy_source``, ``memory_source``) has no default.
    A row is checked by ``REQUIREMENTS.check`` when it is read or written, not when it is built.
    """

    schema_version: int = field(
        default_factory=lambda: REQUIREMENTS.version,
        metadata=spec("", "Version of this table's columns.", group=_KEY, minimum=1),
    )
    model: str = field(metadata=spec("", "File stem; after a collision `parent/stem`.", group=_KEY))
    gpu: str = field(metadata=spec("", "Canonical GPU name, as `gkest gpus` lists it.", group=_KEY))
    runtime: str = field(metadata=spec("", "`torch`, `onnxruntime`, ...", group=_KEY))
    dtype: str = field(
        metadata=spec(
            "",
            "Effective arithmetic: `fp32`, `tf32`, `fp16`, `bf16`, `amp`, `int8`, or a mix in words.",
            group=_KEY,
        )
    )
    batch_size: int | None = field(
        metadata=spec(
            "samples", "Samples in one inference; null: no input has a batch.", group=_KEY, minimum=1
        )
    )
    dims: str = field(
        default="",
        metadata=spec("", "Other bound dimensions, `name=value`, sorted, comma-joined.", group=_KEY),
    )
    sm_share_pct: float = field(
        default=100.0,
        metadata=spec("%", "Share of the SMs that the model may use.", group=_KEY, minimum=0, maximum=100),
    )

    latency_ms: float | None = field(
        default=None,
        metadata=spec(
            "ms",
            "One steady-state inference of the batch, inputs on the GPU, from the first launch to the end of "
            "the last kernel, host overhead included (and `copy_ms` too under `--include-copy`).",
            group=_TIME,
            minimum=0,
        ),
    )
    latency_low_ms: float | None = field(
        default=None,
        metadata=spec(
            "ms",
            "Lower end of the 90 % interval; of a measured row the 5th percentile of its repeats, null for fewer than "
            "20.",
            group=_TIME,
            minimum=0,
        ),
    )
    latency_high_ms: float | None = field(
        default=None,
        metadata=spec(
            "ms",
            "Upper end of the 90 % interval; null where unknown operators were let through. Of a measured row the 95th "
            "percentile of its repeats.",
            group=_TIME,
            minimum=0,
        ),
    )
    copy_ms: float | None = field(
        default=None,
        metadata=spec("ms", "Moving inputs to and outputs from the GPU.", group=_TIME, minimum=0),
    )
    host_overhead_us: float | None = field(
        default=None,
        metadata=spec("us", "Host time per framework call that was assumed.", group=_TIME, minimum=0),
    )
    throughput_rps: float | None = field(
        default=None,
        metadata=spec("requests/s", "Samples per second: batch size / latency.", group=_TIME, minimum=0),
    )
    host_bound: bool | None = field(
        default=None,
        metadata=spec("", "True: the host's launches, not the GPU, set the time.", group=_TIME),
    )

    occupancy_max_pct: float | None = field(
        default=None,
        metadata=spec(
            "%",
            "USHER's Creq: the largest sum of achieved occupancies over sets of concurrent kernels.",
            group=_COMPUTE,
            minimum=0,
        ),
    )
    occupancy_mean_pct: float | None = field(
        default=None,
        metadata=spec("%", "Achieved occupancy, time-weighted over the latency.", group=_COMPUTE, minimum=0),
    )
    sm_util_max_pct: float | None = field(
        default=None,
        metadata=spec(
            "%",
            f"Largest SM utilisation over sets of concurrent kernels, {_PCT_OF_GPU}.",
            group=_COMPUTE,
            minimum=0,
        ),
    )
    sm_util_mean_pct: float | None = field(
        default=None,
        metadata=spec(
            "%",
            "SM utilisation, time-weighted over the latency, host gaps included.",
            group=_COMPUTE,
            minimum=0,
        ),
    )
    sm_util_busy_mean_pct: float | None = field(
        default=None,
        metadata=spec(
            "%", "SM utilisation, time-weighted over kernel time alone.", group=_COMPUTE, minimum=0
        ),
    )
    dram_util_mean_pct: float | None = field(
        default=None,
        metadata=spec("%", "DRAM bandwidth used, of the peak, over the latency.", group=_COMPUTE, minimum=0),
    )
    l2_util_mean_pct: float | None = field(
        default=None,
        metadata=spec("%", "L2 bandwidth used, of the peak, over the latency.", group=_COMPUTE, minimum=0),
    )
    power_w: float | None = field(
        default=None, metadata=spec("W", "Mean board power during inference.", group=_COMPUTE, minimum=0)
    )

    mreq_bytes: int | None = field(
        default=None,
        metadata=spec(
            "bytes",
            "GPU memory: weights + activations + workspace + allocator + context.",
            group=_MEMORY,
            minimum=0,
        ),
    )
    mreq_pct: float | None = field(
        default=None,
        metadata=spec(
            "%", "The same, of the GPU's visible memory; above 100 does not fit.", group=_MEMORY, minimum=0
        ),
    )
    reserved_bytes: int | None = field(
        default=None,
        metadata=spec(
            "bytes",
            "`mreq_bytes` without the context: torch's `max_memory_reserved`.",
            group=_MEMORY,
            minimum=0,
        ),
    )
    weights_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Weights that some operator reads.", group=_MEMORY, minimum=0)
    )
    activations_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Peak of live intermediate tensors.", group=_MEMORY, minimum=0)
    )
    workspace_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Scratch memory of libraries.", group=_MEMORY, minimum=0)
    )
    allocator_bytes: int | None = field(
        default=None,
        metadata=spec("bytes", "Rounding and fragmentation of the allocator.", group=_MEMORY, minimum=0),
    )
    context_bytes: int | None = field(
        default=None, metadata=spec("bytes", "CUDA context and library handles.", group=_MEMORY, minimum=0)
    )
    input_bytes: int | None = field(
        default=None, metadata=spec("bytes", "The model's inputs, once.", group=_MEMORY, minimum=0)
    )
    output_bytes: int | None = field(
        default=None, metadata=spec("bytes", "The model's outputs, once.", group=_MEMORY, minimum=0)
    )

    flops: int | None = field(
        default=None,
        metadata=spec(
            "FLOP", "Floating-point operations of the batch, a multiply-add as two.", group=_WORK, minimum=0
        ),
    )
    dram_bytes: int | None = field(
        default=None, metadata=spec("bytes", "DRAM traffic of the batch.", group=_WORK, minimum=0)
    )
    kernels: int | None = field(
        default=None, metadata=spec("launches", "Kernel launches.", group=_WORK, minimum=0)
    )
    unknown_kernels: int | None = field(
        default=None,
        metadata=spec(
            "operators",
            "Operators without a rule (`--allow-unknown`); all sums are lower bounds.",
            group=_WORK,
            minimum=0,
        ),
    )

    source: str = field(
        metadata=spec(
            "", "Where the times come from: `measured`, `trained:<bundle>`, `analytical`.", group=_TRUST
        )
    )
    occupancy_source: str | None = field(
        metadata=spec(
            "",
            "The same for occupancy and utilisation; null where there are none. `analytical` in a measured row: "
            "launches were measured, occupancy was calculated from them.",
            group=_TRUST,
        )
    )
    memory_source: str | None = field(
        metadata=spec("", "The same for memory; null where there is none.", group=_TRUST)
    )
    coverage_pct: float | None = field(
        default=None,
        metadata=spec(
            "%",
            "Share of the kernel time predicted inside the training range.",
            group=_TRUST,
            minimum=0,
            maximum=100.000001,
        ),
    )
    warnings: str = field(
        default="", metadata=spec("", "What to know before using the row, joined by `; `.", group=_TRUST)
    )


REQUIREMENTS: TableSchema[Requirement] = TableSchema(
    "requirement table",
    Requirement,
    key=("model", "gpu", "runtime", "dtype", "batch_size", "dims", "sm_share_pct"),
)
