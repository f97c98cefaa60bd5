"""Define the per-kernel listing that ``gkest estimate --kernels`` prints: one row per kernel of an operator."""

from __future__ import annotations

from dataclasses import field

from gkestimator.core.records import frozen
from gkestimator.tables.schema import TableSchema, spec

BOUNDS = ("compute", "memory", "latency", "host")
_KEY = "key"
_TIME = "time"
_WORK = "work"
_LAUNCH = "launch"
_TRUST = "trust"


@frozen
class KernelRow:
    """Hold one kernel of one model on one GPU at one batch size; unknown is None."""

    schema_version: int = field(
        default_factory=lambda: KERNEL_ROWS.version,
        metadata=spec("", "Version of this table's columns.", group=_KEY, minimum=1),
    )
    model: str = field(metadata=spec("", "As in the requirement table.", group=_KEY))
    gpu: str = field(metadata=spec("", "Canonical GPU name.", group=_KEY))
    runtime: str = field(metadata=spec("", "As in the requirement table.", group=_KEY))
    dtype: str = field(metadata=spec("", "As in the requirement table.", group=_KEY))
    batch_size: int | None = field(
        metadata=spec("samples", "Samples in one inference.", group=_KEY, minimum=1)
    )
    dims: str = field(default="", metadata=spec("", "As in the requirement table.", group=_KEY))
    sm_share_pct: float = field(
        default=100.0, metadata=spec("%", "As in the requirement table.", group=_KEY, minimum=0, maximum=100)
    )
    index: int = field(metadata=spec("", "Place in the launch order, from 0.", group=_KEY, minimum=0))
    operator: str = field(metadata=spec("", "Node of the model (or the pattern's last node).", group=_KEY))
    op_type: str = field(metadata=spec("", "Operator type, or the pattern that was recognised.", group=_KEY))
    kernel: str = field(metadata=spec("", "Kernel name, `family.variant`.", group=_KEY))
    family: str = field(metadata=spec("", "Kernel family, which chooses the regressor.", group=_KEY))
    launches: int = field(
        metadata=spec("launches", "How often it runs (loop trips).", group=_TIME, minimum=0)
    )
    duration_us: float | None = field(metadata=spec("us", "GPU time of one launch.", group=_TIME, minimum=0))
    duration_low_us: float | None = field(
        default=None, metadata=spec("us", "Lower end of the 90 % interval.", group=_TIME, minimum=0)
    )
    duration_high_us: float | None = field(
        default=None, metadata=spec("us", "Upper end of the 90 % interval.", group=_TIME, minimum=0)
    )
    start_us: float | None = field(
        default=None,
        metadata=spec(
            "us", "Start of its first launch, from the first call of the host.", group=_TIME, minimum=0
        ),
    )
    stream: int | None = field(
        default=None, metadata=spec("", "CUDA stream it is laid on, from 0.", group=_TIME, minimum=0)
    )
    share_pct: float | None = field(
        metadata=spec(
            "%", "Share of the model's kernel time, all launches.", group=_TIME, minimum=0, maximum=100.000001
        )
    )
    bound_by: str | None = field(
        metadata=spec(
            "",
            "What sets its time: `compute` or `memory` (side of the roofline), `latency` (too small), "
            "`host` (the launch takes longer than the kernel).",
            group=_TIME,
            choices=BOUNDS,
        )
    )
    flops: int | None = field(default=None, metadata=spec("FLOP", "Of one launch.", group=_WORK, minimum=0))
    dram_bytes: int | None = field(
        default=None, metadata=spec("bytes", "DRAM traffic of one launch.", group=_WORK, minimum=0)
    )
    grid_blocks: int | None = field(
        default=None, metadata=spec("blocks", "Blocks of the grid.", group=_LAUNCH, minimum=0)
    )
    block_threads: int | None = field(
        default=None, metadata=spec("threads", "Threads of a block.", group=_LAUNCH, minimum=0)
    )
    registers_per_thread: int | None = field(
        default=None,
        metadata=spec("registers", "Registers of a thread, as far as known.", group=_LAUNCH, minimum=0),
    )
    shared_bytes: int | None = field(
        default=None,
        metadata=spec("bytes", "Shared memory of a block, as far as known.", group=_LAUNCH, minimum=0),
    )
    occupancy_pct: float | None = field(
        default=None, metadata=spec("%", "Achieved occupancy.", group=_LAUNCH, minimum=0)
    )
    sm_util_pct: float | None = field(
        default=None, metadata=spec("%", "SM utilisation.", group=_LAUNCH, minimum=0)
    )
    source: str = field(
        metadata=spec(
            "",
            "`measured` (this very kernel, by profiling: a row per launch, the work with the longest), "
            "`trained:<bundle>` or `analytical`.",
            group=_TRUST,
        )
    )


KERNEL_ROWS: TableSchema[KernelRow] = TableSchema("kernel listing", KernelRow)
