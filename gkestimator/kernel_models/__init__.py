"""Model single kernels: roofline, launch geometry, occupancy, features, regressors."""
