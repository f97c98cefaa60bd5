"""Hashes of the patterns at a lattice's places, such that equal patterns within the tolerance always meet.

A value falls into a bucket of a width of at least four times the tolerance. One that is nearer to a bucket's edge
than the tolerance may equal a value beyond it, so an anchor of the first weight is entered under both buckets, and a
pattern with several such values under every combination. The hash is a sum of bucket numbers times odd 64-bit
constants, so a neighbouring bucket is one addition. Quantising is monotone in floating point (subtraction,
multiplication and floor are), and the interval of a value is widened outwards by one rounding: if
``|x - y| <= tolerance`` then the bucket of ``y`` is one of those of ``x``. Chance meetings of hashes do no harm:
what meets is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

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

_Keys = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int32]
_FACTORS = np.random.default_rng(20260101).integers(0, 1 << 63, VALUES, dtype=np.uint64) * np.uint64(
    2
) + np.uint64(1)


@frozen
class Buckets:
    """How values are quantised: all weights that are compared share it.

    ``values``: of how many values a pattern must be for its hash to tell patterns apart, as far as a sample shows.
    """

    width: float
    tolerance: float
    values: int = VALUES

    def number(self, x: Array) -> npt.NDArray[np.float64]:
        """The bucket of each value, a whole number; NaN for NaN. ``x`` float64."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.floor((x - _ORIGIN * self.width) * (1 / self.width))
        return np.clip(scaled, -_FARTHEST, _FARTHEST)

    def ends(self, x: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The first and the last bucket of the values that equal ``x`` within the tolerance; at most two."""
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
    """Hashes in ascending order, and the place (row, column) of each. ``crowded``: too many entries for the places."""

    keys: _Keys
    rows: _Places
    columns: _Places
    crowded: bool = False


def buckets(weights: Iterable[Array], *, tolerance: float) -> Buckets:
    """Buckets for ``weights``: narrow beside the spread of their values, wide beside the tolerance."""
    samples = []
    for w in weights:
        at = np.linspace(0, w.size - 1, min(w.size, _SAMPLE), dtype=np.int64)
        sample = floats(w[np.unravel_index(at, w.shape)]).astype(np.float64)
        samples.append(sample[np.isfinite(sample)])
    every = np.concatenate(samples)
    if every.size:
        spread = float(np.subtract(*np.quantile(every, (0.95, 0.05))))
    else:
        spread = 0.0
    if not _NARROWEST < spread < 1 / _NARROWEST:
        spread = 1.0
    if tolerance == 0:
        width = spread * 2**-20
    else:
        width = max(4 * tolerance, min(64 * tolerance, spread / 16), spread * 2**-30)
    made = Buckets(width=width, tolerance=tolerance)
    return replace(made, values=_values_for(made.number(every)))


def _values_for(numbers: npt.NDArray[np.float64]) -> int:
    """How many values have :data:`_BITS` bits: by how often two of a sample are in one bucket (collision entropy)."""
    count = np.unique(numbers, return_counts=True)[1].astype(np.float64)
    if numbers.size:
        bits = -math.log2(float((count**2).sum()) / numbers.size**2)
    else:
        bits = 0.0
    if bits * VALUES <= _BITS:
        return VALUES
    return max(1, math.ceil(_BITS / bits))


def anchors_of(a: Array, plan: Lattice, bucket: Buckets, slack: tuple[float, float]) -> Anchors:
    """All places of all tiles of ``a`` [rows, columns, taps], each under every hash that an equal pattern can have."""
    rows, columns = (
        (plan.starts(axis, a.shape[axis], slack[axis])[:, None] + np.arange(plan.tile[axis])).ravel()
        for axis in (0, 1)
    )
    places = rows.size * columns.size
    entries = 0
    parts: list[tuple[_Keys, _Places, _Places]] = []
    for some in _blocks(rows, columns.size):
        part = _entries(a, plan, bucket, some, columns, most=_CROWDED * some.size * columns.size + 4096)
        if part is None:
            return Anchors(
                keys=_empty(np.uint64), rows=_empty(np.int32), columns=_empty(np.int32), crowded=True
            )
        parts.append(part)
        entries += part[0].size
    return _sorted(parts, crowded=entries > _CROWDED * places + 4096)


def samples_of(b: Array, plan: Lattice, bucket: Buckets) -> Anchors:
    """Every ``tile``-th place of ``b``, under its one hash."""
    (k1, k2, _), (s1, s2) = plan.pattern, plan.tile
    rows = np.arange(0, b.shape[0] - k1 + 1, s1)
    columns = np.arange(0, b.shape[1] - k2 + 1, s2)
    parts = []
    for some in _blocks(rows, columns.size):
        key = np.zeros((some.size, columns.size), np.uint64)
        known = np.ones(key.shape, np.bool_)
        for n, x in enumerate(_pattern(b, plan, some, columns)):
            number = bucket.number(x)
            known &= ~np.isnan(number)
            key += _whole(number) * _FACTORS[n]
        parts.append(_kept(key, known, some, columns))
    return _sorted(parts, crowded=False)


def meeting(a: Anchors, b: Anchors) -> tuple[Ints, Ints]:
    """For each entry of ``b``: the first of ``a`` with its hash, and how many there are."""
    low = np.searchsorted(a.keys, b.keys, "left")
    return low, np.searchsorted(a.keys, b.keys, "right") - low


class Index:
    """The hashes of several weights in one ascending list."""

    def __init__(self, held: dict[int, Anchors]) -> None:
        own = [np.unique(a.keys) for a in held.values()]
        keys = np.concatenate(own)
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._owner: Ints = np.repeat(list(held), [k.size for k in own])[order]

    def meets(self, samples: Anchors, wanted: Sequence[int]) -> Iterator[int]:
        """Those of ``wanted`` that have a hash in common with ``samples``."""
        keys = samples.keys[np.flatnonzero(np.diff(samples.keys, prepend=samples.keys[:1] + np.uint64(1)))]
        low = np.searchsorted(self._keys, keys, "left")
        high = np.searchsorted(self._keys, keys, "right")
        kept = high > low
        change = np.zeros(self._keys.size + 1, np.int64)
        change[low[kept]] += 1
        change[high[kept]] -= 1
        met = set(self._owner[np.cumsum(change[:-1]) > 0].tolist())
        return (i for i in wanted if i in met)


def _blocks(rows: Ints, across: int) -> list[Ints]:
    step = max(1, _AT_ONCE // max(1, across))
    return [rows[i : i + step] for i in range(0, rows.size, step)]


def _pattern(w: Array, plan: Lattice, rows: Ints, columns: Ints) -> Iterable[npt.NDArray[np.float64]]:
    """One value of the pattern after the other, of all places rows x columns, in float64."""
    for r in range(plan.pattern[0]):
        for c in range(plan.pattern[1]):
            for t in range(plan.pattern[2]):
                yield floats(w[(rows + r)[:, None], columns + c, t]).astype(np.float64)


def _entries(
    a: Array,
    plan: Lattice,
    bucket: Buckets,
    rows: Ints,
    columns: Ints,
    *,
    most: int,
) -> tuple[_Keys, _Places, _Places] | None:
    """The entries of places rows x columns; None where there are more than ``most``."""
    key = np.zeros((rows.size, columns.size), np.uint64)
    known = np.ones(key.shape, np.bool_)
    split = []  # which places have a value that may lie in either of two buckets
    for n, x in enumerate(_pattern(a, plan, rows, columns)):
        low, high = bucket.ends(x)
        known &= ~np.isnan(low)
        key += _whole(low) * _FACTORS[n]
        split.append(high > low)
    keys, where_r, where_c = _kept(key, known, rows, columns)
    both = [s[known] for s in split]
    for n in range(len(both)):
        twice = np.flatnonzero(both[n])
        if keys.size + twice.size > most:
            return None
        if twice.size:
            keys = np.concatenate([keys, keys[twice] + _FACTORS[n]])
            where_r = np.concatenate([where_r, where_r[twice]])
            where_c = np.concatenate([where_c, where_c[twice]])
            both = [np.concatenate([s, s[twice]]) for s in both]
    return keys, where_r, where_c


def _whole(number: npt.NDArray[np.float64]) -> _Keys:
    """Bucket numbers as integers modulo 2^64; 0 for NaN, whose places are left out."""
    return np.nan_to_num(number, copy=False, nan=0.0).astype(np.int64).view(np.uint64)


def _kept(key: _Keys, known: Flags, rows: Ints, columns: Ints) -> tuple[_Keys, _Places, _Places]:
    r, c = np.nonzero(known)
    return key[r, c], rows[r].astype(np.int32), columns[c].astype(np.int32)


def _sorted(parts: list[tuple[_Keys, _Places, _Places]], *, crowded: bool) -> Anchors:
    if not parts:
        return Anchors(keys=_empty(np.uint64), rows=_empty(np.int32), columns=_empty(np.int32))
    keys, rows, columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")
    return Anchors(keys=keys[order], rows=rows[order], columns=columns[order], crowded=crowded)


def _empty(dtype: type) -> Array:
    return np.empty(0, dtype)
