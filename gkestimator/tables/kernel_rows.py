"""Define the per-kernel listing that ``gkest estimate --kernels`` prints: one row per kernel of an operator."""

from __future__ import annotations

from gkestimator.tables.schema import TableSchema, column, required_column, table_row, version_column

BOUNDS = ("compute", "memory", "latency", "host")
_KEY = "key"
_TIME = "time"
_WORK = "work"
_LAUNCH = "launch"
_TRUST = "trust"


@table_row
class KernelRow:
    """Hold one kernel of one model on one GPU at one batch size; unknown is None."""

    schema_version: int = version_column(lambda: KERNEL_ROWS.version)
    model: str = required_column("", "As in the requirement table.", _KEY)
    gpu: str = required_column("", "Canonical GPU name.", _KEY)
    runtime: str = required_column("", "As in the requirement table.", _KEY)
    dtype: str = required_column("", "As in the requirement table.", _KEY)
    batch_size: int | None = required_column("samples", "Samples in one inference.", _KEY, minimum=1)
    dims: str = column("", "As in the requirement table.", _KEY, default="")
    sm_share_pct: float = column(
        "%", "As in the requirement table.", _KEY, default=100.0, minimum=0, maximum=100
    )
    index: int = required_column("", "Place in the launch order, from 0.", _KEY, minimum=0)
    operator: str = required_column("", "Node of the model (or the pattern's last node).", _KEY)
    op_type: str = required_column("", "Operator type, or the pattern that was recognised.", _KEY)
    kernel: str = required_column("", "Kernel name, `family.variant`.", _KEY)
    family: str = required_column("", "Kernel family, which chooses the regressor.", _KEY)
    precision: str | None = column(
        "", "What its inner loop calculates in; where the dtype is a permission, the fastest of it.", _KEY
    )
    launches: int = required_column("launches", "How often it runs (loop trips).", _TIME, minimum=0)
    duration_us: float | None = required_column("us", "GPU time of one launch.", _TIME, minimum=0)
    duration_low_us: float | None = column("us", "Lower end of the 90 % interval.", _TIME, minimum=0)
    duration_high_us: float | None = column("us", "Upper end of the 90 % interval.", _TIME, minimum=0)
    start_us: float | None = column(
        "us", "Start of its first launch, from the first call of the host.", _TIME, minimum=0
    )
    stream: int | None = column("", "CUDA stream it is laid on, from 0.", _TIME, minimum=0)
    share_pct: float | None = required_column(
        "%", "Share of the model's kernel time, all launches.", _TIME, minimum=0, maximum=100.000001
    )
    bound_by: str | None = required_column(
        "",
        "What sets its time: `compute` or `memory` (side of the roofline), `latency` (too small), "
        "`host` (the launch takes longer than the kernel).",
        _TIME,
        choices=BOUNDS,
    )
    flops: int | None = column("FLOP", "Of one launch.", _WORK, minimum=0)
    dram_bytes: int | None = column("bytes", "DRAM traffic of one launch.", _WORK, minimum=0)
    grid_blocks: int | None = column("blocks", "Blocks of the grid.", _LAUNCH, minimum=0)
    block_threads: int | None = column("threads", "Threads of a block.", _LAUNCH, minimum=0)
    registers_per_thread: int | None = column(
        "registers", "Registers of a thread, as far as known.", _LAUNCH, minimum=0
    )
    shared_bytes: int | None = column(
        "bytes", "Shared memory of a block, as far as known.", _LAUNCH, minimum=0
    )
    occupancy_pct: float | None = column("%", "Achieved occupancy.", _LAUNCH, minimum=0)
    sm_util_pct: float | None = column("%", "SM utilisation.", _LAUNCH, minimum=0)
    source: str = required_column(
        "",
        "`measured` (this very kernel, by profiling: a row per launch, the work with the longest), "
        "`trained:<bundle>` or `analytical`.",
        _TRUST,
    )


KERNEL_ROWS: TableSchema[KernelRow] = TableSchema("kernel listing", KernelRow)
