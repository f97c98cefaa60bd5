"""The simulator: what the engine offers, whichever way it runs. Contract; the engine's owner fills it."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import Counts, Result
from gkestimator.simulation.system import SimGpu, SimReplica, System

__all__ = ["Simulator", "simulate"]


def simulate(system: System, arrivals: Arrivals, options: Options) -> Result:
    """``system`` under ``arrivals``."""
    simulator = Simulator(system, options)
    for chunk in arrivals.chunks(options.duration_ms):
        simulator.advance(chunk)
    return simulator.finish()


class Simulator:
    """One run that goes on chunk by chunk; replicas may be added and retired between chunks."""

    def __init__(self, system: System, options: Options) -> None:
        self.now_ms = 0.0
        raise NotImplementedError

    def advance(self, chunk: Chunk) -> None:
        """Simulate up to ``chunk.end_ms``."""
        raise NotImplementedError

    def add(
        self,
        replicas: Sequence[SimReplica],
        available_ms: Sequence[float],
        *,
        gpus: Sequence[SimGpu] = (),
    ) -> list[int]:
        """Add ``gpus``, then ``replicas``, which take batches and may start to serve from ``available_ms`` on; their
        indices. The router chooses a replica that is not available yet only where its model has no other."""
        raise NotImplementedError

    def retire(self, replicas: Sequence[int]) -> None:
        """From now on no batch is opened for these; what they were given they serve to the end."""
        raise NotImplementedError

    def outstanding(self) -> Counts:
        """Requests that each replica (in order of index) was given and whose service has not ended by ``now_ms``:
        those of the batch under construction for it, on the network, being copied, queued or running."""
        raise NotImplementedError

    def set_admission(self, source: int, admit: float) -> None:
        """From now on requests of ``source`` are let in with chance ``admit``."""
        raise NotImplementedError

    def progress(self) -> Result:
        """What was counted so far (arrays copied)."""
        raise NotImplementedError

    def finish(self) -> Result:
        """Serve all that came; what was counted."""
        raise NotImplementedError
