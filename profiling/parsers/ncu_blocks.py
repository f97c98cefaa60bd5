"""Whether a .ncu-rep is whole. ``ncu_report`` reads one that was cut short without a word and gives kernels
without metrics, or none; but the format, which NVIDIA describes in the Customization Guide of Nsight Compute
("Report File Format"), is a chain of blocks that says how long each is: the magic number NVR and 0, the
length of the file header, the header; then for each block the length of its header, the header (protocol
buffers) and the payload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from gkestimator.core.errors import TableError
from gkestimator.core.files import input_errors

MAGIC = b"NVR\0"
_MAX_HEADER = 64 * 2**20
_MAX_BLOCKS = 1_000_000
_RESULTS = 2
# Field numbers of a block's header: how many results (kernels) it holds, and the bytes of its payload.
_PAYLOAD = 5


def count_results(path: Path) -> int:
    """Return how many profiled kernels, ranges and graphs the report holds. Raises TableError if it is none,
    or not whole; one that ends between two blocks cannot be told from a shorter one."""
    with input_errors(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(4) != MAGIC:
            raise TableError(f"{path}: {size:,} bytes that do not begin as a report of Nsight Compute does")
        _header(path, file, size)
        results = 0
        for _ in range(_MAX_BLOCKS):
            if file.tell() == size:
                return results
            fields = _varints(path, _header(path, file, size))
            results += fields.get(_RESULTS, 0)
            end = file.tell() + fields.get(_PAYLOAD, 0)
            if end > size:
                raise TableError(f"{path}: cut short: {size:,} bytes, expected at least {end:,}")
            file.seek(end)
    raise TableError(f"{path}: more than {_MAX_BLOCKS:,} blocks")


def _header(path: Path, file: IO[bytes], size: int) -> bytes:
    length = file.read(4)
    wanted = int.from_bytes(length, "little")
    if len(length) < 4 or file.tell() + wanted > size:
        raise TableError(f"{path}: cut short or damaged: {size:,} bytes, and a block that goes beyond")
    if wanted > _MAX_HEADER:
        raise TableError(f"{path}: damaged: a block's header of {wanted:,} bytes")
    return file.read(wanted)


def _varints(path: Path, message: bytes) -> dict[int, int]:
    """Return the whole numbers of a protocol buffer message by field; what it holds besides is passed over."""
    numbers: dict[int, int] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(path, message, at)
        kind = tag & 7
        if kind == 0:
            numbers[tag >> 3], at = _varint(path, message, at)
        elif kind == 2:
            length, at = _varint(path, message, at)
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise TableError(f"{path}: damaged: a block's header that is no protocol buffer message")
    if at > len(message):
        raise TableError(f"{path}: damaged: a field that goes beyond its block's header")
    return numbers


def _varint(path: Path, message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise TableError(f"{path}: damaged: a block's header that ends within a number")
