"""Describe a model compiled for several static lengths: what each runtime takes, how much fits in the SLO."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.simulation.arrays import Floats, Ints, Numbers, Wholes
from gkestimator.tables import Requirement

_SHOWN = 5
_LONGEST = 10_000_000  # tokens; as a spec's lengths
_MOST = 10**9  # requests within the SLO


@frozen
class Runtime:
    """Hold a model compiled for inputs of ``length`` tokens.

    A shorter request is padded to it and takes ``latency_ms`` all the same, one request at a time.
    """

    length: int
    latency_ms: float


@frozen
class Ladder:
    """Hold the runtimes of one model, shortest first, and the SLO that its requests are held to.

    ``capacities``: requests that one instance answers within the SLO, one after the other: floor(SLO /
    latency), at least 1 (Arlo's M_i).
    """

    runtimes: tuple[Runtime, ...]
    slo_ms: float

    @property
    def lengths(self) -> Wholes:
        """Return the length of each runtime, ascending."""
        return tuple(r.length for r in self.runtimes)

    @property
    def latencies_ms(self) -> Numbers:
        """Return the latency of each runtime."""
        return tuple(r.latency_ms for r in self.runtimes)

    @property
    def capacities(self) -> Wholes:
        """Return the requests within the SLO of one instance of each runtime.

        A latency that divides it counts whole.
        """
        return tuple(math.floor(self.slo_ms / r.latency_ms * (1 + 1e-12)) for r in self.runtimes)

    def largest(self) -> Ladder:
        """Return the longest runtime alone: what static padding serves all with."""
        return Ladder(runtimes=self.runtimes[-1:], slo_ms=self.slo_ms)


@frozen
class DynamicShapes:
    """Hold a model compiled once for inputs of any length: a request is not padded, and takes ``slowdown`` times
    what a runtime of just its length would, for shapes that are not known can be compiled for less well.

    Between the lengths of ``ladder`` latencies are drawn in a line; below the shortest they are the shortest's.
    """

    ladder: Ladder
    slowdown: float

    def __post_init__(self) -> None:
        if not 1 <= self.slowdown < math.inf:
            raise UsageError(
                f"dynamic shapes: found a slowdown of {self.slowdown:g}, expected a number of at least 1"
            )
        slowest_ms = self.slowdown * self.ladder.latencies_ms[-1]
        if slowest_ms > self.ladder.slo_ms:
            raise UsageError(
                f"dynamic shapes: the longest request takes {slowest_ms:.4g} ms, above the SLO of "
                f"{self.ladder.slo_ms:g} ms"
            )

    def single(self) -> Ladder:
        """Return the one runtime that it is, as long and as slow as the longest request."""
        length = self.ladder.lengths[-1]
        runtime = Runtime(length=length, latency_ms=self.slowdown * self.ladder.latencies_ms[-1])
        return Ladder(runtimes=(runtime,), slo_ms=self.ladder.slo_ms)

    def service_ms(self, lengths: Ints) -> Floats:
        """Return what each request takes."""
        alone = np.interp(lengths, self.ladder.lengths, self.ladder.latencies_ms)
        return np.asarray(self.slowdown * alone, np.float64)


def service_ms(dynamic: DynamicShapes | None, lengths: Ints) -> Floats:
    """Return what each request takes whatever runtime serves it; empty where the runtime decides."""
    if dynamic is None:
        return np.empty(0)
    return dynamic.service_ms(lengths)


def padded_tokens(ladder: Ladder, dynamic: DynamicShapes | None, lengths: Ints, level_of: Ints) -> int:
    """Return the tokens that are computed for requests of ``lengths``, which the runtimes ``level_of`` serve."""
    if dynamic is not None:
        return int(lengths.sum())
    return int(np.asarray(ladder.lengths)[level_of].sum())


def ladder_of(runtimes: Iterable[Runtime], slo_ms: float) -> Ladder:
    """Return ``runtimes`` in order of length under an SLO.

    Raises UsageError: none, a length twice or below 1, a latency that is not a positive number, or a runtime
    that answers no request within the SLO, or more than a billion.
    """
    ascending = sorted(runtimes, key=lambda r: r.length)
    if not ascending:
        raise UsageError("found no lengths, expected at least one runtime")
    for shorter, longer in itertools.pairwise(ascending):
        if shorter.length == longer.length:
            raise UsageError(f"length {shorter.length} stands twice, expected once")
    for runtime in ascending:
        if runtime.length < 1:
            raise UsageError(f"length {runtime.length}: expected at least 1")
        if not (runtime.latency_ms > 0 and math.isfinite(runtime.latency_ms)):
            raise UsageError(
                f"length {runtime.length}: latency of {runtime.latency_ms!r} ms, expected a number above 0"
            )
        if runtime.latency_ms > slo_ms * (1 + 1e-12):
            raise UsageError(
                f"length {runtime.length}: its latency, {runtime.latency_ms:.4g} ms, is above the SLO of {slo_ms:g} ms"
            )
        if slo_ms / _MOST > runtime.latency_ms:
            raise UsageError(
                f"length {runtime.length}: latency of {runtime.latency_ms:.4g} ms under an SLO of {slo_ms:g} ms, "
                f"expected at most {_MOST:,} requests within it"
            )
    return Ladder(runtimes=tuple(ascending), slo_ms=slo_ms)


def runtimes_of(
    rows: Iterable[Requirement],
    *,
    model: str,
    gpu: str,
    lengths: Sequence[int] | None = None,
    dimension: str | None = None,
    runtime: str | None = None,
    dtype: str | None = None,
    table: str = "table",
) -> list[Runtime]:
    """Return the runtimes of ``model`` on ``gpu`` that ``rows`` of a requirement table know.

    These are rows at batch 1 and 100 % of the SMs whose ``dims`` give ``dimension`` (None: the one dimension
    they have). ``lengths`` None: all.

    ``runtime`` and ``dtype`` keep the rows that name them; ``table`` is what messages call the rows. Raises
    TableError: no such rows, a length that is missing or answered by two rows, a row without a latency, other
    dimensions that differ.
    """
    catalogue = gpu_catalogue()
    gpu = catalogue.canonical(gpu)  # a GPU that only the table knows keeps its name
    wanted = (model, gpu, 1, 100.0)
    usable = []
    for row in rows:
        at = (row.model, catalogue.canonical(row.gpu), row.batch_size or 1, row.sm_share_pct)
        if at == wanted and runtime in (None, row.runtime) and dtype in (None, row.dtype):
            usable.append(row)
    what = f"{table}: {model} on {gpu} at batch 1"
    if not usable:
        raise TableError(
            f"{what}: found no rows (or none of this runtime and dtype), expected one for each length"
        )
    by_length = _by_length(usable, dimension, what)
    if lengths is None:
        lengths = sorted(by_length)
    missing = [str(n) for n in lengths if n not in by_length]
    if missing:
        known = ", ".join(str(n) for n in sorted(by_length)[:20])
        raise TableError(f"{what}: no row for length {', '.join(missing[:_SHOWN])}; found {known}")
    runtimes = []
    for length in lengths:
        latency_ms = by_length[length].latency_ms
        if latency_ms is None:
            raise TableError(f"{what}, length {length}: found no latency, expected one")
        runtimes.append(Runtime(length=length, latency_ms=latency_ms))
    return runtimes


def _by_length(rows: Sequence[Requirement], dimension: str | None, what: str) -> dict[int, Requirement]:
    """Return ``rows`` by their length.

    Raises TableError where it is missing, or where rows differ in something else.
    """
    by_length: dict[int, Requirement] = {}
    first_others = None
    for row in rows:
        dims = _dims(row, what)
        key = dimension
        if key is None and len(dims) == 1:
            key = next(iter(dims))
        if key not in dims:
            hint = "" if dimension else " (of several, name one with dimension)"
            raise TableError(
                f"{what}: dims {row.dims!r}: expected {dimension or 'one dimension'}=LENGTH{hint}"
            )
        length = dims.pop(key)
        others = (key, dims)
        if first_others is None:
            first_others = others
        if others != first_others:
            raise TableError(
                f"{what}: found rows with dims {rows[0].dims} and {row.dims}, expected one length to differ"
            )
        if length in by_length:
            choices = sorted({f"{r.runtime} {r.dtype}" for r in (by_length[length], row)})
            raise TableError(
                f"{what}: two rows for length {length} ({', '.join(choices)}); choose a runtime and a dtype"
            )
        by_length[length] = row
    return by_length


def _dims(row: Requirement, what: str) -> dict[str, int]:
    dims: dict[str, int] = {}
    for pair in filter(None, row.dims.split(",")):
        name, _, value = pair.partition("=")
        # (Its digits are counted first: int() refuses some thousands of them.)
        if not (value.isdecimal() and len(value) <= len(str(_LONGEST)) and int(value) <= _LONGEST):
            raise TableError(
                f"{what}: dims {row.dims[:60]!r}: found {pair[:40]!r}, expected NAME=NUMBER, at most {_LONGEST:,}"
            )
        if name in dims:
            raise TableError(f"{what}: dims {row.dims[:60]!r}: {name} stands twice, expected once")
        dims[name] = int(value)
    return dims
