"""Hash the patterns at a lattice's places, such that equal patterns within the tolerance always meet.

A value falls into a bucket of a width of at least four times the tolerance. One that is nearer to a bucket's
edge than the tolerance may equal a value beyond it, so an anchor of the first weight is entered under both
buckets, and a pattern with several such values under every combination. The hash is a sum of bucket numbers
times odd 64-bit constants, so a neighbouring bucket is one addition. Quantising is monotone in floating point
(subtraction, multiplication and floor are), and the interval of a value is widened outwards by one rounding:
if ``|x - y| <= tolerance`` then the bucket of ``y`` is one of those of ``x``. Chance meetings of hashes do no
harm: what meets is compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gkestimator.core.records import frozen
from gkestimator.merging.similarity.equality import Array, Flags, Ints, floats
from gkestimator.merging.similarity.lattice import VALUES, Lattice

_AT_ONCE = 1 << 17  # places hashed at a time
_SAMPLE = 1 << 10
_BITS = 40  # of a hash: of 2^12 x 2^12 pairs of places few meet by chance
_FARTHEST = float(1 << 40)  # buckets from the origin; beyond, all values share one
_ORIGIN = 0.381966  # of a width: 0, the value that repeats most, is no edge
_NARROWEST = 2.0**-900  # a spread whose buckets' numbers neither overflow nor vanish
_CROWDED = 4  # entries a place, on average, from which on patterns of fewer values are taken

Keys: TypeAlias = "npt.NDArray[np.uint64]"
Places: TypeAlias = "npt.NDArray[np.int32]"
Doubles: TypeAlias = "npt.NDArray[np.float64]"
#: Hashes, and the row and the column of each.
Part: TypeAlias = "tuple[Keys, Places, Places]"

_RANDOM = np.random.default_rng(20260101).integers(0, 1 << 63, VALUES, dtype=np.uint64)
_FACTORS = _RANDOM * np.uint64(2) + np.uint64(1)


@frozen
class Buckets:
    """Quantise values: all weights that are compared share it.

    ``values``: of how many values a pattern must be for its hash to tell patterns apart, as far as a sample
    shows.
    """

    width: float
    tolerance: float
    values: int = VALUES

    def number(self, x: Array) -> Doubles:
        """Return the bucket of each value, a whole number; NaN for NaN. ``x`` float64."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.floor((x - _ORIGIN * self.width) * (1 / self.width))
        return np.clip(scaled, -_FARTHEST, _FARTHEST)

    def ends(self, x: Array) -> tuple[Doubles, Doubles]:
        """Return the first and the last bucket of the values that equal ``x`` within the tolerance; at most
        two.
        """
        if self.tolerance == 0:
            number = self.number(x)
            return number, number
        wide = self.tolerance * (1 + 2**-50)
        with np.errstate(over="ignore", invalid="ignore"):
            low = np.nextafter(x - wide, -np.inf)
            high = np.nextafter(x + wide, np.inf)
        return self.number(low), self.number(high)


@frozen
class Anchors:
    """Hold hashes in ascending order, and the place of each. ``crowded``: too many entries for the places."""

    keys: Keys
    rows: Places
    columns: Places
    crowded: bool = False

    def lines(self) -> tuple[Ints, Ints]:
        """Return the distinct rows and the distinct columns."""
        return np.unique(self.rows).astype(np.int64), np.unique(self.columns).astype(np.int64)


def buckets(weights: Iterable[Array], *, tolerance: float) -> Buckets:
    """Return buckets for ``weights``: narrow beside the spread of their values, wide beside the tolerance."""
    samples = []
    for weight in weights:
        at = np.linspace(0, weight.size - 1, min(weight.size, _SAMPLE), dtype=np.int64)
        sample = floats(weight[np.unravel_index(at, weight.shape)]).astype(np.float64)
        samples.append(sample[np.isfinite(sample)])
    every = np.concatenate(samples)
    spread = 0.0
    if every.size:
        high, low = np.quantile(every, (0.95, 0.05))
        spread = float(high - low)
    if not _NARROWEST < spread < 1 / _NARROWEST:
        spread = 1.0
    if tolerance == 0:
        width = spread * 2**-20
    else:
        width = max(4 * tolerance, min(64 * tolerance, spread / 16), spread * 2**-30)
    made = Buckets(width=width, tolerance=tolerance)
    return replace(made, values=_values_for(made.number(every)))


def _values_for(numbers: Doubles) -> int:
    """Return how many values have :data:`_BITS` bits: by how often two of a sample are in one bucket.

    That is the sample's collision entropy.
    """
    bits = 0.0
    if numbers.size:
        count = np.unique(numbers, return_counts=True)[1].astype(np.float64)
        meet_by_chance = float((count**2).sum()) / numbers.size**2
        bits = -math.log2(meet_by_chance)
    if bits * VALUES <= _BITS:
        return VALUES
    return max(1, math.ceil(_BITS / bits))


def anchors_of(a: Array, plan: Lattice, bucket: Buckets, slack: tuple[float, float]) -> Anchors:
    """Return all places of all tiles of ``a`` [rows, columns, taps] by every hash that an equal pattern can
    have.
    """
    rows, columns = (_tiles(plan, axis, a.shape[axis], slack[axis]) for axis in (0, 1))
    parts: list[Part] = []
    for some in _blocks(rows, columns.size):
        most = _CROWDED * some.size * columns.size + 4096
        part = _entries(a, plan, bucket, some, columns, most=most)
        if part is None:
            return _sorted([], crowded=True)
        parts.append(part)
    entries = sum(keys.size for keys, _, _ in parts)
    return _sorted(parts, crowded=entries > _CROWDED * rows.size * columns.size + 4096)


def _tiles(plan: Lattice, axis: int, size: int, slack: float) -> Ints:
    """Return the rows (axis 0) or columns that the tiles' places have."""
    starts = plan.starts(axis, size, slack)
    return (starts[:, None] + np.arange(plan.tile[axis])).ravel()


def samples_of(b: Array, plan: Lattice, bucket: Buckets) -> Anchors:
    """Return every ``tile``-th place of ``b`` by its one hash."""
    high, wide, _ = plan.pattern
    rows = np.arange(0, b.shape[0] - high + 1, plan.tile[0])
    columns = np.arange(0, b.shape[1] - wide + 1, plan.tile[1])
    parts = []
    for some in _blocks(rows, columns.size):
        key = np.zeros((some.size, columns.size), np.uint64)
        known = np.ones(key.shape, np.bool_)
        for factor, values in zip(_FACTORS, _pattern(b, plan, some, columns), strict=False):
            number = bucket.number(values)
            known &= ~np.isnan(number)
            key += _whole(number) * factor
        parts.append(_known_places(key, known, some, columns))
    return _sorted(parts, crowded=False)


def meeting(a: Anchors, b: Anchors) -> tuple[Ints, Ints]:
    """Return for each entry of ``b`` the first of ``a`` with its hash, and how many there are."""
    low = np.searchsorted(a.keys, b.keys, "left")
    return low, np.searchsorted(a.keys, b.keys, "right") - low


class Index:
    """Hold the hashes of several weights in one ascending list."""

    def __init__(self, held: dict[int, Anchors]) -> None:
        own = [np.unique(anchors.keys) for anchors in held.values()]
        keys = np.concatenate(own)
        owner: Ints = np.repeat(list(held), [part.size for part in own])
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._owner = owner[order]

    def meets(self, samples: Anchors, wanted: Sequence[int]) -> Iterator[int]:
        """Yield those of ``wanted`` that have a hash in common with ``samples``."""
        keys = np.unique(samples.keys)
        low = np.searchsorted(self._keys, keys, "left")
        high = np.searchsorted(self._keys, keys, "right")
        present = high > low
        change = np.zeros(self._keys.size + 1, np.int64)
        change[low[present]] += 1
        change[high[present]] -= 1
        met = set(self._owner[np.cumsum(change[:-1]) > 0].tolist())
        return (i for i in wanted if i in met)


def _blocks(rows: Ints, across: int) -> list[Ints]:
    step = max(1, _AT_ONCE // max(1, across))
    return [rows[i : i + step] for i in range(0, rows.size, step)]


def _pattern(w: Array, plan: Lattice, rows: Ints, columns: Ints) -> Iterator[Doubles]:
    """Yield one value of the pattern after the other, of all places rows x columns, in float64."""
    for row, column, tap in itertools.product(*map(range, plan.pattern)):
        down = (rows + row)[:, None]
        yield floats(w[down, columns + column, tap]).astype(np.float64)


def _entries(
    a: Array,
    plan: Lattice,
    bucket: Buckets,
    rows: Ints,
    columns: Ints,
    *,
    most: int,
) -> Part | None:
    """Return the entries of places rows x columns; None where there are more than ``most``."""
    key = np.zeros((rows.size, columns.size), np.uint64)
    known = np.ones(key.shape, np.bool_)
    split = []  # which places have a value that may lie in either of two buckets
    for factor, values in zip(_FACTORS, _pattern(a, plan, rows, columns), strict=False):
        low, high = bucket.ends(values)
        known &= ~np.isnan(low)
        key += _whole(low) * factor
        split.append(high > low)
    part = _known_places(key, known, rows, columns)
    # every combination of buckets: an equal pattern falls into one of them
    both = [places[known] for places in split]
    for n, factor in enumerate(_FACTORS[: len(both)]):
        twice = np.flatnonzero(both[n])
        if part[0].size + twice.size > most:
            return None
        if twice.size:
            keys, in_rows, in_columns = part
            part = (
                np.concatenate([keys, keys[twice] + factor]),
                _again(in_rows, twice),
                _again(in_columns, twice),
            )
            both = [_again(places, twice) for places in both]
    return part


def _again(values: Array, twice: Ints) -> Array:
    return np.concatenate([values, values[twice]])


def _whole(number: Doubles) -> Keys:
    """Return bucket numbers as integers modulo 2^64; 0 for NaN, whose places are left out."""
    return np.nan_to_num(number, copy=False, nan=0.0).astype(np.int64).view(np.uint64)


def _known_places(key: Keys, known: Flags, rows: Ints, columns: Ints) -> Part:
    r, c = np.nonzero(known)
    return key[r, c], rows[r].astype(np.int32), columns[c].astype(np.int32)


def _sorted(parts: list[Part], *, crowded: bool) -> Anchors:
    if not parts:
        nowhere = np.empty(0, np.int32)
        return Anchors(keys=np.empty(0, np.uint64), rows=nowhere, columns=nowhere, crowded=crowded)
    keys, rows, columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")
    return Anchors(keys=keys[order], rows=rows[order], columns=columns[order], crowded=crowded)
