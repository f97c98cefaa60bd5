"""The measured lowering of a bundle: which launches a kernel of the rules really is on the measured GPU, and how long
they take together. An exact key is family, variant, precision and every size, under one runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import KernelTable

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
SIZES = (
    "flops",
    "read_bytes",
    "write_bytes",
    "weight_bytes",
    "rows",
    "cols",
    "element_bytes",
    "inputs",
    "gemm_batch",
    "gemm_m",
    "gemm_n",
    "gemm_k",
    *(
        f"conv_{n}"
        for n in (
            "batch",
            "in_channels",
            "out_channels",
            "groups",
            "in_h",
            "in_w",
            "out_h",
            "out_w",
            "kernel_h",
            "kernel_w",
            "stride_h",
            "stride_w",
            "dilation_h",
            "dilation_w",
        )
    ),
)
"""Columns of a :class:`KernelTable` that make up a kernel's key, in this order; what it does not have is NaN."""


def signatures(table: KernelTable) -> list[tuple[str, str, str, bytes]]:
    """A hashable key per row: kernels that calculate the same have the same."""
    sizes = np.nan_to_num(np.stack([table.columns[name] for name in SIZES], axis=1), nan=-1.0)
    raw = np.ascontiguousarray(sizes)
    return [
        (family, variant, precision, raw[i].tobytes())
        for i, (family, variant, precision) in enumerate(
            zip(table.family.tolist(), table.variant.tolist(), table.precision.tolist(), strict=True)
        )
    ]


@dataclass(frozen=True, kw_only=True)
class MeasuredLowering:
    """Measured calls. ``table``: the kernel of the rules that each stands for; ``runtime``: (calls,) str objects;
    ``duration_us`` (calls,): all launches of the call together; ``width`` (calls,): 90 % half-width of its logarithm.

    ``first``: (calls + 1,) where the launches of each begin; ``kind`` and ``name``: (launches,) str objects;
    ``columns``: ``LAUNCH_COLUMNS`` of every launch.
    """

    table: KernelTable
    runtime: np.ndarray
    duration_us: np.ndarray
    width: np.ndarray
    first: np.ndarray
    kind: np.ndarray
    name: np.ndarray
    columns: Mapping[str, np.ndarray] = field(repr=False)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def _place(self) -> Mapping[tuple[str, tuple[str, str, str, bytes]], int]:
        keys = signatures(self.table)
        return {(runtime, key): i for i, (runtime, key) in enumerate(zip(self.runtime, keys, strict=True))}

    def find(self, table: KernelTable, runtime: str) -> np.ndarray:
        """(rows,) the call that measured exactly this kernel under ``runtime``; -1 where none did."""
        place = self._place
        return np.fromiter((place.get((runtime, key), -1) for key in signatures(table)), np.int64, len(table))

    def document(self) -> dict[str, Any]:
        """The texts, as JSON values."""
        words = {key: _vocabulary(column) for key, column in self._texts().items()}
        return {"calls": len(self), "launches": len(self.name), "words": words}

    def arrays(self) -> dict[str, np.ndarray]:
        """The numbers, texts as places in the lists of :meth:`document`."""
        result = {
            "duration_us": self.duration_us,
            "width": self.width,
            "first": self.first.astype(np.int64),
            "sizes": np.stack([self.table.columns[name] for name in SIZES], axis=1),
            "launches": np.stack([self.columns[name] for name in LAUNCH_COLUMNS], axis=1),
        }
        for key, column in self._texts().items():
            place = {word: i for i, word in enumerate(_vocabulary(column))}
            result[key] = np.array([place[word] for word in column.tolist()], dtype=np.int32)
        return result

    def _texts(self) -> dict[str, np.ndarray]:
        return {
            "family": self.table.family,
            "variant": self.table.variant,
            "precision": self.table.precision,
            "runtime": self.runtime,
            "kind": self.kind,
            "name": self.name,
        }

    @classmethod
    def read(
        cls, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], *, where: str
    ) -> MeasuredLowering:
        """What :meth:`document` and :meth:`arrays` gave, checked as a stranger's. Raises BundleError."""
        take = _Reader(document, arrays, where)
        calls = take.count("calls", MOST_CALLS)
        launches = take.count("launches", _MOST_LAUNCHES)
        first = take.whole("first", calls + 1, high=launches)
        if first[0] != 0 or first[-1] != launches or np.any(np.diff(first) < 1):
            raise BundleError(
                f"{where}: array 'first' does not divide {launches} launches among {calls} calls"
            )
        sizes = take.numbers("sizes", (calls, len(SIZES)), low=0.0, high=1e18)
        columns = {name: sizes[:, j] for j, name in enumerate(SIZES)}
        for name in SIZES[:8]:
            if np.isnan(columns[name]).any():
                raise BundleError(f"{where}: array 'sizes' leaves {name} of a kernel open")
        columns["workspace_bytes"] = np.zeros(calls)
        numbers = take.numbers("launches", (launches, len(LAUNCH_COLUMNS)), low=0.0, high=2.0**40)
        for name, most in (("share", 1.0 + 1e-6), ("occupancy_pct", 100.0)):
            if np.any(numbers[:, LAUNCH_COLUMNS.index(name)] > most):
                raise BundleError(f"{where}: array 'launches': {name} of a launch exceeds {most:g}")
        duration = take.numbers("duration_us", (calls,), low=1e-6, high=1e12)
        width = take.numbers("width", (calls,), low=0.0, high=5.0)
        if np.isnan(duration).any() or np.isnan(width).any() or np.isnan(numbers[:, 0]).any():
            raise BundleError(f"{where}: a duration, its width or a launch's share is not a number")
        kind = take.words("kind", launches)
        if not set(kind.tolist()) <= set(LAUNCH_KINDS):
            raise BundleError(f"{where}: words.kind: expected {', '.join(LAUNCH_KINDS)}")
        return cls(
            table=KernelTable(
                family=take.words("family", calls),
                variant=take.words("variant", calls),
                precision=take.words("precision", calls),
                columns=columns,
            ),
            runtime=take.words("runtime", calls),
            duration_us=duration,
            width=width,
            first=first,
            kind=kind,
            name=take.words("name", launches),
            columns={name: numbers[:, j] for j, name in enumerate(LAUNCH_COLUMNS)},
        )


def _vocabulary(column: np.ndarray) -> Sequence[str]:
    return sorted(set(column.tolist()))


class _Reader:
    """Takes a stranger's lowering apart."""

    def __init__(self, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], where: str) -> None:
        self.document = document
        self.arrays = arrays
        self.where = where

    def count(self, name: str, most: int) -> int:
        found = self.document.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
            raise BundleError(
                f"{self.where}: {name}: found {str(found)[:40]}, expected a whole number up to {most}"
            )
        return found

    def _array(self, name: str, shape: tuple[int, ...], kinds: str) -> np.ndarray:
        found = self.arrays.get(name)
        if found is None or found.dtype.kind not in kinds or found.shape != shape:
            shown = "nothing" if found is None else f"{found.dtype}{found.shape}"
            raise BundleError(f"{self.where}: array {name!r}: found {shown}, expected numbers{shape}")
        return found

    def whole(self, name: str, length: int, *, high: int) -> np.ndarray:
        found = self._array(name, (length,), "iu").astype(np.int64)
        if length and (found.min() < 0 or found.max() > high):
            raise BundleError(f"{self.where}: array {name!r} leaves the range 0 .. {high}")
        return found

    def numbers(self, name: str, shape: tuple[int, ...], *, low: float, high: float) -> np.ndarray:
        found = self._array(name, shape, "f").astype(np.float64)
        known = found[~np.isnan(found)]
        if known.size and not (known.min() >= low and known.max() <= high):
            raise BundleError(f"{self.where}: array {name!r} leaves the range {low:g} .. {high:g}")
        return found

    def words(self, name: str, length: int) -> np.ndarray:
        lists = self.document.get("words")
        found = lists.get(name) if isinstance(lists, dict) else None
        if not isinstance(found, list) or len(found) > _MOST_NAMES:
            raise BundleError(f"{self.where}: words.{name}: expected a list of at most {_MOST_NAMES} texts")
        if not all(isinstance(w, str) and len(w) <= _MOST_TEXT and w.isprintable() for w in found):
            raise BundleError(
                f"{self.where}: words.{name}: expected printable texts of up to {_MOST_TEXT} characters"
            )
        place = self.whole(name, length, high=max(len(found) - 1, 0))
        result = np.empty(length, dtype=object)
        if length and not found:
            raise BundleError(f"{self.where}: words.{name}: found no text, expected at least one")
        result[:] = [found[i] for i in place.tolist()]
        return result
