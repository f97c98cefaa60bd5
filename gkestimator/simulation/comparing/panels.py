"""Arrange rows of a comparison in panels: one measure of every policy over load or objective, seeds averaged."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Names, NumberOrNone, Numbers, Texts
from gkestimator.simulation.comparing.results import Row, RowList


@frozen
class Measure:
    """Hold a column of the rows. ``best``: 1 the largest is best, -1 the smallest, 0 neither."""

    column: str
    title: str
    best: int


MEASURES: Mapping[str, Measure] = {
    m.column: m
    for m in (
        Measure(column="on_time_pct", title="on time, % of the requests that arrived", best=1),
        Measure(column="goodput_rps", title="goodput, requests per second within the objective", best=1),
        Measure(column="least_on_time_pct", title="on time, %, of the model worst off", best=1),
        Measure(column="latency_p99_ms", title="99th percentile of latency, ms", best=0),
        Measure(column="gpus_used", title="GPUs used", best=0),
        Measure(column="cost_per_hour", title="cost, USD per hour", best=0),
    )
}


PLANNED = frozenset({"gpus_used", "cost_per_hour"})
"""Measures that the plan decides, whatever arrives."""


@frozen
class Panel:
    """Hold policies (in the spec's order) over ``x`` (``rate_scale`` or ``slo_scale``).

    ``where``: the coordinates that all its rows share, by name. ``values[policy][i]`` at ``xs[i]``: mean over
    the seeds; None where a cell has none.
    """

    where: Mapping[str, str]
    x: str
    xs: Numbers
    measure: Measure
    values: Mapping[str, tuple[NumberOrNone, ...]]

    @property
    def column(self) -> str:
        """Return the column of the rows that is shown."""
        return self.measure.column

    def best(self, at: int) -> Names:
        """Return the policies whose value at ``xs[at]`` is best (to 0.05 %); none where the measure has no best."""
        known: dict[str, float] = {}
        for policy, values in self.values.items():
            value = values[at]
            if value is not None and self.measure.best:
                known[policy] = self.measure.best * value
        top = max(known.values(), default=0.0)
        return tuple(policy for policy, value in known.items() if value >= top - 5e-4 * abs(top))


def panels_of(rows: RowList, columns: Texts) -> tuple[Panel, ...]:
    """Return a panel for each of ``columns`` and each combination of workload, cluster, arrivals and the
    other scale.

    On the axis is the load, or the objective where the load is one and the objectives are several (both, one
    after the other, where both are several). What the plan decides stands once, without arrivals.
    """
    objectives = {r.slo_scale for r in rows}
    axes = []
    if len({r.rate_scale for r in rows}) > 1 or len(objectives) == 1:
        axes.append(("rate_scale", "slo_scale"))
    if len(objectives) > 1:
        axes.append(("slo_scale", "rate_scale"))
    panels = []
    for (x, other), column in itertools.product(axes, columns):
        names = ["workload", "cluster", other]
        if column not in PLANNED:
            names.append("arrivals")
        groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in rows:
            groups[attrgetter(*names)(row)].append(row)
        for coordinates, members in groups.items():
            where = dict(zip(names, coordinates, strict=True))
            where[other] = f"{where[other]:g}"
            panels.append(_panel(members, where, x, MEASURES[column]))
    return tuple(panels)


def _panel(rows: RowList, where: Mapping[str, str], x: str, measure: Measure) -> Panel:
    cells: dict[tuple[str, float], list[NumberOrNone]] = defaultdict(list)
    for row in rows:
        cells[row.policy, getattr(row, x)].append(getattr(row, measure.column))
    xs = sorted({at for _, at in cells})
    values = {}
    for policy in dict.fromkeys(row.policy for row in rows):
        values[policy] = tuple(_mean(cells[policy, at]) for at in xs)
    return Panel(where=where, x=x, xs=tuple(xs), measure=measure, values=values)


def _mean(values: Sequence[NumberOrNone]) -> NumberOrNone:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return fmean(known)
