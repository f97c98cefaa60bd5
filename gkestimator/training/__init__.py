"""Training: measurements in, an estimator bundle out.

Needs the extra ``train`` (scikit-learn, SciPy, XGBoost, LightGBM, pyarrow); predicting needs none of them.
"""

from gkestimator.training.train import ModelReport, TrainReport, train

__all__ = ["ModelReport", "TrainReport", "train"]
