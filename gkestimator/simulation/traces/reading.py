"""Requests of a trace in order of time, block by block."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gkestimator.core.errors import DocumentError
from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.traces.formats import Format, detected, format_named, minutes
from gkestimator.simulation.traces.lines import INNER_COMMA, Lines, RowBlock, quoted
from gkestimator.simulation.traces.ordering import in_order
from gkestimator.simulation.traces.values import decimals, instants, whole_numbers

# Streams are kept by name while a trace is read: so many at most, and so many bytes of names (Azure's have 130).
MAX_STREAMS = 500_000
_MAX_NAME_BYTES = 2**27
_MAX_LENGTH = 2**31
_MAX_COUNT = 10**9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Consecutive requests. ``times_s`` ascend, from block to block too. ``streams``: the number of each request's
    stream, by first appearance (0 where the format knows none). ``lengths`` in tokens (None: not recorded)."""

    times_s: Floats
    streams: Ints
    lengths: Ints | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """Consecutive streams: ``counts[i, m]`` requests of the i-th in minute m from the start."""

    counts: Ints


class Trace:
    """The trace in the file at ``path``, of format ``form`` (None: known by its columns). ``keyed``: its rows name
    streams; ``has_lengths``: they say how long requests are; ``known``: the only streams that there may be (None, the
    default: any). Raises DocumentError: a file or a header that is wrong."""

    def __init__(self, path: Path, *, form: str | None = None) -> None:
        self.path = path
        self.known: Collection[str] | None = None
        self._lines = Lines(path)
        header = self._lines.header
        self.form: Format = detected(path, header, format_named(form) if form else None)
        self._place = {name: i for i, name in enumerate(header)}
        self._numbers: dict[bytes, int] = {}
        self._name_bytes = 0
        self.keyed = bool(self.form.keys) and all(k in self._place for k in self.form.keys)
        self.has_lengths = self.form.length in self._place

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams that were met so far."""
        return tuple(_name(k) for k in self._numbers)

    def rows(self) -> Iterator[Rows]:
        """The requests in order of time, once. Formats that record when requests ended are put in order by their
        starts on disk (:func:`in_order`), and moved where one would start before 0.

        Raises DocumentError: not in order, a wrong field, more than MAX_STREAMS streams, per-minute counts."""
        if self.form.clock == "minutes":
            raise DocumentError(f"{self.path}: found counts per minute, expected single requests")
        if self.form.clock == "ends":
            yield from self._started()
            return
        last = -np.inf
        first = None
        for block in self._lines.blocks():
            if self.form.clock == "instants":
                nanos = instants(self.path, block, self._place[self.form.time], self.form.time)
                first = int(nanos[0]) if first is None else first
                times = (nanos - first) / 1e9
            else:
                times = decimals(self.path, block, self._place[self.form.time], self.form.time)
            self._ascending(block, times, last)
            last = float(times[-1])
            yield Rows(times_s=times, streams=self._streams(block), lengths=self._lengths(block))

    def minutes(self) -> Iterator[Counts]:
        """Counts per minute, streams in order of their rows, once. Raises DocumentError: a format of single requests, a
        wrong field."""
        if self.form.clock != "minutes":
            raise DocumentError(f"{self.path}: found single requests, expected counts per minute")
        places = [self._place[c] for c in minutes(self.path, self._lines.header)]
        for block in self._lines.blocks():
            counts = whole_numbers(self.path, block, places, "count")
            over = np.argwhere(counts > _MAX_COUNT)
            if len(over):
                row, minute = (int(i) for i in over[0])
                raise DocumentError(
                    f"{self.path}: line {block.lines[row]}: minute {minute + 1}: found {counts[row, minute]:,} "
                    f"requests, expected at most {_MAX_COUNT:,}"
                )
            yield Counts(counts=counts)

    def _started(self) -> Iterator[Rows]:
        """Requests by their starts."""

        def starts() -> Iterator[tuple[Floats, Ints]]:
            for block in self._lines.blocks():
                ends = decimals(self.path, block, self._place[self.form.time], self.form.time)
                took = decimals(self.path, block, self._place[self.form.duration], self.form.duration)
                yield ends - took, self._streams(block)

        shift: float | None = None
        for times, streams in in_order(starts()):
            if shift is None:
                shift = max(-float(times[0]), 0.0)
            yield Rows(times_s=times + shift, streams=streams, lengths=None)

    def _ascending(self, block: RowBlock, times: Floats, last: float) -> None:
        back = np.flatnonzero(np.diff(times, prepend=last) < 0)
        if len(back):
            row = int(back[0])
            column = self._place[self.form.time]
            if row:
                before = f"line {block.lines[row - 1]} ({block.text(row - 1, column)})"
            else:
                before = "the row before"
            raise DocumentError(
                f"{self.path}: line {block.lines[row]}: {self.form.time}: found {block.text(row, column)!r}, earlier "
                f"than {before}, expected rows in order of time (sort the file)"
            )

    def _streams(self, block: RowBlock) -> Ints:
        columns = [self._place[k] for k in self.form.keys if k in self._place]
        if not columns:
            return np.zeros(len(block.lines), np.int64)
        data = block.data
        numbers = self._numbers
        # A loop, but one that only cuts and looks up: sorting texts this long costs ten times as much.
        beside = columns == list(range(columns[0], columns[-1] + 1))
        if beside:
            spans = [(columns[0], columns[-1])]
        else:
            spans = [(c, c) for c in columns]
        starts = [block.starts[:, first].tolist() for first, _ in spans]
        ends = [block.ends[:, last].tolist() for _, last in spans]
        keys = [data[a:b] for a, b in zip(starts[0], ends[0], strict=True)]
        for more_starts, more_ends in zip(starts[1:], ends[1:], strict=True):
            keys = [k + b"," + data[a:b] for k, a, b in zip(keys, more_starts, more_ends, strict=True)]
        if len(numbers) == 0 or any(k not in numbers for k in set(keys)):
            for row, key in enumerate(keys):
                if key not in numbers:
                    name = _name(key)
                    if self.known is not None and name not in self.known:
                        raise DocumentError(
                            f"{self.path}: line {block.lines[row]}: {self.form.keys[0]}: found {quoted(name)}, "
                            f"expected one of the workload's: {', '.join(self.known)} (or streams dealt to models)"
                        )
                    self._name_bytes += len(key)
                    if len(numbers) >= MAX_STREAMS or self._name_bytes > _MAX_NAME_BYTES:
                        raise DocumentError(
                            f"{self.path}: line {block.lines[row]}: found more than {MAX_STREAMS:,} streams "
                            f"({', '.join(self.form.keys)}), or {_MAX_NAME_BYTES:,} bytes of their names, expected "
                            "fewer"
                        )
                    numbers[key] = len(numbers)
        return np.array([numbers[k] for k in keys], np.int64)

    def _lengths(self, block: RowBlock) -> Ints | None:
        if not self.has_lengths:
            return None
        column = self._place[self.form.length]
        name = self.form.length
        lengths = whole_numbers(self.path, block, [column], name)[:, 0]
        over = np.flatnonzero(lengths >= _MAX_LENGTH)
        if len(over):
            row = int(over[0])
            raise DocumentError(
                f"{self.path}: line {block.lines[row]}: {name}: found {block.text(row, column)}, expected fewer than "
                f"{_MAX_LENGTH:,} tokens"
            )
        return lengths


def _name(key: bytes) -> str:
    return key.decode("utf-8", "replace").replace(INNER_COMMA, ",")
