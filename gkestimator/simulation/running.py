"""From a plan, rows and arrivals to what a simulation found: what ``gkest simulate`` does, for programs too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gkestimator.documents import PlacementPlan
from gkestimator.documents.simulation import SimulationReport
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import System
from gkestimator.tables import Requirement

__all__ = ["Simulated", "simulate_files", "simulate_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """``report`` is the document; ``system`` and ``result`` are what it was made of."""

    report: SimulationReport
    system: System
    result: Result


def simulate_plan(
    plan: PlacementPlan,
    rows: Iterable[Requirement],
    arrivals: Arrivals,
    options: Options,
    *,
    arrivals_name: str = "arrivals",
    rate_scale: float = 1.0,
    coefficients: Path | str | None = None,
    network: Path | str | None = None,
    max_wait_ms: float | None = None,
    admission: str = "plan",
    gpu_specs: Sequence[Path | str] = (),
    table: str = "table",
    notes: Sequence[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Simulated:
    """Serve ``plan`` by ``rows`` under ``arrivals`` (streams in the order of the plan's workload: models, then
    applications; already at the scaled rate).

    ``options.interference`` names the interference model, ``coefficients`` its file. ``arrivals_name`` and
    ``rate_scale`` are written into the report's settings alone. For the rest see
    :func:`gkestimator.simulation.building.build_system`. Raises its errors.
    """
    raise NotImplementedError


def simulate_files() -> Simulated:
    """For the command; follows."""
    raise NotImplementedError
