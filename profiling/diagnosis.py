"""What profiling can do on this machine, for ``gkest doctor``: fast, and read-only unless probes are asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gkestimator.profiling.collectors import collector_class, collector_names, make_collector, probe
from gkestimator.profiling.collectors.ncu import mps_process
from gkestimator.profiling.cuda_driver import cuda_device_count
from gkestimator.profiling.tools import Tool, ToolError, find_tool, missing_tool, tool_version

_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


def profiler_facts(*, probing: bool = False) -> list[tuple[str, str]]:
    """Return (name, fact) of every collector's tool and of what stands in ncu's way; with ``probing`` also whether each
    collector records a small child on the CPU and on ``cuda:0``. Never raises for what is absent."""
    names = collector_names()
    tools = [collector_class(name).tool for name in names]
    facts = [(tool.name, _tool(tool)) for tool in tools if tool is not None]
    gpus = cuda_device_count()
    if gpus:
        facts.append(("GPU counters", counters_permission()))
        server = mps_process()
        facts.append(("MPS", "not running" if server is None else f"process {server}: ncu cannot be used"))
    if probing:
        for device in ("cpu", *(("cuda:0",) if gpus else ())):
            recording = (name for name in names if collector_class(name).suffixes)
            facts += [(f"{name} on {device}", _probed(name, device)) for name in recording]
    return facts


def _tool(tool: Tool) -> str:
    try:
        path = find_tool(tool)
    except ToolError as e:
        return str(e)
    if path is None:
        return missing_tool(tool)
    version = tool_version(path)
    if version is None:
        return f"{path}: does not answer"
    return f"{version} ({path})"


def _probed(name: str, device: str) -> str:
    reason = probe(make_collector(name, device), device)
    return "records" if reason is None else reason


def counters_permission(parameters: Path = _DRIVER_PARAMETERS) -> str:
    """Say who may read hardware counters, as the driver was loaded."""
    try:
        setting = re.search(r"^RmProfilingAdminOnly:\s*(\d)", parameters.read_text(), re.MULTILINE)
    except OSError:
        setting = None
    if setting is None:
        return "unknown who may read them"
    if setting[1] == "0":
        return "every user may read them"
    return "root may read them" + (
        " (you are)" if os.geteuid() == 0 else "; you are not (see gkest doctor --probe)"
    )
