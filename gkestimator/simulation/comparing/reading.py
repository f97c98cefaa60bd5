"""Parts of a comparison's YAML that several fields share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from gkestimator.documents.checking import Fields

MANY = 200
"""The most entries of a list."""
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,59}")
T = TypeVar("T")


def file_of(fields: Fields, name: str, here: Path) -> Path | None:
    """The file that field ``name`` names, looked for beside ``here``; None where there is none."""
    text = fields.text(name, None, limit=4096, null=True)
    if text is None:
        return None
    return found_of(fields, name, here, text)


def found_of(fields: Fields, name: str, here: Path, text: str) -> Path:
    """``text`` as a file beside ``here``. Raises DocumentError where it is not there."""
    path = here / text
    try:
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise fields.fail(name, f"{text}: no such file beside {fields.where.partition(':')[0]}")
    return path


def distinct(fields: Fields, name: str, found: Sequence[T]) -> tuple[T, ...]:
    """``found``, at least one, no label (or value) twice."""
    if not found:
        raise fields.fail(name, "found none, expected at least one")
    seen = set()
    for entry in found:
        label = getattr(entry, "label", entry)
        if label in seen:
            raise fields.fail(name, f"{label} stands twice; give one of them another label")
        seen.add(label)
    return tuple(found)


def label_of(fields: Fields, default: str) -> str:
    """The field ``label``: what tables and names of files show."""
    label = fields.text("label", default, limit=60)
    if not _LABEL.fullmatch(label):
        raise fields.fail("label", f"found {label!r}, expected letters, digits and _ . + @ -")
    return str(label)


def choice_of(fields: Fields, name: str, default: str | None, known: Sequence[str]) -> Any:
    """One of ``known``, or ``default`` where the field is missing."""
    found = fields.text(name, default, null=True)
    if found is not None and found not in known:
        raise fields.fail(name, f"found {found!r}, expected one of {', '.join(known)}")
    return found
