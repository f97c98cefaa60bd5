"""What is wrong, or odd, in what was measured. Every check says its count and shows examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.profiling.building.choosing import EntryKey, entries_of, entry_key
from gkestimator.profiling.building.describing import Description
from gkestimator.profiling.type_names import CountByName, Names
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement

Examples: TypeAlias = "dict[EntryKey, str]"

_EXAMPLES = 3
# A time below this share of what is physically possible is refused: GPUs clock above the boost clock of
# their data sheet by a few percent.
_FLOOR_TOLERANCE = 0.95
NEIGHBOURS = 16
# Neighbours are this near in the logarithms: within a factor of seven or so of each other's size.
NEAR = 2.0
_FEWEST = 8
_MOST_REFERENCES = 8192
_ROBUST_Z = 8.0
_LEAST_SPREAD = 0.1
# An outlier is eight robust standard deviations from its neighbours, of at least 10 % each, and off by a
# factor of two or more.
_LEAST_FACTOR = 2.0


@frozen
class Check:
    """Say what one check came to. ``name`` in words; ``count`` of what is wrong or odd, of ``of``; ``examples``;
    ``what_happens`` to them. ``bad`` is True where it means that something is broken, not just odd."""

    name: str
    count: int
    of: int
    examples: Names = ()
    what_happens: str = ""
    bad: bool = False
    entries: Names = ()

    def line(self) -> str:
        """Say it in a line: ``outliers: 2 of 800 operators (Conv-fp32-...: 9.1 times its neighbours'; ...):
        kept, look at them``."""
        if not self.count:
            return f"{self.name}: none of {self.of:,}"
        line = f"{self.name}: {self.count:,} of {self.of:,}"
        if self.examples:
            more = "; ..." if self.count > len(self.examples) else ""
            line += f" ({'; '.join(self.examples)}{more})"
        return f"{line}: {self.what_happens}" if self.what_happens else line


def check_rows(
    rows: Sequence[KernelMeasurement],
    descriptions: Mapping[EntryKey, Description],
    *,
    duplicates: Mapping[EntryKey, int],
    unjoined: CountByName,
    launches: int,
    without_launches: Sequence[str],
) -> tuple[list[KernelMeasurement], list[Check]]:
    """Return the rows, those that cannot be true marked ``noisy`` (so that training leaves them out), and all
    checks.

    ``duplicates``: measurements passed over because a better one of the same operator is kept.
    """
    groups = entries_of(rows)
    of = len(groups)
    # Only a floor that physics sets refuses a row; what is merely odd is said and kept.
    too_fast, judged = _too_fast(groups, descriptions)
    zero = {key: "" for key, group in groups.items() if any(not r.duration_us for r in group)}
    broken = _schema_breaks(rows)
    usable = []
    for row in rows:
        key = entry_key(row)
        if key in broken:
            continue
        noisy = row.quality == "ok" and (key in too_fast or key in zero)
        usable.append(replace(row, quality="noisy") if noisy else row)
    lost = sum(unjoined.values())
    reasons = sorted(unjoined.items(), key=lambda item: -item[1])
    undescribed = {key: d.problem for key, d in descriptions.items() if d.problem and key in groups}
    checks = [
        _check(
            "measured more than once",
            {key: f"{count + 1} times" for key, count in duplicates.items()},
            of,
            "the best is kept",
        ),
        _check(
            "faster than physically possible",
            too_fast,
            judged,
            "kept with quality noisy, so that training leaves them out",
        ),
        _check("launches of zero duration", zero, of, "kept with quality noisy"),
        _check(
            "outliers among operators of their size",
            outliers(groups, descriptions),
            of,
            "kept; look at them",
        ),
        _check("rows that break the table's rules", broken, of, "left out", bad=True),
        Check(
            name="operators that launched nothing",
            count=len(without_launches),
            of=of + len(without_launches),
            examples=tuple(without_launches[:_EXAMPLES]),
            what_happens="left out",
            entries=tuple(without_launches),
        ),
        Check(
            name="launches of which it cannot be told what they belong to",
            count=lost,
            of=launches + lost,
            examples=tuple(f"{count:,} {why}" for why, count in reasons[:_EXAMPLES]),
            what_happens="left out",
        ),
        _check("operators that our rules do not lower", undescribed, of, "kept without bytes and FLOPs"),
    ]
    return usable, checks


def _check(
    name: str, words: Mapping[EntryKey, str], of: int, what_happens: str, *, bad: bool = False
) -> Check:
    """Return a check that speaks of operators, in ``words``."""
    entries = tuple(key[0] for key in words)
    lines = [f"{key[0]}: {said}" if said else key[0] for key, said in words.items()]
    return Check(
        name=name,
        count=len(words),
        of=of,
        examples=tuple(lines[:_EXAMPLES]),
        what_happens=what_happens,
        bad=bad,
        entries=entries,
    )


def _too_fast(
    groups: Mapping[EntryKey, Sequence[KernelMeasurement]], descriptions: Mapping[EntryKey, Description]
) -> tuple[Examples, int]:
    """Return operators faster than their GPU can be, and how many could be judged (none on a CPU, whose
    specification is a stand-in)."""
    too_fast: Examples = {}
    judged = 0
    for key, group in groups.items():
        description = descriptions.get(key)
        taken = group[0].entry_us
        floor = None if description is None else description.floor_us
        if floor is None or taken is None or group[0].kind == "host":
            continue
        judged += 1
        if taken < _FLOOR_TOLERANCE * floor:
            too_fast[key] = f"{taken:.4g} us, at least {floor:.4g} us are needed"
    return too_fast, judged


def _schema_breaks(rows: Sequence[KernelMeasurement]) -> Examples:
    """Return operators with a row that the table's schema refuses (NaN, beyond 64 bits, a percentage above
    100), and why."""
    breaks: Examples = {}
    for row in rows:
        for column in KERNEL_DATASET.columns:
            problem = column.problem(getattr(row, column.name))
            if problem:
                breaks.setdefault(entry_key(row), f"{column.name}: {problem}")
    return breaks


@frozen
class _Sized:
    """Place an operator call among others: the logarithms of its FLOPs, bytes and roofline, and its times."""

    key: EntryKey
    place: tuple[float, float, float]
    roofline_us: float
    taken_us: float


def outliers(
    groups: Mapping[EntryKey, Sequence[KernelMeasurement]], descriptions: Mapping[EntryKey, Description]
) -> Examples:
    """Return operators whose time over what is expected is far from that of their nearest neighbours: the
    same operator type in as many launches on the same GPU in the same arithmetic, nearest in the logarithms
    of FLOPs, bytes and roofline.

    Expected is the roofline plus what the least of them take (their 5 % quantile: the cost of a launch), so
    that small and large ones compare. Fewer than eight near ones judge nobody.
    """
    alike: dict[tuple[str | int, ...], list[_Sized]] = defaultdict(list)
    for key, group in groups.items():
        first = group[0]
        description = descriptions.get(key)
        if description is None or not description.roofline_us or not first.entry_us:
            continue
        place = (
            np.log1p(description.flops or 0),
            np.log1p(description.moved_bytes),
            np.log(description.roofline_us),
        )
        sized = _Sized(key=key, place=place, roofline_us=description.roofline_us, taken_us=first.entry_us)
        alike[first.gpu, first.runtime, first.dtype, first.op_type, len(group)].append(sized)
    wild: Examples = {}
    for members in alike.values():
        if len(members) <= _FEWEST:
            continue
        taken = np.array([m.taken_us for m in members])
        expected = np.array([m.roofline_us for m in members]) + np.quantile(taken, 0.05)
        residuals = np.log(taken / expected)
        typical, spread = _neighbourhood(np.array([m.place for m in members]), residuals)
        off = residuals - typical
        limit = np.maximum(_ROBUST_Z * np.maximum(spread, _LEAST_SPREAD), np.log(_LEAST_FACTOR))
        for i in np.flatnonzero(np.abs(off) > limit):
            factor = float(np.exp(off[i]))
            wild[members[i].key] = f"{factor:.3g} times the time that its neighbours lead to expect"
    return wild


def _neighbourhood(places: np.ndarray, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the median residual of each place's nearest neighbours and its robust spread (1.4826 x MAD),
    itself not counted; NaN where fewer than eight are near.

    Of more than 8,192 places every n-th serves as a neighbour, so that the work stays bounded.
    """
    step = max(1, -(-len(places) // _MOST_REFERENCES))
    references = np.arange(0, len(places), step)
    count = min(NEIGHBOURS, len(references) - 1)
    typical = np.full(len(places), np.nan)
    spread = np.full(len(places), np.nan)
    theirs = places[references]
    for start in range(0, len(places), 512):
        block = np.arange(start, min(start + 512, len(places)))
        far = np.zeros((len(block), len(references)))
        for axis in range(places.shape[1]):
            far += (places[block, axis, None] - theirs[None, :, axis]) ** 2
        far[block[:, None] == references[None, :]] = np.inf
        nearest = np.argpartition(far, count - 1, axis=1)[:, :count]
        near = residuals[references[nearest]]
        near[np.take_along_axis(far, nearest, axis=1) > NEAR**2] = np.nan
        judged = np.isfinite(near).sum(axis=1) >= _FEWEST
        middle = np.nanmedian(near[judged], axis=1)
        typical[block[judged]] = middle
        spread[block[judged]] = 1.4826 * np.nanmedian(np.abs(near[judged] - middle[:, None]), axis=1)
    return typical, spread
