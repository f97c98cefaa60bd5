"""Say what values an option takes: read them from text, check them and bring them into one form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_MOST_ITEMS = 1024
_MOST_DIGITS = 19


class UnfitError(ValueError):
    """Raised for a value that an option does not take: what was found and what was expected, in words."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"found {found}, expected {expected}")
        self.found = found
        self.expected = expected


class Kind:
    """Take anything. ``metavar``: in the help of a command; ``python``: the type in a signature; ``expected`` and
    ``several``: one value and several in words."""

    metavar = "TEXT"
    python = "Any"
    expected = "a value"
    several = "values"

    def parsed(self, text: str) -> object:
        """Return what ``text`` says. A text that says nothing stays one, for :meth:`checked` to refuse."""
        return text

    def checked(self, value: object) -> object:
        """Return ``value`` in one form. Raises UnfitError."""
        return value

    def _refuse(self, value: object) -> UnfitError:
        return UnfitError(repr(value), self.expected)


class Anything(Kind):
    """Take what another place checks. ``expected``: in words."""

    def __init__(self, expected: str, python: str, metavar: str = "TEXT") -> None:
        self.expected = expected
        self.python = python
        self.metavar = metavar


class Text(Kind):
    """Take a text; ``noun`` names what it is."""

    python = "str"
    several = "names"

    def __init__(self, noun: str = "a name", metavar: str = "TEXT") -> None:
        self.expected = noun
        self.metavar = metavar

    def checked(self, value: object) -> str:
        """Return the text. Raises UnfitError for what is none."""
        if not isinstance(value, str):
            raise self._refuse(value)
        return value


class Word(Kind):
    """Take one of a few words; a function is asked when they are needed."""

    python = "str"

    def __init__(self, words: tuple[str, ...] | Callable[[], tuple[str, ...]]) -> None:
        self._words = words

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words that are taken."""
        if callable(self._words):
            return self._words()
        return self._words

    @property
    def metavar(self) -> str:  # type: ignore[override]  # known only when it is asked for
        """Return the words as help shows them."""
        return f"[{'|'.join(self.words)}]"

    @property
    def expected(self) -> str:  # type: ignore[override]
        """Return the words as a sentence has them."""
        return f"one of {', '.join(self.words)}"

    @property
    def several(self) -> str:  # type: ignore[override]
        """Return several words as a sentence has them."""
        return f"any of {', '.join(self.words)}"

    def checked(self, value: object) -> str:
        """Return the word. Raises UnfitError for another."""
        if not isinstance(value, str) or value not in self.words:
            raise self._refuse(value)
        return value


class Flag(Kind):
    """Take True or False."""

    metavar = ""
    python = "bool"
    expected = "True or False"

    def checked(self, value: object) -> bool:
        """Return the truth value. Raises UnfitError for anything else, numbers too."""
        if not isinstance(value, bool):
            raise self._refuse(value)
        return value


class File(Kind):
    """Take a path."""

    metavar = "PATH"
    python = "str | Path"
    expected = "a path"
    several = "paths"

    def checked(self, value: object) -> Path:
        """Return the path. Raises UnfitError for what is neither a text nor a path."""
        if not isinstance(value, str | Path):
            raise self._refuse(value)
        return Path(value)


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    """Take a number from ``low`` (with ``above``: more than it) to ``high``; never NaN. ``whole``: an integer."""

    low: float
    high: float
    above: bool = False
    whole: bool = False

    @property
    def metavar(self) -> str:  # type: ignore[override]
        """Return the type as help shows it."""
        if self.whole:
            return "INTEGER"
        return "FLOAT"

    @property
    def python(self) -> str:  # type: ignore[override]
        """Return the type."""
        if self.whole:
            return "int"
        return "float"

    @property
    def bounds(self) -> str:
        """Return the bounds in words."""
        if math.isinf(self.high):
            upper = ""
        else:
            upper = f" to {_digits(self.high)}"
        return f"{'above' if self.above else 'from'} {_digits(self.low)}{upper}"

    @property
    def expected(self) -> str:  # type: ignore[override]
        """Return one value in words."""
        return f"a {'whole ' if self.whole else ''}number {self.bounds}"

    @property
    def several(self) -> str:  # type: ignore[override]
        """Return several values in words."""
        return f"{'whole ' if self.whole else ''}numbers {self.bounds}"

    def parsed(self, text: str) -> object:
        """Return the number that ``text`` is, or ``text``."""
        if self.whole:
            digits = text.strip().removeprefix("-")
            good = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
            if good:
                return int(text)
            return text
        try:
            return float(text)
        except ValueError:
            return text

    def checked(self, value: object) -> int | float:
        """Return Python's number for Python's or NumPy's. Raises UnfitError: of another type, NaN, or out of bounds."""
        plain = _plain(value)
        if isinstance(plain, bool) or not isinstance(plain, int if self.whole else int | float):
            raise self._refuse(value)
        if not self.low <= plain <= self.high or (self.above and plain == self.low):
            raise self._refuse(value)
        return plain


@dataclass(frozen=True, kw_only=True)
class Many(Kind):
    """Take several values of ``item``, or one for a list of one; read as a tuple.

    ``least``: how many there must be. ``commas``: in a text they are separated so. ``repeats``: a text may name one
    twice, where each stands for another thing.
    """

    item: Kind
    least: int = 0
    commas: bool = False
    repeats: bool = False

    @property
    def metavar(self) -> str:  # type: ignore[override]
        """Return the type as help shows it."""
        if self.commas:
            return f"{self.item.metavar},..."
        return self.item.metavar

    @property
    def python(self) -> str:  # type: ignore[override]
        """Return the types."""
        return f"{self.item.python} | Sequence[{self.item.python}]"

    @property
    def expected(self) -> str:  # type: ignore[override]
        """Return the values in words."""
        return self.item.several

    def parsed(self, text: str) -> object:
        """Return the values that ``text`` names. Raises UnfitError for an empty one and for more than 1,024."""
        if not self.commas:
            return (self.item.parsed(text),)
        items = [item.strip() for item in text.split(",")]
        if not all(items):
            raise UnfitError(repr(text), f"{self.expected}, separated by commas")
        if len(items) > _MOST_ITEMS:
            raise UnfitError(f"{len(items)} values", f"at most {_MOST_ITEMS}")
        values = tuple(self.item.parsed(item) for item in items)
        if self.repeats:
            return values
        return tuple(dict.fromkeys(values))

    def checked(self, value: object) -> tuple[object, ...]:
        """Return the values. Raises UnfitError: too few, or one that ``item`` refuses."""
        single = isinstance(value, str | bytes) or not hasattr(value, "__iter__")
        values = (value,) if single else tuple(value)  # type: ignore[arg-type]  # it has __iter__
        if len(values) < self.least:
            raise UnfitError("none", f"at least {self.least}: {self.expected}")
        try:
            return tuple(self.item.checked(one) for one in values)
        except UnfitError as e:
            raise UnfitError(e.found, self.expected) from e


@dataclass(frozen=True, kw_only=True)
class Pairs(Kind):
    """Take numbers by name, such as dimensions; in a text one pair ``name=number``; read as a dict.

    ``item``: a number, or several of them separated by commas, which are read as a tuple.
    """

    item: Number | Many

    @property
    def metavar(self) -> str:  # type: ignore[override]
        """Return the pair as help shows it."""
        return "NAME=N,..." if self._commas else "NAME=N"

    @property
    def python(self) -> str:  # type: ignore[override]
        """Return the type."""
        return f"Mapping[str, {self.item.python}] | None"

    @property
    def expected(self) -> str:  # type: ignore[override]
        """Return the pairs in words."""
        number = self.item.item if isinstance(self.item, Many) else self.item
        return f"{number.several} by name, {self._example}"

    @property
    def _example(self) -> str:
        return "such as seq=128,512" if self._commas else "such as seq=128"

    @property
    def _commas(self) -> bool:
        return isinstance(self.item, Many) and self.item.commas

    def parsed(self, text: str) -> object:
        """Return the pair as a tuple of one. Raises UnfitError for a text of another form."""
        name, equals, numbers = (part.strip() for part in text.rpartition("="))
        form = UnfitError(repr(text), f"name=number, {self._example}")
        try:
            value = self.item.parsed(numbers)
        except UnfitError as e:
            raise form from e
        several = value if isinstance(value, tuple) else (value,)
        if not equals or not name or any(isinstance(number, str) for number in several):
            raise form
        return ((name, value),)

    def checked(self, value: object) -> dict[str, object]:
        """Return the numbers by name; None has none. Raises UnfitError: no pairs, or one name said twice."""
        if value is None:
            return {}
        pairs = value
        if isinstance(value, Mapping):
            pairs = tuple(value.items())
        if not isinstance(pairs, tuple):
            raise self._refuse(value)
        numbers: dict[str, object] = {}
        for name, number in pairs:
            if not isinstance(name, str):
                raise self._refuse(value)
            try:
                checked = self.item.checked(number)
            except UnfitError as e:
                raise UnfitError(f"{name}={e.found}", self.expected) from e
            if numbers.setdefault(name, checked) != checked:
                said = " and ".join(f"{name}={_listed(n)}" for n in (numbers[name], checked))
                raise UnfitError(said, f"{name} once, {self._example}")
        return numbers


def _listed(value: object) -> str:
    """Return a number, or several, as a person writes them."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _digits(number: float) -> str:
    """Return the number as a person writes it."""
    if isinstance(number, int):
        return str(number)
    return f"{number:.10g}"


def _plain(value: object) -> object:
    """Return Python's number for NumPy's."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    return value
