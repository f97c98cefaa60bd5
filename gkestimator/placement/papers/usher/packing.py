"""Where USHER puts the replicas of a model: on the GPUs that its group already uses, on others that are used,
on new ones.

GPUs in the same state that stand beside each other are one run, so that packing costs by the number of
different states and not by that of GPUs. A run is a plain tuple and a packing a plain object: millions are
made in a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.placement.problem import FloatRow, Floats, IntRow

EPSILON = 1e-9  # percent
# GPU type, free Creq and free Mreq in percent, GPUs, number of the first among those of its type, and among all used.
Run = tuple[int, float, float, int, int, int]

Runs: TypeAlias = list[Run]

IntPair: TypeAlias = tuple[int, int]


@frozen
class Garage:
    """Hold the GPUs that may be used: ``limits`` by type (infinite: rented without limit), ``order`` in which
    types are opened (cheapest first), ``prices`` per hour by type (0 where unknown)."""

    limits: FloatRow
    order: IntRow
    prices: FloatRow


@dataclass(slots=True)
class Packing:
    """Hold ``inside``: runs that the group uses, in the order it came to them; ``outside``: runs that only
    others use, in the order they were opened; ``opened`` GPUs by type. Lists and tuples are never changed
    once shared."""

    inside: Runs
    outside: Runs
    opened: IntRow
    # Of the outside, once a bound asked for it.
    room: tuple[float, float, float, float, float, float] | None = None


def put(packing: Packing, creq: Floats, mreq: Floats, number: int, garage: Garage) -> tuple[Packing, Runs]:
    """Place up to ``number`` replicas that take ``creq`` and ``mreq`` percent (by GPU type), at most one on a
    GPU: first on the group's GPUs, then on others that are used, then on new ones of the cheapest type that
    can run it; first fit each.

    Returns the packing and the runs with a new replica, as they are after it.
    """
    inside: Runs = []
    taken: Runs = []
    left = _first_fit(packing.inside, creq, mreq, number, inside, inside, taken)
    outside = packing.outside
    if left and outside:
        kept: Runs = []
        still = _first_fit(outside, creq, mreq, left, kept, inside, taken)
        if still < left:
            left = still
            outside = kept
    opened = packing.opened
    if left:
        now = list(opened)
        for t in garage.order:
            free = garage.limits[t] - now[t]
            if free <= 0 or creq[t] > 100 + EPSILON or mreq[t] > 100 + EPSILON:
                continue
            take = left if left <= free else int(free)
            new = (t, 100.0 - creq[t], 100.0 - mreq[t], take, now[t], sum(now))
            inside.append(new)
            taken.append(new)
            now[t] += take
            left -= take
            if not left:
                break
        opened = tuple(now)
    room = packing.room if outside is packing.outside else None
    return Packing(inside, outside, opened, room), taken


def _first_fit(
    runs: Sequence[Run],
    creq: Floats,
    mreq: Floats,
    left: int,
    without: Runs,
    inside: Runs,
    taken: Runs,
) -> int:
    """Place up to ``left`` replicas on ``runs``; those with one go to ``inside`` and ``taken``, the others to
    ``without``. Returns how many are left."""
    for at, run in enumerate(runs):
        if not left:
            without += runs[at:]
            break
        t, c, m, count, start, seq = run
        dc = creq[t]
        dm = mreq[t]
        if c < dc - EPSILON or m < dm - EPSILON:
            without.append(run)
            continue
        take = count if count <= left else left
        left -= take
        new = (t, c - dc, m - dm, take, start, seq)
        inside.append(new)
        taken.append(new)
        if take < count:
            without.append((t, c, m, count - take, start + take, seq + take))
    return left


def fits(
    packing: Packing, creq: Floats, mreq: Floats, most: int, garage: Garage
) -> tuple[list[IntPair], list[IntPair]]:
    """Return (type, GPUs) on which :func:`put` would place, in its order, until ``most``: used GPUs, and new
    ones."""
    used: list[IntPair] = []
    left = most
    for runs in (packing.inside, packing.outside):
        for t, c, m, count, _, _ in runs:
            if left <= 0:
                return used, []
            if c >= creq[t] - EPSILON and m >= mreq[t] - EPSILON:
                if used and used[-1][0] == t:
                    used[-1] = (t, used[-1][1] + count)
                else:
                    used.append((t, count))
                left -= count
    new: list[IntPair] = []
    for t in garage.order:
        free = garage.limits[t] - packing.opened[t]
        if left > 0 and free > 0 and creq[t] <= 100 + EPSILON and mreq[t] <= 100 + EPSILON:
            if math.isinf(free):
                take = left
            else:
                take = min(left, int(free))
            new.append((t, take))
            left -= take
    return used, new


def settled(packing: Packing) -> Runs:
    """Return every used GPU in the order opened, for the next group: neighbours in one state are one run
    again."""
    runs: Runs = []
    for run in sorted((*packing.inside, *packing.outside), key=lambda r: r[5]):
        if runs:
            *state, count, start, seq = runs[-1]
            if (*state, start + count, seq + count) == (*run[:3], *run[4:]):
                runs[-1] = (*run[:3], count + run[3], start, seq)
                continue
        runs.append(run)
    return runs
