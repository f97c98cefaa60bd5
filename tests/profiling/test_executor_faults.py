"""What messages of runtimes mean; the texts are those of torch, ONNX Runtime, CUDA and cuDNN."""

from __future__ import annotations

import pytest

from gkestimator.profiling.executors.base import DeviceLostError, EntryUnsupportedError, ExecutionError
from gkestimator.profiling.executors.faults import judged

LOST = [
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: device-side assert triggered",
    "CUDA error: unspecified launch failure",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=h ; expr=cudaDeviceSynchronize();",
    "[ONNXRuntimeError] : 11 : EP_FAIL : CUDA failure 719: unspecified launch failure",
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "CUDA failure 46: all CUDA-capable devices are busy or unavailable",
    "CUDA failure 100: no CUDA-capable device is detected",
    "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost. Reboot the system to recover this GPU",
]
MEMORY = [
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.78 GiB",
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. Name:'' "
    "Status Message: bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 8589934592",
    "std::bad_alloc",
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes",
    "CUDA failure 2: out of memory ; GPU=0",
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
]
LACKING = [
    "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for MatMul(13) node with name ''",
    "\"addmm_impl_cpu_\" not implemented for 'Float8_e4m3fn'",
    "This session contains graph nodes that are assigned to the default CPU EP, but fallback to CPU EP has been "
    "explicitly disabled by the user.",
    'In Node, ("", Nonsense, "", -1) : Error No Op registered for Nonsense with domain_version of 17',
    "This is an invalid model. Type Error: Type 'tensor(bfloat16)' of input parameter (x0) of operator (Einsum) in node () is invalid.",
    "CUDA error: no kernel image is available for execution on the device",
    "ONNX Runtime only guarantees support for models stamped with official released onnx opset versions.",
]
FAILED = [
    "Input channels C is not equal to kernel channels * group. C: 32 kernel channels: 33 group: 1",
    "mat1 and mat2 shapes cannot be multiplied (4x5 and 6x7)",
    "CUDA error: invalid argument",
    "CUDA failure 98: invalid device function",
]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (t, k)
        for texts, k in ((LOST, DeviceLostError), (LACKING, EntryUnsupportedError), (FAILED, ExecutionError))
        for t in texts
    ],
)
def test_a_message_is_judged(text: str, kind: type[Exception]) -> None:
    found = judged(RuntimeError(text))
    assert type(found) is kind
    assert "\n" not in str(found)
    assert not str(found).startswith("out of memory")


@pytest.mark.parametrize("text", MEMORY)
def test_memory_that_ran_out_is_no_lost_device(text: str) -> None:
    assert type(judged(RuntimeError(text))) is ExecutionError
    assert str(judged(RuntimeError(text))).startswith("out of memory: ")


def test_types_count_as_well() -> None:
    assert str(judged(MemoryError("Unable to allocate 2.00 GiB"))).startswith("out of memory")
    assert isinstance(judged(NotImplementedError("later")), EntryUnsupportedError)
    assert "KeyError" in str(judged(KeyError("x")))


def test_errors_of_ours_stay_what_they_are_but_for_a_lost_device() -> None:
    skipped = EntryUnsupportedError("Relu: not here")
    assert judged(skipped) is skipped
    plain = ExecutionError("torch: shapes")
    assert judged(plain) is plain
    assert isinstance(judged(ExecutionError(LOST[0])), DeviceLostError)
