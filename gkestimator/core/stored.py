"""Take apart what a bundle of a stranger stores: objects of its JSON by fields, its arrays by names.

Every reader of a bundle's file uses these two, so that all damage is told alike: one BundleError that names the file,
the field or array, what was found and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np

from gkestimator.core.errors import BundleError
from gkestimator.core.escaping import is_line
from gkestimator.core.kernels import Array, Arrays
from gkestimator.core.values import is_list, is_number, is_row, is_whole, shown

_LONGEST_TEXT = 200
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
"""What models and bundles may be called: their files are named after it."""


def damaged(where: str, field: str, problem: str) -> BundleError:
    """Return the error about ``field`` of the file ``where``, to be raised by the caller."""
    return BundleError(f"damaged bundle: {where}, {field}: {problem}")


class StoredObject:
    """Hold one object of a bundle's JSON; each field is taken by the method that names its type.

    ``where`` is the file, ``field`` the object's place in it (empty: the whole file).
    """

    def __init__(self, value: object, where: str, field: str = "") -> None:
        self.where = where
        self.field = field
        if not isinstance(value, dict):
            raise damaged(where, field or "all of it", f"found {shown(value)}, expected an object")
        self._values = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, field: str) -> bool:
        return field in self._values

    def _at(self, field: str) -> str:
        if self.field:
            return f"{self.field}.{field}"
        return field

    def unfit(self, field: str, expected: str) -> BundleError:
        """Return the error about ``field``, which is not what was ``expected``; the caller raises it."""
        value = self._values.get(field)
        return damaged(self.where, self._at(field), f"found {shown(value)}, expected {expected}")

    def version(self, expected: int) -> None:
        """Require ``schema_version`` to be ``expected``."""
        if not is_whole(self._values.get("schema_version"), expected, expected):
            raise self.unfit("schema_version", str(expected))

    def word(self, field: str, words: Collection[str]) -> str:
        """Return a text that is one of ``words``."""
        value = self._values.get(field)
        if not isinstance(value, str) or value not in words:
            raise self.unfit(field, f"one of {', '.join(words)}")
        return value

    def name(self, field: str) -> str:
        """Return a text that may name a file: a lower-case letter, then such letters, digits and underscores."""
        value = self._values.get(field)
        if not isinstance(value, str) or not NAME.match(value):
            raise self.unfit(field, "at most 40 lower-case letters, digits and underscores")
        return value

    def texts(self, field: str, *, least: int = 0, most: int) -> tuple[str, ...]:
        """Return a list of printable texts."""
        value = self._values.get(field)
        if not is_list(value, _is_text, least=least, most=most):
            raise self.unfit(field, f"a list of {least} to {most} texts on one line each")
        return tuple(value)

    def truth(self, field: str) -> bool:
        """Return true or false; no number counts as one."""
        value = self._values.get(field)
        if not isinstance(value, bool):
            raise self.unfit(field, "true or false")
        return value

    def number(self, field: str, low: float, high: float) -> float:
        """Return a number."""
        value = self._values.get(field)
        if not is_number(value, low, high):
            raise self.unfit(field, f"a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, field: str, low: int, high: int) -> int:
        """Return a whole number."""
        value = self._values.get(field)
        if not is_whole(value, low, high):
            raise self.unfit(field, f"a whole number from {low} to {high}")
        return value

    def numbers(self, field: str, length: int, low: float = -1e12, high: float = 1e12) -> tuple[float, ...]:
        """Return a list of ``length`` numbers."""
        value = self._values.get(field)
        if not is_row(value, length, lambda number: is_number(number, low, high)):
            raise self.unfit(field, f"a list of {length} numbers from {low:g} to {high:g}")
        return tuple(map(float, value))

    def rates(self, field: str, length: int, low: float, high: float) -> tuple[tuple[float, ...], ...]:
        """Return ``length`` lists of 1 to 64 numbers each; absent means none at all."""
        value = self._values.get(field, [])
        if value == []:
            return ()

        def is_rates(rates: object) -> bool:
            return is_list(rates, lambda rate: is_number(rate, low, high), least=1, most=64)

        if not is_row(value, length, is_rates):
            raise self.unfit(field, f"{length} lists of 1 to 64 numbers from {low:g} to {high:g}")
        return tuple(tuple(map(float, rates)) for rates in value)

    def wholes(self, field: str, length: int, high: int) -> tuple[int, ...]:
        """Return a list of ``length`` whole numbers from 0."""
        value = self._values.get(field)
        if not is_row(value, length, lambda number: is_whole(number, 0, high)):
            raise self.unfit(field, f"a list of {length} whole numbers up to {high}")
        return tuple(value)

    def whole_rows(
        self, field: str, length: int, high: int, *, least: int = 1, most: int = 64
    ) -> tuple[tuple[int, ...], ...]:
        """Return a list of ``least`` to ``most`` rows of ``length`` whole numbers from 0 each."""
        value = self._values.get(field)

        def is_row_of_them(row: object) -> bool:
            return is_row(row, length, lambda number: is_whole(number, 0, high))

        if not is_list(value, is_row_of_them, least=least, most=most):
            rows = f"{least} to {most} rows of {length} whole numbers up to {high}"
            raise self.unfit(field, rows)
        return tuple(map(tuple, value))

    def pairs(self, field: str, most: int = 256) -> frozenset[tuple[str, str]]:
        """Return a list of [family, precision] as a set."""
        value = self._values.get(field)
        if not is_list(value, lambda pair: is_row(pair, 2, _is_text), most=most):
            raise self.unfit(field, f"a list of at most {most} pairs [family, precision]")
        return frozenset((family, precision) for family, precision in value)

    def is_null(self, field: str) -> bool:
        """Return whether there is nothing in ``field``."""
        return self._values.get(field) is None

    def object(self, field: str) -> StoredObject:
        """Return the object under ``field``."""
        return StoredObject(self._values.get(field), self.where, self._at(field))

    def by_name(
        self, field: str, names: Collection[str] | None = None, *, most: int = 64
    ) -> dict[str, StoredObject]:
        """Return the objects of the object under ``field``, by their names; only ``names`` may stand there."""
        value = self._values.get(field)
        if not isinstance(value, dict) or len(value) > most or not all(map(_is_text, value)):
            raise self.unfit(field, f"an object of at most {most} entries")
        for name in value:
            if names is not None and name not in names:
                raise damaged(
                    self.where, self._at(field), f"found {shown(name)}, expected {', '.join(names)}"
                )
        at = self._at(field)
        return {name: StoredObject(entry, self.where, f"{at}.{name}") for name, entry in value.items()}

    def objects(self, field: str, *, least: int = 0, most: int) -> tuple[StoredObject, ...]:
        """Return a list of objects."""
        value = self._values.get(field)
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise self.unfit(field, f"a list of {least} to {most} objects")
        at = self._at(field)
        return tuple(StoredObject(entry, self.where, f"{at}[{i}]") for i, entry in enumerate(value))


def _is_text(value: object) -> bool:
    return is_line(value, _LONGEST_TEXT)


class StoredArrays:
    """Hold the arrays of one file of a bundle; each is taken with the shape and range that it must have."""

    def __init__(self, arrays: Arrays, where: str) -> None:
        self.arrays = arrays
        self.where = where

    def unfit(self, name: str, problem: str) -> BundleError:
        """Return the error about the array ``name``, to be raised by the caller."""
        return damaged(self.where, f"array {name!r}", problem)

    def _raw(self, name: str) -> Array:
        if name not in self.arrays:
            raise self.unfit(name, "found nothing, expected numbers")
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def length(self, name: str, largest: int) -> int:
        """Return how many entries the array has: 1 to ``largest``."""
        array = self._raw(name)
        if array.ndim < 1 or not 1 <= len(array) <= largest:
            raise self.unfit(name, f"found the shape {array.shape}, expected 1 to {largest} entries")
        return len(array)

    def width(self, name: str) -> int:
        """Return how many columns the array has."""
        array = self._raw(name)
        if array.ndim != 2:
            raise self.unfit(name, f"found {array.ndim} dimensions, expected 2")
        return int(array.shape[1])

    def __call__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        low: float = -1e12,
        high: float = 1e12,
        infinite: bool = False,
        unknown: bool = False,
        whole: bool = False,
    ) -> Array:
        """Return the numbers of the array ``name``, which has this shape and range.

        ``infinite`` lets +inf stand in it, ``unknown`` NaN; ``whole`` wants integers. Floats come as float64.
        """
        array = self._raw(name)
        kinds = "fiu"
        if whole:
            kinds = "iu"
        if array.dtype.kind not in kinds or array.shape != shape:
            raise self.unfit(name, f"found {array.dtype}{array.shape}, expected numbers{shape}")
        values = array
        if array.dtype.kind == "f":
            values = array.astype(np.float64)
        fits = (values >= low) & (values <= high)
        if infinite:
            fits |= values == np.inf
        if unknown:
            fits |= np.isnan(values)
        if not fits.all():
            raise self.unfit(name, f"found values that are not finite or leave {low:g} .. {high:g}")
        return values
