"""From files to a plan: what ``gkest schedule`` does, for programs too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan, read_cluster, read_workload
from gkestimator.placement.building import build_problem, impossible
from gkestimator.placement.languages import schedule_languages
from gkestimator.placement.policy import Policy
from gkestimator.placement.problem import Names, Problem
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place
from gkestimator.reporting.text import plural
from gkestimator.tables import REQUIREMENTS, Requirement, TableSource, listed, rows_in, table_label

_FEW_MODELS = 16
_FEW_GPUS = 64
_HELD_PCT = 99.0


class UnservableError(UsageError):
    """Say which models no policy could serve on this cluster. ``reasons`` by model, each one line."""

    def __init__(self, workload: str, reasons: Mapping[str, str]) -> None:
        super().__init__(f"{workload}: " + "; ".join(f"{model}: {why}" for model, why in reasons.items()))
        self.workload = workload
        self.reasons = dict(reasons)

    @property
    def lines(self) -> Names:
        """Return one line for each model."""
        return tuple(f"{self.workload}: {model}: {why}" for model, why in self.reasons.items())


@frozen
class Schedule:
    """Hold ``plan``, the ``problem`` it answers, and why models could never be served (``unservable``, by
    name)."""

    plan: PlacementPlan
    problem: Problem
    unservable: Mapping[str, str]


def schedule(
    tables: TableSource | Sequence[TableSource],
    workload: Path | str | Mapping[str, Any],
    cluster: Path | str | Mapping[str, Any],
    *,
    policy: str = "gkest",
    objective: str | None = None,
    creq: str | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    batching: str = "early",
    runtime: str | None = None,
    dtype: str | None = None,
    dims: str | None = None,
    gpu_specs: Sequence[Path | str] = (),
    allow_unserved: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Schedule:
    """Place the models of the ``workload`` on the ``cluster``'s GPUs (YAML files, or mappings of their fields) by the
    rows of ``tables`` (requirement tables: CSV, JSON, Parquet, DataFrames).

    ``creq`` None: the policy's own. ``objective`` None: cost for an elastic cluster, goodput for a fixed one.
    ``options`` go to the policy's constructor. ``runtime``, ``dtype`` and ``dims`` keep the rows that name
    them. ``batching``: the law by which the plan's servers form batches, ``early`` or ``late``. A model that
    could never be served here raises UnservableError, or with ``allow_unserved`` stands in the plan's
    ``unserved``. ``progress`` is called with (what comes next, steps done, steps). Raises DocumentError and
    TableError for what is wrong with a file, UsageError for the rest."""
    # The policy before the table: its name and options are wrong in no time, a large table is read in seconds.
    asked = read_workload(workload)
    chosen = make_policy(policy, **({} if asked.languages else options or {}))
    there = read_cluster(cluster, gpu_specs=gpu_specs)
    sources = listed(tables)
    if not sources:
        raise UsageError("no requirement table is named: expected at least one")
    if asked.languages:
        if (policy, creq, dims, batching) != ("gkest", None, None, "early"):
            raise UsageError(
                "policy, creq, dims and batching have no use for language models: expected none of them"
            )
        plan = schedule_languages(
            sources,
            asked,
            there,
            objective=objective,
            seed=seed,
            runtime=runtime,
            dtype=dtype,
            **(options or {}),
        )
        problem = Problem(models=(), specs={}, prices={}, workload=asked)
        return Schedule(plan=plan, problem=problem, unservable={})
    names = frozenset(asked.names())
    rows: list[Requirement] = []
    steps = len(sources) + 2
    tell = progress or (lambda stage, done, total: None)
    for number, table in enumerate(sources):
        tell(f"reading {Path(table_label(table)).name}", number, steps)
        rows += rows_in(table, REQUIREMENTS, where={"model": names})
    tell("matching rows and models", len(sources), steps)
    problem = build_problem(
        rows,
        asked,
        there,
        objective=objective,
        creq=creq or type(chosen).creq,
        seed=seed,
        runtime=runtime,
        dtype=dtype,
        dims=dims,
        table=", ".join(map(table_label, sources)),
        batching=batching,
    )
    unservable = impossible(problem)
    if unservable and not allow_unserved:
        label = "workload" if isinstance(workload, Mapping) else str(workload)
        raise UnservableError(label, unservable)
    tell(f"placing by {policy}", len(sources) + 1, steps)
    plan = place(chosen, problem)
    cheaper = _cheaper_note(chosen, problem, plan)
    if cheaper is not None:
        plan = replace(plan, notes=(*plan.notes, cheaper))
    return Schedule(plan=plan, problem=problem, unservable=unservable)


def _cheaper_note(policy: Policy, problem: Problem, plan: PlacementPlan) -> str | None:
    """Return how many GPUs fewer would hold every objective; None where as many are needed, or it is not known.

    The policy places once more, for the least cost. Larger problems are left out: that takes longer than the plan."""
    quick = len(problem.models) <= _FEW_MODELS and len(problem.gpus) <= _FEW_GPUS
    if not quick or problem.objective != "goodput" or "cost" not in policy.objectives:
        return None
    if plan.unserved or not _holds_all(plan):
        return None
    cheapest = place(policy, replace(problem, objective="cost"))
    fewer = cheapest.totals.gpus_used
    if cheapest.unserved or not _holds_all(cheapest) or fewer >= plan.totals.gpus_used:
        return None
    return (
        f"every objective holds on {plural(fewer, 'GPU')} too ({_HELD_PCT:g} % of each model's requests expected on "
        "time): objective cost"
    )


def _holds_all(plan: PlacementPlan) -> bool:
    """Return whether nearly every request of every model is expected on time."""
    return all(m.on_time_pct is not None and m.on_time_pct >= _HELD_PCT for m in plan.models)
