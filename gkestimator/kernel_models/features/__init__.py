"""Turn kernels into the numbers that regressors see."""
