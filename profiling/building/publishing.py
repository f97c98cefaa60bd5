"""Several files of one result: all are written aside before the first is renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gkestimator.errors import OutputError

__all__ = ["write_together"]


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write ``files``, then rename them all to their names, in their order. Where the disk is full, or one cannot be
    written, nothing is changed and nothing left behind. Raises OutputError."""
    aside: dict[Path, str] = {}
    try:
        for path, data in files.items():
            if path.is_dir():
                raise OutputError(f"{path}: found a folder, expected a file name to write to")
            aside[path] = _aside(path, data)
        for path, name in aside.items():
            try:
                os.replace(name, path)
            except OSError as e:
                raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from e
    finally:
        for name in aside.values():
            with contextlib.suppress(OSError):
                os.unlink(name)


def _aside(path: Path, data: bytes) -> str:
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
    except OSError as e:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from e
    return name
