"""NVTX ranges without the nvtx package: the injection protocol of NVIDIA's header-only library, spoken with ctypes.

A profiler names its library in ``NVTX_INJECTION64_PATH``. The client loads it, calls ``InitializeInjectionNvtx2`` with
a function that hands out tables of slots, and the profiler stores its own functions there (nvtxDetail/nvtxInit.h and
nvtxTypes.h of NVTX 3, Apache-2.0 with LLVM exception). The PyPI package from 0.2.12 on records nothing, silently, under
Nsight Systems 2022.4 and 2023.4 (issue 126 of NVIDIA/NVTX); this protocol has not changed since CUDA 10. It is the
fallback: see :mod:`gkestimator.profiling.executors.nvtx_package`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.type_names import TextByName

INJECTION_VARIABLE = "NVTX_INJECTION64_PATH"
_VERSION = 3
_CALLBACKS, _VERSION_INFO = 1, 3  # export tables, NVTX_ETID_*
_SLOTS = {1: 16, 2: 16, 3: 16, 4: 10, 5: 16, 6: 8}
"""Functions of each module (core, CUDA, OpenCL, CUDA runtime, core2, synchronisation), the unused number 0 included."""
_CORE2 = 5
_RANGE_PUSH = 4
_RANGE_POP = 5
_DOMAIN_CREATE = 12
_INITIALIZE = 15
_MESSAGE_ASCII = 1
_ANSWERS = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
_MODULE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
)
_SET_VERSION = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
_PUSH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_POP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
_START = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class NvtxError(GkestimatorError):
    """The profiler's library cannot be loaded, or takes no ranges."""


class _CallbackTable(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("module_functions", _MODULE))


class _VersionTable(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("set_version", _SET_VERSION),
    )


class _Attributes(ctypes.Structure):
    """``nvtxEventAttributes_v2``: 48 bytes."""

    _fields_ = (
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", ctypes.c_uint32),
        ("color_type", ctypes.c_int32),
        ("color", ctypes.c_uint32),
        ("payload_type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("payload", ctypes.c_uint64),
        ("message_type", ctypes.c_int32),
        ("message", ctypes.c_char_p),
    )


class NvtxRanges:
    """Make push/pop ranges of one NVTX domain. ``active`` is False where no profiler asks for them: then ranges cost
    nothing and do nothing. One per process and domain; keep it alive as long as the process."""

    def __init__(self, domain: str, environment: TextByName = os.environ) -> None:
        """Raise NvtxError where a profiler asks for ranges and cannot get them."""
        self._tables: dict[int, Any] = {}
        self._keep: list[Any] = []
        self._domain: int | None = None
        path = environment.get(INJECTION_VARIABLE, "")
        if path:
            self._attach(path)
            self._domain = self._create(domain.encode("ascii"))

    @property
    def active(self) -> bool:
        """Return True where a profiler takes the ranges."""
        return self._domain is not None

    @contextmanager
    def range(self, text: str) -> Iterator[None]:
        """Put a push/pop range around the block. ``text`` is ASCII."""
        if self._domain is None:
            yield
            return
        message = text.encode("ascii")  # kept alive until the pop
        attributes = _Attributes(
            version=2,
            size=ctypes.sizeof(_Attributes),
            message_type=_MESSAGE_ASCII,
            message=message,
        )
        self._push(self._domain, ctypes.byref(attributes))
        try:
            yield
        finally:
            self._pop(self._domain)

    def _attach(self, path: str) -> None:
        for module, count in _SLOTS.items():
            slots = (ctypes.c_void_p * count)()
            start = ctypes.addressof(slots)
            step = ctypes.sizeof(ctypes.c_void_p)
            # Numbers 0 and count hold no function; the profiler writes through the pointers in between.
            places = [start + i * step for i in range(1, count)]
            table = (ctypes.c_void_p * (count + 1))(None, *places, None)
            self._tables[module] = (slots, table)

        def module_functions(module: int, table: Any, size: Any) -> int:
            tables = self._tables.get(module)
            if tables is None:
                return 0
            if table:
                table[0] = ctypes.addressof(tables[1])
            if size:
                size[0] = _SLOTS[module]
            return 1

        def set_version(version: int) -> None:
            del version  # told for information: older profilers serve version 2, which has the same tables

        callbacks = _CallbackTable(
            struct_size=ctypes.sizeof(_CallbackTable), module_functions=_MODULE(module_functions)
        )
        info = _VersionTable(
            struct_size=ctypes.sizeof(_VersionTable), version=_VERSION, set_version=_SET_VERSION(set_version)
        )

        def answers(number: int) -> int | None:
            given = {_CALLBACKS: callbacks, _VERSION_INFO: info}.get(number)
            if given is None:
                return None
            return ctypes.addressof(given)

        export = _ANSWERS(answers)
        self._keep += [callbacks, info, export]
        try:
            library = ctypes.CDLL(path)
            start_injection = library.InitializeInjectionNvtx2
        except (OSError, AttributeError) as e:
            raise NvtxError(
                f"{INJECTION_VARIABLE}={path}: found no NVTX injection library ({e}), expected the profiler's"
            ) from e
        self._keep.append(library)
        start_injection.argtypes = (_ANSWERS,)
        start_injection.restype = ctypes.c_int
        if start_injection(export) != 1:
            raise NvtxError(f"{INJECTION_VARIABLE}={path}: the profiler refused NVTX {_VERSION}")
        if self._slot(_INITIALIZE):
            _START(self._slot(_INITIALIZE))(None)
        for number, what in ((_DOMAIN_CREATE, "domains"), (_RANGE_PUSH, "ranges"), (_RANGE_POP, "ranges")):
            if not self._slot(number):
                raise NvtxError(
                    f"{INJECTION_VARIABLE}={path}: the profiler takes no NVTX {what}; switch its NVTX trace on"
                )
        self._create = _CREATE(self._slot(_DOMAIN_CREATE))
        self._push = _PUSH(self._slot(_RANGE_PUSH))
        self._pop = _POP(self._slot(_RANGE_POP))

    def _slot(self, number: int) -> int:
        return self._tables[_CORE2][0][number] or 0
