"""Define the request log: one row for each request to a model, simulated or served for real.

``gkest simulate --requests`` writes the columns of the group ``both``, ``gkest serve --requests`` those of ``measured``
as well. ``gkest evaluate --serving`` and ``gkest compare --against`` read it, and logs of other servers too
(:mod:`gkestimator.simulation.measured.reading`).
"""

from __future__ import annotations

import csv
import io

from gkestimator.tables.schema import TableSchema, column, required_column, table_row

STATUSES = ("ok", "refused", "timeout", "failed")
_BOTH = "both"
_MEASURED = "measured"


@table_row
class LoggedRequest:
    """Hold one row of a request log; the fields are its columns, in order. Unknown is None, never 0.

    The four parts (router, network, queue, gpu) sum to ``total_ms`` in a simulation; what a server measured between
    them and does not name is the rest.
    """

    source: str | None = column("", "Model or application that the client asked; null: the model.", _BOTH)
    model: str = required_column("", "The model; an application's request has a row for each stage.", _BOTH)
    replica: str | None = column("", "Who answered, by the plan's id; null: nobody, or not known.", _BOTH)
    gpu: str | None = column("", "The replica's GPU, by the plan's id.", _BOTH)
    batch: int | None = column(
        "requests", "Size of the batch that it was served in; null: not served.", _BOTH, minimum=1
    )
    arrived_ms: float = required_column(
        "ms", "When it came to the model's router, from the log's own zero.", _BOTH, minimum=0
    )
    router_ms: float | None = column("ms", "In a batch under construction at the router.", _BOTH, minimum=0)
    network_ms: float | None = column("ms", "On the way to the replica and back.", _BOTH, minimum=0)
    queue_ms: float | None = column(
        "ms", "At the replica, from its arrival to the start of service.", _BOTH, minimum=0
    )
    gpu_ms: float | None = column("ms", "In service: its batch runs.", _BOTH, minimum=0)
    total_ms: float | None = column(
        "ms", "From its arrival to its answer, or to the refusal; null: there was none.", _BOTH, minimum=0
    )
    on_time: bool | None = column("", "Answered within the model's objective.", _BOTH)
    status: str = column(
        "",
        "`ok` answered, `refused` told so at once or when a batch was formed, `timeout` told so after the time-out, "
        "`failed` anything else.",
        _MEASURED,
        default="ok",
        choices=STATUSES,
    )
    request: str | None = column("", "The client's id of the request, where it sent one.", _MEASURED)
    plan_version: int | None = column("", "Which plan served it, counted from 1.", _MEASURED, minimum=1)


REQUEST_LOG: TableSchema[LoggedRequest] = TableSchema("request log", LoggedRequest)


def simulated_columns() -> tuple[str, ...]:
    """Return the columns that a simulation writes, in order."""
    return tuple(c.name for c in REQUEST_LOG.columns if c.group == _BOTH)


def log_heading() -> str:
    """Return the heading line of a measured log as CSV, with its line end."""
    return _line(REQUEST_LOG.names)


def log_line(row: LoggedRequest) -> str:
    """Return ``row`` as a line of CSV, to be appended below :func:`log_heading`; null is an empty cell."""
    cells = []
    for value in REQUEST_LOG.record(row).values():
        # A thousandth of a microsecond is below what any clock of a server tells.
        text = "" if value is None else str(value)
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, float):
            text = f"{value:.6f}"
        cells.append(text)
    return _line(cells)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
