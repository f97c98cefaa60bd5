"""Match the running replicas with those of a new plan so that the fewest are loaded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.documents import PlacedGpu, Replica
from gkestimator.simulation.arrays import Floats

_Replicas: TypeAlias = Sequence[Replica]
_Columns: TypeAlias = list[int | None]
_Match: TypeAlias = dict[str, str | None]


def process_key(replica: Replica) -> Hashable:
    """Return what stays loaded: a model as its runtime holds it, confined to its share of the SMs.

    Batch size, turns and time-outs are settings that a running process takes over without a load (our
    reading).
    """
    return replica.model, replica.runtime, replica.dtype, replica.dims, replica.sm_share_pct


def setting_key(replica: Replica) -> Hashable:
    """Return a replica of a plan, whichever GPU it stands on."""
    return process_key(replica), replica.batch_size, replica.duty_cycle_ms


@frozen
class Content:
    """Hold a GPU that is there: what runs on it and is not to end (nothing on one that is free)."""

    id: str
    type: str
    replicas: tuple[Replica, ...] = ()


def match_gpus(running: Sequence[Content], planned: Sequence[PlacedGpu]) -> _Match:
    """Return, by id of a planned GPU, the id of the running one (of its type) that it becomes; None without
    one.

    Of all assignments, one with the fewest loads, and among those with the fewest changes of settings; a
    GPU that is in use before one that is free (the GPUs that are used cost), then in order.
    """
    assignment: _Match = {}
    for gpu_type in dict.fromkeys(g.type for g in planned):
        contents = [c for c in running if c.type == gpu_type]
        gpus = [g for g in planned if g.type == gpu_type]
        alike = _match_alike(contents, gpus)
        taken = set(alike.values())
        left = [g for g in gpus if g.id not in alike]
        assignment |= alike
        assignment |= _match_others([c for c in contents if c.id not in taken], left)
    return assignment


def _match_alike(running: Sequence[Content], planned: Sequence[PlacedGpu]) -> dict[str, str]:
    """Match GPUs of equal content, those of the same id first.

    They belong together in some best assignment: of a running A and planned A, B, and running C,
    |A and B| + |C and A| <= |A| + |A and B and C| <= |A and A| + |C and B|. That leaves a small problem.
    """
    alike: dict[Hashable, list[str]] = defaultdict(list)
    for content in running:
        if content.replicas:
            alike[_settings(content.replicas)].append(content.id)
    assignment: dict[str, str] = {}
    for gpu in planned:
        ids = alike[_settings(gpu.replicas)]
        if gpu.id in ids:
            ids.remove(gpu.id)
            assignment[gpu.id] = gpu.id
    for gpu in planned:
        ids = alike[_settings(gpu.replicas)]
        if gpu.id not in assignment and ids:
            assignment[gpu.id] = ids.pop(0)
    return assignment


def _match_others(running: Sequence[Content], planned: Sequence[PlacedGpu]) -> _Match:
    """Match the GPUs that have no equal, so that the most replicas stay loaded, and of these the most unchanged."""
    if not planned:
        return {}
    # In use first: assign() prefers earlier columns among equals only by the profit's last digit.
    used = [c for c in running if c.replicas]
    free = [c for c in running if not c.replicas]
    contents = used + free[: len(planned)]
    most = 1 + sum(len(g.replicas) for g in planned)
    profit = np.zeros((len(planned), len(contents)))
    for i, gpu in enumerate(planned):
        for j, content in enumerate(contents):
            stay = _common(process_key, gpu.replicas, content.replicas)
            same = _common(setting_key, gpu.replicas, content.replicas)
            profit[i, j] = 2.0 * (stay * most + same) * most + bool(content.replicas)
    assignment: _Match = {}
    for gpu, column in zip(planned, assign(profit), strict=True):
        assignment[gpu.id] = None if column is None else contents[column].id
    return assignment


def _settings(replicas: _Replicas) -> Hashable:
    return frozenset(Counter(map(setting_key, replicas)).items())


def _common(key: Callable[[Replica], Hashable], some: _Replicas, others: _Replicas) -> int:
    in_common = Counter(map(key, some)) & Counter(map(key, others))
    return in_common.total()


def assign(profit: Floats) -> _Columns:
    """Return for each row a column of its own (None where the columns are too few), for the most profit
    together.

    ``profit`` is (rows, columns), 0 or more. Ties go by order, the same each time.

    Shortest augmenting paths with potentials (Kuhn 1955, Munkres 1957; in the form of Jonker and Volgenant
    1987): rows^2 times columns steps.
    """
    rows, columns = profit.shape
    if rows > columns:
        return _by_row(assign(profit.T), rows)
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
            placed = owner[here]
            now = cost[placed] - row_price[placed] - column_price[:columns]
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
    return _by_row(owner[:columns].tolist(), rows)


def _by_row(owners: Sequence[int | None], rows: int) -> _Columns:
    """Return the column of each row, by the row that owns each column (below 0: none)."""
    assignment: _Columns = [None] * rows
    for column, row in enumerate(owners):
        if row is not None and row >= 0:
            assignment[row] = column
    return assignment


def pair_replicas(running: _Replicas, planned: _Replicas) -> Mapping[int, int]:
    """Return, on one GPU, by index of a planned replica that of the running one that it goes on as.

    Those left out must be loaded, and running ones left out end. As many as can be are matched, with equal
    settings where that is possible, else in order of batch size.
    """
    # The last of a list is taken first: the smallest batch, of equals the first.
    by_batch = sorted(range(len(running)), key=lambda i: (-running[i].batch_size, -i))
    pairs: dict[int, int] = {}
    for key in (setting_key, process_key):
        waiting: dict[Hashable, list[int]] = defaultdict(list)
        for i in by_batch:
            if i not in pairs.values():
                waiting[key(running[i])].append(i)
        for k in sorted(range(len(planned)), key=lambda k: (planned[k].batch_size, k)):
            candidates = waiting[key(planned[k])]
            if k not in pairs and candidates:
                pairs[k] = candidates.pop()
    return pairs
