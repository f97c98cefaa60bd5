"""ONNX Runtime's JSON profile on the CPU: which nodes ran, after fusion, and how long each took at each call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gkestimator.core.errors import OutputError
from gkestimator.profiling.executors.base import ExecutionError
from gkestimator.profiling.records import HostKernel

_MAX_BYTES = 256 * 2**20
_SUFFIX = "_kernel_time"


def read_profile(path: Path, repeats: int) -> tuple[HostKernel, ...]:
    """The nodes of the last ``repeats`` calls in the order they ran, each with its durations (whole microseconds, as
    the profiler writes them). A node of a subgraph runs inside its ``Loop`` or ``If`` and counts there. Raises
    ExecutionError where calls differ in what they ran, or are missing; OutputError where the file is cut short, which
    onnxruntime does not notice when the disk is full."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ExecutionError(f"profile of onnxruntime: larger than {_MAX_BYTES:,} bytes")
        events = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise OutputError(f"{path}: profile of onnxruntime is cut short ({e}); is the disk full?") from e
    calls = sorted((e for e in events if e.get("name") == "model_run"), key=lambda e: int(e["ts"]))[-repeats:]
    if len(calls) < repeats:
        raise ExecutionError(f"profile of onnxruntime: found {len(calls)} calls, expected {repeats}")
    nodes = [e for e in events if e.get("cat") == "Node" and str(e.get("name", "")).endswith(_SUFFIX)]
    nodes.sort(key=lambda e: (int(e["ts"]), -int(e["dur"])))
    # Events of a call are cut out by the start of the next: ends are rounded, and a call's own end may lie before them.
    starts = [int(c["ts"]) for c in calls]
    ends: list[float] = [*starts[1:], float("inf")]
    per_call = [
        _outer([n for n in nodes if start <= int(n["ts"]) < end])
        for start, end in zip(starts, ends, strict=True)
    ]
    names = [[_name(n) for n in call] for call in per_call]
    if any(n != names[0] for n in names):
        raise ExecutionError(f"profile of onnxruntime: calls ran different nodes: {names[0]} and others")
    return tuple(
        HostKernel(name=name, durations_us=tuple(float(call[i]["dur"]) for call in per_call))
        for i, name in enumerate(names[0])
    )


def _outer(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``nodes`` of one call in order of start, without those that run inside another (a subgraph's)."""
    kept: list[dict[str, Any]] = []
    end = -1
    for node in nodes:
        stop = int(node["ts"]) + int(node["dur"])
        if kept and int(node["ts"]) < end and stop <= end:
            continue
        kept.append(node)
        end = max(end, stop)
    return kept


def _name(node: dict[str, Any]) -> str:
    kind = node.get("args", {}).get("op_name")
    return str(kind or node["name"][: -len(_SUFFIX)])
