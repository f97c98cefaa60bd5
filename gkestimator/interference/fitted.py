"""The law that a fit to measured pairs chose among several forms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gkestimator.core.errors import UsageError
from gkestimator.documents.interference import FORMS, FittedWeights, read_interference
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.interference.base import TERMS, Interference, known, padded
from gkestimator.interference.contention import Contention
from gkestimator.interference.laws import FITTED
from gkestimator.tables import Requirement

# What fits call it.
FITTED_LAW = "fitted"


def fitted_terms(weights: FittedWeights) -> tuple[float, ...]:
    """Return TERMS numbers: the form's number, below 0 where the sum is of the logarithm, then the weights."""
    form = float(FORMS[weights.form])
    if weights.logarithm:
        form = -form
    return padded(TERMS, form, *weights.numbers)


class FittedLaw(Interference):
    """Slow by the form, and the weights, that predicted models left out of the fit best; a constant where none
    predicted better (:mod:`gkestimator.interference.regression`)."""

    name = "fitted"
    code = FITTED
    needs = Contention.needs
    optional = Contention.optional

    def __init__(self, weights: FittedWeights) -> None:
        self._weights = weights
        self._demands = Contention()

    @classmethod
    def made(cls, coefficients: Path | None, gpus: Sequence[GpuSpec]) -> Self:
        """Return the law in a file that ``gkest train --interference`` wrote. Raises UsageError: there is none, or
        it was written before this law."""
        if coefficients is None:
            raise UsageError(
                "interference fitted has no coefficients of its own: give a file that was fitted to measured pairs"
            )
        file = read_interference(coefficients)
        if file.fitted is None:
            raise UsageError(
                f"{coefficients}: found no field 'fitted', expected one: fit it to its pairs again"
            )
        law = cls(file.fitted)
        elsewhere = file.fit.elsewhere(spec.name for spec in gpus)
        law.notes = (*elsewhere, *file.fit.against_constant(FITTED_LAW))
        return law

    def features(self, row: Requirement) -> tuple[float, ...]:
        """Return contention's features. Raises UsageError: SM utilisation is null."""
        known(self, row, "sm_util_mean_pct")
        return self._demands.features(row)

    def terms(self, gpu: GpuSpec) -> tuple[float, ...]:
        """Return the form and its weights."""
        return fitted_terms(self._weights)
