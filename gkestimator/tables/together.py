"""Write several files of one result: all are written aside before the first is renamed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from gkestimator.core.errors import OutputError
from gkestimator.tables.files import file_mode, output_errors, write_aside

Write = Callable[[IO[bytes]], None]


def write_together(files: Mapping[Path, Write | bytes], *, flush: bool = True) -> None:
    """Let each function (or bytes) fill a file beside its path, then rename them in the order given.

    Where one cannot be written nothing is renamed; where one cannot be renamed, those before it get their old
    content back (:func:`rename_together`), and no temporary file is left. A device or pipe, alone, is written
    in place. ``flush``: to disk, before the first is renamed. Raises OutputError naming the path.
    """
    waiting: list[tuple[Path, str]] = []
    try:
        for path, content in files.items():
            if isinstance(content, bytes):
                write = _writer(content)
            else:
                write = content
            with output_errors(path):
                mode = file_mode(path)
                if mode is not None and not stat.S_ISREG(mode):
                    if len(files) > 1:
                        raise OutputError(
                            f"{path}: found no regular file, expected one: {len(files)} files are written together"
                        )
                    with open(path, "wb") as stream:
                        write(stream)
                    return
                waiting.append(write_aside(path, write, mode, flush=flush))
        rename_together(waiting)
    except BaseException:
        for _, name in waiting:
            _remove(name)
        raise


def write_folder(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write ``files`` by name into ``folder``, which is made where it is missing: all or none; return their paths.

    Raises OutputError.
    """
    is_new = not folder.exists()
    try:
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_together({folder / name: data for name, data in files.items()})
    except OutputError:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return [folder / name for name in files]


def _writer(data: bytes) -> Write:
    def write(stream: IO[bytes]) -> None:
        stream.write(data)

    return write


def rename_together(waiting: Sequence[tuple[Path, str]]) -> None:
    """Rename each (target, name now) into place, in order.

    Where one cannot be, those before it get their old content back (where the file system has links). Raises
    OutputError naming the target; what was not renamed is left to the caller.
    """
    done: list[tuple[Path, str | None]] = []
    olds: list[str] = []
    try:
        for target, name in waiting:
            fresh = not os.path.lexists(target)
            old: str | None = f"{name}.old"
            try:
                os.link(target, f"{name}.old", follow_symlinks=False)
                olds.append(f"{name}.old")
            except OSError:  # there is none, or the file system has no links: then the rename is all there is
                old = None
            with output_errors(target):
                os.replace(name, target)
            if fresh or old is not None:
                done.append((target, old))
    except BaseException:
        for target, old in reversed(done):
            with contextlib.suppress(OSError):
                if old is None:
                    target.unlink()
                else:
                    os.replace(old, target)
        raise
    finally:
        for old_name in olds:
            _remove(old_name)


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)
