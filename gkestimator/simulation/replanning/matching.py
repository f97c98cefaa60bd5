"""From the running replicas to those of a new plan with the fewest loads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.documents import PlacedGpu, Replica
from gkestimator.simulation.arrays import Floats


def process_key(replica: Replica) -> Hashable:
    """What stays loaded: a model as its runtime holds it, confined to its share of the SMs. Batch size, turns and
    time-outs are settings that a running process takes over without a load (our reading)."""
    return replica.model, replica.runtime, replica.dtype, replica.dims, replica.sm_share_pct


def setting_key(replica: Replica) -> Hashable:
    """A replica of a plan, whichever GPU it stands on."""
    return process_key(replica), replica.batch_size, replica.duty_cycle_ms


@frozen
class Content:
    """A GPU that is there: what runs on it and is not to end (nothing on one that is free)."""

    id: str
    type: str
    replicas: tuple[Replica, ...] = ()


def match_gpus(running: Sequence[Content], planned: Sequence[PlacedGpu]) -> dict[str, str | None]:
    """By id of a planned GPU the id of the running one (of its type) that it becomes; None where ``running`` has
    too few of its type.

    Of all assignments, one with the fewest loads, and among those with the fewest changes of settings; a
    GPU that is in use before one that is free (the GPUs that are used cost), then in order.
    """
    found: dict[str, str | None] = {}
    for gpu_type in dict.fromkeys(g.type for g in planned):
        found |= _match(
            [c for c in running if c.type == gpu_type], [g for g in planned if g.type == gpu_type]
        )
    return found


def _match(running: Sequence[Content], planned: Sequence[PlacedGpu]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    # GPUs of equal content belong together in some best assignment: of a running A and planned A, B, and running C,
    # |A and B| + |C and A| <= |A| + |A and B and C| <= |A and A| + |C and B|. That leaves a small problem.
    alike: dict[frozenset[tuple[Hashable, int]], list[Content]] = defaultdict(list)
    for content in running:
        if content.replicas:
            alike[_settings(content.replicas)].append(content)
    taken: set[str] = set()
    for pass_ in ("same id", "any"):
        for gpu in planned:
            if gpu.id in found:
                continue
            for content in alike[_settings(gpu.replicas)]:
                if content.id not in taken and (pass_ == "any" or content.id == gpu.id):
                    found[gpu.id] = content.id
                    taken.add(content.id)
                    break
    left = [g for g in planned if g.id not in found]
    # In use first: assign() prefers earlier columns among equals only by the profit's last digit.
    free = sorted((c for c in running if c.id not in taken), key=lambda c: not c.replicas)
    used = sum(1 for c in free if c.replicas)
    free = free[: used + len(left)]
    if not left:
        return found
    most = 1 + sum(len(g.replicas) for g in left)
    profit = np.zeros((len(left), len(free)))
    for i, gpu in enumerate(left):
        for j, content in enumerate(free):
            stay = _common(process_key, gpu.replicas, content.replicas)
            same = _common(setting_key, gpu.replicas, content.replicas)
            profit[i, j] = 2.0 * (stay * most + same) * most + bool(content.replicas)
    for gpu, column in zip(left, assign(profit), strict=True):
        found[gpu.id] = None if column is None else free[column].id
    return found


def _settings(replicas: Sequence[Replica]) -> frozenset[tuple[Hashable, int]]:
    return frozenset(Counter(setting_key(r) for r in replicas).items())


def _common(key: Callable[[Replica], Hashable], some: Sequence[Replica], others: Sequence[Replica]) -> int:
    return (Counter(key(r) for r in some) & Counter(key(r) for r in others)).total()


def assign(profit: Floats) -> list[int | None]:
    """For each row a column of its own (None where the columns are too few), so that the ``profit`` (rows,
    columns; 0 or more) of all together is the most. Ties by order, the same each time.

    Shortest augmenting paths with potentials (Kuhn 1955, Munkres 1957; in the form of Jonker and Volgenant 1987):
    rows^2 times columns steps.
    """
    rows, columns = profit.shape
    if rows > columns:
        back = assign(profit.T)
        by_row: list[int | None] = [None] * rows
        for column, row in enumerate(back):
            if row is not None:
                by_row[row] = column
        return by_row
    cost = -profit
    row_price = np.zeros(rows)
    column_price = np.zeros(columns + 1)
    owner = np.full(columns + 1, -1)  # the last stands for the row that is being placed
    for row in range(rows):
        owner[columns] = row
        here = columns
        least = np.full(columns, np.inf)
        came_from = np.full(columns, columns)
        seen = np.zeros(columns + 1, dtype=bool)
        while owner[here] >= 0:
            seen[here] = True
            open_ = ~seen[:columns]
            now = cost[owner[here]] - row_price[owner[here]] - column_price[:columns]
            better = open_ & (now < least)
            least[better] = now[better]
            came_from[better] = here
            following = int(np.argmin(np.where(open_, least, np.inf)))
            step = least[following]
            row_price[owner[seen]] += step
            column_price[seen] -= step
            least[open_] -= step
            here = following
        while here != columns:
            before = int(came_from[here])
            owner[here] = owner[before]
            here = before
    found: list[int | None] = [None] * rows
    for column in range(columns):
        if owner[column] >= 0:
            found[int(owner[column])] = column
    return found


def pair_replicas(running: Sequence[Replica], planned: Sequence[Replica]) -> Mapping[int, int]:
    """On one GPU: by index of a planned replica that of the running one that it goes on as; those left out must be
    loaded, and running ones left out end. As many as can be, with equal settings where that is possible, else in
    order of batch size."""
    found: dict[int, int] = {}
    for key in (setting_key, process_key):
        waiting: dict[Hashable, list[int]] = defaultdict(list)
        taken = set(found.values())
        for i in sorted(range(len(running)), key=lambda i: (-running[i].batch_size, -i)):
            if i not in taken:
                waiting[key(running[i])].append(i)
        for k in sorted(range(len(planned)), key=lambda k: (planned[k].batch_size, k)):
            if k not in found and waiting[key(planned[k])]:
                found[k] = waiting[key(planned[k])].pop()
    return found
