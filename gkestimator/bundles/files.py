"""Read the files of an estimator bundle from a stranger's folder, and write them.

A bundle folder holds ``card.json`` (for people), ``stack.json`` (which models answer what), ``ranges.json``
(training ranges), ``quantiles.json`` (interval widths) and one ``<model>.npz`` of plain arrays per model; where it was
trained with them, also ``geometry``, ``power`` and ``runtimes.json`` (laws of runtimes that compile models).
Nothing in it is code.
"""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.errors import BundleError, OutputError
from gkestimator.core.files import FileWords, read_bytes
from gkestimator.core.values import Document

LARGEST_BUNDLE_BYTES = 15_000_000
_LARGEST_JSON_BYTES = 2_000_000
_LARGEST_ARRAYS = 64
_WORDS = FileWords(
    error=BundleError, not_regular="not a regular file", too_large="{size} bytes; expected at most {limit}"
)
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    OSError,
)
"""What the readers of zip archives and arrays raise on files that are none."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises BundleError if it is missing, too large, no object, or has NaN or infinities.
    """
    raw = read_bytes(path, _WORDS, _LARGEST_JSON_BYTES)
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_not_a_number)
    except (UnicodeDecodeError, ValueError, RecursionError) as e:
        raise BundleError(f"{path}: not valid JSON: {e}") from e
    if not isinstance(value, dict):
        raise BundleError(f"{path}: holds a {type(value).__name__}; expected an object")
    return value


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file, none of them objects.

    Raises BundleError for anything else, before allocating much.
    """
    raw = read_bytes(path, _WORDS, LARGEST_BUNDLE_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return _members(path, archive)
    except _UNREADABLE as e:
        raise BundleError(f"{path}: not a readable array file: {e}") from e


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    members = archive.infolist()
    if len(members) > _LARGEST_ARRAYS:
        raise BundleError(f"{path}: {len(members)} arrays; expected at most {_LARGEST_ARRAYS}")
    total = sum(m.file_size for m in members)
    most = 4 * LARGEST_BUNDLE_BYTES
    if total > most:
        raise BundleError(f"{path}: unpacks to {total} bytes; expected at most {most}")
    arrays = {}
    for member in members:
        # One byte more than it states, so that a member that lies about its size is found out.
        with archive.open(member) as file:
            data = file.read(member.file_size + 1)
        name = member.filename
        if len(data) != member.file_size or not name.endswith(".npy"):
            raise BundleError(f"{path}: member {name!r} is no array of the size it states")
        arrays[name[:-4]] = _array(path, name, data)
    return arrays


def _array(path: Path, name: str, data: bytes) -> np.ndarray:
    form = np.lib.format
    stream = io.BytesIO(data)
    if form.read_magic(stream) == (1, 0):
        shape, fortran, dtype = form.read_array_header_1_0(stream)
    else:
        shape, fortran, dtype = form.read_array_header_2_0(stream)
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
    if not _is_free(folder):
        raise OutputError(f"{folder}: exists and is no bundle; expected a new folder or a bundle to replace")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
        ) as beside:
            aside = Path(beside, folder.name)
            aside.mkdir()
            _fill(aside, documents, arrays, texts or {})
            size = sum(p.stat().st_size for p in aside.rglob("*") if p.is_file())
            if size > LARGEST_BUNDLE_BYTES:
                raise OutputError(
                    f"{folder}: the bundle takes {size} bytes; expected at most {LARGEST_BUNDLE_BYTES}"
                )
            aside.chmod(0o755)
            _replace(folder, aside, Path(beside, "old"))
    except OSError as e:
        raise OutputError(f"{folder}: cannot be written: {e.strerror or e}") from e


def _replace(folder: Path, aside: Path, old: Path) -> None:
    """Rename ``aside`` to ``folder``; what was there becomes ``old``, and comes back where the renaming fails."""
    if not folder.exists():
        aside.rename(folder)
        return
    folder.rename(old)
    try:
        aside.rename(folder)
    except OSError:
        old.rename(folder)
        raise


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
        np.savez_compressed(_place(folder, f"{name}.npz"), allow_pickle=False, **dict(columns))
    for name, data in texts.items():
        _place(folder, name).write_bytes(data)
