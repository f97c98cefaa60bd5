"""Memory of the host that an entry may take: one too large is its own error, not the kernel's OOM killer."""

from __future__ import annotations

from pathlib import Path

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.graph import Operator
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.profiling.executors.base import ExecutionError
from gkestimator.profiling.plan import PlanEntry

_SHARE = 0.9  # of what is available: runtimes copy and pack
_CGROUP = Path("/sys/fs/cgroup")


def available_host_bytes() -> int | None:
    """Return the bytes that this process may still take, by the kernel's account and the container's; None
    where not told."""
    limits = [v for v in (_meminfo(), _cgroup()) if v is not None]
    return min(limits) if limits else None


def require_host_memory(entry: PlanEntry, device: str, available: int | None) -> None:
    """Raise ExecutionError where the tensors of ``entry`` do not fit. On a GPU only its inputs and weights, one at a
    time on their way to the device, are held here."""
    if available is None:
        return
    tensors = entry.fragment.tensors
    weights = sum(t.nbytes for t in tensors if t.role == "weight")
    total = sum(t.nbytes for t in tensors)
    if device == "cpu":
        # The runtime packs weights into a layout of its own, so they are there twice.
        needed = total + weights + _outputs(entry)
    else:
        inputs = sum(t.nbytes for t in tensors if t.role == "input")
        largest = max((t.nbytes for t in tensors), default=0)
        needed = total - inputs + largest
    if needed > available * _SHARE:
        raise ExecutionError(
            f"out of memory: the tensors take {needed / 2**30:,.1f} GiB, the host has {available / 2**30:,.1f} GiB left"
        )


def _outputs(entry: PlanEntry) -> int:
    """Return the bytes of results that are there at once: each from the operator that makes it to the last
    that reads it."""
    try:
        graph = fragment_graph(entry.fragment)
    # The estimate is a courtesy: the runtime itself decides what it can run.
    except GkestimatorError:
        return 0  # an operator that no shape rule covers: the runtime will say what it needs
    leaving = {value.name for value in graph.outputs}
    last = {}
    for at, op in enumerate(graph.operators):
        for name in _touched(op) - leaving:
            last[name] = at
    alive = peak = 0
    sizes: dict[str, int] = {}
    for at, op in enumerate(graph.operators):
        for made in op.outputs:
            if made is not None:
                sizes[made.name] = made.nbytes
                alive += made.nbytes
        peak = max(peak, alive)
        for name in _touched(op):
            if last.get(name) == at:
                alive -= sizes.pop(name, 0)
    return peak


def _touched(op: Operator) -> set[str]:
    values = (*op.inputs, *op.outputs)
    return {value.name for value in values if value is not None}


def _meminfo() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _cgroup() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return None
        return int(limit) - int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None
