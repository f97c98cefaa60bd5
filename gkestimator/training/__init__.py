"""Train: measurements in, an estimator bundle out.

Needs the extra ``train`` (scikit-learn, SciPy, XGBoost, LightGBM, pyarrow); predicting needs none of them.
"""

from gkestimator.training.recipe import FittedBundle, ModelReport, fit_bundle
from gkestimator.training.train import TrainReport, measured_rows, train

__all__ = ["FittedBundle", "ModelReport", "TrainReport", "fit_bundle", "measured_rows", "train"]
