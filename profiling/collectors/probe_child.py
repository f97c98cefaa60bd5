"""The child of a probe: two ranges, on a GPU with one launch each. Started as ``python -m`` and this module's
name."""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Sequence

_PTX = b""".version %s
.target sm_%d
.address_size 64
.visible .entry gkestimator_probe() { ret; }
\0"""
# ISA and chip: the oldest that any driver compiles, then newer ones, for drivers that give the oldest up.
_TARGETS = ((b"6.0", 50), (b"7.0", 75), (b"8.0", 90))
_PAUSE_S = 0.005


class _Gpu:
    """An empty kernel through the CUDA driver, so that neither torch nor a compiler is needed."""

    def __init__(self, index: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._call("cuCtxSetCurrent", self._context)
        module = ctypes.c_void_p()
        self._kernel = ctypes.c_void_p()
        for target in _TARGETS:
            status = self._cuda.cuModuleLoadData(ctypes.byref(module), _PTX % target)
            if status == 0:
                break
        else:
            raise OSError(f"cuModuleLoadData answered {status}")
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"gkestimator_probe")

    def launch(self) -> None:
        """One block of 32 threads, waited for."""
        self._call("cuLaunchKernel", self._kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status != 0:
            raise OSError(f"{name} answered {status}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Push and pop the ranges; status 3 where the device does not answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranges", default="probe-1,probe-2")
    parser.add_argument("--kineto")
    options = parser.parse_args(arguments)
    names = options.ranges.split(",")
    if options.kineto:
        return _under_kineto(options.device, names, options.kineto)
    gpu = None
    if options.device != "cpu":
        try:
            gpu = _Gpu(int(options.device.rpartition(":")[2]))
        except OSError as e:
            print(f"error: {options.device}: {e}", file=sys.stderr)
            return 3
    from gkestimator.profiling.captures import NVTX_DOMAIN
    from gkestimator.profiling.executors.nvtx_package import make_ranges

    ranges = make_ranges(NVTX_DOMAIN)
    if not ranges.active:
        print("error: the profiler offers no NVTX (NVTX_INJECTION64_PATH is not set)", file=sys.stderr)
        return 2
    for name in names:
        with ranges.range(f"{name}#1"):
            if gpu is not None:
                gpu.launch()
            time.sleep(_PAUSE_S)
    return 0


def _under_kineto(device: str, names: Sequence[str], path: str) -> int:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([] if device == "cpu" else [ProfilerActivity.CUDA])]
    value = torch.ones(64, device=device)
    with profile(activities=activities) as profiler:
        for name in names:
            with record_function(f"gkestimator:{name}#1"):
                value = value + 1.0
                if device != "cpu":
                    torch.cuda.synchronize()
    profiler.export_chrome_trace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
