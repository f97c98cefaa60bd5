"""Say what placement and interference ask of one row of the requirement table."""

from __future__ import annotations

from collections.abc import Mapping

from gkestimator.core.records import frozen
from gkestimator.tables.requirement import Requirement

# What `--creq` may name, and the column of the requirement table behind it.
CREQ_COLUMNS: Mapping[str, str] = {
    "sm-util-mean": "sm_util_mean_pct",
    "occupancy-max": "occupancy_max_pct",
    "occupancy-mean": "occupancy_mean_pct",
}


def without_context(row: Requirement) -> bool:
    """Return whether the memory of ``row`` is known without the CUDA context alone, as ``reserved_bytes``."""
    return row.mreq_bytes is None and row.mreq_pct is None and row.reserved_bytes is not None


@frozen
class Candidate:
    """Hold one way to run a model on a GPU type: one row of the requirement table, with what placement asks
    of it.

    ``throughput_rps`` is the table's column. ``creq_pct`` is the column that the problem packs by, percent of
    the whole GPU. ``memory_pct``, of the GPU's visible memory, is ``mreq_pct``; for measured tables without
    the CUDA context it is that of ``reserved_bytes``. Both are None where the table does not know.
    """

    row: Requirement
    latency_ms: float
    throughput_rps: float
    creq_pct: float | None
    memory_pct: float | None
    memory_bytes: int | None

    @property
    def gpu(self) -> str:
        """Return the GPU type, canonical."""
        return self.row.gpu

    @property
    def batch_size(self) -> int:
        """Return the samples in one inference (1 for a model without a batch)."""
        return self.row.batch_size or 1

    @property
    def sm_share_pct(self) -> float:
        """Return the percent of the SMs it is confined to; 100: not confined."""
        return self.row.sm_share_pct

    @property
    def latency_high_ms(self) -> float:
        """Return the upper end of the latency's 90 % interval; the latency itself for a measured row."""
        high = self.row.latency_high_ms
        if high is None:
            return self.latency_ms
        return max(high, self.latency_ms)
