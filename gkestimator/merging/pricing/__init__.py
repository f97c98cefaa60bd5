"""What the estimator says that parts of graphs cost, before and after merging."""
