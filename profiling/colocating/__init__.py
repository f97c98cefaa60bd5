"""Pairs of whole models side by side on one GPU: how much each slows the other."""

from gkestimator.profiling.colocating.jobs import PairOptions, PairsReport
from gkestimator.profiling.colocating.means import Means
from gkestimator.profiling.colocating.run import measure_pairs

__all__ = ["Means", "PairOptions", "PairsReport", "measure_pairs"]
