"""NVML: what the driver tells of a GPU besides CUDA. Reads only; nothing of the GPU is ever set.

Every question may be refused (``NotSupported`` on consumer cards, in containers, on MIG instances): an answer that was
refused is None.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.type_names import Names

REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock",
}
"""Bits of ``nvmlDeviceGetCurrentClocksEventReasons`` (nvml.h, nvmlClocksEventReason*); others are ``bit_0x...``."""
_lock = threading.Lock()


class NvmlError(GkestimatorError):
    """NVML is absent, or knows no such GPU."""


def _nvml() -> Any:
    try:
        import pynvml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as e:
        raise NvmlError("the package nvidia-ml-py (pynvml) is not installed") from e
    try:
        with _lock:
            # NVML counts its users, so every one of them may start it.
            pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        raise NvmlError(f"NVML does not start: {e}") from e
    return pynvml


class NvmlGpu:
    """Ask one GPU, by its UUID (``GPU-...``, ``MIG-...``) or, failing that, its NVML index. Raises NvmlError."""

    def __init__(self, *, uuid: str | None = None, index: int = 0) -> None:
        self._nvml = _nvml()
        try:
            if uuid:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            else:
                self._handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as e:
            raise NvmlError(f"NVML knows no GPU {uuid or index}: {e}") from e

    def ask(self, function: str, *arguments: object) -> Any | None:
        """Return what the NVML function answers for this GPU; None where it is refused or the GPU is gone."""
        return self._asked(lambda: getattr(self._nvml, function)(self._handle, *arguments))

    def number(self, function: str, *arguments: object) -> float | None:
        """Return a number that the NVML function answers."""
        answer = self.ask(function, *arguments)
        if answer is None:
            return None
        return float(answer)

    def clock_mhz(self, kind: str, *, maximum: bool = False) -> float | None:
        """Return the clock of ``SM`` or ``MEM``, now or at most."""
        which = getattr(self._nvml, f"NVML_CLOCK_{kind}")
        return self.number("nvmlDeviceGetMaxClockInfo" if maximum else "nvmlDeviceGetClockInfo", which)

    def power_w(self) -> float | None:
        """Return the power that it draws."""
        return self._watts("nvmlDeviceGetPowerUsage")

    def power_limit_w(self) -> float | None:
        """Return the limit that it was made with (not one that was set later)."""
        return self._watts("nvmlDeviceGetPowerManagementDefaultLimit")

    def _watts(self, function: str) -> float | None:
        milliwatts = self.number(function)
        if milliwatts is None:
            return None
        return milliwatts * 1e-3

    def temperature_c(self) -> float | None:
        """Return the chip's temperature."""
        return self.number("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)

    def throttled(self) -> Names | None:
        """Return why clocks are held down, by the words of :data:`REASONS`."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None:
            return None
        return decoded_reasons(int(bits))

    def processes(self) -> dict[int, int | None] | None:
        """Return the compute processes with a context on it: bytes by process id (of the host's namespace)."""
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses")
        if processes is None:
            return None
        held: dict[int, int | None] = {}
        for process in processes:
            size = process.usedGpuMemory
            held[int(process.pid)] = None if size is None else int(size)
        return held

    def used_bytes(self) -> int | None:
        """Return the memory that processes hold of it, without what the driver keeps for itself; None also for drivers
        before 510, which count both together."""
        memory = self._asked(
            lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version=self._nvml.nvmlMemory_v2)
        )
        if memory is None:
            return None
        return int(memory.used)

    def sm_pct_by_process(self, since_us: int) -> dict[int, float] | None:
        """Return the share of the time since ``since_us`` (Unix, microseconds) in which kernels of each process ran,
        percent. A process that ran none is absent."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since_us)
        except self._nvml.NVMLError_NotFound:  # no samples: nobody ran anything
            return {}
        except self._nvml.NVMLError:
            return None
        highest: dict[int, float] = {}
        for sample in samples:
            pid = int(sample.pid)
            highest[pid] = max(highest.get(pid, 0.0), float(sample.smUtil))
        return highest

    def driver(self) -> str | None:
        """Return the driver's version."""
        return _text(self._asked(self._nvml.nvmlSystemGetDriverVersion))

    def text(self, function: str) -> str | None:
        """Return a text that the NVML function answers."""
        return _text(self.ask(function))

    def _asked(self, question: Callable[[], Any]) -> Any | None:
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):  # refused; or a function that this pynvml lacks
            return None


def decoded_reasons(bits: int) -> Names:
    """Return the words for the set bits, lowest first."""
    words = []
    for place in range(64):
        bit = 1 << place
        if bits & bit:
            words.append(REASONS.get(bit, f"bit_{bit:#x}"))
    return tuple(words)


def _text(answer: Any) -> str | None:
    if answer is None:
        return None
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    return str(answer)
