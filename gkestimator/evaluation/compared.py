"""Define the tables of an evaluation: one row per measurement, and summaries of many."""

from __future__ import annotations

from typing import Any

from gkestimator.tables.schema import TableSchema, column, required_column, table_row

_KEY = "key"
_TIME = "time"
_OTHER = "other"
_TRUST = "trust"


def _measured(unit: str, name: str) -> Any:
    """Return the field of a measured value."""
    return column(unit, f"Measured `{name}`; null: not measured.", _OTHER)


def _estimated(unit: str, name: str) -> Any:
    """Return the field of an estimated value."""
    return column(unit, f"Estimated `{name}`; null: not measured or not known.", _OTHER)


@table_row
class ComparedRow:
    """Hold one measured row beside its estimate; unknown is None.

    Signed errors: positive is an estimate above the truth.
    """

    row: int = required_column("", "Row of the truth, from 1.", _KEY, minimum=1)
    model: str = required_column("", "As in the truth.", _KEY)
    gpu: str = required_column("", "Canonical GPU name.", _KEY)
    runtime: str = required_column("", "As in the requirement table.", _KEY)
    dtype: str = required_column("", "Effective dtype of the estimate.", _KEY)
    batch_size: int | None = required_column("samples", "As in the requirement table.", _KEY)
    dims: str = column("", "As in the requirement table.", _KEY, default="")
    sm_share_pct: float = column("%", "As in the requirement table.", _KEY, default=100.0)

    measured_ms: float | None = column("ms", "Measured latency; null: not measured.", _TIME)
    estimated_ms: float | None = column("ms", "Estimated latency.", _TIME)
    low_ms: float | None = column("ms", "Lower end of the 90 % interval.", _TIME)
    high_ms: float | None = column("ms", "Upper end of the 90 % interval.", _TIME)
    error_pct: float | None = column("%", "100 (estimated / measured - 1).", _TIME)
    inside: bool | None = column("", "The measurement lies in the 90 % interval.", _TIME)
    roofline_ms: float | None = column(
        "ms", "Sum of the kernels' rooflines (and the copy, where it is included).", _TIME
    )
    constant_ms: float | None = column(
        "ms", "The roofline times the best constant of the GPU's other models; null: no other.", _TIME
    )
    host_bound: bool | None = column("", "The host's launches set the estimated time.", _TIME)
    host_overhead_us: float | None = column("us", "Host time per framework call that was assumed.", _TIME)

    measured_reserved_bytes: float | None = _measured("bytes", "reserved_bytes")
    reserved_bytes: float | None = _estimated("bytes", "reserved_bytes")
    measured_mreq_bytes: float | None = _measured("bytes", "mreq_bytes")
    mreq_bytes: float | None = _estimated("bytes", "mreq_bytes")
    measured_sm_util_mean_pct: float | None = _measured("%", "sm_util_mean_pct")
    sm_util_mean_pct: float | None = _estimated("%", "sm_util_mean_pct")
    measured_sm_util_busy_mean_pct: float | None = _measured("%", "sm_util_busy_mean_pct")
    sm_util_busy_mean_pct: float | None = _estimated("%", "sm_util_busy_mean_pct")
    measured_sm_util_max_pct: float | None = _measured("%", "sm_util_max_pct")
    sm_util_max_pct: float | None = _estimated("%", "sm_util_max_pct")
    measured_occupancy_mean_pct: float | None = _measured("%", "occupancy_mean_pct")
    occupancy_mean_pct: float | None = _estimated("%", "occupancy_mean_pct")
    measured_occupancy_max_pct: float | None = _measured("%", "occupancy_max_pct")
    occupancy_max_pct: float | None = _estimated("%", "occupancy_max_pct")
    measured_dram_util_mean_pct: float | None = _measured("%", "dram_util_mean_pct")
    dram_util_mean_pct: float | None = _estimated("%", "dram_util_mean_pct")

    measured_gpu_ms: float | None = _measured("ms", "gpu_ms")
    gpu_ms: float | None = _estimated("ms", "gpu_ms")
    measured_power_w: float | None = _measured("W", "power_w")
    power_w: float | None = _estimated("W", "power_w")

    source: str | None = column("", "Where the estimated time comes from.", _TRUST)
    coverage_pct: float | None = column("%", "As in the requirement table.", _TRUST)
    warnings: str = column("", "Of the estimate, joined by `; `.", _TRUST, default="")

    def signed_error(self, measure: str) -> float | None:
        """Return estimate against measurement, in points for percentages, else in percent of the measurement.

        ``measure`` is a column of the requirement table. None unless both are known.
        """
        if measure == "latency_ms":
            estimated = self.estimated_ms
            measured = self.measured_ms
        else:
            estimated = getattr(self, measure)
            measured = getattr(self, f"measured_{measure}")
        if estimated is None or measured is None:
            return None
        if measure.endswith("_pct"):
            return float(estimated - measured)
        return float(100 * (estimated / measured - 1))


@table_row
class SummaryRow:
    """Hold the absolute errors of one measure over one group of rows, in ``unit`` (% of the measurement, or
    points).

    ``bias`` is the median of the signed errors. ``inside_pct``, ``roofline_mean`` and ``constant_mean`` are
    of latency alone. The constant is fitted to the GPU's other models, None where there are none.
    """

    scope: str = required_column("", "`all`, `gpu` or `model`.", choices=("all", "gpu", "model"))
    name: str = required_column("", "The GPU or model; `all`.")
    measure: str = required_column("", "Column of the requirement table.")
    unit: str = required_column("", "`%` of the measurement, or `points`.", choices=("%", "points"))
    n: int = required_column("rows", "Rows compared.")
    mean: float = required_column("", "Mean absolute error.")
    median: float = required_column("", "Median absolute error.")
    p90: float = required_column("", "Its 90th percentile.")
    worst: float = required_column("", "The largest.")
    bias: float = required_column("", "Median signed error; positive: estimates too high.")
    inside_pct: float | None = column("%", "Share of measurements inside the 90 % interval.")
    roofline_mean: float | None = column("", "Mean error of the summed rooflines.")
    constant_mean: float | None = column("", "Mean error of the roofline times the best constant.")


COMPARED: TableSchema[ComparedRow] = TableSchema("comparison", ComparedRow)
SUMMARIES: TableSchema[SummaryRow] = TableSchema("summary", SummaryRow)
