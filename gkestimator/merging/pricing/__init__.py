"""Ask the estimator what parts of graphs cost, before and after merging."""

from __future__ import annotations

from gkestimator.merging.pricing.deciding import (
    Build,
    Built,
    Confidence,
    MergeDecision,
    PricedRegion,
    PricedSuper,
    decide,
)
from gkestimator.merging.pricing.pricer import Price, Priced, Pricer

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
