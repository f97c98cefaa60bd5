"""The serving experiments of the thesis (P. Elvinger, master thesis 505, ETH Zurich 2024, section 6.3) on its table A.1.

The thesis' text names six V100, five vision models at 500 requests a second each, an SLO of 200 ms, and efficientnet_b7 as
two replicas at batch 8 or at batch 64. Which the other four models are, and where they run, is our choice, a natural one: each
of the others alone on one of the four GPUs left, at the smallest batch of the table that alone sustains 1.2 times its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from gkestimator.documents import PlacementPlan
from gkestimator.documents.cluster import Cluster, GpuCount
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.policy import Placed, Placement, Policy
from gkestimator.placement.problem import Problem
from gkestimator.placement.run import place
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.options import Options
from gkestimator.simulation.running import Simulated, simulate_plan
from gkestimator.tables import REQUIREMENTS, Requirement, read_table
from gkestimator.tables.candidate import Candidate

V100 = "V100-SXM2-16GB"
STUDIED = "efficientnet_b7"
# The vision models of table A.1 beside it; what is said of the first four holds of any four (benchmarks/papers/thesis_serving.py).
OTHERS = ("densenet121", "inception_v3", "mobilenet_v2", "resnet50", "resnext50_32x4d", "alexnet", "vgg19")
RATE_RPS, SLO_MS, TIMEOUT_MS = 500.0, 200.0, 100.0
_MARGIN = 1.2


@cache
def table_a1() -> tuple[Requirement, ...]:
    """Table A.1, measured."""
    return read_table(Path(str(files("gkestimator.datasets"))) / "published" / "ethz_v100.csv", REQUIREMENTS)


class ByHand(Policy):
    """Places what it is told: (GPU number, model, batch size)."""

    name = "by-hand"
    summary = "as told"
    needs = ()

    def __init__(self, told: Sequence[tuple[int, str, int]]) -> None:
        self._told = told

    def place(self, problem: Problem) -> Placement:
        """As told."""
        return Placement(
            placed=tuple(
                Placed(gpu=problem.gpus[g], model=model, candidate=candidate(problem, model, batch))
                for g, model, batch in self._told
            )
        )


def candidate(problem: Problem, model: str, batch: int) -> Candidate:
    """The candidate of ``model`` at ``batch``."""
    return next(c for c in problem.by_name[model].candidates if c.batch_size == batch)


def planned(told: Sequence[tuple[int, str, int]], rates: dict[str, float], *, gpus: int = 6) -> PlacementPlan:
    """The plan of ``told`` for models at ``rates`` (requests a second), all within SLO_MS."""
    workload = Workload(models=tuple(ModelLoad(name=m, rate_rps=r, slo_ms=SLO_MS) for m, r in rates.items()))
    cluster = Cluster(gpus=(GpuCount(spec=gpu_catalogue().spec(V100), count=gpus),))
    return place(ByHand(told), build_problem(table_a1(), workload, cluster))


def sustaining(model: str, rate: float) -> int:
    """The smallest batch of the table at which one replica alone does ``rate``; the fastest within the SLO where none does."""
    rows = sorted((r.batch_size or 0, r.latency_ms or 0.0) for r in table_a1() if r.model == model)
    rows = [(b, t) for b, t in rows if t and t <= SLO_MS]
    return next((b for b, t in rows if 1e3 * b / t >= rate), max(rows, key=lambda row: row[0] / row[1])[0])


def six_gpus(batch: int, others: Sequence[str] = OTHERS[:4], *, shared: bool = False) -> PlacementPlan:
    """Two replicas of efficientnet_b7 at ``batch`` and one of each of ``others``: on a GPU of its own, or with ``shared``
    two of them beside efficientnet_b7 (four GPUs are used then)."""
    alone = [(g, m, sustaining(m, _MARGIN * RATE_RPS)) for g, m in enumerate(others, 2)]
    if shared:
        alone = [(g % 4, m, b) for g, m, b in alone]
    told = [(0, STUDIED, batch), (1, STUDIED, batch), *alone]
    return planned(told, dict.fromkeys((STUDIED, *others), RATE_RPS))


def served(
    plan: PlacementPlan,
    *,
    seed: int = 0,
    seconds: float = 60.0,
    interference: str = "none",
    service: str = "deterministic",
    timeout_ms: float = TIMEOUT_MS,
    keep: bool = False,
) -> Simulated:
    """``plan`` under Poisson arrivals at the plan's rates, every request let in, the first tenth not counted."""
    models = plan.workload.models
    arrivals = make_arrivals("poisson", [m.rate_rps for m in models], [m.name for m in models], seed=seed)
    options = Options(
        duration_ms=1e3 * seconds, warmup_ms=100 * seconds, seed=seed, service=service, interference=interference, keep_requests=keep
    )  # fmt: skip
    return simulate_plan(plan, table_a1(), arrivals, options, max_wait_ms=timeout_ms, admission="none")
