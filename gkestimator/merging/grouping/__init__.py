"""Tell which models are of one architecture: graph edit distance of their operator graphs, and DBSCAN on it."""

from __future__ import annotations

from gkestimator.merging.grouping.edit_distance import (
    EditDistance,
    Grouping,
    graph_edit_distance,
    group_models,
)

__all__ = ["EditDistance", "Grouping", "graph_edit_distance", "group_models"]
