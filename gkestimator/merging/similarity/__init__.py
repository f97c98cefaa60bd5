"""The largest block that two weights have in common, at any offset."""

from __future__ import annotations

from gkestimator.merging.similarity.equality import equal_values
from gkestimator.merging.similarity.pairs import similar_pairs
from gkestimator.merging.similarity.search import largest_common_rectangle

__all__ = ["equal_values", "largest_common_rectangle", "similar_pairs"]
