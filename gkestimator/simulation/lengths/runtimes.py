"""A model compiled for several static lengths: what each runtime takes, and how much of it fits in the SLO."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.tables import Requirement

_SHOWN = 5
_LONGEST = 10_000_000  # tokens; as a spec's lengths
_MOST = 10**9  # requests within the SLO


@frozen
class Runtime:
    """A model compiled for inputs of ``length`` tokens: a shorter request is padded to it and takes ``latency_ms``
    all the same, one request at a time."""

    length: int
    latency_ms: float


@frozen
class Ladder:
    """The runtimes of one model, shortest first, and the SLO that its requests are held to.

    ``capacities``: requests that one instance answers within the SLO, one after the other: floor(SLO / latency),
    at least 1 (Arlo's M_i)."""

    runtimes: tuple[Runtime, ...]
    slo_ms: float

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each runtime, ascending."""
        return tuple(r.length for r in self.runtimes)

    @property
    def latencies_ms(self) -> tuple[float, ...]:
        """Latency of each runtime."""
        return tuple(r.latency_ms for r in self.runtimes)

    @property
    def capacities(self) -> tuple[int, ...]:
        """Requests within the SLO of one instance of each runtime. A latency that divides the SLO counts whole."""
        return tuple(math.floor(self.slo_ms / r.latency_ms * (1 + 1e-12)) for r in self.runtimes)

    def largest(self) -> Ladder:
        """The longest runtime alone: what static padding serves all with."""
        return Ladder(runtimes=self.runtimes[-1:], slo_ms=self.slo_ms)


def ladder_of(runtimes: Iterable[Runtime], slo_ms: float) -> Ladder:
    """``runtimes`` in order of length under an SLO. Raises UsageError: none, a length twice or below 1, a latency that
    is not a positive number, or a runtime that answers no request within the SLO, or more than a billion."""
    found = sorted(runtimes, key=lambda r: r.length)
    if not found:
        raise UsageError("found no lengths, expected at least one runtime")
    for one, other in itertools.pairwise(found):
        if one.length == other.length:
            raise UsageError(f"length {one.length} stands twice, expected once")
    for runtime in found:
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
    return Ladder(runtimes=tuple(found), slo_ms=slo_ms)


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
    """The runtimes of ``model`` on ``gpu`` that ``rows`` of a requirement table know: rows at batch 1 and 100 % of the
    SMs whose ``dims`` give ``dimension`` (None: the one dimension they have). ``lengths`` None: all.

    ``runtime`` and ``dtype`` keep the rows that name them; ``table`` is what messages call the rows. Raises TableError:
    no such rows, a length that is missing or answered by two rows, a row without a latency, other dimensions that
    differ.
    """
    name = _canonical(gpu)
    kept = [
        row
        for row in rows
        if row.model == model
        and _canonical(row.gpu) == name
        and (row.batch_size or 1) == 1
        and row.sm_share_pct == 100
        and (runtime is None or row.runtime == runtime)
        and (dtype is None or row.dtype == dtype)
    ]
    what = f"{table}: {model} on {name} at batch 1"
    if not kept:
        raise TableError(
            f"{what}: found no rows (or none of this runtime and dtype), expected one for each length"
        )
    found: dict[int, Requirement] = {}
    others: dict[str, Requirement] = {}
    for row in kept:
        dims = _dims(row, what)
        key = dimension or (next(iter(dims)) if len(dims) == 1 else None)
        if key is None or key not in dims:
            raise TableError(
                f"{what}: dims {row.dims!r}: expected {dimension or 'one dimension'}=LENGTH"
                + ("" if dimension else " (of several, name one with dimension)")
            )
        length = dims.pop(key)
        others.setdefault(f"{key} beside " + ",".join(f"{k}={v}" for k, v in dims.items()), row)
        if len(others) > 1:
            one, other = list(others.values())[:2]
            raise TableError(
                f"{what}: found rows with dims {one.dims} and {other.dims}, expected one length to differ"
            )
        if length in found:
            choices = ", ".join(sorted({f"{r.runtime} {r.dtype}" for r in (found[length], row)}))
            raise TableError(
                f"{what}: two rows for length {length} ({choices}); choose a runtime and a dtype"
            )
        found[length] = row
    wanted = sorted(found) if lengths is None else list(lengths)
    missing = [n for n in wanted if n not in found]
    if missing:
        known = ", ".join(str(n) for n in sorted(found)[:20])
        raise TableError(f"{what}: no row for length {', '.join(map(str, missing[:_SHOWN]))}; found {known}")
    return [Runtime(length=n, latency_ms=_latency(found[n], f"{what}, length {n}")) for n in wanted]


def _latency(row: Requirement, what: str) -> float:
    if row.latency_ms is None:
        raise TableError(f"{what}: found no latency, expected one")
    return row.latency_ms


def _dims(row: Requirement, what: str) -> dict[str, int]:
    found = {}
    for pair in filter(None, row.dims.split(",")):
        name, _, value = pair.partition("=")
        # (Its digits are counted first: int() refuses some thousands of them.)
        if not (value.isdecimal() and len(value) <= len(str(_LONGEST)) and int(value) <= _LONGEST):
            raise TableError(
                f"{what}: dims {row.dims[:60]!r}: found {pair[:40]!r}, expected NAME=NUMBER, at most {_LONGEST:,}"
            )
        if name in found:
            raise TableError(f"{what}: dims {row.dims[:60]!r}: {name} stands twice, expected once")
        found[name] = int(value)
    return found


def _canonical(gpu: str) -> str:
    try:
        return gpu_catalogue().spec(gpu).name
    except UsageError:
        return gpu  # a GPU that only the table knows
