"""No interference: every batch runs as if it were alone on its GPU."""

from __future__ import annotations

from typing import ClassVar

from gkestimator.gpus import GpuSpec
from gkestimator.simulation.interference.base import Interference
from gkestimator.simulation.interference.laws import NONE
from gkestimator.simulation.system import FEATURES, TERMS
from gkestimator.tables import Requirement

__all__ = ["NoInterference"]


class NoInterference(Interference):
    """Factor 1, always."""

    name: ClassVar[str] = "none"
    code: ClassVar[int] = NONE

    def features(self, row: Requirement) -> tuple[float, ...]:
        """FEATURES zeros."""
        return (0.0,) * FEATURES

    def terms(self, gpu: GpuSpec) -> tuple[float, ...]:
        """TERMS zeros."""
        return (0.0,) * TERMS
