"""What an error of a runtime means: an operator it lacks, memory that ran out, a lost device, or just a failure.

Runtimes raise RuntimeError or classes of their own for all of these, so the text decides. A CUDA error of the sticky
kind leaves the context of the process useless: every later call fails, and only a new process helps.
"""

from __future__ import annotations

import re

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.profiling.executors.base import DeviceLostError, EntryUnsupportedError, ExecutionError

_LOST = re.compile(
    r"illegal memory access|illegal instruction|device-side assert|unspecified launch failure|misaligned address"
    r"|hardware stack error|uncorrectable (ECC|NVLink) error|launch timed out|device is lost|has fallen off the bus"
    r"|GPU is lost|busy or unavailable|invalid program counter"
    r"|no CUDA-capable device|context is destroyed|driver shutting down|system not (yet )?initialized"
    r"|cudaError(IllegalAddress|LaunchFailure|Assert|MisalignedAddress|ECCUncorrectable|LaunchTimeout|DevicesUnavailable)"
    r"|CUDA (failure|error):? ?(46|100|214|700|702|709|710|714|715|716|717|718|719|802)\b",
    re.IGNORECASE,
)
_MEMORY = re.compile(
    r"out of memory|failed to allocate memory|bad_alloc|bad allocation|cannot allocate memory|CUDA failure 2\b"
    r"|(can't|unable to) allocate|not enough memory|available memory of \d+ is smaller"
    r"|CU(DNN|BLAS)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_LACKING = re.compile(
    r"NOT_IMPLEMENTED|could not find an implementation|is not a registered function|not implemented for"
    r"|no kernel image is available|fallback to CPU EP has been explicitly disabled|only guarantees support for models"
    r"|no op(erator)? registered|CUDNN_STATUS_NOT_SUPPORTED|Type 'tensor\(\w+\)' of input parameter .* is invalid",
    re.IGNORECASE,
)


def judged(error: BaseException) -> GkestimatorError:
    """Return ``error`` as DeviceLostError, EntryUnsupportedError or ExecutionError, in one line. What already
    is one of ours is judged by its text only for being a lost device or an unknown operator: an executor need
    not know."""
    text = one_line(f"{type(error).__name__}: {error}", limit=400)
    if isinstance(error, GkestimatorError):
        if isinstance(error, ExecutionError) and _LOST.search(str(error)):
            return DeviceLostError(error)
        if "no rule knows operator" in str(error):  # what the graph's conversion says of an unknown operator
            return EntryUnsupportedError(error)
        return error
    if _LOST.search(text):
        return DeviceLostError(text)
    if isinstance(error, MemoryError) or _MEMORY.search(text):
        return ExecutionError(f"out of memory: {text}")
    if isinstance(error, NotImplementedError) or _LACKING.search(text):
        return EntryUnsupportedError(text)
    return ExecutionError(text)
