"""Read the files of an estimator bundle from a stranger's folder, and write them.

A bundle folder holds ``card.json`` (for people), ``stack.json`` (which models answer what), ``ranges.json``
(training ranges), ``quantiles.json`` (interval widths) and one ``<model>.npz`` of plain arrays per model; where it was
trained with them, also ``geometry``, ``power`` and ``runtimes.json`` (laws of runtimes that compile models).
Nothing in it is code.
"""

from __future__ import annotations

import ctypes
import io
import json
import math
import os
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.errors import BundleError, OutputError
from gkestimator.core.files import FileWords, read_bytes
from gkestimator.core.leftovers import remove_leftovers, scratch_folder
from gkestimator.core.stored import StoredArrays, StoredObject, damaged
from gkestimator.core.texts import parse_json
from gkestimator.core.values import Document, shown
from gkestimator.jobs.disk import held_beside

LARGEST_BUNDLE_BYTES = 15_000_000
_LARGEST_JSON_BYTES = 2_000_000
_LARGEST_ARRAYS = 64
_WORDS = FileWords(
    error=BundleError, not_regular="not a regular file", too_large="{size} bytes; expected at most {limit}"
)
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    EOFError,
    NotImplementedError,
    OSError,
)
"""What the reader of zip archives raises on files that are none."""
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1  # bit of a member's flags
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][fiu][1248])', 'fortran_order': False, 'shape': \(([0-9, ]{0,99})\), \} *\n",
    re.DOTALL,
)
"""How NumPy begins a file of plain numbers. Its own reader takes any Python literal, and fails in as many ways."""
_MOST_DIMENSIONS = 4
_HERE = -100  # AT_FDCWD and RENAME_EXCHANGE of Linux
_EXCHANGE = 2


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises BundleError if it is missing, too large, no object, or has NaN or infinities.
    """
    raw = read_bytes(path, _WORDS, _LARGEST_JSON_BYTES)
    try:
        value = parse_json(raw)
    except ValueError as e:
        raise damaged(str(path), "all of it", f"not valid JSON: {e}") from e
    if not isinstance(value, dict):
        raise damaged(str(path), "all of it", f"found {shown(value)}, expected an object")
    return value


def stored_object(path: Path) -> StoredObject:
    """Return the object in a JSON file, to be taken apart. Raises BundleError as :func:`read_json`."""
    return StoredObject(read_json(path), str(path))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file, none of them objects.

    Raises BundleError for anything else, before allocating much.
    """
    raw = read_bytes(path, _WORDS, LARGEST_BUNDLE_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return _members(path, archive)
    except _UNREADABLE as e:
        raise damaged(str(path), "all of it", f"not a readable array file: {e}") from e


def stored_arrays(path: Path) -> StoredArrays:
    """Return the arrays of an ``.npz`` file, to be taken by name. Raises BundleError as :func:`read_arrays`."""
    return StoredArrays(read_arrays(path), str(path))


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    members = archive.infolist()
    where = str(path)
    if len(members) > _LARGEST_ARRAYS:
        raise damaged(where, "all of it", f"found {len(members)} arrays, expected at most {_LARGEST_ARRAYS}")
    total = sum(m.file_size for m in members)
    most = 4 * LARGEST_BUNDLE_BYTES
    if total > most:
        raise damaged(where, "all of it", f"unpacks to {total} bytes, expected at most {most}")
    arrays: dict[str, np.ndarray] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        field = f"array {shown(name)}"
        if name == member.filename or name in arrays:
            raise damaged(where, field, "stands twice or has no name of an array (.npy)")
        if member.compress_type not in _PLAIN or member.flag_bits & _ENCRYPTED:
            raise damaged(where, field, "found another packing, expected a plain or deflated member")
        try:
            # One byte more than it states, so that a member that lies about its size is found out.
            with archive.open(member) as file:
                data = file.read(member.file_size + 1)
        except _UNREADABLE as e:
            raise damaged(where, field, f"cannot be unpacked: {e}") from e
        if len(data) != member.file_size:
            raise damaged(where, field, "is not of the size that it states")
        arrays[name] = _array(where, field, data)
    return arrays


def _array(where: str, field: str, data: bytes) -> np.ndarray:
    header = _HEADER.match(data)
    if header is None:
        raise damaged(where, field, "found no header of plain numbers in C order, as NumPy writes it")
    dtype = np.dtype(header[1].decode())
    sizes = [size.strip() for size in header[2].decode().split(",")]
    shape = tuple(int(size) for size in sizes if size)
    if len(shape) > _MOST_DIMENSIONS or math.prod(shape) * dtype.itemsize != len(data) - header.end():
        raise damaged(where, field, f"states the shape {shape}, which its bytes do not fill")
    return np.frombuffer(data, dtype=dtype, offset=header.end()).reshape(shape)


def read_card(folder: Path) -> tuple[str, Document]:
    """Return the bundle's name, and its card: what it says of the boards of each model is checked, the rest is for
    people."""
    path = folder / "card.json"
    document = read_json(path)
    card = StoredObject(document, str(path))
    if isinstance(document.get("models"), list):
        for model in card.objects("models", most=64):
            if "per_gpu_pct" in model:
                model.object("per_gpu_pct")
    return card.name("name"), document


MARKS = ("stack.json", "measured.json")
"""A folder with one of these is a bundle: of public measurements, or of a measured GPU (``measured_files``)."""


def _place(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    return path


def _is_free(folder: Path) -> bool:
    """Return whether a bundle may be put at ``folder``: nothing is there, an empty folder, or another bundle."""
    if not folder.exists():
        return True
    if any((folder / mark).is_file() for mark in MARKS):
        return True
    return folder.is_dir() and not any(folder.iterdir())


def write_bundle(
    folder: Path,
    documents: Mapping[str, Document],
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    texts: Mapping[str, bytes] | None = None,
) -> None:
    """Write a bundle into a temporary folder beside, then rename it, so that no half-written bundle is ever seen.

    Names may lead into a folder of the bundle (``base/stack``); ``texts`` are whole files by name. An existing bundle
    (a folder with a file of ``MARKS``) is replaced, anything else at ``folder`` refused with OutputError.
    """
    folder = folder.absolute()
    try:
        recover_bundle(folder)
        if not _is_free(folder):
            raise OutputError(
                f"{folder}: exists and is no bundle; expected a new folder or a bundle to replace"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(f".{folder.name}", folder.parent) as beside:
            aside = beside / folder.name
            aside.mkdir()
            _fill(aside, documents, arrays, texts or {})
            size = sum(p.stat().st_size for p in aside.rglob("*") if p.is_file())
            if size > LARGEST_BUNDLE_BYTES:
                raise OutputError(
                    f"{folder}: the bundle takes {size} bytes; expected at most {LARGEST_BUNDLE_BYTES}"
                )
            aside.chmod(0o755)
            _replace(folder, aside)
    except OSError as e:
        raise OutputError(f"{folder}: cannot be written: {e.strerror or e}") from e


def recover_bundle(folder: Path) -> None:
    """Bring a bundle back that was set aside by a process which ended before its new one was in place; remove what else
    such processes left. Raises OSError."""
    folder = folder.absolute()
    if folder.parent.is_dir():
        remove_leftovers(folder.parent)
    old = _aside_of(folder)
    if not old.is_dir():
        return
    if folder.exists():
        shutil.rmtree(old)
    else:
        old.rename(folder)


def bring_back(folder: Path) -> None:
    """Bring the bundle back where a process was killed while it replaced it.

    Raises BundleError, UsageError where a process is replacing it right now.
    """
    if folder.exists() or not _aside_of(folder.absolute()).is_dir():
        return
    with held_beside(folder):
        try:
            recover_bundle(folder)
        except OSError as e:
            raise BundleError(f"{folder}: was being replaced, and cannot be brought back: {e}") from e


def _aside_of(folder: Path) -> Path:
    """Return where an old bundle lies while a new one takes its place: a name that a next process finds."""
    return folder.with_name(f".{folder.name}.old")


def _replace(folder: Path, aside: Path) -> None:
    """Put ``aside`` in the place of ``folder``; where that fails, what was there stays or comes back."""
    if not folder.exists():
        aside.rename(folder)
        return
    if _exchanged(folder, aside):
        return
    old = _aside_of(folder)
    folder.rename(old)
    try:
        aside.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, in which neither is missing; return False where the system has no such step."""
    try:
        rename = ctypes.CDLL(None).renameat2
        return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
    except (OSError, AttributeError, TypeError):
        return False


def _fill(
    folder: Path,
    documents: Mapping[str, Document],
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    texts: Mapping[str, bytes],
) -> None:
    for name, document in documents.items():
        text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False)
        _place(folder, f"{name}.json").write_text(text + "\n", encoding="utf-8")
    for name, columns in arrays.items():
        # allow_pickle stays unsaid: NumPy before 2.1 takes it for an array
        named: dict[str, Any] = dict(columns)
        np.savez_compressed(_place(folder, f"{name}.npz"), **named)
    for name, data in texts.items():
        _place(folder, name).write_bytes(data)
