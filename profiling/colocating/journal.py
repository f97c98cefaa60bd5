"""What was measured, kept beside the table line by line as it is measured; the table is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.jobs.journal import LineJournal
from gkestimator.tables.colocation import SHARINGS

QUALITIES = ("ok", "noisy", "throttled")
T = TypeVar("T")
Key = tuple[str, str, float, float]


def journal_path(output: Path) -> Path:
    """Where the journal of the table ``output`` lies."""
    return output.with_name(output.name + ".journal.jsonl")


@frozen
class Header:
    """How a run measured. ``device``: the GPU as its driver names it, ``gpu``: its canonical name; ``sharing``:
    ``mps``, ``time`` or ``cpu``; ``sharing_note``: why not MPS; ``versions`` of the runtime and its libraries."""

    executor: str
    device: str
    gpu: str
    driver: str | None
    sharing: str
    sharing_note: str | None
    versions: Mapping[str, str]
    seed: int
    seconds: float
    started: str
    command: str = ""


@frozen
class SideRecord:
    """One model of a pair. ``sms``: that its process saw (None: not told); latencies are medians in milliseconds, over
    ``calls``; ``together_p90_ms``: the 90th percentile beside the other."""

    entry_id: str
    model: str
    dtype: str
    batch_size: int | None
    dims: str
    sm_share_pct: float
    sms: int | None
    latency_alone_ms: float
    alone_calls: int
    latency_together_ms: float
    together_calls: int
    together_p90_ms: float


@frozen
class PairRecord:
    """A pair that was measured (``reason`` None, two ``sides``), or was not and why. ``key``: ids of the entries and
    shares; ``quality``: ``ok``, ``noisy`` (other processes were at work on the GPU) or ``throttled``."""

    key: Key
    sides: tuple[SideRecord, ...] = ()
    quality: str = "ok"
    sm_clock_mhz: float | None = None
    measured: str = ""
    reason: str | None = None


class Journal(LineJournal):
    """The journal at ``path``. ``header``: of the last run that wrote here, None for a new one; ``records``: the last
    one of each pair."""

    content = "a journal of pairs"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.header: Header | None = None
        self.records: dict[Key, PairRecord] = {}

    @property
    def begun(self) -> bool:
        """Return whether a run has said how it measures."""
        return self.header is not None

    def begin(self, header: Header) -> None:
        """Say how this run measures. Raises UsageError where an earlier one did it otherwise."""
        if self.header is not None:
            for name in ("executor", "device", "sharing", "versions"):
                found = getattr(self.header, name)
                wanted = getattr(header, name)
                if found != wanted:
                    raise UsageError(
                        f"{self.path}: was measured with {name} {_shown(found)}, found {_shown(wanted)}: expected the "
                        "same, or an output of its own"
                    )
        self.append({"kind": "run", **asdict(header)})
        self.header = header

    def add(self, record: PairRecord) -> None:
        """One pair more, on the disk when this returns."""
        self.append({"kind": "pair", **asdict(record)})
        self.records[record.key] = record

    def take(self, found: dict[str, Any]) -> None:
        """Take a header or a pair of an earlier run."""
        kind = found.pop("kind", None)
        if kind == "run":
            self.header = _header(found)
        elif kind == "pair":
            record = _pair(found)
            self.records[record.key] = record
        else:
            raise ValueError(f"found kind {str(kind)[:40]!r}, expected run or pair")

    def of(self, key: Key) -> PairRecord | None:
        """What is known of a pair, whichever of the two comes first."""
        a, b, first, second = key
        return self.records.get(key) or self.records.get((b, a, second, first))

    def measured(self) -> Iterator[PairRecord]:
        """The pairs that were measured, in the order of their first lines."""
        yield from (r for r in self.records.values() if r.reason is None)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v}" for k, v in sorted(value.items()))
    return str(value)


def _built(kind: type[T], found: Mapping[str, Any]) -> T:
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if not found.keys() <= names:
        raise ValueError(f"found {sorted(found.keys() - names)[0]!r}, expected {', '.join(sorted(names))}")
    return kind(**found)


def _header(found: Mapping[str, Any]) -> Header:
    made = _built(Header, found)
    texts = (made.executor, made.device, made.gpu, made.started)
    if made.sharing not in SHARINGS or not all(isinstance(t, str) and t for t in texts):
        raise ValueError("expected texts, and sharing " + ", ".join(SHARINGS))
    if not isinstance(made.versions, dict) or not all(isinstance(v, str) for v in made.versions.values()):
        raise ValueError("versions: expected an object of texts")
    return made


def _pair(found: Mapping[str, Any]) -> PairRecord:
    sides = tuple(_side(s) for s in found.get("sides", ()))
    key = tuple(found["key"])
    if len(key) != 4 or not all(isinstance(k, str) for k in key[:2]) or not all(map(_positive, key[2:])):
        raise ValueError("key: expected two ids and two shares")
    made = _built(PairRecord, {**found, "sides": sides, "key": (*key[:2], *map(float, key[2:]))})
    if made.quality not in QUALITIES or (made.reason is None) != (len(sides) == 2):
        raise ValueError("expected two sides or a reason, and quality " + ", ".join(QUALITIES))
    return made


def _side(found: Any) -> SideRecord:
    if not isinstance(found, dict):
        raise ValueError("sides: expected objects")
    made = _built(SideRecord, found)
    numbers = (made.latency_alone_ms, made.latency_together_ms, made.together_p90_ms, made.sm_share_pct)
    counts = (made.alone_calls, made.together_calls)
    if not all(map(_positive, numbers)) or not all(isinstance(c, int) and c >= 1 for c in counts):
        raise ValueError("sides: expected numbers above 0")
    if not all(isinstance(t, str) for t in (made.entry_id, made.model, made.dtype, made.dims)):
        raise ValueError("sides: expected texts for names")
    return made


def _positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
