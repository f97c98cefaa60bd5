"""Define the kernel dataset: what profiling measured and training learns from. One row per kernel launch of an
operator.

Version 2 adds ``kind``, ``opset``, ``graph``, ``entry_us``, ``host_us``, ``duration_cold_us``, ``power_w`` and
``tenants``; a file of version 1 reads as version 2 in which they are not known (every launch then is a kernel).
"""

from __future__ import annotations

from gkestimator.tables.schema import TableSchema, column, required_column, table_row, version_column

KINDS = ("kernel", "memcpy", "memset", "host")

QUALITIES = ("ok", "noisy", "throttled")
_KEY = "key"
_WHERE = "where"
_WHAT = "what"
_LAUNCH = "launch"
_MEASURED = "measured"


@table_row
class KernelMeasurement:
    """Hold one measured kernel launch; what was not measured is None. Shapes and attributes are JSON texts."""

    schema_version: int = version_column(lambda: KERNEL_DATASET.version)
    entry_id: str = required_column("", "Names the operator call; its kernels share it.", _KEY)
    gpu: str = required_column("", "Canonical GPU name.", _WHERE)
    driver: str | None = column("", "Driver version.", _WHERE)
    cuda: str | None = column("", "CUDA version.", _WHERE)
    runtime: str = required_column("", "What ran the operator.", _WHERE)
    runtime_version: str | None = column("", "Its version.", _WHERE)
    library_versions: str | None = column("", "cuDNN, cuBLAS, ... as a JSON object.", _WHERE)
    collector: str = required_column("", "`nsys`, `ncu`, `kineto`, or the publisher of the data.", _WHERE)
    collector_version: str | None = column("", "Its version.", _WHERE)
    clock_control: str | None = column("", "`base`, `none`, `locked`, ...", _WHERE)
    sm_clock_mhz: float | None = column("MHz", "SM clock during the run.", _WHERE, minimum=0)
    op_type: str = required_column("", "Operator type.", _WHAT)
    op_domain: str = column("", "Operator domain, empty for ONNX's own.", _WHAT, default="")
    attributes: str | None = column("", "Attributes as a JSON object.", _WHAT)
    opset: int | None = column("", "Opset version of the domain.", _WHAT, minimum=1)
    graph: str | None = column("", "The operator or pattern as a fragment (JSON), as in the plan.", _WHAT)
    dtype: str = required_column("", "Arithmetic of the kernel.", _WHAT)
    input_shapes: str = required_column("", "Shapes of the inputs as a JSON list of lists.", _WHAT)
    batch_size: int | None = column("samples", "Samples.", _WHAT, minimum=1)
    weight_bytes: int | None = column("bytes", "Weights read.", _WHAT, minimum=0)
    input_bytes: int | None = column("bytes", "Inputs read.", _WHAT, minimum=0)
    output_bytes: int | None = column("bytes", "Outputs written.", _WHAT, minimum=0)
    workspace_bytes: int | None = column("bytes", "Scratch memory.", _WHAT, minimum=0)
    flops: int | None = column("FLOP", "Of the operator.", _WHAT, minimum=0)
    kernel_index: int = column("", "Place among the operator's kernels.", _WHAT, default=0, minimum=0)
    kernels_in_op: int | None = column("kernels", "Kernels of the operator.", _WHAT, minimum=1)
    kernel_name: str | None = column("", "Name in the binary.", _WHAT)
    kind: str = column(
        "",
        "`kernel`, `memcpy`, `memset`; `host`: a piece of a CPU executor.",
        _WHAT,
        default="kernel",
        choices=KINDS,
    )
    family: str = required_column("", "Kernel family.", _WHAT)
    grid: str | None = column("", "Grid `x,y,z`.", _LAUNCH)
    block: str | None = column("", "Block `x,y,z`.", _LAUNCH)
    registers_per_thread: int | None = column("registers", "Registers of a thread.", _LAUNCH, minimum=0)
    static_smem_bytes: int | None = column("bytes", "Static shared memory of a block.", _LAUNCH, minimum=0)
    dynamic_smem_bytes: int | None = column("bytes", "Dynamic shared memory of a block.", _LAUNCH, minimum=0)
    theoretical_occupancy_pct: float | None = column(
        "%", "Limit from the launch alone.", _LAUNCH, minimum=0, maximum=100
    )
    duration_us: float | None = required_column(
        "us", "GPU time of the launch, median of the repeats.", _MEASURED, minimum=0
    )
    duration_cv: float | None = column("1", "Standard deviation / mean of the repeats.", _MEASURED, minimum=0)
    duration_cold_us: float | None = column(
        "us", "The same with L2 flushed before each repeat.", _MEASURED, minimum=0
    )
    entry_us: float | None = column(
        "us", "Device time of the whole operator call: all its launches, median.", _MEASURED, minimum=0
    )
    host_us: float | None = column("us", "Host time of the operator call, median.", _MEASURED, minimum=0)
    power_w: float | None = column("W", "Mean power of the device meanwhile.", _MEASURED, minimum=0)
    tenants: int | None = column("processes", "Other processes on the device.", _MEASURED, minimum=0)
    repeats: int | None = column("runs", "Repeats.", _MEASURED, minimum=1)
    quality: str = required_column("", "`ok`, `noisy` or `throttled`.", _MEASURED, choices=QUALITIES)
    achieved_occupancy_pct: float | None = column(
        "%", "ncu `sm__warps_active.avg.pct_of_peak_sustained_active`.", _MEASURED, minimum=0, maximum=100
    )
    sm_util_pct: float | None = column("%", "SM utilisation.", _MEASURED, minimum=0, maximum=100)
    dram_util_pct: float | None = column("%", "DRAM bandwidth, of the peak.", _MEASURED, minimum=0)
    dram_bytes: int | None = column("bytes", "DRAM traffic.", _MEASURED, minimum=0)
    l2_hit_pct: float | None = column("%", "L2 hit rate.", _MEASURED, minimum=0, maximum=100)


KERNEL_DATASET: TableSchema[KernelMeasurement] = TableSchema(
    "kernel dataset",
    KernelMeasurement,
    key=("entry_id", "gpu", "runtime", "kernel_index"),
    earlier=(1, 2),
)
