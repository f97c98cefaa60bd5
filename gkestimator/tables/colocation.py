"""Define the co-location table: models that were measured while they ran side by side on one GPU.

One row per model of a group (:class:`CoRun`).
"""

from __future__ import annotations

from gkestimator.tables.schema import TableSchema, column, required_column, table_row, version_column

SHARINGS = ("mps", "time", "cpu")
_KEY = "key"
_TIME = "time"
_COMPUTE = "compute"


@table_row
class CoRun:
    """Hold one row of the co-location table; the fields are its columns, in order, with units in
    ``docs/reference/tables.md``.

    Rows with one ``group`` ran at the same time, each in a process of its own, over and over. A model beside
    itself is two rows. Unknown is None, never 0.
    """

    schema_version: int = version_column(lambda: COLOCATION.version)
    group: str = required_column("", "Rows of one group ran side by side: two, or more.", _KEY)
    model: str = required_column("", "Its name, as the requirement table has it.", _KEY)
    gpu: str = required_column("", "GPU name; one in a group.", _KEY)
    runtime: str = required_column("", "`torch`, `onnxruntime`, ...", _KEY)
    dtype: str = required_column("", "As in the requirement table.", _KEY)
    batch_size: int | None = required_column(
        "samples", "Samples in one inference; null: no input has a batch.", _KEY, minimum=1
    )
    dims: str | None = column("", "As in the requirement table; null: those of its one row that fits.", _KEY)
    sm_share_pct: float = column(
        "%",
        "Share of the SMs that it was confined to; 100: not confined.",
        _KEY,
        default=100.0,
        minimum=0,
        maximum=100,
    )
    sharing: str | None = column(
        "",
        "How the group shared the GPU: `mps` at once, under NVIDIA's MPS; `time` in turns, without it; `cpu` no "
        "GPU but a CPU's cores; null: not told, taken for at once.",
        _KEY,
        choices=SHARINGS,
    )
    latency_alone_ms: float = required_column(
        "ms", "One inference alone on the GPU, at the same share (median).", _TIME, minimum=0
    )
    latency_together_ms: float | None = column(
        "ms",
        "One inference beside the others of the group (median); null: it ran, but was not timed.",
        _TIME,
        minimum=0,
    )
    sm_util_mean_pct: float | None = column("%", "Alone; null: the requirement table's.", _COMPUTE, minimum=0)
    dram_util_mean_pct: float | None = column(
        "%", "Alone; null: the requirement table's.", _COMPUTE, minimum=0
    )
    l2_util_mean_pct: float | None = column("%", "Alone; null: the requirement table's.", _COMPUTE, minimum=0)


COLOCATION: TableSchema[CoRun] = TableSchema("co-location table", CoRun, earlier=(1, 2))
