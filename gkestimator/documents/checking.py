"""Read YAML and JSON from strangers: bounded, without aliases or tags, every field named when it is wrong."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import DocumentError
from gkestimator.core.escaping import is_line
from gkestimator.core.files import FileWords, opened
from gkestimator.core.limits import allowed, exceeded
from gkestimator.core.naming import nearest_name
from gkestimator.core.records import NamedValues
from gkestimator.core.texts import parse_json
from gkestimator.core.versions import FIRST_DERIVED

MAX_BYTES = 10 * 2**20
# Our documents nest a few levels; parsers recurse, and a stranger must not exhaust their stack.
MAX_DEPTH = 20
# More than any number has; longer ones are words in base 16 or 60, which take time by the square of their length.
_MOST_DIGITS = 64
_WORDS = FileWords(error=DocumentError)
# Names become files, Kubernetes objects and shell words: letters, digits and a few signs, folders by single slashes.
NAME_PATTERN = r"[A-Za-z0-9_](?:[A-Za-z0-9_.#+-]|/(?=[A-Za-z0-9_])){0,199}"
_NAME = re.compile(NAME_PATTERN)
# As far as YAML 1.1 goes, digits may be parted by underscores, and by colons where the base is 60.
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?::|\.[0-9_]*)?")
_NUMBER = re.compile(r"[-+.]?0?[bx]?[0-9a-fA-F_.:]+(?:e[-+]?[0-9]+)?")

# A number to JSON, a text to YAML 1.1, which wants a point and a sign: 1e3, 1e-07.
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")


def valid_name(text: object) -> bool:
    """Return whether ``text`` may name a model or an application.

    That is at most 200 letters, digits and ``_ . # + -``, with single slashes between folders; never ``..``,
    a leading slash, a space or a control character.
    """
    return isinstance(text, str) and _NAME.fullmatch(text) is not None and ".." not in text


def _text(path: Path, limit: int = MAX_BYTES) -> str:
    with opened(path, _WORDS, limit) as stream:
        return stream.read(limit + 1).decode("utf-8-sig")


def load_yaml(path: Path | str | Mapping[str, Any], *, what: str) -> Fields:
    """Return the mapping in the YAML file at ``path`` (JSON is YAML too), or one that is in memory already.

    Raises DocumentError: not UTF-8, larger than MAX_BYTES, nested deeper than MAX_DEPTH, an anchor, alias or
    tag, two documents, a repeated key, or no mapping.
    """
    import yaml

    if isinstance(path, Mapping):
        return Fields(path, where=what.removeprefix("a "), what=what)
    if not isinstance(path, str | Path):
        raise DocumentError(f"{what.removeprefix('a ')}: found {_short(path)}, expected a path or a mapping")
    path = Path(path)
    text = _text(path)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = items = documents = 0
    most = allowed("yaml_items")
    try:
        for event in yaml.parse(text, Loader=loader):
            where = f"{path}: line {getattr(event.start_mark, 'line', 0) + 1}"
            items += 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise DocumentError(f"{where}: found an anchor or alias, expected every value written out")
            tag = getattr(event, "tag", None)
            if tag is not None:
                raise DocumentError(f"{where}: found a tag ({tag}), expected plain values")
            depth += isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
            depth -= isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent))
            documents += isinstance(event, yaml.DocumentStartEvent)
            if depth > MAX_DEPTH or documents > 1:
                raise DocumentError(f"{where}: expected one document, nested at most {MAX_DEPTH} deep")
            if items > most:
                raise DocumentError(f"{where}: {exceeded('yaml_items', f'more than {most:,}')}")
            if isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                _check_plain(where, event.value)
        reader = loader(text)
        try:
            node = reader.get_single_node()
            _no_repeats(path, node)
            document = None if node is None else reader.construct_document(node)
        finally:
            reader.dispose()
        return Fields(document, where=str(path), what=what)
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: 2026-13-45 looks like a date
        raise DocumentError(f"{path}: cannot be read as YAML: {e}") from e


def _with_exponent(value: Any) -> Any:
    """Return a text such as 1e3 as a number, else ``value``."""
    if isinstance(value, str) and len(value) <= _MOST_DIGITS and _EXPONENT.fullmatch(value):
        return float(value)
    return value


def _check_plain(where: str, text: str) -> None:
    """Refuse what YAML 1.1 reads as a number that no person means as one: in base 60, or of very many digits."""
    if not text[:1].isdigit() and text[:1] not in ("+", "-", "."):
        return
    if _BASE_60.fullmatch(text[:_MOST_DIGITS]) or (len(text) > _MOST_DIGITS and _NUMBER.fullmatch(text)):
        raise DocumentError(
            f"{where}: found {_short(text)}, expected a number of at most {_MOST_DIGITS} digits in base 10, or quotes "
            "around a text"
        )


def _no_repeats(path: Path, node: Any) -> None:
    import yaml

    if isinstance(node, yaml.MappingNode):
        keys = set()
        for key, value in node.value:
            text = getattr(key, "value", None)
            if isinstance(text, str) and text in keys:
                raise DocumentError(
                    f"{path}: line {key.start_mark.line + 1}: {text} stands twice, expected once"
                )
            keys.add(text if isinstance(text, str) else None)
            _no_repeats(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _no_repeats(path, child)


def load_json(path: Path, *, what: str, limit: int = MAX_BYTES) -> Fields:
    """Return the object in the JSON file at ``path``.

    Raises DocumentError as :func:`load_yaml` does, and for NaN.
    """

    try:
        loaded = parse_json(_text(path, limit))
    except ValueError as e:
        raise DocumentError(f"{path}: cannot be read as JSON: {e}") from e
    return Fields(loaded, where=str(path), what=what)


@contextlib.contextmanager
def of_version(fields: Fields, version: int) -> Iterator[None]:
    """Take ``schema_version`` from a document that we write as ``version``, and read the rest in the block.

    Version 1 (counted by hand) and ``version`` are read; a document of another derived version is read by its
    fields, for fields that an older program did not write have defaults. Where that fails, the error says
    both versions: a newer program may have written it.
    """
    theirs = fields.take("schema_version")
    whole = isinstance(theirs, int) and not isinstance(theirs, bool)
    if not whole or (theirs != 1 and theirs < FIRST_DERIVED):
        raise fields.fail("schema_version", f"found {theirs!r}, expected 1 or {version}")
    try:
        yield
    except DocumentError as e:
        if theirs in (1, version):
            raise
        raise DocumentError(
            f"{e}; the file is of schema version {theirs}, perhaps of a newer program (here: 1 or {version})"
        ) from e


class Fields:
    """Take a mapping apart field by field; what is wrong is said with the path to the field.

    Call :meth:`finish` at the end: a field that nobody took is refused.
    """

    def __init__(self, document: object, *, where: str, what: str) -> None:
        if not isinstance(document, Mapping) or not all(isinstance(k, str) for k in document):
            raise DocumentError(
                f"{where}: found {_kind(document)}, expected {what}: a mapping of named fields"
            )
        self.where = where
        self.what = what
        self._left: NamedValues = dict(document)
        self._known: list[str] = []

    def names(self) -> frozenset[str]:
        """Return the names of the fields that nobody took yet."""
        return frozenset(self._left)

    def has(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self._left.get(name) is not None

    def fail(self, name: str, problem: str) -> DocumentError:
        """Return the error that field ``name`` has ``problem`` (``found ..., expected ...``)."""
        return DocumentError(f"{self.where}: {name}: {problem}")

    def take(self, name: str, default: Any = ..., *, null: bool = False) -> Any:
        """Return the raw value of ``name``.

        Raises DocumentError where it is missing without a default, or null unless ``null`` allows it.
        """
        # For the error: who mistyped a field wants to see which there are.
        self._known.append(name)
        if name not in self._left:
            if default is ...:
                near = _misspelt(name, self._left)
                meant = f"; found {near}, did you mean {name}?" if near else ""
                raise DocumentError(f"{self.where}: {name} is missing from {self.what}{meant}")
            return default
        value = self._left.pop(name)
        if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
            value = value.item()  # a number of a mapping in memory
        if value is None and not null and default is ...:
            raise self.fail(name, "found nothing, expected a value")
        if value is None and default is not ...:
            return default
        return value

    def number(
        self,
        name: str,
        default: Any = ...,
        *,
        low: float = 0.0,
        above: bool = False,
        high: float = 1e15,
        null: bool = False,
    ) -> Any:
        """Return a finite number from ``low`` (``above``: beyond it) to ``high``."""
        value = self.take(name, default, null=null)
        if value is default or value is None:
            return value
        value = _with_exponent(value)
        bound = f"a number {'above' if above else 'of at least'} {low:g} and at most {high:g}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(name, f"found {_short(value)}, expected {bound}")
        if isinstance(value, int) and abs(value) > 2**63:
            raise self.fail(name, f"found a number beyond 64 bits, expected {bound}")
        if not math.isfinite(value) or value > high or value < low or (above and value == low):
            raise self.fail(name, f"found {value!r}, expected {bound}")
        return float(value)

    def whole(
        self, name: str, default: Any = ..., *, low: int = 1, high: int = 10**9, null: bool = False
    ) -> Any:
        """Return a whole number from ``low`` to ``high``."""
        value = self.take(name, default, null=null)
        if value is default or value is None:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"found {_short(value)}, expected a whole number from {low} to {high:,}")
        return value

    def text(self, name: str, default: Any = ..., *, limit: int = 1000, null: bool = False) -> Any:
        """Return a text of one line and at most ``limit`` characters."""
        value = self.take(name, default, null=null)
        if value is default or value is None:
            return value
        if not is_line(value, limit):
            raise self.fail(
                name, f"found {_short(value)}, expected a line of text (at most {limit} characters)"
            )
        return value

    def name(self, name: str, default: Any = ...) -> Any:
        """Return a name that :func:`valid_name` allows."""
        value = self.take(name, default)
        if value is default:
            return value
        if not valid_name(value):
            raise self.fail(
                name,
                f"found {_short(value)}, expected a name: letters, digits and _ . # + -, folders by single slashes",
            )
        return value

    def items(
        self, name: str, default: Any = ..., *, limit: int = 100_000, of: str = "", null: bool = False
    ) -> Any:
        """Return a list of at most ``limit`` values; ``of``: the JSON type that the caller holds each of them to."""
        value = self.take(name, default, null=null)
        if value is default or value is None:
            return value
        if not isinstance(value, list):
            raise self.fail(name, f"found {_kind(value)}, expected a list")
        if len(value) > limit:
            raise self.fail(name, f"found {len(value):,} entries, expected at most {limit:,}")
        return value

    def objects(self, name: str, default: Any = ..., *, what: str, limit: int = 100_000) -> list[Fields]:
        """Return a list of mappings, each to be taken apart (``what`` names one of them)."""
        entries: Sequence[Any] = self.items(name, default, limit=limit)
        taken = []
        for i, entry in enumerate(entries):
            taken.append(self._part(name, entry, at=f"{name}[{i}]", what=what))
        return taken

    def lines(self, name: str, default: Any = ..., *, length: int = 2000) -> tuple[str, ...]:
        """Return a list of texts of one line, each of at most ``length`` characters."""
        entries: Sequence[Any] = self.items(name, default, limit=10_000, of="string")
        for text in entries:
            if not is_line(text, length):
                raise self.fail(name, "found something other than lines of text, expected a list of them")
        return tuple(entries)

    def words(self, name: str, expected: str) -> list[str]:
        """Return a list of texts, none where the field is missing; one may stand alone."""
        value = self.take(name, [])
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.fail(name, f"found something else, expected {expected}")
        return value

    def flag(self, name: str, default: Any = ...) -> bool:
        """Return a truth value."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, f"found {value!r}, expected true or false")
        return value

    def object(self, name: str, default: Any = ..., *, what: str) -> Any:
        """Return one mapping, to be taken apart."""
        value = self.take(name, default)
        if value is default:
            return value
        return self._part(name, value, at=name, what=what)

    def entries(
        self, name: str, default: Any = ..., *, short: str, what: str, limit: int = 100_000
    ) -> list[Fields]:
        """Return a list of mappings to be taken apart; a text alone stands for the field ``short`` of one."""
        taken = []
        for i, entry in enumerate(self.items(name, default, limit=limit)):
            if isinstance(entry, str):
                entry = {short: entry}
            taken.append(self._part(name, entry, at=f"{name}[{i}]", what=what))
        return taken

    def choice(self, name: str, default: str | None, known: Sequence[str]) -> Any:
        """Return one of ``known``, or ``default`` where the field is missing."""
        word = self.text(name, default, null=True)
        if word is not None and word not in known:
            raise self.fail(name, f"found {word!r}, expected one of {', '.join(known)}")
        return word

    def rest(self, *names: str) -> Fields:
        """Return the fields ``names`` as a document of their own, written in place of a file's name.

        Raises DocumentError without any.
        """
        inline = {name: self.take(name, None, null=True) for name in names}
        known = {name: value for name, value in inline.items() if value is not None}
        if not known:
            raise self.fail(names[0], f"found neither file nor {' nor '.join(names)}")
        return Fields(known, where=self.where, what=self.what)

    def _part(self, name: str, value: Any, *, at: str, what: str) -> Fields:
        """Return ``value``, which stands in the field ``name``, to be taken apart."""
        return Fields(value, where=f"{self.where}: {at}", what=what)

    def finish(self) -> None:
        """Refuse what is left. Raises DocumentError naming the first unknown field."""
        for name in self._left:
            known = f"(known: {', '.join(self._known)})"
            meant = nearest_name(name, self._known)
            raise DocumentError(f"{self.where}: {_short(name)} is not a field of {self.what}{meant} {known}")


def _misspelt(name: str, left: Iterable[str]) -> str | None:
    """Return the field that was plainly meant to be ``name``: nearly equal, letters swapped, or without its unit."""
    # No more than that: fields not taken yet may be called much the same (latency_ms, latency_low_ms).
    for other in left:
        if sorted(other) == sorted(name) or name.startswith(f"{other}_"):
            return other
    return next(iter(difflib.get_close_matches(name, list(left), n=1, cutoff=0.85)), None)


def _kind(value: object) -> str:
    kinds = {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing", bool: "true or false"}
    return kinds.get(type(value)) or _short(value)


def _short(value: object) -> str:
    if isinstance(value, (dict, list)):
        return _kind(value)
    text = repr(value)
    if len(text) <= 60:
        return text
    return text[:57] + "..."
