"""Read requests of a trace in order of time, block by block."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gkestimator.core.errors import DocumentError
from gkestimator.simulation.arrays import Floats, Ints, Names
from gkestimator.simulation.traces.formats import detected, format_named, minutes
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
    """Hold consecutive requests. ``times_s`` ascend, from block to block too.

    ``streams``: the number of each request's stream, by first appearance (0 where the format knows none).
    ``lengths`` in tokens (None: not recorded).
    """

    times_s: Floats
    streams: Ints
    lengths: Ints | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """Hold consecutive streams: ``counts[i, m]`` requests of the i-th in minute m from the start."""

    counts: Ints


class Trace:
    """Read the trace in the file at ``path``, of format ``form`` (None: known by its columns).

    ``keyed``: its rows name streams; ``has_lengths``: they say how long requests are; ``known``: the only
    streams that there may be (None, the default: any). Raises DocumentError: a file or a header that is
    wrong.
    """

    def __init__(self, path: Path, *, form: str | None = None) -> None:
        self.path = path
        self.known: Collection[str] | None = None
        self._lines = Lines(path)
        header = self._lines.header
        wanted = None
        if form:
            wanted = format_named(form)
        self.form = detected(path, header, wanted)
        self._place = {name: number for number, name in enumerate(header)}
        self._keys = [self._place[key] for key in self.form.keys if key in self._place]
        self._numbers: dict[bytes, int] = {}
        self._name_bytes = 0
        self.keyed = bool(self._keys) and len(self._keys) == len(self.form.keys)
        self.has_lengths = self.form.length in self._place

    @property
    def streams(self) -> Names:
        """Return the names of the streams that were met so far."""
        return tuple(_name(key) for key in self._numbers)

    def rows(self) -> Iterator[Rows]:
        """Yield the requests in order of time, once.

        Formats that record when requests ended are put in order by their starts on disk (:func:`in_order`),
        and moved where one would start before 0. Raises DocumentError: not in order, a wrong field, more than
        MAX_STREAMS streams, per-minute counts.
        """
        if self.form.clock == "minutes":
            raise DocumentError(f"{self.path}: found counts per minute, expected single requests")
        if self.form.clock == "ends":
            yield from self._by_start()
            return
        last = -np.inf
        first_ns: int | None = None
        for block in self._lines.blocks():
            if self.form.clock == "instants":
                times_ns = instants(block, self._place[self.form.time], self.form.time)
                if first_ns is None:
                    first_ns = int(times_ns[0])
                times = (times_ns - first_ns) / 1e9
            else:
                times = self._seconds(block, self.form.time)
            self._check_order(block, times, last)
            last = float(times[-1])
            yield Rows(times_s=times, streams=self._streams(block), lengths=self._lengths(block))

    def minutes(self) -> Iterator[Counts]:
        """Yield counts per minute, streams in order of their rows, once.

        Raises DocumentError: a format of single requests, a wrong field.
        """
        if self.form.clock != "minutes":
            raise DocumentError(f"{self.path}: found single requests, expected counts per minute")
        places = [self._place[column] for column in minutes(self.path, self._lines.header)]
        for block in self._lines.blocks():
            counts = whole_numbers(block, places, "count")
            over = np.argwhere(counts > _MAX_COUNT)
            if len(over):
                row, minute = (int(i) for i in over[0])
                requests = counts[row, minute]
                raise block.error(
                    row,
                    f"minute {minute + 1}: found {requests:,} requests, expected at most {_MAX_COUNT:,}",
                )
            yield Counts(counts=counts)

    def _seconds(self, block: RowBlock, name: str) -> Floats:
        return decimals(block, self._place[name], name)

    def _by_start(self) -> Iterator[Rows]:
        """Yield requests by their starts, of a format that records their ends."""
        starts = (
            (
                self._seconds(block, self.form.time) - self._seconds(block, self.form.duration),
                self._streams(block),
            )
            for block in self._lines.blocks()
        )
        shift: float | None = None
        for times, streams in in_order(starts):
            if shift is None:
                shift = max(-float(times[0]), 0.0)
            yield Rows(times_s=times + shift, streams=streams, lengths=None)

    def _check_order(self, block: RowBlock, times: Floats, last: float) -> None:
        """Raise DocumentError where a time is before the one that precedes it (``last`` precedes the block)."""
        back = np.flatnonzero(np.diff(times, prepend=last) < 0)
        if not len(back):
            return
        row = int(back[0])
        column = self._place[self.form.time]
        before = "the row before"
        if row:
            before = f"line {block.lines[row - 1]} ({block.text(row - 1, column)})"
        raise block.error(
            row,
            f"{self.form.time}: found {block.text(row, column)!r}, earlier than {before}, expected rows in order of "
            "time (sort the file)",
        )

    def _streams(self, block: RowBlock) -> Ints:
        """Return the number of each row's stream; streams that are new get the next numbers."""
        if not self._keys:
            return np.zeros(len(block.lines), np.int64)
        keys = self._row_keys(block)
        numbers = self._numbers
        # A loop, but one that only looks up: sorting texts this long costs ten times as much.
        if any(key not in numbers for key in set(keys)):
            for row, key in enumerate(keys):
                if key not in numbers:
                    self._check_new_stream(block, row, key)
                    numbers[key] = len(numbers)
        return np.array([numbers[key] for key in keys], np.int64)

    def _row_keys(self, block: RowBlock) -> list[bytes]:
        """Return what names each row's stream: its key columns, joined by commas as they stand in the file."""
        first, last = self._keys[0], self._keys[-1]
        # Columns side by side are cut out at once.
        if self._keys == list(range(first, last + 1)):
            spans = [(first, last)]
        else:
            spans = [(column, column) for column in self._keys]
        parts = []
        for begin, end in spans:
            starts = block.starts[:, begin].tolist()
            ends = block.ends[:, end].tolist()
            parts.append([block.data[a:b] for a, b in zip(starts, ends, strict=True)])
        if len(parts) == 1:
            return parts[0]
        return [b",".join(row) for row in zip(*parts, strict=True)]

    def _check_new_stream(self, block: RowBlock, row: int, key: bytes) -> None:
        name = _name(key)
        if self.known is not None and name not in self.known:
            raise block.error(
                row,
                f"{self.form.keys[0]}: found {quoted(name)}, expected one of the workload's: {', '.join(self.known)} "
                "(or streams dealt to models)",
            )
        self._name_bytes += len(key)
        if len(self._numbers) >= MAX_STREAMS or self._name_bytes > _MAX_NAME_BYTES:
            raise block.error(
                row,
                f"found more than {MAX_STREAMS:,} streams ({', '.join(self.form.keys)}), or {_MAX_NAME_BYTES:,} bytes "
                "of their names, expected fewer",
            )

    def _lengths(self, block: RowBlock) -> Ints | None:
        if not self.has_lengths:
            return None
        name = self.form.length
        column = self._place[name]
        lengths = whole_numbers(block, [column], name)[:, 0]
        over = np.flatnonzero(lengths >= _MAX_LENGTH)
        if len(over):
            row = int(over[0])
            text = block.text(row, column)
            raise block.error(row, f"{name}: found {text}, expected fewer than {_MAX_LENGTH:,} tokens")
        return lengths


def _name(key: bytes) -> str:
    return key.decode("utf-8", "replace").replace(INNER_COMMA, ",")
