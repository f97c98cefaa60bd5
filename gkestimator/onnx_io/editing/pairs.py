"""Files that belong together, written aside and renamed."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from gkestimator.errors import OutputError

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
            with _output_errors(path):
                mode = _mode(path)
                if mode is not None and stat.S_ISDIR(mode):
                    raise OutputError(f"{path}: found a folder, expected a file name to write to")
                if mode is not None and not stat.S_ISREG(mode):
                    if len(files) > 1:
                        raise OutputError(f"{path}: found no regular file, which external data need")
                    with open(path, "wb") as stream:
                        write(stream)
                    return
                waiting.append(_aside(path, write, mode))
        _rename(waiting)
    except BaseException:
        for _, name in waiting:
            _remove(name)
        raise


def _aside(path: Path, write: Write, mode: int | None) -> tuple[Path, str]:
    """Write beside ``path``; what it will be called (a link keeps pointing at its file), and what it is called now."""
    target = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        if mode is None:
            umask = os.umask(0)
            os.umask(umask)
            mode = 0o666 & ~umask  # mkstemp makes private files; a result is an ordinary file
        os.chmod(name, stat.S_IMODE(mode))
    except BaseException:
        _remove(name)
        raise
    return target, name


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
            with _output_errors(target):
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


def _mode(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)


@contextlib.contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from e
