"""Hold the measured lowering of a bundle: which launches a kernel of the rules really is on the measured GPU,
and how long they take together. An exact key is family, variant, precision and every size, under one runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import Array, Arrays, ConvShape, GemmShape, KernelTable
from gkestimator.core.values import Document, is_list, is_whole

LAUNCH_KINDS = ("kernel", "memcpy", "memset", "host")
LAUNCH_COLUMNS = (
    "share",
    "grid_blocks",
    "block_threads",
    "registers_per_thread",
    "shared_bytes",
    "occupancy_pct",
)
"""Of each launch: its share of the call's time, its geometry, and a counter's achieved occupancy. NaN: not told."""
MOST_CALLS = 100_000
_MOST_LAUNCHES = 400_000
_MOST_NAMES = 20_000
_MOST_TEXT = 200
_ALWAYS = ("flops", "read_bytes", "write_bytes", "weight_bytes", "rows", "cols", "element_bytes", "inputs")
"""Columns that every kernel has."""
SIZES = (
    *_ALWAYS,
    *(f"gemm_{member.name}" for member in fields(GemmShape)),
    *(f"conv_{member.name}" for member in fields(ConvShape)),
)
"""Columns of a :class:`KernelTable` that make up a kernel's key, in this order; what it does not have is NaN."""


def signatures(table: KernelTable) -> list[tuple[str, str, str, bytes]]:
    """Return a hashable key per row: kernels that calculate the same have the same."""
    sizes = np.nan_to_num(np.stack([table.columns[name] for name in SIZES], axis=1), nan=-1.0)
    rows = [row.tobytes() for row in np.ascontiguousarray(sizes)]
    return list(
        zip(table.family.tolist(), table.variant.tolist(), table.precision.tolist(), rows, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class MeasuredLowering:
    """Hold measured calls. ``table``: the kernel of the rules that each stands for; ``runtime``: (calls,) str objects;
    ``duration_us`` (calls,): all launches of the call together; ``width`` (calls,): 90 % half-width of its logarithm.

    ``first``: (calls + 1,) where the launches of each begin; ``kind`` and ``name``: (launches,) str objects;
    ``columns``: ``LAUNCH_COLUMNS`` of every launch.
    """

    table: KernelTable
    runtime: Array
    duration_us: Array
    width: Array
    first: Array
    kind: Array
    name: Array
    columns: Arrays = field(repr=False)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def _place(self) -> Mapping[tuple[str, tuple[str, str, str, bytes]], int]:
        keys = signatures(self.table)
        return {(runtime, key): i for i, (runtime, key) in enumerate(zip(self.runtime, keys, strict=True))}

    def find(self, table: KernelTable, runtime: str) -> Array:
        """Return (rows,) the call that measured exactly this kernel under ``runtime``; -1 where none did."""
        place = self._place
        return np.fromiter((place.get((runtime, key), -1) for key in signatures(table)), np.int64, len(table))

    def document(self) -> dict[str, Any]:
        """Return the texts as JSON values."""
        words = {key: _vocabulary(column) for key, column in self._texts().items()}
        return {"calls": len(self), "launches": len(self.name), "words": words}

    def arrays(self) -> dict[str, Array]:
        """Return the numbers, texts as places in the lists of :meth:`document`."""
        arrays = {
            "duration_us": self.duration_us,
            "width": self.width,
            "first": self.first.astype(np.int64),
            "sizes": np.stack([self.table.columns[name] for name in SIZES], axis=1),
            "launches": np.stack([self.columns[name] for name in LAUNCH_COLUMNS], axis=1),
        }
        for key, column in self._texts().items():
            place = {word: i for i, word in enumerate(_vocabulary(column))}
            arrays[key] = np.array([place[word] for word in column.tolist()], dtype=np.int32)
        return arrays

    def _texts(self) -> dict[str, Array]:
        return {
            "family": self.table.family,
            "variant": self.table.variant,
            "precision": self.table.precision,
            "runtime": self.runtime,
            "kind": self.kind,
            "name": self.name,
        }

    @classmethod
    def read(cls, document: Document, arrays: Arrays, *, where: str) -> MeasuredLowering:
        """Return what :meth:`document` and :meth:`arrays` gave, checked as a stranger's. Raises BundleError."""
        take = _Reader(document, arrays, where)
        calls = take.count("calls", MOST_CALLS)
        launches = take.count("launches", _MOST_LAUNCHES)
        first = take.whole("first", calls + 1, high=launches)
        if first[0] != 0 or first[-1] != launches or np.any(np.diff(first) < 1):
            raise BundleError(
                f"{where}: array 'first' does not divide {launches} launches among {calls} calls"
            )
        sizes = take.numbers("sizes", (calls, len(SIZES)), low=0.0, high=1e18)
        columns = dict(zip(SIZES, sizes.T, strict=True))
        for name in _ALWAYS:
            if np.isnan(columns[name]).any():
                raise BundleError(f"{where}: array 'sizes' leaves {name} of a kernel open")
        columns["workspace_bytes"] = np.zeros(calls)
        columns["sequences"] = np.ones(calls)  # no duration depends on it
        numbers = take.numbers("launches", (launches, len(LAUNCH_COLUMNS)), low=0.0, high=2.0**40)
        figures = dict(zip(LAUNCH_COLUMNS, numbers.T, strict=True))
        for name, most in (("share", 1.0 + 1e-6), ("occupancy_pct", 100.0)):
            if np.any(figures[name] > most):
                raise BundleError(f"{where}: array 'launches': {name} of a launch exceeds {most:g}")
        duration = take.numbers("duration_us", (calls,), low=1e-6, high=1e12)
        width = take.numbers("width", (calls,), low=0.0, high=5.0)
        for column in (duration, width, figures["share"]):
            if np.isnan(column).any():
                raise BundleError(f"{where}: a duration, its width or a launch's share is not a number")
        kind = take.words("kind", launches)
        if not set(kind.tolist()) <= set(LAUNCH_KINDS):
            raise BundleError(f"{where}: words.kind: expected {', '.join(LAUNCH_KINDS)}")
        table = KernelTable(
            family=take.words("family", calls),
            variant=take.words("variant", calls),
            precision=take.words("precision", calls),
            columns=columns,
        )
        return cls(
            table=table,
            runtime=take.words("runtime", calls),
            duration_us=duration,
            width=width,
            first=first,
            kind=kind,
            name=take.words("name", launches),
            columns=figures,
        )


def _vocabulary(column: Array) -> Sequence[str]:
    return sorted(set(column.tolist()))


class _Reader:
    """Take a stranger's lowering apart."""

    def __init__(self, document: Document, arrays: Arrays, where: str) -> None:
        self.document = document
        self.arrays = arrays
        self.where = where

    def fail(self, problem: str) -> BundleError:
        return BundleError(f"{self.where}: {problem}")

    def count(self, name: str, most: int) -> int:
        count = self.document.get(name)
        if not is_whole(count, 0, most):
            raise self.fail(f"{name}: found {str(count)[:40]}, expected a whole number up to {most}")
        return count

    def _array(self, name: str, shape: tuple[int, ...], kinds: str) -> Array:
        array = self.arrays.get(name)
        if array is None:
            raise self.fail(f"array {name!r}: found nothing, expected numbers{shape}")
        if array.dtype.kind not in kinds or array.shape != shape:
            raise self.fail(f"array {name!r}: found {array.dtype}{array.shape}, expected numbers{shape}")
        return array

    def whole(self, name: str, length: int, *, high: int) -> Array:
        array = self._array(name, (length,), "iu").astype(np.int64)
        if length and (array.min() < 0 or array.max() > high):
            raise self.fail(f"array {name!r} leaves the range 0 .. {high}")
        return array

    def numbers(self, name: str, shape: tuple[int, ...], *, low: float, high: float) -> Array:
        array = self._array(name, shape, "f").astype(np.float64)
        if np.any(array < low) or np.any(array > high):  # NaN is neither: not told
            raise self.fail(f"array {name!r} leaves the range {low:g} .. {high:g}")
        return array

    def words(self, name: str, length: int) -> Array:
        lists = self.document.get("words")
        if isinstance(lists, dict):
            words = lists.get(name)
        else:
            words = None
        if not isinstance(words, list) or len(words) > _MOST_NAMES:
            raise self.fail(f"words.{name}: expected a list of at most {_MOST_NAMES} texts")
        if not is_list(words, _is_word):
            raise self.fail(f"words.{name}: expected printable texts of up to {_MOST_TEXT} characters")
        places = self.whole(name, length, high=max(len(words) - 1, 0))
        column = np.empty(length, dtype=object)
        if length and not words:
            raise self.fail(f"words.{name}: found no text, expected at least one")
        column[:] = [words[place] for place in places]
        return column


def _is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT and value.isprintable()
