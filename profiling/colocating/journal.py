"""What was measured, kept beside the table line by line as it is measured; the table is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.jobs.journal import LineJournal
from gkestimator.profiling.type_names import Fields, Members, TextByName
from gkestimator.tables.colocation import SHARINGS

QUALITIES = ("ok", "noisy", "throttled")
Key = tuple[str, str, float, float]


def journal_path(output: Path) -> Path:
    """Return where the journal of the table ``output`` lies."""
    return output.with_name(output.name + ".journal.jsonl")


@frozen
class Header:
    """Say how a run measured. ``device``: the GPU as its driver names it, ``gpu``: its canonical name; ``sharing``:
    ``mps``, ``time`` or ``cpu``; ``sharing_note``: why not MPS; ``versions`` of the runtime and its libraries."""

    executor: str
    device: str
    gpu: str
    driver: str | None
    sharing: str
    sharing_note: str | None
    versions: TextByName
    seed: int
    seconds: float
    started: str
    command: str = ""


@frozen
class SideRecord:
    """Hold one model of a pair. ``sms``: that its process saw (None: not told); latencies are medians in
    milliseconds, over ``calls``; ``together_p90_ms``: the 90th percentile beside the other."""

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
    """Hold a pair that was measured (``reason`` None, two ``sides``), or was not and why. ``key``: ids of the
    entries and shares; ``quality``: ``ok``, ``noisy`` (other processes were at work on the GPU) or
    ``throttled``."""

    key: Key
    sides: tuple[SideRecord, ...] = ()
    quality: str = "ok"
    sm_clock_mhz: float | None = None
    measured: str = ""
    reason: str | None = None


class Journal(LineJournal):
    """Keep the journal at ``path``. ``header``: of the last run that wrote here, None for a new one;
    ``records``: the last one of each pair."""

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
                was = getattr(self.header, name)
                wanted = getattr(header, name)
                if was != wanted:
                    raise UsageError(
                        f"{self.path}: was measured with {name} {_shown(was)}, found {_shown(wanted)}: expected the "
                        "same, or an output of its own"
                    )
        self.append({"kind": "run", **asdict(header)})
        self.header = header

    def add(self, record: PairRecord) -> None:
        """Add one pair more, on the disk when this returns."""
        self.append({"kind": "pair", **asdict(record)})
        self.records[record.key] = record

    def take(self, line: Fields) -> None:
        """Take a header or a pair of an earlier run."""
        kind = line.pop("kind", None)
        if kind == "run":
            self.header = _header(line)
        elif kind == "pair":
            record = _pair(line)
            self.records[record.key] = record
        else:
            raise ValueError(f"found kind {str(kind)[:40]!r}, expected run or pair")

    def of(self, key: Key) -> PairRecord | None:
        """Return what is known of a pair, whichever of the two comes first."""
        a, b, first, second = key
        return self.records.get(key) or self.records.get((b, a, second, first))

    def measured(self) -> Iterator[PairRecord]:
        """Yield the pairs that were measured, in the order of their first lines."""
        yield from (r for r in self.records.values() if r.reason is None)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v}" for k, v in sorted(value.items()))
    return str(value)


def _header(line: Members) -> Header:
    header = Header(**line)
    versions = header.versions
    _expect(header.sharing in SHARINGS, "sharing " + ", ".join(SHARINGS))
    _expect(isinstance(versions, dict) and _texts(*versions.values()), "versions: an object of texts")
    texts = (header.executor, header.device, header.gpu, header.started)
    _expect(_texts(*texts) and all(texts), "texts for names")
    return header


def _pair(line: Members) -> PairRecord:
    sides = tuple(SideRecord(**side) for side in line.get("sides", ()))
    for side in sides:
        numbers = (side.latency_alone_ms, side.latency_together_ms, side.together_p90_ms, side.sm_share_pct)
        counts = (side.alone_calls, side.together_calls)
        _expect(_positive(*numbers, *counts), "sides: numbers above 0")
        _expect(all(isinstance(c, int) for c in counts), "sides: whole numbers of calls")
        _expect(_texts(side.entry_id, side.model, side.dtype, side.dims), "sides: texts for names")
    a, b, first, second = line["key"]
    _expect(_texts(a, b) and _positive(first, second), "key: two ids and two shares")
    record = PairRecord(**{**line, "sides": sides, "key": (a, b, float(first), float(second))})
    _expect(record.quality in QUALITIES, "quality " + ", ".join(QUALITIES))
    _expect((record.reason is None) == (len(sides) == 2), "two sides or a reason")
    return record


def _expect(good: bool, what: str) -> None:
    if not good:
        raise ValueError(f"expected {what}")


def _texts(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)


def _positive(*values: object) -> bool:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not (math.isfinite(value) and value > 0):
            return False
    return True
