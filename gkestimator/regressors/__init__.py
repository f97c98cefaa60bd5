"""Fitted regressors, predict only: arrays and NumPy, no library that fits.

Each member of the stack is one file. They predict the logarithm of measured over roofline time.
"""

from gkestimator.regressors.kernel_ridge import KernelRidge
from gkestimator.regressors.linear import Linear
from gkestimator.regressors.stack import MEMBERS, Stack, disagreement
from gkestimator.regressors.trees import Forest
from gkestimator.regressors.uncertainty import Uncertainty, uncertainty_columns

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
