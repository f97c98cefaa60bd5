"""Hold the options of a simulation that stands beside a server's log."""

from __future__ import annotations

from dataclasses import dataclass

from gkestimator.core.options import Value, variant
from gkestimator.documents import PlacementPlan
from gkestimator.estimation.request import OnePath, Paths
from gkestimator.simulation.options import OPTION_WORDS, Options, batching_for
from gkestimator.simulation.run_options import SimulateOptions


@dataclass(kw_only=True)
class AgainstOptions:
    """Hold how the requests of a log are served in simulation; ``gkest compare --against`` offers all of it."""

    network: Value[str] = variant(SimulateOptions, "network")
    drop: Value[str] = variant(SimulateOptions, "drop")
    routing: Value[str] = variant(SimulateOptions, "routing")
    batching: Value[str] = variant(SimulateOptions, "batching")
    interference: Value[str] = variant(SimulateOptions, "interference")
    coefficients: OnePath = variant(SimulateOptions, "coefficients")
    copy: Value[str] = variant(SimulateOptions, "copy")
    service: Value[str] = variant(SimulateOptions, "service")
    max_wait_ms: Value[float | None] = variant(SimulateOptions, "max_wait_ms")
    admission: Value[str] = variant(SimulateOptions, "admission", default="none")
    warmup_s: Value[float] = variant(
        SimulateOptions, "warmup_s", help="Seconds not compared, of the log and of the simulation."
    )
    gpu_specs: Paths = variant(SimulateOptions, "gpu_specs")
    seed: Value[int] = variant(SimulateOptions, "seed")

    def engine_options(self, plan: PlacementPlan, duration_ms: float) -> Options:
        """Return what the simulator is told, for arrivals of ``duration_ms``; every request is kept and counted."""
        words = {name: getattr(self, name) for name in OPTION_WORDS}
        words["batching"] = batching_for(self.batching, plan)
        return Options(
            duration_ms=duration_ms,
            window_ms=max(1e3, duration_ms / 60),
            keep_requests=True,
            seed=self.seed,
            **words,
        )
