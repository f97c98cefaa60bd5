"""What is wrong, or odd, in what was measured. Every check says its count and shows examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.profiling.building.describing import Description
from gkestimator.profiling.building.sequences import entries_of
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement

EntryKey = tuple[str, str, str]
"""(entry, GPU, runtime)."""
_EXAMPLES = 3
_FLOOR_TOLERANCE = 0.95
"""A time below this share of what is physically possible is refused: GPUs clock above the boost clock of their data
sheet by a few percent."""
NEIGHBOURS = 16
NEAR = 2.0
"""Neighbours are this near in the logarithms: within a factor of seven or so of each other's size."""
_FEWEST = 8
_MOST_REFERENCES = 8192
_ROBUST_Z = 8.0
_LEAST_SPREAD = 0.1
_LEAST_FACTOR = 2.0
"""An outlier is eight robust standard deviations from its neighbours, of at least 10 % each, and off by a factor of
two or more."""


@frozen
class Check:
    """One check. ``name`` in words; ``count`` of what it found, of ``of``; ``examples``; ``what_happens`` to them.
    ``bad`` is True where what it finds means that something is broken, not just odd."""

    name: str
    count: int
    of: int
    examples: tuple[str, ...] = ()
    what_happens: str = ""
    bad: bool = False
    entries: tuple[str, ...] = ()

    def line(self) -> str:
        """``outliers: 2 of 800 operators (Conv-fp32-...: 9.1 times its neighbours'; ...): kept, look at them``."""
        if not self.count:
            return f"{self.name}: none of {self.of:,}"
        shown = "; ".join(self.examples)
        more = "; ..." if self.count > len(self.examples) else ""
        happens = f": {self.what_happens}" if self.what_happens else ""
        return f"{self.name}: {self.count:,} of {self.of:,}{f' ({shown}{more})' if shown else ''}{happens}"


def check_rows(
    rows: Sequence[KernelMeasurement],
    descriptions: Mapping[EntryKey, Description],
    *,
    duplicates: Mapping[EntryKey, int],
    unjoined: Mapping[str, int],
    launches: int,
    without_launches: Sequence[str],
) -> tuple[list[KernelMeasurement], list[Check]]:
    """The rows, those that cannot be true marked ``noisy`` (so that training leaves them out), and what was found.

    ``duplicates``: measurements passed over because a better one of the same operator is kept.
    """
    groups = entries_of(rows)
    impossible, judged = _impossible(groups, descriptions)
    zero = [key for key, group in groups.items() if any(not r.duration_us for r in group)]
    odd = outliers(groups, descriptions)
    broken = _schema_breaks(rows)
    dropped = set(broken)
    marked = {*impossible, *zero}
    kept = [
        replace(r, quality="noisy") if (r.entry_id, r.gpu, r.runtime) in marked and r.quality == "ok" else r
        for r in rows
        if (r.entry_id, r.gpu, r.runtime) not in dropped
    ]
    checks = [
        _check(
            "measured more than once",
            duplicates,
            len(groups),
            {k: f"{n + 1} times" for k, n in duplicates.items()},
            "the best is kept",
        ),
        _check(
            "faster than physically possible",
            impossible,
            judged,
            impossible,
            "kept with quality noisy, so that training leaves them out",
        ),
        _check("launches of zero duration", zero, len(groups), {}, "kept with quality noisy"),
        _check("outliers among operators of their size", odd, len(groups), odd, "kept; look at them"),
        _check("rows that break the table's rules", broken, len(groups), broken, "left out", bad=True),
        Check(
            name="operators that launched nothing",
            count=len(without_launches),
            of=len(groups) + len(without_launches),
            examples=tuple(without_launches[:_EXAMPLES]),
            what_happens="left out",
            entries=tuple(without_launches),
        ),
        Check(
            name="launches of which it cannot be told what they belong to",
            count=sum(unjoined.values()),
            of=launches + sum(unjoined.values()),
            examples=tuple(
                f"{n:,} {why}" for why, n in sorted(unjoined.items(), key=lambda i: -i[1])[:_EXAMPLES]
            ),
            what_happens="left out",
        ),
        _undescribed(groups, descriptions),
    ]
    return kept, checks


def _check(
    name: str,
    keys: Iterable[EntryKey],
    of: int,
    words: Mapping[EntryKey, str],
    what_happens: str,
    *,
    bad: bool = False,
) -> Check:
    found = list(keys)
    examples = tuple(f"{k[0]}: {words[k]}" if k in words else k[0] for k in found[:_EXAMPLES])
    return Check(
        name=name,
        count=len(found),
        of=of,
        examples=examples,
        what_happens=what_happens,
        bad=bad,
        entries=tuple(k[0] for k in found),
    )


def _impossible(
    groups: Mapping[EntryKey, Sequence[KernelMeasurement]], descriptions: Mapping[EntryKey, Description]
) -> tuple[dict[EntryKey, str], int]:
    """Operators faster than their GPU can be, and how many could be judged (none on a CPU, whose specification is a
    stand-in)."""
    found: dict[EntryKey, str] = {}
    judged = 0
    for key, group in groups.items():
        description = descriptions.get(key)
        taken = group[0].entry_us
        floor = None if description is None else description.floor_us
        if floor is None or taken is None or group[0].kind == "host":
            continue
        judged += 1
        if taken < _FLOOR_TOLERANCE * floor:
            found[key] = f"{taken:.4g} us, at least {floor:.4g} us are needed"
    return found, judged


def _schema_breaks(rows: Sequence[KernelMeasurement]) -> dict[EntryKey, str]:
    """Operators with a row that the table's schema refuses (NaN, beyond 64 bits, a percentage above 100), and why."""
    found: dict[EntryKey, str] = {}
    for row in rows:
        for column in KERNEL_DATASET.columns:
            problem = column.problem(getattr(row, column.name))
            if problem:
                found.setdefault((row.entry_id, row.gpu, row.runtime), f"{column.name}: {problem}")
    return found


def _undescribed(groups: Mapping[EntryKey, object], descriptions: Mapping[EntryKey, Description]) -> Check:
    words = {
        key: descriptions[key].problem or ""
        for key in groups
        if key in descriptions and descriptions[key].problem
    }
    return _check(
        "operators that our rules do not lower", words, len(groups), words, "kept without bytes and FLOPs"
    )


def outliers(
    groups: Mapping[EntryKey, Sequence[KernelMeasurement]], descriptions: Mapping[EntryKey, Description]
) -> dict[EntryKey, str]:
    """Operators whose time over what is expected is far from that of their nearest neighbours: the same operator type
    in as many launches on the same GPU in the same arithmetic, nearest in the logarithms of FLOPs, bytes and roofline.

    Expected is the roofline plus what the least of them take (their 5 % quantile: the cost of a launch), so that small
    and large ones compare. Fewer than eight near ones judge nobody.
    """
    alike: dict[tuple[str | int, ...], list[tuple[EntryKey, list[float], float, float]]] = {}
    for key, group in groups.items():
        first = group[0]
        description = descriptions.get(key)
        if description is None or not description.roofline_us or not first.entry_us:
            continue
        read = description.input_bytes
        weights = description.weight_bytes
        written = description.output_bytes
        moved = (read or 0) + (weights or 0) + (written or 0)
        place = [np.log1p(description.flops or 0), np.log1p(moved), np.log(description.roofline_us)]
        kin = (first.gpu, first.runtime, first.dtype, first.op_type, len(group))
        alike.setdefault(kin, []).append((key, place, description.roofline_us, first.entry_us))
    found: dict[EntryKey, str] = {}
    for members in alike.values():
        if len(members) <= _FEWEST:
            continue
        taken = np.array([m[3] for m in members])
        expected = np.array([m[2] for m in members]) + np.quantile(taken, 0.05)
        residuals = np.log(taken / expected)
        typical, spread = _neighbourhood(np.array([m[1] for m in members]), residuals)
        off = residuals - typical
        wild = (np.abs(off) > _ROBUST_Z * np.maximum(spread, _LEAST_SPREAD)) & (
            np.abs(off) > np.log(_LEAST_FACTOR)
        )
        for i in np.flatnonzero(wild):
            found[members[i][0]] = (
                f"{float(np.exp(off[i])):.3g} times the time that its neighbours lead to expect"
            )
    return found


def _neighbourhood(places: np.ndarray, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median residual of each place's nearest neighbours and its robust spread (1.4826 x MAD), itself not counted; NaN
    where fewer than eight are near.

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
