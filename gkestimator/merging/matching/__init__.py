"""Which operators of two models are merged: candidates, starts, the best assignment, no cycles."""
