"""Define the co-location table: models that were measured while they ran side by side on one GPU.

One row per model of a group (:class:`CoRun`).
"""

from __future__ import annotations

from dataclasses import field

from gkestimator.core.records import frozen
from gkestimator.tables.schema import TableSchema, spec

SHARINGS = ("mps", "time", "cpu")
_KEY = "key"
_TIME = "time"
_COMPUTE = "compute"


@frozen
class CoRun:
    """Hold one row of the co-location table; the fields are its columns, in order, with units in
    ``docs/tables.md``.

    Rows with one ``group`` ran at the same time, each in a process of its own, over and over. A model beside
    itself is two rows. Unknown is None, never 0.
    """

    schema_version: int = field(
        default_factory=lambda: COLOCATION.version,
        metadata=spec("", "Version of this table's columns.", group=_KEY, minimum=1),
    )
    group: str = field(metadata=spec("", "Rows of one group ran side by side: two, or more.", group=_KEY))
    model: str = field(metadata=spec("", "Its name, as the requirement table has it.", group=_KEY))
    gpu: str = field(metadata=spec("", "GPU name; one in a group.", group=_KEY))
    runtime: str = field(metadata=spec("", "`torch`, `onnxruntime`, ...", group=_KEY))
    dtype: str = field(metadata=spec("", "As in the requirement table.", group=_KEY))
    batch_size: int | None = field(
        metadata=spec(
            "samples", "Samples in one inference; null: no input has a batch.", group=_KEY, minimum=1
        )
    )
    dims: str | None = field(
        default=None,
        metadata=spec("", "As in the requirement table; null: those of its one row that fits.", group=_KEY),
    )
    sm_share_pct: float = field(
        default=100.0,
        metadata=spec(
            "%",
            "Share of the SMs that it was confined to; 100: not confined.",
            group=_KEY,
            minimum=0,
            maximum=100,
        ),
    )
    sharing: str | None = field(
        default=None,
        metadata=spec(
            "",
            "How the group shared the GPU: `mps` at once, under NVIDIA's MPS; `time` in turns, without it; `cpu` no "
            "GPU but a CPU's cores; null: not told, taken for at once.",
            group=_KEY,
            choices=SHARINGS,
        ),
    )
    latency_alone_ms: float = field(
        metadata=spec(
            "ms", "One inference alone on the GPU, at the same share (median).", group=_TIME, minimum=0
        )
    )
    latency_together_ms: float | None = field(
        default=None,
        metadata=spec(
            "ms",
            "One inference beside the others of the group (median); null: it ran, but was not timed.",
            group=_TIME,
            minimum=0,
        ),
    )
    sm_util_mean_pct: float | None = field(
        default=None,
        metadata=spec("%", "Alone; null: the requirement table's.", group=_COMPUTE, minimum=0),
    )
    dram_util_mean_pct: float | None = field(
        default=None,
        metadata=spec("%", "Alone; null: the requirement table's.", group=_COMPUTE, minimum=0),
    )
    l2_util_mean_pct: float | None = field(
        default=None,
        metadata=spec("%", "Alone; null: the requirement table's.", group=_COMPUTE, minimum=0),
    )


COLOCATION: TableSchema[CoRun] = TableSchema("co-location table", CoRun, earlier=(1, 2))
