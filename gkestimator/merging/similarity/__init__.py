"""Find the largest block that two weights have in common, at any offset."""

from __future__ import annotations

from gkestimator.merging.similarity.equality import equal_values
from gkestimator.merging.similarity.search import largest_common_rectangle, similar_pairs

__all__ = ["equal_values", "largest_common_rectangle", "similar_pairs"]
