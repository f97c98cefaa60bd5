"""What this process holds of a GPU: the driver's own account, or the growth since before CUDA started, or nothing."""

from __future__ import annotations

import inspect
import os
from types import SimpleNamespace

import pytest

from gkestimator.profiling import cuda_driver
from gkestimator.profiling.cuda_driver import CudaDevice
from gkestimator.profiling.executors.device_memory import device_memory
from gkestimator.profiling.nvml import NvmlError, NvmlGpu

OWN = os.getpid()
MIB = 2**20
Listed = dict[int, int | None] | None


class FakeGpu:
    """A GPU that lists ``before`` and then ``now``, and uses as much as is said."""

    def __init__(self, before: Listed, now: Listed, used: tuple[int | None, int | None]) -> None:
        self._listed, self._used = iter((before, now)), iter(used)

    def processes(self) -> Listed:
        return next(self._listed)

    def used_bytes(self) -> int | None:
        return next(self._used)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CudaDevice(name="G", uuid="GPU-1", memory_bytes=1, driver_cuda="13.0", attributes={})
    monkeypatch.setattr(cuda_driver, "cuda_device", lambda index: found if index == 1 else "no such device")


@pytest.mark.parametrize(
    ("before", "now", "used", "held"),
    [
        ({}, {OWN: 700 * MIB}, (0, 900 * MIB), 700 * MIB),  # the driver says it
        ({5: MIB}, {5: MIB, OWN: 700 * MIB}, (MIB, 900 * MIB), 700 * MIB),  # others do not matter to it
        (None, {OWN: 700 * MIB}, (None, None), 700 * MIB),
        ({}, {OWN: None}, (0, 900 * MIB), 900 * MIB),  # MIG, Windows: listed without a size
        ({}, {}, (3 * MIB, 900 * MIB), 897 * MIB),  # a container that hides processes
        ({}, {4711: 640 * MIB}, (0, 900 * MIB), 900 * MIB),  # ours by the host's number
        (None, None, (0, 900 * MIB), 900 * MIB),  # the list is refused
        (
            {OWN: 5 * MIB},
            {OWN: 5 * MIB, 4711: MIB},
            (5 * MIB, 9 * MIB),
            None,
        ),  # another's, numbered like ours
        ({5: MIB}, {5: MIB}, (MIB, 900 * MIB), None),  # somebody was there, and may have grown
        ({}, {4711: MIB, 4712: MIB}, (0, 900 * MIB), None),  # somebody came
        (None, None, (500 * MIB, 900 * MIB), None),  # somebody must be there who is not listed
        ({}, {}, (0, 0), None),  # no context yet
        ({}, {}, (0, None), None),
        ({}, {}, (None, 900 * MIB), None),
    ],
)
def test_only_what_is_surely_ours_is_told(
    monkeypatch: pytest.MonkeyPatch, one_gpu: None, before: Listed, now: Listed, used: tuple[int | None, int | None], held: int | None
) -> None:  # fmt: skip
    asked: list[object] = []

    def gpu(**words: object) -> FakeGpu:
        asked.append(words)
        return FakeGpu(before, now, used)

    monkeypatch.setattr("gkestimator.profiling.nvml.NvmlGpu", gpu)
    assert device_memory("cuda:1")() == held
    assert asked == [{"uuid": "GPU-1", "index": 1}]


def test_without_a_gpu_or_nvml_nothing_is_told(monkeypatch: pytest.MonkeyPatch, one_gpu: None) -> None:
    def absent(**_: object) -> NvmlGpu:
        raise NvmlError("not here")

    monkeypatch.setattr("gkestimator.profiling.nvml.NvmlGpu", absent)
    for device in ("cpu", "cuda:1", "cuda:0", "gpu", "cuda"):  # what is no device its user refuses
        assert device_memory(device)() is None


def test_used_memory_is_without_the_driver_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class RefusedError(Exception):
        pass

    def info(handle: int, version: int) -> SimpleNamespace:
        assert (handle, version) == (0, 2)
        return SimpleNamespace(total=100, reserved=7, free=60, used=33)

    words = {"NVMLError": RefusedError, "nvmlDeviceGetHandleByIndex": lambda index: index}
    told = SimpleNamespace(**words, nvmlMemory_v2=2, nvmlDeviceGetMemoryInfo=info)
    monkeypatch.setattr("gkestimator.profiling.nvml._nvml", lambda: told)
    assert NvmlGpu(index=0).used_bytes() == 33
    old = SimpleNamespace(**words, nvmlDeviceGetMemoryInfo=info)  # a pynvml without the second version
    monkeypatch.setattr("gkestimator.profiling.nvml._nvml", lambda: old)
    assert NvmlGpu(index=0).used_bytes() is None


def test_nvml_has_the_question_as_it_is_asked() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert pynvml.nvmlMemory_v2 >> 24 == 2  # the version of a structure is in its highest byte
    assert list(inspect.signature(pynvml.nvmlDeviceGetMemoryInfo).parameters) == ["handle", "version"]
    assert {"reserved", "used"} <= {field[0] for field in pynvml.c_nvmlMemory_v2_t._fields_}
