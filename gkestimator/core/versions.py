"""Versions that move by themselves: a whole number made of the columns of a table, or of the fields of a document.

Nobody raises such a version by hand. A new column or field, another unit or type, gives another number; a new wording
of its meaning does not. The numbers have nine digits, so they are never taken for a version that was counted by hand
(1, 2), and have no order: which of two is newer cannot be told from them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
import typing
from collections.abc import Iterable
from functools import cache

FIRST_DERIVED = 100_000_000
"""Versions from here on are derived; those below were counted by hand."""


def derived_version(parts: Iterable[str]) -> int:
    """Return the version (nine digits) of what ``parts`` describe, one text each; their order does not count."""
    text = "\n".join(sorted(parts))
    digest = hashlib.sha256(text.encode()).digest()
    return FIRST_DERIVED + int.from_bytes(digest[:8], "big") % (9 * FIRST_DERIVED)


@cache
def record_version(record: type) -> int:
    """Return the version of a dataclass by the names and types of its fields, those of records inside it included.

    Names of classes and modules do not count: they do not stand in the document, and code may move.
    """
    return derived_version([_structure(record)])


def _structure(hint: object) -> str:
    """Return a type as text: a record by its fields, everything else by its plain name."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint)
        members = [f"{f.name}: {_structure(hints[f.name])}" for f in dataclasses.fields(hint)]
        return "{" + ", ".join(sorted(members)) + "}"
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(_structure(a) for a in arguments))
    if origin is not None:
        return f"{_plain(origin)}[{', '.join(_structure(a) for a in arguments)}]"
    return _plain(hint)


def _plain(hint: object) -> str:
    if isinstance(hint, type):
        return hint.__name__
    return repr(hint)
