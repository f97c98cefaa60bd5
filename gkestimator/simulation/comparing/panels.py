"""Rows of a comparison as panels: one measure of every policy over load or objective, seeds averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from gkestimator.core.records import frozen
from gkestimator.simulation.comparing.results import Row


@frozen
class Measure:
    """A column of the rows. ``best``: 1 the largest is best, -1 the smallest, 0 neither."""

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
    """Policies (in the spec's order) over ``x`` (``rate_scale`` or ``slo_scale``). ``where``: the coordinates that all
    its rows share, by name. ``values[policy][i]`` at ``xs[i]``: mean over the seeds; None where a cell has none."""

    where: Mapping[str, str]
    x: str
    xs: tuple[float, ...]
    measure: Measure
    values: Mapping[str, tuple[float | None, ...]]

    def best(self, at: int) -> tuple[str, ...]:
        """The policies whose value at ``xs[at]`` is best (to 0.05 %); none where the measure has no best."""
        sign = self.measure.best
        found = {p: sign * v[at] for p, v in self.values.items() if v[at] is not None and sign}  # type: ignore[operator]
        top = max(found.values(), default=None)
        if top is None:
            return ()
        return tuple(p for p, v in found.items() if v >= top - 5e-4 * abs(top))


def panels_of(rows: Sequence[Row], columns: Sequence[str]) -> tuple[Panel, ...]:
    """A panel for each of ``columns`` and each combination of workload, cluster, arrivals and the scale that is not on
    the axis. On the axis: the load, or the objective where the load is one and the objectives are several (both, one
    after the other, where both are several). What the plan decides stands once, without arrivals."""
    loads = sorted({r.rate_scale for r in rows})
    objectives = sorted({r.slo_scale for r in rows})
    if len(loads) > 1 or len(objectives) == 1:
        axes = [("rate_scale", "slo_scale")]
    else:
        axes = []
    axes += [("slo_scale", "rate_scale")] if len(objectives) > 1 else []
    found = []
    for x, other in axes:
        for column in columns:
            groups: dict[tuple[str, str, str | None, float], list[Row]] = {}
            for row in rows:
                arrivals = None if column in PLANNED else row.arrivals
                groups.setdefault((row.workload, row.cluster, arrivals, getattr(row, other)), []).append(row)
            for (workload, cluster, came, fixed), here in groups.items():
                where = {"workload": workload, "cluster": cluster, other: f"{fixed:g}"}
                if came is not None:
                    where["arrivals"] = came
                found.append(_panel(here, where, x, MEASURES[column]))
    return tuple(found)


def _panel(rows: Sequence[Row], where: Mapping[str, str], x: str, measure: Measure) -> Panel:
    xs = sorted({getattr(r, x) for r in rows})
    policies = dict.fromkeys(r.policy for r in rows)
    values = {}
    for policy in policies:
        line: list[float | None] = []
        for at in xs:
            cells = [getattr(r, measure.column) for r in rows if r.policy == policy and getattr(r, x) == at]
            line.append(None if not cells or None in cells else fmean(cells))
        values[policy] = tuple(line)
    return Panel(where=where, x=x, xs=tuple(xs), measure=measure, values=values)
