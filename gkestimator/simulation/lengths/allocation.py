"""Allocate by Arlo's Runtime Scheduler: how many instances of each runtime, for the lengths that came.

The program (Tan et al., ICPP 2024, section on the Runtime Scheduler, equations 1 to 7), in our reading.
Runtimes i = 1..I in order of length with latency t_i; Q_i: requests whose shortest runtime is i that come in
one SLO period, as the mean of the last period; M_i = floor(SLO / t_i): requests that one instance answers
within the SLO; G GPUs, one instance each.

    (1)  minimise  sum over i of C_i L_i(B_i)
    (2)  R_i = max(0, Q_i + R_(i-1) - M_i N_i), R_0 = 0    what i cannot take goes on to the next longer runtime
    (3)  C_i = Q_i + R_(i-1) - R_i                         what i takes
    (4)  B_i = C_i / N_i                                   of which each of its instances
    (5)  sum over i of N_i = G
    (6)  N_I >= 1                                          the longest runtime is always there: it takes any request
    (7)  N_i a whole number, 0 or more

L_i(B) is the mean latency of the requests of an instance that is given B of them in an SLO period in the
mean. The paper measures it; we take them to come at once (a burst), their number to be Poisson, and to be
answered one after the other. A request then finds B others in the mean, half of them before it: L_i(B) = t_i
(1 + B / 2).

Two readings of ours where the text is silent. The longest runtime has nothing above it: what it cannot take
within the SLO (R_I > 0) it takes late, with L_I as it stands. Of two allocations the one that leaves less
late is better whatever its mean latency; so there is always an answer, and where all demand fits the answer
is that of (1).

The max and the quotient make it non-linear. Given what was carried on, the rest of the program depends on
nothing else but the instances left; and what follows costs no less, and leaves no less late, where more is
carried on. So dynamic programming over (runtime, instances used) that keeps every pair (cost, carried) which
no other beats in both is exact.

Few pairs are kept, for two bounds. Above: an allocation that leaves the least late (a dynamic program with
one number per state), improved by moving single instances. Below, of what follows a state with n instances
used and R carried: with every later request at its own runtime and instances divisible, Cauchy's inequality
gives

(R sqrt(t_(i+1)) + sum over j > i of Q_j sqrt(t_j))^2 / (2 (G - n)) + R t_(i+1) + sum of Q_j t_j

(t_j the least latency from runtime j on, so that carrying further is never cheaper).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Floats, Ints, Numbers, Series, Wholes
from gkestimator.simulation.lengths.runtimes import Ladder

# Requests per SLO period below which nothing is carried, and part of the demand (or cost) below which two sums are
# equal: differences of float sums, not demand.
_NOTHING = 1e-9
_EQUAL = 1e-12


@frozen
class Allocation:
    """Hold ``counts``: instances of each runtime.

    ``late``: requests per SLO period beyond what the longest runtime takes in time (R_I). ``cost_ms``: sum of
    C_i L_i(B_i) (equation 1). ``taken``: requests per SLO period that each runtime takes (C_i).
    """

    counts: Wholes
    late: float
    cost_ms: float
    taken: Numbers


def assess(ladder: Ladder, demand: Series, counts: Sequence[int]) -> Allocation:
    """Return what the program says of ``counts`` instances under ``demand`` (requests per SLO period, by
    shortest runtime).
    """
    carried = 0.0
    cost = 0.0
    taken = []
    late = 0.0
    last = len(ladder.runtimes) - 1
    for i, (runtime, capacity) in enumerate(zip(ladder.runtimes, ladder.capacities, strict=True)):
        asked = demand[i] + carried
        carried = _beyond(asked, capacity * counts[i])
        if i == last:
            late = carried
            carried = 0.0
        here = asked - carried
        if here > 0:
            cost += here * runtime.latency_ms * (1 + here / counts[i] / 2)
        taken.append(here)
    return Allocation(counts=tuple(counts), late=late, cost_ms=cost, taken=tuple(taken))


def _beyond(asked: float, capacity: float) -> float:
    if asked - capacity > _NOTHING:
        return asked - capacity
    return 0.0


def even(runtimes: int, gpus: int) -> Wholes:
    """Return ``gpus`` instances spread evenly over ``runtimes``, the longer ones first where they do not divide."""
    return tuple((gpus + i) // runtimes for i in range(runtimes))


@frozen
class _Front:
    """Hold states after some runtimes, in order of instances used: cost, carried on, and how each was reached."""

    used: Ints
    cost: Floats
    carried: Floats
    before: Ints  # position in the front before


def allocate(ladder: Ladder, demand: Series, gpus: int) -> Allocation:
    """Return the best counts for ``gpus`` instances under ``demand`` (module's docstring).

    Of equals the one that the search meets first: the same input gives the same answer. Raises UsageError: no
    GPU, negative or not finite demand.
    """
    asked = np.asarray(demand, dtype=np.float64)
    if gpus < 1:
        raise UsageError(f"{gpus} GPUs: expected at least 1")
    if asked.shape != (len(ladder.runtimes),) or not np.all(np.isfinite(asked)) or np.any(asked < 0):
        raise UsageError(f"demand {list(demand)}: expected a number of at least 0 for each runtime")
    known = _improved(ladder, asked, _least_late(ladder, asked, gpus))
    nothing = np.zeros(1, np.int64)
    fronts = [_Front(used=nothing, cost=np.zeros(1), carried=np.zeros(1), before=nothing)]
    for i in range(len(ladder.runtimes) - 1):
        fronts.append(_step(ladder, asked, i, fronts[-1], gpus, known))
    before = fronts[-1]
    instances = gpus - before.used
    total = asked[-1] + before.carried
    late = np.maximum(0.0, total - ladder.capacities[-1] * instances)
    cost = before.cost + _cost(total, instances, ladder.runtimes[-1].latency_ms)
    cost[late > known.late + _slack(asked)] = math.inf
    if not np.any(cost < known.cost_ms):
        return known
    at = int(np.argmin(cost))
    counts = [int(instances[at])]
    for later, front in zip(reversed(fronts), reversed(fronts[:-1]), strict=False):
        previous = int(later.before[at])
        counts.append(int(later.used[at] - front.used[previous]))
        at = previous
    return assess(ladder, [float(q) for q in asked], counts[::-1])


def _slack(asked: Floats) -> float:
    return _NOTHING + _EQUAL * float(asked.sum())


def _cost(taken: Floats, instances: Ints, latency_ms: float) -> Floats:
    each = taken / np.maximum(instances, 1)  # nothing is taken where there is none
    cost: Floats = taken * latency_ms * (1 + each / 2)
    return cost


def _least_late(ladder: Ladder, asked: Floats, gpus: int) -> Wholes:
    """Return counts that leave the least late.

    What is carried on matters by its amount alone, so the least amount for each number of instances used is
    all that need be kept.
    """
    carried = np.concatenate(([0.0], np.full(gpus, math.inf)))  # by instances used
    chosen = []
    numbers = np.arange(gpus + 1)
    used = numbers[:, None]
    before = numbers[None, :]
    for i, (q, capacity) in enumerate(zip(asked, ladder.capacities, strict=True)):
        left = np.maximum(0.0, q + carried[None, :] - capacity * (used - before))
        least = int(i == len(asked) - 1)  # one of the longest
        left[used < before + least] = math.inf
        # Of equals the one with most instances used before: those of short runtimes answer sooner.
        best = gpus - np.argmin(left[:, ::-1], axis=1)
        chosen.append(best)
        carried = left[numbers, best]
    counts: list[int] = []
    at = gpus
    for best in reversed(chosen):
        counts.append(at - int(best[at]))
        at = int(best[at])
    counts[-1] += at
    return tuple(counts[::-1])


def _improved(ladder: Ladder, asked: Floats, counts: Sequence[int]) -> Allocation:
    """Return ``counts`` improved instance by instance until no move of one helps."""
    demand = [float(q) for q in asked]
    slack = _slack(asked)
    current = assess(ladder, demand, counts)
    while True:
        best = current
        for source, some in enumerate(current.counts):
            if some <= (source == len(current.counts) - 1):
                continue
            for target in range(len(current.counts)):
                if target == source:
                    continue
                moved = list(current.counts)
                moved[source] -= 1
                moved[target] += 1
                other = assess(ladder, demand, moved)
                less_late = other.late < best.late - slack
                as_late = other.late <= best.late + slack
                cheaper = other.cost_ms < best.cost_ms * (1 - _EQUAL)
                if less_late or (as_late and cheaper):
                    best = other
        if best is current:
            return current
        current = best


def _step(ladder: Ladder, asked: Floats, i: int, before: _Front, gpus: int, known: Allocation) -> _Front:
    """Return all ways to give runtime ``i`` 0 or more instances that no other way beats and that may end
    below ``known``.
    """
    capacity = ladder.capacities[i]
    latency_ms = ladder.latencies_ms[i]
    least = np.minimum.accumulate(ladder.latencies_ms[:i:-1])[::-1]  # of the runtimes after i
    later = asked[i + 1 :]
    later_total = float(later.sum())
    roots = float(later @ np.sqrt(least))
    alone = float(later @ least)
    most_late = known.late + _slack(asked)
    largest = max(ladder.capacities[i + 1 :])
    none = np.zeros(0, np.int64)
    parts = [(none, np.zeros(0), np.zeros(0), none)]
    for used in range(gpus):
        end = int(np.searchsorted(before.used, used, side="right"))
        instances = used - before.used[:end]
        total = asked[i] + before.carried[:end]
        carried = total - capacity * instances
        carried[carried <= _NOTHING] = 0.0
        cost = before.cost[:end] + _cost(total - carried, instances, latency_ms)
        # The bound of the module's docstring on what the later runtimes cost.
        divided = (carried * math.sqrt(least[0]) + roots) ** 2 / (2 * (gpus - used))
        follows = divided + carried * least[0] + alone
        room = (gpus - used) * largest
        able = cost + follows <= known.cost_ms * (1 + _EQUAL)
        able &= carried + later_total - room <= most_late
        at = np.flatnonzero(able)
        if not len(at):
            continue
        order = at[np.lexsort((cost[at], carried[at]))]
        lowest = np.minimum.accumulate(cost[order])
        cheaper = cost[order][1:] < lowest[:-1]
        kept = order[np.concatenate(([True], cheaper))]
        parts.append((np.full(len(kept), used), cost[kept], carried[kept], kept))
    numbers, costs, amounts, befores = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return _Front(used=numbers, cost=costs, carried=amounts, before=befores)
