"""Which pairs are measured, and in which order: any beginning of it should be worth the most."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from gkestimator.core.records import frozen
from gkestimator.profiling.plan import PlanEntry

# Pairs of one run: some ten hours.
MOST_PAIRS = 20_000
# Models that are paired among each other before others come: preparing a model and measuring it alone takes
# as long as a pair, and eight models make 28 pairs.
_BLOCK = 8
# Pairs at one share before the next share is measured.
_IN_A_ROW = 8
Shares = tuple[float, float]
# Side (``A`` or ``B``) and percent of the SMs.
Slot = tuple[str, float]
Pair = tuple[PlanEntry, PlanEntry]


@frozen
class PairJob:
    """Name two entries side by side, each confined to its percent of the SMs."""

    entries: Pair
    shares: Shares

    @property
    def slots(self) -> tuple[Slot, Slot]:
        """Return the workers that it needs, by side and share."""
        return ("A", self.shares[0]), ("B", self.shares[1])

    @property
    def key(self) -> tuple[str, str, float, float]:
        """Return what tells it from all others."""
        return (self.entries[0].id, self.entries[1].id, *self.shares)


def pair_order(entries: Sequence[PlanEntry], seed: int) -> Iterator[Pair]:
    """Yield all unordered pairs: first those of different models, then those of one model at other sizes or
    precisions, at last each entry with itself. ``entries`` are shuffled by ``seed``; one of each model comes
    before the second of any, and every pair of the first eight before the ninth."""
    ordered = _spread(entries, seed)
    for same in (False, True):
        for a, b in _blocks(ordered):
            if (model_name(a) == model_name(b)) is same:
                yield a, b
    yield from ((e, e) for e in ordered)


def model_name(entry: PlanEntry) -> str:
    """Return the name of an entry's model."""
    return entry.id if entry.model is None else entry.model.name


def _spread(entries: Sequence[PlanEntry], seed: int) -> list[PlanEntry]:
    shuffled = sorted(entries, key=lambda e: e.id)  # the order of the plan's lines does not matter
    random.Random(seed).shuffle(shuffled)
    seen: Counter[str] = Counter()
    turns = {}
    for entry in shuffled:
        turns[entry.id] = seen[model_name(entry)]
        seen[model_name(entry)] += 1
    return sorted(shuffled, key=lambda e: turns[e.id])


def _blocks(ordered: Sequence[PlanEntry]) -> Iterator[Pair]:
    blocks = [ordered[i : i + _BLOCK] for i in range(0, len(ordered), _BLOCK)]
    for i, block in enumerate(blocks):
        yield from _within(block)
        for other in blocks[:i]:
            for shift in range(_BLOCK):
                for at, entry in enumerate(block, shift):
                    if at % _BLOCK < len(other):
                        yield other[at % _BLOCK], entry


def _within(block: Sequence[PlanEntry]) -> Iterator[Pair]:
    """Pair everyone with everyone, round by round: each round has everyone once."""
    seats: list[PlanEntry | None] = list(block)
    if len(seats) % 2:
        seats.append(None)
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        for a, b in zip(seats[:half], reversed(seats[half:]), strict=True):
            if a is not None and b is not None:
                yield a, b
        seats.insert(1, seats.pop())


def jobs(
    entries: Sequence[PlanEntry], shares: Sequence[Shares], *, seed: int, most_pairs: int | None = None
) -> list[PairJob]:
    """Return what is to be measured: every pair without confinement first, then eight pairs at each other share in
    turn. Of an entry with itself 20:80 and 80:20 are one."""
    pairs = list(islice(pair_order(entries, seed), min(MOST_PAIRS, most_pairs or MOST_PAIRS)))
    whole = (100.0, 100.0)
    confined = [share for share in shares if share != whole]
    ordered = [PairJob(entries=pair, shares=whole) for pair in pairs if whole in shares]
    for i in range(0, len(pairs), _IN_A_ROW):
        for at, share in enumerate(confined):
            for a, b in pairs[i : i + _IN_A_ROW]:
                if a.id != b.id or share[::-1] not in confined[:at]:
                    ordered.append(PairJob(entries=(a, b), shares=share))
    return ordered
