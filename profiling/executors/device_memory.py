"""What this process holds of a GPU, its context and the libraries' handles included."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from gkestimator.profiling.executors import DEVICE, MemoryReader

_NO_CONTEXT_BYTES = 64 * 2**20
"""Less than any process with a CUDA context takes: a GPU that has no more than this in use has none."""


class GpuMemory(Protocol):
    """Tell, as :class:`gkestimator.profiling.nvml.NvmlGpu` does, of a GPU's memory."""

    def processes(self) -> Mapping[int, int | None] | None:
        """Return the bytes by process id; a size that is not told is None."""

    def used_bytes(self) -> int | None:
        """Return what all processes together hold."""


def nothing_told() -> None:
    """Return None, where nobody can tell."""


def device_memory(device: str) -> MemoryReader:
    """Return what asks how many bytes of ``device`` (``cpu`` or ``cuda:N``) this process holds. To be made
    before the process starts CUDA: what is there by then is others'. It answers None on the CPU, without
    NVML, and where it cannot tell this process's memory from others'."""
    asked = DEVICE.match(device)
    if asked is None or asked[1] is None:
        return nothing_told
    index = int(asked[1])
    from gkestimator.profiling.cuda_driver import cuda_device
    from gkestimator.profiling.nvml import NvmlError, NvmlGpu

    cuda = cuda_device(index)
    if isinstance(cuda, str):
        return nothing_told
    try:
        return _Held(NvmlGpu(uuid=cuda.uuid, index=index), own=os.getpid())
    except NvmlError:
        return nothing_told


class _Held:
    """Tell the driver's own account of the process (NVML, per process) where it has one. Containers often
    hide it, for the driver counts in the host's process ids. Then the growth of the GPU's used memory since
    this was made, if nobody else was there: no process was listed before and at most one is now, and no more
    was in use than an idle GPU has.
    """

    def __init__(self, gpu: GpuMemory, *, own: int) -> None:
        self._gpu = gpu
        self._own = own
        self._listed_before = gpu.processes()
        self._used_before = gpu.used_bytes()

    def __call__(self) -> int | None:
        """Return the bytes that the process holds now; None where not told."""
        before = self._listed_before or {}
        now = self._gpu.processes()
        # Another namespace's number may be equal to ours: one that was there before our context is not ours.
        if now is not None and now.get(self._own) is not None and self._own not in before:
            return now[self._own]
        if before or (now is not None and len(now) > 1):
            return None
        used = self._gpu.used_bytes()
        used_before = self._used_before
        if used is None or used_before is None or used_before > _NO_CONTEXT_BYTES or used <= used_before:
            return None
        return used - used_before
