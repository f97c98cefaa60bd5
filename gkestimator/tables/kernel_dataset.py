"""Define the kernel dataset: what profiling measured and training learns from. One row per kernel launch of an
operator.

Version 2 adds ``kind``, ``opset``, ``graph``, ``entry_us``, ``host_us``, ``duration_cold_us``, ``power_w`` and
``tenants``; a file of version 1 reads as version 2 in which they are not known (every launch then is a kernel).
"""

from __future__ import annotations

from dataclasses import field

from gkestimator.core.records import frozen
from gkestimator.tables.schema import TableSchema, spec

KINDS = ("kernel", "memcpy", "memset", "host")

QUALITIES = ("ok", "noisy", "throttled")
_KEY = "key"
_WHERE = "where"
_WHAT = "what"
_LAUNCH = "launch"
_MEASURED = "measured"


@frozen
class KernelMeasurement:
    """Hold one measured kernel launch; what was not measured is None. Shapes and attributes are JSON texts."""

    schema_version: int = field(
        default_factory=lambda: KERNEL_DATASET.version,
        metadata=spec("", "Version of this table's columns.", group=_KEY, minimum=1),
    )
    entry_id: str = field(metadata=spec("", "Names the operator call; its kernels share it.", group=_KEY))
    gpu: str = field(metadata=spec("", "Canonical GPU name.", group=_WHERE))
    driver: str | None = field(default=None, metadata=spec("", "Driver version.", group=_WHERE))
    cuda: str | None = field(default=None, metadata=spec("", "CUDA version.", group=_WHERE))
    runtime: str = field(metadata=spec("", "What ran the operator.", group=_WHERE))
    runtime_version: str | None = field(default=None, metadata=spec("", "Its version.", group=_WHERE))
    library_versions: str | None = field(
        default=None, metadata=spec("", "cuDNN, cuBLAS, ... as a JSON object.", group=_WHERE)
    )
    collector: str = field(
        metadata=spec("", "`nsys`, `ncu`, `kineto`, or the publisher of the data.", group=_WHERE)
    )
    collector_version: str | None = field(default=None, metadata=spec("", "Its version.", group=_WHERE))
    clock_control: str | None = field(
        default=None, metadata=spec("", "`base`, `none`, `locked`, ...", group=_WHERE)
    )
    sm_clock_mhz: float | None = field(
        default=None, metadata=spec("MHz", "SM clock during the run.", group=_WHERE, minimum=0)
    )
    op_type: str = field(metadata=spec("", "Operator type.", group=_WHAT))
    op_domain: str = field(
        default="", metadata=spec("", "Operator domain, empty for ONNX's own.", group=_WHAT)
    )
    attributes: str | None = field(
        default=None, metadata=spec("", "Attributes as a JSON object.", group=_WHAT)
    )
    opset: int | None = field(
        default=None, metadata=spec("", "Opset version of the domain.", group=_WHAT, minimum=1)
    )
    graph: str | None = field(
        default=None,
        metadata=spec("", "The operator or pattern as a fragment (JSON), as in the plan.", group=_WHAT),
    )
    dtype: str = field(metadata=spec("", "Arithmetic of the kernel.", group=_WHAT))
    input_shapes: str = field(metadata=spec("", "Shapes of the inputs as a JSON list of lists.", group=_WHAT))
    batch_size: int | None = field(default=None, metadata=spec("samples", "Samples.", group=_WHAT, minimum=1))
    weight_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Weights read.", group=_WHAT, minimum=0)
    )
    input_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Inputs read.", group=_WHAT, minimum=0)
    )
    output_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Outputs written.", group=_WHAT, minimum=0)
    )
    workspace_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Scratch memory.", group=_WHAT, minimum=0)
    )
    flops: int | None = field(default=None, metadata=spec("FLOP", "Of the operator.", group=_WHAT, minimum=0))
    kernel_index: int = field(
        default=0, metadata=spec("", "Place among the operator's kernels.", group=_WHAT, minimum=0)
    )
    kernels_in_op: int | None = field(
        default=None, metadata=spec("kernels", "Kernels of the operator.", group=_WHAT, minimum=1)
    )
    kernel_name: str | None = field(default=None, metadata=spec("", "Name in the binary.", group=_WHAT))
    kind: str = field(
        default="kernel",
        metadata=spec(
            "",
            "`kernel`, `memcpy`, `memset`; `host`: a piece of a CPU executor.",
            group=_WHAT,
            choices=KINDS,
        ),
    )
    family: str = field(metadata=spec("", "Kernel family.", group=_WHAT))
    grid: str | None = field(default=None, metadata=spec("", "Grid `x,y,z`.", group=_LAUNCH))
    block: str | None = field(default=None, metadata=spec("", "Block `x,y,z`.", group=_LAUNCH))
    registers_per_thread: int | None = field(
        default=None, metadata=spec("registers", "Registers of a thread.", group=_LAUNCH, minimum=0)
    )
    static_smem_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Static shared memory of a block.", group=_LAUNCH, minimum=0)
    )
    dynamic_smem_bytes: int | None = field(
        default=None, metadata=spec("bytes", "Dynamic shared memory of a block.", group=_LAUNCH, minimum=0)
    )
    theoretical_occupancy_pct: float | None = field(
        default=None,
        metadata=spec("%", "Limit from the launch alone.", group=_LAUNCH, minimum=0, maximum=100),
    )
    duration_us: float | None = field(
        metadata=spec("us", "GPU time of the launch, median of the repeats.", group=_MEASURED, minimum=0)
    )
    duration_cv: float | None = field(
        default=None,
        metadata=spec("1", "Standard deviation / mean of the repeats.", group=_MEASURED, minimum=0),
    )
    duration_cold_us: float | None = field(
        default=None,
        metadata=spec("us", "The same with L2 flushed before each repeat.", group=_MEASURED, minimum=0),
    )
    entry_us: float | None = field(
        default=None,
        metadata=spec(
            "us",
            "Device time of the whole operator call: all its launches, median.",
            group=_MEASURED,
            minimum=0,
        ),
    )
    host_us: float | None = field(
        default=None,
        metadata=spec("us", "Host time of the operator call, median.", group=_MEASURED, minimum=0),
    )
    power_w: float | None = field(
        default=None, metadata=spec("W", "Mean power of the device meanwhile.", group=_MEASURED, minimum=0)
    )
    tenants: int | None = field(
        default=None, metadata=spec("processes", "Other processes on the device.", group=_MEASURED, minimum=0)
    )
    repeats: int | None = field(default=None, metadata=spec("runs", "Repeats.", group=_MEASURED, minimum=1))
    quality: str = field(
        metadata=spec("", "`ok`, `noisy` or `throttled`.", group=_MEASURED, choices=QUALITIES)
    )
    achieved_occupancy_pct: float | None = field(
        default=None,
        metadata=spec(
            "%",
            "ncu `sm__warps_active.avg.pct_of_peak_sustained_active`.",
            group=_MEASURED,
            minimum=0,
            maximum=100,
        ),
    )
    sm_util_pct: float | None = field(
        default=None, metadata=spec("%", "SM utilisation.", group=_MEASURED, minimum=0, maximum=100)
    )
    dram_util_pct: float | None = field(
        default=None, metadata=spec("%", "DRAM bandwidth, of the peak.", group=_MEASURED, minimum=0)
    )
    dram_bytes: int | None = field(
        default=None, metadata=spec("bytes", "DRAM traffic.", group=_MEASURED, minimum=0)
    )
    l2_hit_pct: float | None = field(
        default=None, metadata=spec("%", "L2 hit rate.", group=_MEASURED, minimum=0, maximum=100)
    )


KERNEL_DATASET: TableSchema[KernelMeasurement] = TableSchema(
    "kernel dataset",
    KernelMeasurement,
    key=("entry_id", "gpu", "runtime", "kernel_index"),
    earlier=(1, 2),
)
