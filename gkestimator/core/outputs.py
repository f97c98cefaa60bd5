"""Say what a command may write to: by suffix, and never over what it reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gkestimator.core.errors import UsageError


def by_suffix(option: str, path: Path, suffixes: Mapping[str, str]) -> str:
    """Return the form that ``path`` of ``option`` names. Raises UsageError."""
    return form_named(f"{option} {path}", path, suffixes)


def form_named(where: str, path: Path, suffixes: Mapping[str, str]) -> str:
    """Return the form that the suffix of ``path`` stands for. Raises UsageError, which begins with ``where``."""
    form = suffixes.get(path.suffix.lower())
    if form is None:
        what = "a folder" if path.is_dir() else f"the suffix {path.suffix!r}"
        raise UsageError(f"{where}: found {what}, expected {', '.join(suffixes)}")
    return form


def refuse_overwriting(written: Mapping[str, Path | None], read: Sequence[Path]) -> None:
    """Raise UsageError where a command would write over what it reads: ``-o plan.json`` is a slip that would cost the
    plan. ``written``: files by option."""
    others = list(read)
    for option, path in written.items():
        if path is None or os.path.abspath(path) == os.devnull:
            continue
        for other in others:
            try:
                same = os.path.samefile(path, other)
            except (OSError, ValueError):
                same = os.path.abspath(path) == os.path.abspath(other)
            if same:
                raise UsageError(f"{option} {path}: is also used as {other}; expected a file of its own")
        others.append(path)
