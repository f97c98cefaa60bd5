"""Define the tables of an evaluation: one row per measurement, and summaries of many."""

from __future__ import annotations

from dataclasses import field

from gkestimator.core.records import frozen
from gkestimator.tables.schema import TableSchema, spec

_KEY = "key"
_TIME = "time"
_OTHER = "other"
_TRUST = "trust"


def _measured(unit: str, name: str) -> float | None:
    """Return the field of a measured value."""
    value: float | None = field(
        default=None, metadata=spec(unit, f"Measured `{name}`; null: not measured.", group=_OTHER)
    )
    return value


def _estimated(unit: str, name: str) -> float | None:
    """Return the field of an estimated value."""
    value: float | None = field(
        default=None,
        metadata=spec(unit, f"Estimated `{name}`; null: not measured or not known.", group=_OTHER),
    )
    return value


@frozen
class ComparedRow:
    """Hold one measured row beside its estimate; unknown is None.

    Signed errors: positive is an estimate above the truth.
    """

    row: int = field(metadata=spec("", "Row of the truth, from 1.", group=_KEY, minimum=1))
    model: str = field(metadata=spec("", "As in the truth.", group=_KEY))
    gpu: str = field(metadata=spec("", "Canonical GPU name.", group=_KEY))
    runtime: str = field(metadata=spec("", "As in the requirement table.", group=_KEY))
    dtype: str = field(metadata=spec("", "Effective dtype of the estimate.", group=_KEY))
    batch_size: int | None = field(metadata=spec("samples", "As in the requirement table.", group=_KEY))
    dims: str = field(default="", metadata=spec("", "As in the requirement table.", group=_KEY))
    sm_share_pct: float = field(default=100.0, metadata=spec("%", "As in the requirement table.", group=_KEY))

    measured_ms: float | None = field(
        default=None, metadata=spec("ms", "Measured latency; null: not measured.", group=_TIME)
    )
    estimated_ms: float | None = field(default=None, metadata=spec("ms", "Estimated latency.", group=_TIME))
    low_ms: float | None = field(
        default=None, metadata=spec("ms", "Lower end of the 90 % interval.", group=_TIME)
    )
    high_ms: float | None = field(
        default=None, metadata=spec("ms", "Upper end of the 90 % interval.", group=_TIME)
    )
    error_pct: float | None = field(
        default=None, metadata=spec("%", "100 (estimated / measured - 1).", group=_TIME)
    )
    inside: bool | None = field(
        default=None, metadata=spec("", "The measurement lies in the 90 % interval.", group=_TIME)
    )
    roofline_ms: float | None = field(
        default=None,
        metadata=spec(
            "ms", "Sum of the kernels' rooflines (and the copy, where it is included).", group=_TIME
        ),
    )
    constant_ms: float | None = field(
        default=None,
        metadata=spec(
            "ms",
            "The roofline times the best constant of the GPU's other models; null: no other.",
            group=_TIME,
        ),
    )
    host_bound: bool | None = field(
        default=None, metadata=spec("", "The host's launches set the estimated time.", group=_TIME)
    )
    host_overhead_us: float | None = field(
        default=None, metadata=spec("us", "Host time per framework call that was assumed.", group=_TIME)
    )

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

    source: str | None = field(
        default=None, metadata=spec("", "Where the estimated time comes from.", group=_TRUST)
    )
    coverage_pct: float | None = field(
        default=None, metadata=spec("%", "As in the requirement table.", group=_TRUST)
    )
    warnings: str = field(default="", metadata=spec("", "Of the estimate, joined by `; `.", group=_TRUST))

    def signed_error(self, measure: str) -> float | None:
        """Return estimate against measurement, in points for percentages, else in percent of the measurement.

        ``measure`` is a column of the requirement table. None unless both are known.
        """
        estimated = self.estimated_ms if measure == "latency_ms" else getattr(self, measure)
        measured = self.measured_ms if measure == "latency_ms" else getattr(self, f"measured_{measure}")
        if estimated is None or measured is None:
            return None
        if measure.endswith("_pct"):
            return float(estimated - measured)
        return float(100 * (estimated / measured - 1))


@frozen
class SummaryRow:
    """Hold the absolute errors of one measure over one group of rows, in ``unit`` (% of the measurement, or
    points).

    ``bias`` is the median of the signed errors. ``inside_pct``, ``roofline_mean`` and ``constant_mean`` are
    of latency alone. The constant is fitted to the GPU's other models, None where there are none.
    """

    scope: str = field(metadata=spec("", "`all`, `gpu` or `model`.", choices=("all", "gpu", "model")))
    name: str = field(metadata=spec("", "The GPU or model; `all`."))
    measure: str = field(metadata=spec("", "Column of the requirement table."))
    unit: str = field(metadata=spec("", "`%` of the measurement, or `points`.", choices=("%", "points")))
    n: int = field(metadata=spec("rows", "Rows compared."))
    mean: float = field(metadata=spec("", "Mean absolute error."))
    median: float = field(metadata=spec("", "Median absolute error."))
    p90: float = field(metadata=spec("", "Its 90th percentile."))
    worst: float = field(metadata=spec("", "The largest."))
    bias: float = field(metadata=spec("", "Median signed error; positive: estimates too high."))
    inside_pct: float | None = field(
        default=None, metadata=spec("%", "Share of measurements inside the 90 % interval.")
    )
    roofline_mean: float | None = field(
        default=None, metadata=spec("", "Mean error of the summed rooflines.")
    )
    constant_mean: float | None = field(
        default=None, metadata=spec("", "Mean error of the roofline times the best constant.")
    )


COMPARED: TableSchema[ComparedRow] = TableSchema("comparison", ComparedRow)
SUMMARIES: TableSchema[SummaryRow] = TableSchema("summary", SummaryRow)
