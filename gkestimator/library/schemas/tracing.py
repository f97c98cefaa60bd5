"""Derive a JSON Schema from a reader: it reads a sample, and every field that it asks for is noted.

A reader that is written with :class:`~gkestimator.documents.checking.Fields` says of each field its kind, its bounds
and whether it may be missing. Nothing else says so, hence nothing can say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gkestimator.core.records import NamedValues, Names
from gkestimator.documents.checking import NAME_PATTERN, Fields


class ObjectNotes:
    """Gather what readers asked of one kind of mapping, over all samples."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.fields: dict[str, NamedValues] = {}
        self.nullable: set[str] = set()
        self.parts: dict[str, ObjectNotes] = {}
        self.needed: set[str] | None = None

    def schema(self) -> NamedValues:
        """Return the JSON Schema of the mapping; fields that no reader asks for are refused."""
        properties = {}
        for name, noted in self.fields.items():
            own = self._property(name, noted)
            if name in self.nullable:
                own = _or_null(own)
            properties[name] = own
        schema: NamedValues = {"type": "object", "title": self.title, "properties": properties}
        required = [name for name in self.fields if name in (self.needed or ())]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        return schema

    def _property(self, name: str, noted: NamedValues) -> NamedValues:
        part = self.parts.get(name)
        if part is None:
            return noted
        if noted["type"] == "array":
            item = part.schema()
            if noted["items"]:
                item["type"] = [noted["items"]["type"], "object"]
            return {**noted, "items": item}
        return part.schema()


class TracedFields(Fields):
    """Take a mapping apart as a reader asks, and note what it asks for.

    ``made``: values that are missing are made up, for readers that need no particular ones. ``only``: the names that
    are noted (None: all).
    """

    def __init__(
        self,
        document: object,
        *,
        what: str,
        notes: ObjectNotes,
        made: bool = False,
        only: Names | None = None,
    ) -> None:
        super().__init__(document, where="sample", what=what)
        self._notes = notes
        self._made = made
        self._only = only
        self._seen: set[str] = set()
        self._needed: set[str] = set()

    def finish(self) -> None:
        """Note which fields this mapping had to have, and refuse what is left."""
        super().finish()
        if self._only is not None:
            return
        if self._notes.needed is None:
            self._notes.needed = set(self._needed)
        self._notes.needed &= self._needed

    def take(self, name: str, default: Any = ..., *, null: bool = False) -> Any:
        """Note a field of any kind."""
        self._note(name, default, {}, ...)
        return super().take(name, default, null=null)

    def number(self, name: str, default: Any = ..., **bounds: Any) -> Any:
        """Note a number with its bounds."""
        low = bounds.get("low", 0.0)
        high = bounds.get("high", 1e15)
        least = "exclusiveMinimum" if bounds.get("above") else "minimum"
        noted = {"type": "number", least: low, "maximum": high}
        self._note(name, default, noted, min(max(low, 1.0), high), null=bounds.get("null", False))
        return super().number(name, default, **bounds)

    def whole(self, name: str, default: Any = ..., **bounds: Any) -> Any:
        """Note a whole number with its bounds."""
        low = bounds.get("low", 1)
        noted = {"type": "integer", "minimum": low, "maximum": bounds.get("high", 10**9)}
        self._note(name, default, noted, low, null=bounds.get("null", False))
        return super().whole(name, default, **bounds)

    def text(self, name: str, default: Any = ..., *, limit: int = 1000, null: bool = False) -> Any:
        """Note a line of text."""
        self._note(name, default, {"type": "string", "maxLength": limit}, "x", null=null)
        return super().text(name, default, limit=limit, null=null)

    def name(self, name: str, default: Any = ...) -> Any:
        """Note a name."""
        self._note(name, default, {"type": "string", "pattern": f"^{NAME_PATTERN}$"}, "x")
        return super().name(name, default)

    def items(
        self, name: str, default: Any = ..., *, limit: int = 100_000, of: str = "", null: bool = False
    ) -> Any:
        """Note a list."""
        noted: NamedValues = {"type": "array", "maxItems": limit, "items": {}}
        if of:
            noted["items"] = {"type": of}
        self._note(name, default, noted, None if null else [], null=null)
        return super().items(name, default, limit=limit, of=of, null=null)

    def objects(self, name: str, default: Any = ..., *, what: str, limit: int = 100_000) -> list[Fields]:
        """Note a list of mappings."""
        self._note(name, default, {"type": "array", "maxItems": limit, "items": {}}, [{}])
        return super().objects(name, default, what=what, limit=limit)

    def entries(
        self, name: str, default: Any = ..., *, short: str, what: str, limit: int = 100_000
    ) -> list[Fields]:
        """Note a list of mappings and texts."""
        noted = {"type": "array", "maxItems": limit, "items": {"type": "string"}}
        self._note(name, default, noted, [{}])
        return super().entries(name, default, short=short, what=what, limit=limit)

    def object(self, name: str, default: Any = ..., *, what: str) -> Any:
        """Note a mapping."""
        self._note(name, default, {"type": "object"}, {})
        return super().object(name, default, what=what)

    def words(self, name: str, expected: str) -> list[str]:
        """Note texts, of which one may stand alone."""
        self._note(name, [], {"type": ["string", "array"], "items": {"type": "string"}}, [])
        return super().words(name, expected)

    def flag(self, name: str, default: Any = ...) -> bool:
        """Note a truth value."""
        self._note(name, default, {"type": "boolean"}, True)
        return super().flag(name, default)

    def choice(self, name: str, default: str | None, known: Sequence[str]) -> Any:
        """Note one of several words."""
        self._note(name, default, {"type": "string", "enum": list(known)}, known[0])
        return super().choice(name, default, known)

    def rest(self, *names: str) -> Fields:
        """Return the fields ``names``, noted with this mapping's own as they are taken apart."""
        self._seen.update(names)
        inline = super().rest(*names)
        own = {name: inline.take(name) for name in inline.names()}
        return TracedFields(own, what=self.what, notes=self._notes, made=self._made, only=names)

    def _part(self, name: str, value: Any, *, at: str, what: str) -> Fields:
        notes = self._notes.parts.setdefault(name, ObjectNotes(what))
        return TracedFields(value, what=what, notes=notes, made=self._made)

    def _note(self, name: str, default: Any, noted: NamedValues, made: Any, *, null: bool = False) -> None:
        """Keep the first note of a field: its kind is asked for before the bare value is taken."""
        if name in self._seen or (self._only is not None and name not in self._only):
            return
        self._seen.add(name)
        self._notes.fields.setdefault(name, noted)
        if default is ...:
            self._needed.add(name)
        if null or default is not ...:
            self._notes.nullable.add(name)
        if self._made and name not in self._left and made is not ...:
            self._left[name] = made


def _or_null(schema: NamedValues) -> NamedValues:
    """Return ``schema`` with null allowed."""
    if not schema.get("type"):
        return schema
    kinds = schema["type"]
    if isinstance(kinds, str):
        kinds = [kinds]
    changed = {**schema, "type": [*kinds, "null"]}
    if "enum" in schema:
        changed["enum"] = [*schema["enum"], None]
    return changed


def traced(reader: Callable[[Fields], object], samples: Sequence[object], *, what: str) -> ObjectNotes:
    """Return what ``reader`` asks of ``samples``; of an empty one, the values are made up."""
    notes = ObjectNotes(what)
    for sample in samples:
        reader(TracedFields(sample, what=what, notes=notes, made=not sample))
    return notes
