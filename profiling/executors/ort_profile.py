"""ONNX Runtime's JSON profile on the CPU: which nodes ran, after fusion, and how long each took at each call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gkestimator.core.errors import OutputError
from gkestimator.core.texts import parse_json
from gkestimator.profiling.executors.base import ExecutionError
from gkestimator.profiling.records import HostKernel, HostKernels
from gkestimator.profiling.type_names import Fields, Members

_MAX_BYTES = 256 * 2**20
_SUFFIX = "_kernel_time"


def read_profile(path: Path, repeats: int) -> HostKernels:
    """Return the nodes of the last ``repeats`` calls in the order they ran, each with its durations (whole
    microseconds, as the profiler writes them).

    A node of a subgraph runs inside its ``Loop`` or ``If`` and counts there. Raises ExecutionError where calls differ
    in what they ran, or are missing; OutputError where the file is cut short, which onnxruntime does not notice when
    the disk is full.
    """
    events = _events(path)
    runs = [event for event in events if event.get("name") == "model_run"]
    starts = sorted(int(event["ts"]) for event in runs)[-repeats:]
    if len(starts) < repeats:
        raise ExecutionError(f"profile of onnxruntime: found {len(starts)} calls, expected {repeats}")
    calls: list[list[_Node]] = [[] for _ in starts]
    for node in _nodes(events):
        # Events of a call are cut out by the start of the next: ends are rounded, and its own may lie before them.
        call = bisect_right(starts, node.start_us) - 1
        if call >= 0:
            calls[call].append(node)
    outer = [_outer(call) for call in calls]
    names = [node.name for node in outer[0]]
    # A call that fused otherwise than the first would give rows of different kernels.
    for call_nodes in outer:
        if [node.name for node in call_nodes] != names:
            raise ExecutionError(f"profile of onnxruntime: calls ran different nodes: {names} and others")
    kernels = []
    for name, *repeated in zip(names, *outer, strict=True):
        durations = tuple(float(node.duration_us) for node in repeated)
        kernels.append(HostKernel(name=name, durations_us=durations))
    return tuple(kernels)


def _events(path: Path) -> list[Fields]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ExecutionError(f"profile of onnxruntime: larger than {_MAX_BYTES:,} bytes")
        events: list[Fields] = parse_json(path.read_bytes())
    except (OSError, ValueError) as e:
        raise OutputError(f"{path}: profile of onnxruntime is cut short ({e}); is the disk full?") from e
    return events


class _Node(NamedTuple):
    """Hold one run of one node."""

    start_us: int
    duration_us: int
    name: str

    @property
    def end_us(self) -> int:
        return self.start_us + self.duration_us


def _nodes(events: Iterable[Members]) -> list[_Node]:
    """Return the nodes that ran, in order of start; of two that start together the longer, which holds the other."""
    nodes = []
    for event in events:
        text = str(event.get("name", ""))
        if event.get("cat") == "Node" and text.endswith(_SUFFIX):
            kind = event.get("args", {}).get("op_name")
            name = str(kind or text.removesuffix(_SUFFIX))
            nodes.append(_Node(int(event["ts"]), int(event["dur"]), name))
    return sorted(nodes, key=lambda node: (node.start_us, -node.duration_us))


def _outer(nodes: Iterable[_Node]) -> list[_Node]:
    """Return the nodes of one call, in order of start, without those that run inside another (a subgraph's)."""
    outer: list[_Node] = []
    end_us = -1
    for node in nodes:
        if node.start_us < end_us and node.end_us <= end_us:
            continue
        outer.append(node)
        end_us = max(end_us, node.end_us)
    return outer
