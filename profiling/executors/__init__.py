"""Executors: run the operator of a plan entry the way a runtime would.

A new executor is one file with one class, named by the record of its runtime
(:mod:`gkestimator.hardware.runtimes`); ``tests/conformance/test_executors.py``
runs over all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from gkestimator.core.errors import UsageError
from gkestimator.hardware.runtimes import RUNTIMES, executor_of
from gkestimator.profiling.executors.base import Executor

__all__ = ["DEVICE", "EXECUTORS", "make_executor"]

EXECUTORS = {n: traits.executor for n, traits in sorted(RUNTIMES.items()) if traits.executor is not None}
"""Module and class by the name on the command line; imported when made, for each asks for a heavy library."""
MemoryReader: TypeAlias = "Callable[[], int | None]"  # bytes; None where it is not known
DEVICE = re.compile(r"cpu\Z|cuda:(\d{1,3})\Z")


def make_executor(name: str, device: str, *, held_bytes: MemoryReader | None = None) -> Executor:
    """Return the executor ``name`` on ``device`` (``cpu`` or ``cuda:N``). ``held_bytes`` says what this
    process holds of the device (:func:`~gkestimator.profiling.executors.device_memory.device_memory`), for
    ``Prepared.memory``; without it that is not told. Raises UsageError for an unknown name or device and
    where its library is not installed or lacks the device; DeviceLostError where the device does not
    answer."""
    if name in RUNTIMES:
        executor_of(name)  # says how to measure instead where nothing here does
    if name not in EXECUTORS:
        raise UsageError(f"executor: found {name!r}, expected one of {', '.join(EXECUTORS)}")
    if not DEVICE.match(device):
        raise UsageError(f"device: found {device!r}, expected cpu or cuda:N")
    module, kind = EXECUTORS[name]
    told = {} if held_bytes is None else {"held_bytes": held_bytes}
    # Imported here: asking for one runtime must not load the other's libraries.
    made: Executor = getattr(import_module(module), kind)(device, **told)
    return made
