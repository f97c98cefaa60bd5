"""The nodes of a super-operator: one product by the shared block, residual products, repositioning, sums."""
