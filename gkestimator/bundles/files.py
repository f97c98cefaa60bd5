"""The files of an estimator bundle: reading them from a stranger's folder, and writing them.

A bundle folder holds ``card.json`` (for people), ``stack.json`` (which models answer what), ``ranges.json``
(training ranges), ``quantiles.json`` (interval widths) and one ``<model>.npz`` of plain arrays per model.
Nothing in it is code.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.errors import BundleError, OutputError

LARGEST_BUNDLE_BYTES = 15_000_000
_LARGEST_JSON_BYTES = 2_000_000
_LARGEST_ARRAYS = 64
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")


def _regular(path: Path, largest: int) -> bytes:
    try:
        with open(
            path, "rb", opener=lambda p, flags: os.open(p, flags | getattr(os, "O_NONBLOCK", 0))
        ) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BundleError(f"{path}: not a regular file")
            if status.st_size > largest:
                raise BundleError(f"{path}: {status.st_size} bytes; expected at most {largest}")
            return file.read(largest + 1)
    except OSError as e:
        raise BundleError(f"{path}: cannot be read: {e.strerror or e}") from e


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises BundleError if it is missing, too large, no object, or has NaN or
    infinities."""
    raw = _regular(path, _LARGEST_JSON_BYTES)
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_not_a_number)
    except (UnicodeDecodeError, ValueError, RecursionError) as e:
        raise BundleError(f"{path}: not valid JSON: {e}") from e
    if not isinstance(value, dict):
        raise BundleError(f"{path}: holds a {type(value).__name__}; expected an object")
    return value


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, none of them objects. Raises BundleError for anything else, before
    allocating much."""
    raw = _regular(path, LARGEST_BUNDLE_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()
            if len(members) > _LARGEST_ARRAYS:
                raise BundleError(f"{path}: {len(members)} arrays; expected at most {_LARGEST_ARRAYS}")
            total = sum(m.file_size for m in members)
            if total > 4 * LARGEST_BUNDLE_BYTES:
                raise BundleError(
                    f"{path}: unpacks to {total} bytes; expected at most {4 * LARGEST_BUNDLE_BYTES}"
                )
            result = {}
            for member in members:
                with archive.open(member) as file:
                    data = file.read(member.file_size + 1)
                if len(data) != member.file_size or not member.filename.endswith(".npy"):
                    raise BundleError(f"{path}: member {member.filename!r} is no array of the size it states")
                result[member.filename[:-4]] = _array(path, member.filename, data)
            return result
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        OSError,
    ) as e:
        raise BundleError(f"{path}: not a readable array file: {e}") from e


def _array(path: Path, name: str, data: bytes) -> np.ndarray:
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        read = np.lib.format.read_array_header_1_0
    else:
        read = np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.kind not in "fiu" or fortran:
        raise BundleError(f"{path}: array {name!r} is {dtype}; expected plain numbers in C order")
    if any(d < 0 for d in shape) or math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise BundleError(f"{path}: array {name!r} states the shape {shape}, which its bytes do not fill")
    return np.frombuffer(data, dtype=dtype, offset=stream.tell()).reshape(shape)


MARKS = ("stack.json", "measured.json")
"""A folder with one of these is a bundle: of public measurements, or of a measured GPU (``measured_files``)."""


def _place(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    return path


def write_bundle(
    folder: Path,
    documents: Mapping[str, Mapping[str, Any]],
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    texts: Mapping[str, bytes] | None = None,
) -> None:
    """Write a bundle: into a temporary folder beside, then renamed, so that no half-written bundle is ever
    seen.

    Names may lead into a folder of the bundle (``base/stack``); ``texts`` are whole files by name. An existing bundle
    (a folder with a file of ``MARKS``) is replaced, anything else at ``folder`` refused with OutputError.
    """
    folder = folder.absolute()
    if (
        folder.exists()
        and not any((folder / mark).is_file() for mark in MARKS)
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise OutputError(f"{folder}: exists and is no bundle; expected a new folder or a bundle to replace")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as e:
        raise OutputError(f"{folder}: cannot be written: {e.strerror or e}") from e
    try:
        for name, document in documents.items():
            text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False)
            _place(aside, f"{name}.json").write_text(text + "\n", encoding="utf-8")
        for name, columns in arrays.items():
            with open(_place(aside, f"{name}.npz"), "wb") as file:
                np.savez_compressed(file, allow_pickle=False, **dict(columns))
        for name, data in (texts or {}).items():
            _place(aside, name).write_bytes(data)
        size = sum(p.stat().st_size for p in aside.rglob("*") if p.is_file())
        if size > LARGEST_BUNDLE_BYTES:
            raise OutputError(
                f"{folder}: the bundle takes {size} bytes; expected at most {LARGEST_BUNDLE_BYTES}"
            )
        aside.chmod(0o755)
        old = None
        if folder.exists():
            old = folder.with_name(f".{folder.name}.old{os.getpid()}")
            folder.rename(old)
        aside.rename(folder)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        raise OutputError(f"{folder}: cannot be written: {e.strerror or e}") from e
    finally:
        shutil.rmtree(aside, ignore_errors=True)
