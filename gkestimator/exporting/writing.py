"""All files of a target written, or none: first into a hidden folder beside, then renamed into place one by
one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from gkestimator.core.errors import OutputError, UsageError
from gkestimator.core.escaping import utf8
from gkestimator.core.leftovers import scratch_folder
from gkestimator.exporting.deployment import ExportFile
from gkestimator.tables.together import rename_together

_MANY = 100


def write_files(folder: Path, files: Sequence[ExportFile], *, read: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Write ``files`` below ``folder`` (made where it is missing) and return their paths.

    Every file is complete on disk before the first one is renamed into place, so a full disk or a text that
    cannot be written leaves all old files as they were; so does a rename that fails. Other files in
    ``folder`` are left alone. ``read`` are files that must not be replaced. Raises UsageError for a file that
    is also read, OutputError where something cannot be written.
    """
    targets = [folder / _checked(file.path) for file in files]
    if len({os.path.normcase(str(t)).casefold() for t in targets}) < len(targets):
        raise OutputError(f"{folder}: two files would have one name where case does not matter")
    for target in targets:
        _refuse_replacing(target, read)
    made = _first_missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(".gkest-export", folder) as temporary:
            waiting = [temporary / str(i) for i in range(len(files))]
            for file, path in zip(files, waiting, strict=True):
                path.write_bytes(utf8(file.text))
            _flush(waiting)
            for target in targets:
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.is_dir() and not target.is_symlink():
                    raise OutputError(f"{target}: found a folder, expected a file name to write to")
            rename_together([(t, str(p)) for t, p in zip(targets, waiting, strict=True)])
    except OSError as e:
        _undo(made)
        raise OutputError(f"{folder}: cannot be written: {e.strerror or e}") from e
    except OutputError:
        _undo(made)
        raise
    return tuple(targets)


def _flush(paths: Sequence[Path]) -> None:
    """Have ``paths`` on disk: one by one, or at once where they are so many that this would take minutes."""
    if len(paths) > _MANY and hasattr(os, "sync"):
        os.sync()
        return
    for path in paths:
        with open(path, "rb+") as stream:
            os.fsync(stream.fileno())


def _undo(made: Path | None) -> None:
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)  # a folder that was not there before


def _checked(path: PurePosixPath) -> PurePosixPath:
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in str(path):
        raise OutputError(f"{path}: found a path outside of the export's folder")
    return path


def _first_missing(folder: Path) -> Path | None:
    """Return the uppermost folder that has to be made for ``folder``."""
    missing = None
    for path in (folder, *folder.parents):
        if path.exists() or path.is_symlink():
            break
        missing = path
    return missing


def _refuse_replacing(target: Path, read: Sequence[Path]) -> None:
    for path in read:
        with contextlib.suppress(OSError, ValueError):  # one of the two does not exist: nothing to lose
            if os.path.samefile(target, path):
                raise UsageError(f"{target}: is also read; expected another folder to write to")
