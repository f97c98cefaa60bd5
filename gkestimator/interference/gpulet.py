"""gpulet's law: linear in the use of L2 and DRAM bandwidth, its own and its neighbours'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gkestimator.documents.interference import fitted_file
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.interference.base import FEATURES, TERMS, Interference, alone_candidate, known, padded
from gkestimator.interference.gpulet_law import DERIVED, GpuletCoefficients, read_coefficients
from gkestimator.interference.laws import GPULET
from gkestimator.tables import Requirement

# What fits call its two forms.
DERIVED_LAW = "gpulet, derived"
FITTED_LAW = "gpulet, fitted"
_DERIVED = ("gpulet's coefficients are the derived ones: a fit was no better on models left out",)


class Gpulet(Interference):
    """Slow by a linear law: max(1, constant + l2_own l2 + l2_other l2' + dram_own dram + dram_other dram'), '
    of the neighbour.

    Source: Choi et al., USENIX ATC 2022; the terms and the default coefficients are those of
    :mod:`gkestimator.interference.gpulet_law`. The paper splits a GPU in two at most; with more
    neighbours their terms are summed (our reading).
    """

    name = "gpulet"
    code = GPULET
    needs = ("l2_util_mean_pct", "dram_util_mean_pct")

    def __init__(self, coefficients: GpuletCoefficients = DERIVED) -> None:
        self._coefficients = coefficients

    @classmethod
    def made(cls, coefficients: Path | None, gpus: Sequence[GpuSpec]) -> Self:
        """Return the law; its file is the policy's, or one that ``gkest train --interference`` wrote."""
        if coefficients is None:
            return cls()
        law = cls(read_coefficients(coefficients))
        fitted = fitted_file(coefficients)
        if fitted is not None:
            if fitted.gpulet.fitted:
                elsewhere = fitted.fit.elsewhere(spec.name for spec in gpus)
                law.notes = (*elsewhere, *fitted.fit.against_constant(FITTED_LAW))
            else:
                law.notes = (*_DERIVED, *fitted.fit.against_constant(DERIVED_LAW))
        return law

    def features(self, row: Requirement) -> tuple[float, ...]:
        """Return what it adds to its own slowdown, to another's; zeros. Raises UsageError: a column that a
        coefficient multiplies is null."""
        for column in self._coefficients.columns:
            known(self, row, column)
        pressure = self._coefficients.pressure([alone_candidate(row)])
        return padded(FEATURES, pressure.own, pressure.other)

    def terms(self, gpu: GpuSpec) -> tuple[float, ...]:
        """Return the constant; zeros."""
        return padded(TERMS, self._coefficients.constant)
