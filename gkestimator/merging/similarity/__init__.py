"""Find the largest block that two weights have in common, at any offset."""

from __future__ import annotations

from gkestimator.merging.similarity.equality import equal_values
from gkestimator.merging.similarity.search import similar_pairs

__all__ = ["equal_values", "similar_pairs"]
