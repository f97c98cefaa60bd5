"""Fitted regressors, predict only: arrays and NumPy, no library that fits.

Each member of the stack is one file. They predict the logarithm of measured over roofline time.
"""

from gkestimator.kernel_models.regressors.stack import MEMBERS, Stack, disagreement
from gkestimator.kernel_models.regressors.standardised import KernelRidge, Linear
from gkestimator.kernel_models.regressors.trees import Forest
from gkestimator.kernel_models.regressors.uncertainty import Uncertainty, uncertainty_columns

__all__ = [
    "MEMBERS",
    "Forest",
    "KernelRidge",
    "Linear",
    "Stack",
    "Uncertainty",
    "disagreement",
    "uncertainty_columns",
]
