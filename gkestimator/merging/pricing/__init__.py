"""What the estimator says that parts of graphs cost, before and after merging."""

from __future__ import annotations

from gkestimator.merging.pricing.deciding import Build, decide
from gkestimator.merging.pricing.decision import Built, Confidence, MergeDecision, PricedRegion, PricedSuper
from gkestimator.merging.pricing.price import Price, Priced
from gkestimator.merging.pricing.pricer import Pricer

__all__ = [
    "Build",
    "Built",
    "Confidence",
    "MergeDecision",
    "Price",
    "Priced",
    "PricedRegion",
    "PricedSuper",
    "Pricer",
    "decide",
]
