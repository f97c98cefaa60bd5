"""Tell which operators of two models are merged: candidates, starts, the best assignment, no cycles."""

from __future__ import annotations

from gkestimator.merging.matching.assignment import best_assignment
from gkestimator.merging.matching.candidates import candidates
from gkestimator.merging.matching.growing import Matching, RefusedOperators, match_all

__all__ = ["Matching", "RefusedOperators", "best_assignment", "candidates", "match_all"]
