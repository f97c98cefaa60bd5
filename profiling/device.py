"""What is measured on: the facts of a device from the CUDA driver, NVML and nvidia-smi, whichever is there."""

from __future__ import annotations

import re
import shutil

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.profiling.cuda_driver import CudaDevice, cuda_device
from gkestimator.profiling.nvml import NvmlError, NvmlGpu
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.tools import ToolError, run_tool
from gkestimator.profiling.type_names import CountByName

_WARP = 32
_PCIE_BYTES_PER_LANE = {
    1: 0.25e9,
    2: 0.5e9,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}
"""One direction of one lane by generation: transfers a second x the code's payload / 8 (PCI-SIG)."""
_DIRECT = (
    "sms",
    "l2_bytes",
    "registers_per_sm",
    "shared_bytes_per_sm",
    "shared_bytes_per_block_max",
    "blocks_per_sm",
    "threads_per_block_max",
    "memory_bus_bits",
)
_SMI_S = 20.0


class DeviceError(GkestimatorError):
    """The device that was asked for is not there, or went away."""


def parse_device(text: str) -> int | None:
    """Return None for ``cpu``, 0 for ``cuda``, N for ``cuda:N``. Raises UsageError."""
    if text == "cpu":
        return None
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", text)
    if match is None:
        raise UsageError(f"device: found {text[:40]!r}, expected cpu or cuda:N")
    return int(match[1] or 0)


def device_facts(device: str) -> DeviceFacts:
    """Return the facts of ``cpu`` or ``cuda:N``, N as CUDA programs count. Makes no CUDA context. For the CPU
    it measures for a second (:func:`gkestimator.profiling.host.host_facts`). Raises UsageError, and
    DeviceError where no such GPU answers."""
    index = parse_device(device)
    if index is None:
        from gkestimator.profiling.host import host_facts

        return host_facts()
    cuda = cuda_device(index)
    if isinstance(cuda, str):
        raise DeviceError(f"{device}: {cuda}")
    try:
        # CUDA and NVML number devices differently (CUDA_VISIBLE_DEVICES, MIG): the UUID is the same.
        gpu = NvmlGpu(uuid=cuda.uuid, index=index)
    except NvmlError:
        return facts_of(cuda, None, index=index, driver=_driver_by_smi())
    return facts_of(cuda, gpu, index=index, driver=gpu.driver())


def facts_without_measuring(device: str) -> DeviceFacts:
    """Return the facts as :func:`device_facts` does, but of the CPU only that it is one. Raises UsageError,
    DeviceError."""
    if parse_device(device) is None:
        return DeviceFacts(kind="cpu", name="CPU")
    return device_facts(device)


def facts_of(cuda: CudaDevice, gpu: NvmlGpu | None, *, index: int, driver: str | None) -> DeviceFacts:
    """Return the facts from what the CUDA driver says, with NVML's (None where there is none) for the rest."""
    has = cuda.attributes
    limits = {}
    for name in _DIRECT:
        if name in has:
            limits[name] = float(has[name])
    if "threads_per_sm" in has:
        limits["warps_per_sm"] = float(has["threads_per_sm"] // has.get("warp_size", _WARP))
    limits["memory_visible_bytes"] = float(cuda.memory_bytes)
    clocks = _clocks(has, gpu)
    if "memory" in clocks and "memory_bus_bits" in limits:
        # Two transfers a clock as the driver counts memory clocks, for HBM and GDDR alike.
        limits["dram_bytes_per_s"] = 2.0 * clocks["memory"] * 1e6 * limits["memory_bus_bits"] / 8.0
    if gpu is not None:
        limits |= _from_nvml(gpu, limits.get("sms"))
    major = has.get("compute_major")
    minor = has.get("compute_minor", 0)
    return DeviceFacts(
        kind="gpu",
        name=cuda.name,
        index=index,
        uuid=cuda.uuid,
        compute_capability=None if major is None else f"{major}.{minor}",
        driver=driver,
        cuda=cuda.driver_cuda,
        memory_bytes=cuda.memory_bytes,
        clocks_mhz=clocks,
        limits=limits,
    )


def _clocks(has: CountByName, gpu: NvmlGpu | None) -> dict[str, float]:
    """Return the maximum clocks. CUDA 13 no longer tells them for every device; NVML does."""
    clocks = {}
    for label, attribute, kind in (("sm", "clock_khz", "SM"), ("memory", "memory_clock_khz", "MEM")):
        mhz = None if gpu is None else gpu.clock_mhz(kind, maximum=True)
        if mhz is None and attribute in has:
            mhz = has[attribute] / 1e3
        if mhz:
            clocks[label] = mhz
    return clocks


def _from_nvml(gpu: NvmlGpu, sms: float | None) -> dict[str, float]:
    limits: dict[str, float] = {}
    power = gpu.power_limit_w()
    if power:
        limits["power_limit_w"] = power
    generation = gpu.ask("nvmlDeviceGetMaxPcieLinkGeneration")
    width = gpu.ask("nvmlDeviceGetMaxPcieLinkWidth")
    if generation in _PCIE_BYTES_PER_LANE and width:
        limits["pcie_bytes_per_s"] = _PCIE_BYTES_PER_LANE[generation] * width
    cores = gpu.ask("nvmlDeviceGetNumGpuCores")
    # Of a MIG instance NVML counts the whole chip's cores.
    if cores and sms and cores % sms == 0:
        limits["cuda_cores_per_sm"] = cores / sms
    return limits


def _driver_by_smi() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        result = run_tool([program, "--query-gpu=driver_version", "--format=csv,noheader"], timeout_s=_SMI_S)
    except ToolError:
        return None
    version = re.match(r"\d+(\.\d+)+", result.output.strip())
    if result.status == 0 and version:
        return version[0]
    return None
