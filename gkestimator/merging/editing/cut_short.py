"""Make an error of a mapped file that somebody cuts short while it is read: the system would end the process (SIGBUS).

Weights are mapped, so that a merge takes little memory beside them. Where a page has no file behind it any more, the
kernel sends SIGBUS to the thread that reads it. The handler here puts zeros in place of what is gone, so that the
thread can go on to the next :func:`expect_whole`, which raises. On Linux with 64 bits; elsewhere nothing is changed. A
SIGBUS of any other memory goes to whoever handled it before.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from gkestimator.core.errors import ModelError

_ADDRESS_AT = 16  # of si_addr in siginfo_t, where pointers have 64 bits
_SA_SIGINFO = 4
_SA_NODEFER = 0x40000000
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """Hold the system's ``struct sigaction``."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_names: dict[tuple[int, int], str] = {}  # by first and last address
_cut: list[str] = []


def expect_whole() -> None:
    """Raise ModelError where a guarded file was cut short since the last call: zeros were read of it."""
    if _cut:
        name = _cut.pop()
        _cut.clear()
        raise ModelError(f"{name}: was cut short while it was read")


def guard(mapped: mmap.mmap, name: str) -> None:
    """Have those who read ``mapped``, a file called ``name``, live on where it is cut short."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    pages = -(-len(mapped) // mmap.PAGESIZE)
    span = (start, start + pages * mmap.PAGESIZE)
    _names[span] = name
    weakref.finalize(mapped, _names.pop, span, None)
    _install()


@cache
def _install() -> Callable[..., None]:
    """Set the handler, once; it is returned to be kept."""
    system: Any = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    before = _Action()

    def handle(number: int, info: int, _: int) -> None:
        address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
        for (start, end), name in tuple(_names.items()):
            if start <= address < end:
                page = address - address % mmap.PAGESIZE
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
                if system.mmap(page, end - page, mmap.PROT_READ, flags, -1, 0) != _FAILED:
                    _cut.append(name)
                    return
        system.sigaction(
            number, ctypes.byref(before), None
        )  # not ours: the same access meets who was there before

    handler = _Handler(handle)
    action = _Action(handler=ctypes.cast(handler, ctypes.c_void_p).value, flags=_SA_SIGINFO | _SA_NODEFER)
    system.sigaction(int(signal.SIGBUS), ctypes.byref(action), ctypes.byref(before))
    return handler
