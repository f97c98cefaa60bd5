"""No interference: every batch runs as if it were alone on its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.interference.base import FEATURES, TERMS, Interference
from gkestimator.interference.laws import NONE
from gkestimator.tables import Requirement


class NoInterference(Interference):
    """Let no batch slow another: factor 1, always."""

    name = "none"
    code = NONE

    @classmethod
    def made(cls, coefficients: Path | None, gpus: Sequence[GpuSpec]) -> Self:
        """Return the model. Raises UsageError: coefficients were given."""
        if coefficients is not None:
            raise UsageError(f"{coefficients}: found coefficients for interference none, which takes none")
        return cls()

    def features(self, row: Requirement) -> tuple[float, ...]:
        """Return FEATURES zeros."""
        return (0.0,) * FEATURES

    def terms(self, gpu: GpuSpec) -> tuple[float, ...]:
        """Return TERMS zeros."""
        return (0.0,) * TERMS
