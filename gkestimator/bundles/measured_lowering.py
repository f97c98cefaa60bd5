"""Hold the measured lowering of a bundle: which launches a kernel of the rules really is on the measured GPU,
and how long they take together. An exact key is family, variant, precision and every size, under one runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from gkestimator.core.kernels import Array, Arrays, ConvShape, GemmShape, KernelTable
from gkestimator.core.stored import StoredArrays, StoredObject

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
    def read(cls, document: StoredObject, arrays: StoredArrays) -> MeasuredLowering:
        """Return what :meth:`document` and :meth:`arrays` gave, checked as a stranger's. Raises BundleError."""
        calls = document.whole("calls", 0, MOST_CALLS)
        launches = document.whole("launches", 0, _MOST_LAUNCHES)
        first = arrays("first", (calls + 1,), low=0, high=launches, whole=True).astype(np.int64)
        if first[0] != 0 or first[-1] != launches or np.any(np.diff(first) < 1):
            raise arrays.unfit("first", f"does not divide {launches} launches among {calls} calls")
        sizes = arrays("sizes", (calls, len(SIZES)), low=0.0, high=1e18, unknown=True)
        columns = dict(zip(SIZES, sizes.T, strict=True))
        for name in _ALWAYS:
            if np.isnan(columns[name]).any():
                raise arrays.unfit("sizes", f"leaves {name} of a kernel open")
        columns["workspace_bytes"] = np.zeros(calls)
        columns["sequences"] = np.ones(calls)  # no duration depends on it
        shape = (launches, len(LAUNCH_COLUMNS))
        numbers = arrays("launches", shape, low=0.0, high=2.0**40, unknown=True)
        figures = dict(zip(LAUNCH_COLUMNS, numbers.T, strict=True))
        if np.isnan(figures["share"]).any():
            raise arrays.unfit("launches", "leaves the share of a launch open")
        for name, most in (("share", 1.0 + 1e-6), ("occupancy_pct", 100.0)):
            if np.any(figures[name] > most):
                raise arrays.unfit("launches", f"{name} of a launch exceeds {most:g}")
        words = document.object("words")
        kind = _words(words, arrays, "kind", launches)
        if not set(kind.tolist()) <= set(LAUNCH_KINDS):
            raise words.unfit("kind", f"texts among {', '.join(LAUNCH_KINDS)}")
        table = KernelTable(
            family=_words(words, arrays, "family", calls),
            variant=_words(words, arrays, "variant", calls),
            precision=_words(words, arrays, "precision", calls),
            columns=columns,
        )
        return cls(
            table=table,
            runtime=_words(words, arrays, "runtime", calls),
            duration_us=arrays("duration_us", (calls,), low=1e-6, high=1e12),
            width=arrays("width", (calls,), low=0.0, high=5.0),
            first=first,
            kind=kind,
            name=_words(words, arrays, "name", launches),
            columns=figures,
        )


def _vocabulary(column: Array) -> Sequence[str]:
    return sorted(set(column.tolist()))


def _words(words: StoredObject, arrays: StoredArrays, name: str, length: int) -> Array:
    """Return (length,) texts: the array ``name`` holds their places in the list ``name``."""
    texts = words.texts(name, least=min(length, 1), most=_MOST_NAMES)
    places = arrays(name, (length,), low=0, high=max(len(texts) - 1, 0), whole=True)
    column = np.empty(length, dtype=object)
    column[:] = [texts[place] for place in places]
    return column
