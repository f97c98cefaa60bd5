"""Choose a GPU type for one model: how many of each would carry the load within the objective, and what they cost.

Every GPU type gets a plan of its own by the default policy, as if that type alone could be rented: batches, waiting and
sharing of a GPU are counted as in any plan. A second plan takes every batch at the slow end of its interval; where that
holds too, the choice does not rest on the estimate being right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan
from gkestimator.documents.cluster import Cluster, ElasticGpu
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.placement.building import build_problem
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place
from gkestimator.tables import Requirement

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_POLICY = "gkest"
_ON_TIME = 0.99
"""Share of the requests that must be expected on time: arrivals are random, so never all of them are."""
_ANY_PRICE = 1.0  # what a GPU without a price is planned with: it counts GPUs alone


@frozen
class GpuChoice:
    """Hold what one GPU type would need. Null is not known.

    ``gpus`` and ``cost_per_hour`` (USD): of the estimated times; ``careful_gpus`` and
    ``careful_cost_per_hour``: with every batch at the slow end of its interval; both null where no number of
    GPUs holds. ``batch_size``: of the replica that serves most. ``slowest_ms``: longest wait and batch
    together, of the estimated times; ``margin_pct``: what that leaves of the objective. ``coverage_pct``: how
    much of the time was predicted inside the trained range. ``reason``: why it holds not, or not for sure.
    """

    gpu: str
    price_per_hour: float | None
    price_date: str | None
    gpus: int | None
    careful_gpus: int | None
    cost_per_hour: float | None
    careful_cost_per_hour: float | None
    batch_size: int | None
    slowest_ms: float | None
    margin_pct: float | None
    coverage_pct: float | None
    reason: str

    @property
    def rank(self) -> tuple[float, ...]:
        """Return what choices are sorted by: for sure before likely before never; then cost, GPUs, and margin."""
        sure = 0.0 if self.careful_gpus is not None else 1.0
        holds = 0.0 if self.gpus is not None else 1.0
        cost = self.careful_cost_per_hour if self.careful_gpus is not None else self.cost_per_hour
        count = self.careful_gpus or self.gpus or math.inf
        unpriced = 1.0 if cost is None else 0.0
        return (holds, unpriced, sure, cost or 0.0, float(count), -(self.margin_pct or 0.0))


def choose(
    rows: Iterable[Requirement],
    gpus: Sequence[GpuSpec],
    *,
    rate_rps: float,
    slo_ms: float,
    reasons: Mapping[str, str] | None = None,
) -> tuple[GpuChoice, ...]:
    """Return a choice for each of ``gpus``, the best first. ``rows``: of one model, at several batch sizes on each GPU;
    ``reasons``: why GPUs, by name, cannot be estimated: they come last.

    Raises UsageError for rows of several models, or none.
    """
    by_gpu: dict[str, list[Requirement]] = {}
    models = set()
    for row in rows:
        models.add(row.model)
        by_gpu.setdefault(row.gpu, []).append(row)
    if len(models) != 1:
        raise UsageError(f"found rows of {len(models)} models, expected one model")
    load = ModelLoad(name=models.pop(), rate_rps=rate_rps, slo_ms=slo_ms)
    refused = dict(reasons or {})
    choices = [_choice(by_gpu.get(gpu.name, []), gpu, load) for gpu in gpus if gpu.name not in refused]
    choices.sort(key=lambda choice: (choice.rank, choice.gpu))
    return (*choices, *(_never(name, None, None, reason) for name, reason in refused.items()))


def _choice(rows: Sequence[Requirement], gpu: GpuSpec, load: ModelLoad) -> GpuChoice:
    if any(row.runs_on_cpu_alone for row in rows):
        return _never(gpu.name, gpu.price_per_hour_usd, gpu.price_date, "the model runs on the CPU alone")
    plan, reason = _planned([_taking(row, row.latency_ms) for row in rows], gpu, load)
    careful, doubt = _planned([_taking(row, row.latency_high_ms) for row in rows], gpu, load)
    if plan is None:
        return _never(gpu.name, gpu.price_per_hour_usd, gpu.price_date, reason)
    replicas = [replica for placed in plan.gpus for replica in placed.replicas]
    main = max(replicas, key=lambda replica: replica.goodput_rps)
    slowest = max((replica.max_wait_ms or 0.0) + replica.latency_ms for replica in replicas)
    coverage = [row.coverage_pct for row in rows if row.batch_size == main.batch_size]
    count = plan.totals.gpus_used
    sure = None
    if careful is not None:
        sure = careful.totals.gpus_used
    return GpuChoice(
        gpu=gpu.name,
        price_per_hour=gpu.price_per_hour_usd,
        price_date=gpu.price_date,
        gpus=count,
        careful_gpus=sure,
        cost_per_hour=_cost(gpu, count),
        careful_cost_per_hour=_cost(gpu, sure),
        batch_size=main.batch_size,
        slowest_ms=slowest,
        margin_pct=100 * (1 - slowest / load.slo_ms),
        coverage_pct=coverage[0] if coverage else None,
        reason="" if careful is not None else f"not at the slow end of the interval: {doubt}",
    )


def _never(gpu: str, price: float | None, date: str | None, reason: str) -> GpuChoice:
    return GpuChoice(
        gpu=gpu,
        price_per_hour=price,
        price_date=date,
        gpus=None,
        careful_gpus=None,
        cost_per_hour=None,
        careful_cost_per_hour=None,
        batch_size=None,
        slowest_ms=None,
        margin_pct=None,
        coverage_pct=None,
        reason=reason,
    )


def _cost(gpu: GpuSpec, count: int | None) -> float | None:
    if gpu.price_per_hour_usd is None or count is None:
        return None
    return gpu.price_per_hour_usd * count


def _taking(row: Requirement, latency_ms: float | None) -> Requirement:
    """Return ``row`` as if its batch took just ``latency_ms``, without any doubt; None: no time is known."""
    throughput = None
    if latency_ms and row.batch_size:
        throughput = row.batch_size / latency_ms * 1e3
    return replace(
        row,
        latency_ms=latency_ms,
        latency_low_ms=latency_ms,
        latency_high_ms=latency_ms,
        throughput_rps=throughput,
    )


def _planned(rows: Sequence[Requirement], gpu: GpuSpec, load: ModelLoad) -> tuple[PlacementPlan | None, str]:
    """Return the cheapest plan on ``gpu`` alone that holds; else None and why."""
    if not any(row.latency_ms is not None for row in rows):
        return None, "no estimate with a known time"
    price = gpu.price_per_hour_usd or _ANY_PRICE
    cluster = Cluster(elastic=(ElasticGpu(spec=gpu, price_per_hour=price),))
    try:
        problem = build_problem(rows, Workload(models=(load,)), cluster, objective="cost")
        plan = place(make_policy(_POLICY), problem)
    except GkestimatorError as e:
        return None, str(e)
    if plan.unserved:
        return None, plan.unserved[0].reason
    expected = plan.totals.expected_goodput_rps
    if expected is not None and expected < _ON_TIME * load.rate_rps:
        return None, f"{expected:,.4g} of {load.rate_rps:,.4g} requests a second would be on time"
    return plan, ""
