"""Read the parts of a comparison's YAML that several fields share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gkestimator.documents.checking import Fields

MANY = 200
"""The most entries of a list."""
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,59}")
T = TypeVar("T")


def file_of(fields: Fields, name: str, here: Path) -> Path | None:
    """Return the file that field ``name`` names, looked for beside ``here``; None where there is none."""
    text = fields.text(name, None, limit=4096, null=True)
    if text is None:
        return None
    return existing_file(fields, name, here, text)


def existing_file(fields: Fields, name: str, here: Path, text: str) -> Path:
    """Return ``text`` as a file beside ``here``. Raises DocumentError where it is not there."""
    path = here / text
    try:
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise fields.fail(name, f"{text}: no such file beside {fields.where.partition(':')[0]}")
    return path


def distinct(fields: Fields, name: str, entries: Sequence[T]) -> tuple[T, ...]:
    """Return ``entries``, at least one. Raises DocumentError where a label (or value) stands twice."""
    if not entries:
        raise fields.fail(name, "found none, expected at least one")
    seen = set()
    for entry in entries:
        label = getattr(entry, "label", entry)
        if label in seen:
            raise fields.fail(name, f"{label} stands twice; give one of them another label")
        seen.add(label)
    return tuple(entries)


def label_of(fields: Fields, default: str) -> str:
    """Return the field ``label``: what tables and names of files show."""
    label = fields.text("label", default, limit=60)
    if not _LABEL.fullmatch(label):
        raise fields.fail("label", f"found {label!r}, expected letters, digits and _ . + @ -")
    return str(label)


def with_files(value: Any, files: Mapping[Path, Any]) -> Any:
    """Return ``value`` with what ``files`` has in place of every path in it; tuples, lists and mappings alike."""
    if isinstance(value, Path):
        return files[value]
    if isinstance(value, (list, tuple)):
        return type(value)(with_files(v, files) for v in value)
    if isinstance(value, Mapping):
        return {name: with_files(v, files) for name, v in value.items()}
    return value
