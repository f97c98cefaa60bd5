"""What profiling can do on this machine, for ``gkest doctor``: fast, and read-only unless probes are asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gkestimator.profiling.collectors import collector_class, collector_names, make_collector, probe
from gkestimator.profiling.collectors.ncu import mps_process
from gkestimator.profiling.cuda_driver import cuda_device_count
from gkestimator.profiling.executors.nvtx_package import PACKAGE, nvtx_version
from gkestimator.profiling.tools import Tool, ToolError, find_tool, missing_tool, tool_version

_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


def profiler_facts(*, probing: bool = False) -> list[tuple[str, str]]:
    """Return (name, fact) of every collector's tool and of what stands in ncu's way; with ``probing`` also whether each
    collector records a small child on the CPU and on ``cuda:0``. Never raises for what is absent."""
    names = collector_names()
    tools = [collector_class(name).tool for name in names]
    facts = [(tool.name, _tool(tool)) for tool in tools if tool is not None]
    facts.append(("nvtx", _nvtx()))
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
    collector = make_collector(name, device)
    reason = probe(collector, device)
    if reason is not None:
        return reason
    if collector.tool is None:
        return "records"
    return f"records, with {_annotator(collector.annotator)}"


def _nvtx() -> str:
    version = nvtx_version()
    if version is None:
        return "not installed: ranges are made by gkestimator's own client"
    return f"{version} (gkest doctor --probe says whether the profilers here record through it)"


def _annotator(name: str) -> str:
    version = nvtx_version()
    if name == PACKAGE:
        return f"the nvtx package {version}"
    if version is None:
        return "gkestimator's own NVTX client: the nvtx package is not installed"
    return f"gkestimator's own NVTX client: through the nvtx package {version} it records nothing"


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
