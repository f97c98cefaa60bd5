"""Which models are alike enough to be merged: DBSCAN on the graph edit distance of their operator graphs."""
