"""Files that belong together, written aside and renamed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from gkestimator.errors import OutputError
from gkestimator.tables.files import file_mode, output_errors, write_aside

__all__ = ["write_together"]

Write = Callable[[IO[bytes]], None]


def write_together(files: Mapping[Path, Write]) -> None:
    """Let each function fill a file beside its path, then rename them in the order given.

    Where one cannot be written nothing is renamed; where one cannot be renamed, those before it get their old content
    back (where the file system has links), and no temporary file is left. A device or pipe, alone, is written in
    place. The files are not forced to disk: a merged model can be made again, and waiting for a disk takes longer
    than merging. Raises OutputError naming the path.
    """
    waiting: list[tuple[Path, str]] = []
    try:
        for path, write in files.items():
            with output_errors(path):
                mode = file_mode(path)
                if mode is not None and not stat.S_ISREG(mode):
                    if len(files) > 1:
                        raise OutputError(f"{path}: found no regular file, which external data need")
                    with open(path, "wb") as stream:
                        write(stream)
                    return
                waiting.append(write_aside(path, write, mode, flush=False))
        _rename(waiting)
    except BaseException:
        for _, name in waiting:
            _remove(name)
        raise


def _rename(waiting: list[tuple[Path, str]]) -> None:
    """Rename each into place. Where one cannot be, those before it get their old content back."""
    done: list[tuple[Path, Path | None]] = []
    olds: list[Path] = []
    try:
        for target, name in waiting:
            fresh = not os.path.lexists(target)
            old: Path | None = Path(f"{name}.old")
            try:
                os.link(target, f"{name}.old", follow_symlinks=False)
                olds.append(Path(f"{name}.old"))
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
        for kept in olds:
            _remove(str(kept))


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)
