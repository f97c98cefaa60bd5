"""A capture of two empty ranges before an hour of profiling: what is broken is found in seconds."""

from __future__ import annotations

import sys

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.leftovers import scratch_folder
from gkestimator.profiling.collectors.base import Collector
from gkestimator.profiling.executors.nvtx_package import CLIENT, PACKAGE, nvtx_version
from gkestimator.profiling.tools import run_tool

PROBE_RANGES = ("probe-1", "probe-2")
_LIMIT_S = 120.0


def probe(collector: Collector, device: str, *, limit_s: float = _LIMIT_S) -> str | None:
    """Why ``collector`` records nothing of a small child on ``device`` (``cpu``, ``cuda:N``), in one line;
    None if it does. Takes some seconds.

    Where the nvtx package is installed and ``collector`` records through it, it becomes its annotator; our own client
    otherwise.
    """
    reason = collector.unavailable()
    if reason is not None or not collector.suffixes or not collector.probed:
        return reason
    if collector.tool is not None and nvtx_version() is not None:
        collector.annotator = PACKAGE
        if _tried(collector, device, limit_s) is None:
            return None
        collector.annotator = CLIENT
    # A busy machine may make nsys miss a child once; a second failure is no accident.
    return _tried(collector, device, limit_s) and _tried(collector, device, limit_s)


def _tried(collector: Collector, device: str, limit_s: float) -> str | None:
    child = [
        sys.executable,
        "-P",
        "-m",
        "gkestimator.profiling.collectors.probe_child",
        "--device",
        device,
        "--ranges",
        ",".join(PROBE_RANGES),
    ]
    with scratch_folder("gkest-probe") as folder:
        result = None
        try:
            result = run_tool(
                collector.command(child, folder),
                timeout_s=limit_s,
                env=collector.environment(),
                cwd=folder,
            )
            if result.timed_out:
                return f"{collector.name} hung: a probe of two ranges did not end within {limit_s:.0f} s and was killed"
            collector.finish(folder, PROBE_RANGES, result.output)
        except GkestimatorError as e:
            said = _child_said(result.output) if result is not None else None
            if said:
                return f"{collector.name}: the probe's child says: {said}"
            return str(e)
    return None


def _child_said(output: str) -> str | None:
    """The child's own error: it explains what the profiler lacks, not the other way round."""
    lines = (line.strip() for line in output.splitlines())
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
