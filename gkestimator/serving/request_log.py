"""Append every request to a log, in lines that were begun while the service ran."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from gkestimator.core.errors import OutputError
from gkestimator.serving.messages import SentAnswer
from gkestimator.serving.routing import PendingRequest
from gkestimator.tables.files import output_errors
from gkestimator.tables.request_log import LoggedRequest, log_heading, log_line

_AT_ONCE = 4096
_STATUS = {200: "ok", 504: "timeout", 429: "refused", 503: "refused"}


def status_word(status: int) -> str:
    """Return what the log calls an HTTP status."""
    return _STATUS.get(status, "failed")


def logged(
    request: PendingRequest, answer: SentAnswer, *, now: float, zero: float, slo_ms: float
) -> LoggedRequest:
    """Return the row of a request that ended at ``now``; ``zero`` is the log's."""
    total_ms = (now - request.arrived) * 1e3
    router_ms = network_ms = None
    if request.sent is not None:
        router_ms = max(0.0, (request.sent - request.arrived) * 1e3)
    if router_ms is not None and answer.queue_ms is not None and answer.gpu_ms is not None:
        network_ms = max(0.0, total_ms - router_ms - answer.queue_ms - answer.gpu_ms)
    replica = gpu = None
    if request.load is not None:
        replica = request.load.replica.name
        gpu = request.load.replica.gpu
    status = status_word(answer.status)
    return LoggedRequest(
        source=request.model,
        model=request.model,
        replica=replica,
        gpu=gpu,
        batch=answer.batch,
        arrived_ms=max(0.0, (request.arrived - zero) * 1e3),
        router_ms=router_ms,
        network_ms=network_ms,
        queue_ms=answer.queue_ms,
        gpu_ms=answer.gpu_ms,
        total_ms=total_ms,
        on_time=status == "ok" and total_ms <= slo_ms,
        status=status,
        plan_version=request.version or None,
    )


class RequestLog:
    """Keep the log at ``path``, written in pieces; what a crash can lose is less than a piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[str] = []
        with output_errors(path):
            self._stream: IO[str] | None = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115
        if self._stream.tell() == 0:  # else a router goes on with what one before it began
            self._lines.append(log_heading())
        self.flush()

    def add(self, row: LoggedRequest) -> None:
        """Add a row."""
        self._lines.append(log_line(row))
        if len(self._lines) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what has been added. A full disk ends the log, not the service."""
        lines, self._lines = self._lines, []
        if self._stream is None:
            return
        try:
            with output_errors(self.path):
                self._stream.write("".join(lines))
                self._stream.flush()
        except OutputError:
            self._stream = None

    def close(self) -> None:
        """Write the rest and close."""
        self.flush()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
