"""What the CUDA driver says of a device: libcuda through ctypes, without torch, without a context on the GPU.

Numbers of attributes: CUDA driver API, ``enum CUdevice_attribute``.
"""

from __future__ import annotations

import ctypes
import uuid
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.profiling.type_names import CountByName

_ATTRIBUTES = {
    "threads_per_block_max": 1,
    "shared_bytes_per_block": 8,
    "warp_size": 10,
    "clock_khz": 13,
    "sms": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "threads_per_sm": 39,
    "compute_major": 75,
    "compute_minor": 76,
    "shared_bytes_per_sm": 81,
    "registers_per_sm": 82,
    "shared_bytes_per_block_max": 97,
    "blocks_per_sm": 106,
}
_LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")


@frozen
class CudaDevice:
    """Hold a device as the driver describes it. ``uuid``: ``GPU-...`` or, of a MIG instance, its own. ``memory_bytes``:
    what a program can allocate at most. ``driver_cuda``: the newest CUDA version that the driver runs. ``attributes``
    by the names of this module; those that the driver does not know are absent."""

    name: str
    uuid: str | None
    memory_bytes: int
    driver_cuda: str
    attributes: CountByName


def cuda_device_count() -> int:
    """Return how many devices a CUDA program would see (``CUDA_VISIBLE_DEVICES`` counts); 0 without a driver."""
    library = _library()
    count = ctypes.c_int(0)
    if library is None or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def cuda_device(index: int) -> CudaDevice | str:
    """Return the device that CUDA programs call ``cuda:<index>``, or in one line why there is none."""
    library = _library()
    if library is None:
        return "no CUDA driver (libcuda) that starts on this machine"
    handle = ctypes.c_int(0)
    if library.cuDeviceGet(ctypes.byref(handle), index) != 0:
        return f"no device cuda:{index}; CUDA sees {cuda_device_count()}"
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t(0)
    version = ctypes.c_int(0)
    if (
        library.cuDeviceGetName(name, 256, handle) != 0
        or library.cuDeviceTotalMem_v2(ctypes.byref(memory), handle) != 0
        or library.cuDriverGetVersion(ctypes.byref(version)) != 0
    ):
        return f"the CUDA driver does not answer for cuda:{index}"
    attributes = {}
    for label, number in _ATTRIBUTES.items():
        value = ctypes.c_int(0)
        if library.cuDeviceGetAttribute(ctypes.byref(value), number, handle) == 0 and value.value > 0:
            attributes[label] = value.value
        elif label == "compute_minor":
            attributes[label] = 0
    return CudaDevice(
        name=name.value.decode(errors="replace"),
        uuid=_uuid(library, handle),
        memory_bytes=memory.value,
        driver_cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
        attributes=attributes,
    )


def _uuid(library: Any, handle: ctypes.c_int) -> str | None:
    raw = (ctypes.c_ubyte * 16)()
    # v2 names the MIG instance where there is one; the first version always the whole GPU.
    for function, prefix in (("cuDeviceGetUuid_v2", None), ("cuDeviceGetUuid", "GPU-")):
        ask = getattr(library, function, None)
        if ask is not None and ask(raw, handle) == 0:
            own = str(uuid.UUID(bytes=bytes(raw)))
            if prefix is None:
                whole = _whole_uuid(library, handle)
                prefix = "GPU-" if whole in (None, own) else "MIG-"
            return prefix + own
    return None


def _whole_uuid(library: Any, handle: ctypes.c_int) -> str | None:
    raw = (ctypes.c_ubyte * 16)()
    ask = getattr(library, "cuDeviceGetUuid", None)
    if ask is None or ask(raw, handle) != 0:
        return None
    return str(uuid.UUID(bytes=bytes(raw)))


def _library() -> Any | None:
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        # cuInit makes no context: it takes no memory on the GPU and stays out of the profiled child's way.
        if library.cuInit(0) == 0:
            return library
        return None
    return None
